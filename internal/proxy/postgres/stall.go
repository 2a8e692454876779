package postgres

import (
	"context"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is what happens to shared reads behind one that does not answer: it
// waits for a lock, or is slow for its parameters though it is cheap as a rule.
// What was sent behind it cannot be unsent, but need not be waited for:
//
//	before   shared  A(blocked) B C D
//	after    apart   A(blocked) b c d      its backend leaves the pipelines
//	         shared  B C D                 on another; answered from there
//
// The reads have no effects, so that the server runs b, c and d once more costs
// its time and nothing else; their answers go to nobody. A keeps its backend
// while the pool has a slot for it (apart.go). Otherwise it is cancelled, and runs
// again when there is one.

const (
	// minPatience is how long a shared read may take before those behind it are
	// moved. It is longer where reads take longer, up to maxPatience: on a machine
	// without a free processor everything is slow, and moving does not help.
	minPatience = 5 * time.Millisecond
	maxPatience = 50 * time.Millisecond
	// turnCheck is how often the turns of what runs apart are looked at.
	turnCheck = 10 * time.Millisecond
	// stallMark is how long a shape stays out of the pipelines after one of it was
	// last seen to be held up.
	stallMark = 50 * time.Millisecond
	// cancelAgain is the least time between two cancel requests of weir's own for
	// one backend.
	cancelAgain = 100 * time.Millisecond
	// maxMoves bounds the reads that are moved without answers in between, so that
	// an overloaded server is not loaded with everything twice.
	maxMoves = 512
)

// A stallWatch looks after the shared reads and what runs apart, for as long as
// there are any.
type stallWatch struct{ p *pool }

// watch enters the pool's watch.
func (p *pool) watch() {
	if !p.apart.watched {
		p.apart.watched = true
		p.l.Agenda.At(stallWatch{p})
	}
}

func (b *backend) headSince() time.Duration { return max(b.head().sentAt, b.answered) }

func (p *pool) patience() time.Duration { return min(max(8*p.readTime, minPatience), maxPatience) }

// stalledAt is when the head of a shared backend counts as held up.
func (p *pool) stalledAt(b *backend) time.Duration {
	return max(b.headSince()+p.patience(), b.notBefore)
}

func (w stallWatch) Deadline() (at time.Duration, ok bool) {
	p := w.p
	if p.apart.active() || len(p.excl)+len(p.reads) > 0 {
		at, ok = p.apart.check, true
	}
	for _, b := range p.shared {
		if b.depth() == 0 {
			continue
		}
		if t := p.stalledAt(b); !ok || t < at {
			at, ok = t, true
		}
	}
	return at, ok
}

func (w stallWatch) Due() {
	p := w.p
	p.apart.watched = false
	for i := 0; i < len(p.shared); {
		b := p.shared[i]
		if b.depth() > 0 && p.stalledAt(b) <= p.l.Now && p.stalled(b) {
			continue // it has left the list
		}
		i++
	}
	if p.apart.check <= p.l.Now && (p.apart.active() || len(p.excl)+len(p.reads) > 0) {
		p.apart.check = p.l.Now + turnCheck
		p.checkTurns()
	}
	if _, busy := w.Deadline(); busy {
		p.watch()
	}
}

// stalled takes a backend whose head is held up out of the pipelines. It reports
// false if too many reads were moved lately.
func (p *pool) stalled(b *backend) bool {
	if b.cancels > 0 || b.held {
		b.notBefore = p.l.Now + minPatience
		return false
	}
	if n := b.depth() - 1; n > p.moves() {
		b.notBefore = p.l.Now + minPatience
		return false
	} else if n > 0 {
		p.moved += n
		p.st.Moved += uint64(n)
	}
	u := b.head()
	p.unshare(b)
	p.st.Stalls++
	if u.kind != unitClient || u.c == nil {
		return true
	}
	if u.shape != nil {
		u.shape.Stall(p.l.Now + stallMark)
	}
	if u.slot == slotNone {
		p.hold(u, slotFresh)
	}
	if p.apart.used > p.slots() {
		b.preempt(u)
	}
	return true
}

// moves is how many reads may be moved now: the budget comes back with time.
func (p *pool) moves() int {
	back := int((p.l.Now - p.movedAt) / (2 * time.Millisecond))
	if back > 0 {
		p.moved, p.movedAt = max(0, p.moved-back), p.l.Now
	}
	return maxMoves - p.moved
}

// unshare takes a busy backend out of the pipelines and moves all reads but the
// head elsewhere.
func (p *pool) unshare(b *backend) {
	p.shared = without(p.shared, b)
	b.mode = modeOwn
	waiting := map[*client]bool{}
	if u := b.head(); u.c != nil {
		waiting[u.c] = true
		u.c.reader = nil
	}
	for _, u := range b.queue[b.qHead+1:] {
		if u.kind != unitClient || u.c == nil {
			continue
		}
		if !b.ghosts {
			b.ghosts = true
			p.apart.ghosts++
		}
		n := p.l.moveOut(u)
		c := n.c
		if c.s.Closed {
			continue
		}
		c.reader = nil
		if waiting[c] {
			c.again = append(c.again, n) // after the answer to its earlier ones
			continue
		}
		waiting[c] = true
		p.readAgain(n)
	}
	p.watch()
	p.wake()
}

// readAgain queues a read that was moved.
func (p *pool) readAgain(u *unit) {
	if u.shape != nil && u.shape.Stalled(p.l.Now) {
		p.queueSolo(u)
		return
	}
	p.queueRead(u)
}

// moveOut gives the client of a unit that was sent another in its place. What the
// server answers to the first goes to nobody.
func (l *loop) moveOut(u *unit) *unit {
	n := l.newUnit(unitClient)
	n.c, n.simple, n.read, n.shape, n.effects = u.c, u.simple, u.read, u.shape, u.effects
	n.queuedAt, n.retries, n.tries = u.queuedAt, u.retries, u.tries
	n.raw, u.raw = u.raw, n.raw
	n.ops, u.ops = u.ops, n.ops
	n.parsed, u.parsed = u.parsed, n.parsed
	u.c, u.shape = nil, nil
	return n
}

// nextAgain goes on with the moved reads of a client when the one before them is
// answered.
func (c *client) nextAgain() {
	if len(c.again) == 0 || c.s.Closed {
		return
	}
	u := c.again[0]
	n := copy(c.again, c.again[1:])
	c.again[n] = nil
	c.again = c.again[:n]
	c.p.readAgain(u)
}

// checkTurns ends the turns of reads that have run apart for long while others
// wait, and those of reads whose clients have left.
func (p *pool) checkTurns() {
	probe := false
	for _, b := range p.backends {
		u := b.head()
		if b.mode != modeOwn || u == nil || u.kind != unitClient {
			continue
		}
		took := p.l.Now - b.headSince()
		if u.slot != slotNone && u.read && u.shape != nil && took > p.patience() {
			u.shape.Stall(p.l.Now + stallMark)
		}
		switch {
		case b.cancels > 0:
		case u.c == nil || u.c.s.Closed:
			if (u.read || b.ghosts) && took > minPatience && p.l.Now >= b.cancelAgain {
				b.cancelAgain = p.l.Now + cancelAgain
				b.signal(func() {})
			}
		case !u.read:
		case u.slot == slotNone:
			probe = probe || took > lockPatience
		default:
			if (p.apart.waiting() > 0 || p.apart.used > p.slots()) && took > turn(u.tries) {
				b.preempt(u)
			}
		}
	}
	for _, u := range p.apart.patient {
		// While nobody knows better, their lock is held.
		if u.c != nil && u.read && u.shape != nil && u.shape.Stalled(p.l.Now) {
			u.shape.Stall(p.l.Now + stallMark)
		}
	}
	if probe && p.apart.waiting()+len(p.excl)+len(p.reads) > 0 {
		p.probeLocks()
	}
	if p.apart.waiting() > 0 {
		p.wake()
	}
}

const (
	// lockPatience is how long a read may run alone until weir asks what it waits
	// for, if others wait for a backend; probeEvery is how often it asks.
	lockPatience = 20 * time.Millisecond
	probeEvery   = 50 * time.Millisecond
)

const locksSQL = `SELECT pid FROM pg_catalog.pg_locks WHERE NOT granted`

// probeLocks asks the server which reads that run alone wait for a lock. Those run
// apart from now on, in the slots that there are: if they kept their backends, one
// locked table could occupy the pool. Reads that are only slow are left alone.
func (p *pool) probeLocks() {
	if p.apart.probing || p.l.Now-p.apart.probed < probeEvery {
		return
	}
	var b *backend
	if len(p.free) > 0 {
		b = p.pick(len(p.free) - 1) // whatever its settings
		b.mode = modeOwn
	} else {
		for _, s := range p.shared {
			if s.cancels == 0 && !s.held && !s.doomed && (b == nil || s.depth() < b.depth()) {
				b = s
			}
		}
	}
	p.apart.probed = p.l.Now
	if b == nil {
		p.suspectLock() // there is nobody to ask
		return
	}
	p.apart.probing = true
	b.ask(locksSQL, func(u *unit) {
		p.apart.probing = false
		for _, row := range u.rows {
			if pid, err := strconv.ParseUint(string(row[0]), 10, 32); err == nil {
				p.waitsForLock(uint32(pid))
			}
		}
	})
}

// suspectLock takes the read that has run alone for longest for one that waits for
// a lock: every backend of the pool is taken, perhaps all by such reads.
func (p *pool) suspectLock() {
	var longest *backend
	for _, b := range p.backends {
		u := b.head()
		if b.mode == modeOwn && u != nil && u.kind == unitClient && u.c != nil && u.read && u.slot == slotNone &&
			p.l.Now-b.headSince() > suspectAfter && (longest == nil || b.headSince() < longest.headSince()) {
			longest = b
		}
	}
	if longest != nil {
		p.waitsForLock(longest.pid)
	}
}

// suspectAfter is how long such a read has run at least.
const suspectAfter = 200 * time.Millisecond

// waitsForLock has the read that the backend runs go on apart.
func (p *pool) waitsForLock(pid uint32) {
	for _, b := range p.backends {
		u := b.head()
		if b.pid != pid || b.mode != modeOwn || u == nil || u.kind != unitClient || u.c == nil || !u.read || u.slot != slotNone ||
			p.l.Now-b.headSince() < lockPatience {
			continue
		}
		if u.shape != nil {
			u.shape.Stall(p.l.Now + stallMark)
		}
		p.hold(u, slotFresh)
		if p.apart.used > p.slots() {
			b.preempt(u)
		}
	}
}

// preempt cancels a read that runs apart, unless its answer has begun, so that it
// waits in weir and not on a backend. It runs again when it has a slot. A request
// that arrives before the server has begun with the read does nothing, so it may
// take another.
func (b *backend) preempt(u *unit) {
	now := b.p.l.Now
	if u.wrote || !u.read || b.cancels > 0 || now < b.cancelAgain {
		return
	}
	b.cancelAgain = now + cancelAgain
	if !u.preempted {
		b.p.st.Preemptions++
	}
	u.preempted, u.hold = true, true
	b.signal(func() {})
}

// signal sends the server a cancel request for what the backend runs. Until the
// server has closed that connection, by when the signal is out, the backend gets
// no further statements.
func (b *backend) signal(finish func()) {
	srv := b.p.l.srv
	b.cancels++
	b.hazard = true
	cfg := srv.cfg().Postgres
	pid, secret := b.pid, b.secret
	l := b.p.l
	srv.Background.Go(func() {
		ctx, done := context.WithTimeout(srv.DialCtx, srv.cfg().ConnectTimeout)
		defer done()
		err := pgwire.Cancel(ctx, cfg, pid, secret)
		defer finish()
		l.Post(func() {
			b.cancels--
			if err != nil {
				srv.Log.Warn("cancel request failed", "pid", pid, "error", err)
			}
			if b.cancels == 0 && !b.s.Closed {
				if c := b.owner; c != nil {
					c.resume()
				}
				b.settle()
			}
		})
	})
}
