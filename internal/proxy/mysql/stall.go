package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
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
// while the pool has a slot for it (apart.go). Otherwise it is killed by a KILL
// QUERY, and runs again when there is one. By then nothing else is on that
// connection that anybody waits for, so the KILL cannot hit another statement.

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
	// maxMoves bounds the reads that are moved without answers in between, so that
	// an overloaded server is not loaded with everything twice.
	maxMoves = 512
	// moveBack is the time in which one of them may be moved again.
	moveBack = 2 * time.Millisecond
	// killAgain is the least time between two KILLs of weir's own on one backend.
	killAgain = 100 * time.Millisecond
	// maxObserved is what a shape learns at most from one read that ran apart: it
	// may have been the cost of a lock, which passes.
	maxObserved = 8 * time.Millisecond
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

// headSince is when the server began with what is at the head of the queue.
func (b *backend) headSince() time.Duration { return max(b.head().sentAt, b.answered) }

func (p *pool) patience() time.Duration { return min(max(8*p.readTime, minPatience), maxPatience) }

// stalledAt is when the head of a shared backend counts as held up.
func (p *pool) stalledAt(b *backend) time.Duration {
	return max(b.headSince()+p.patience(), b.notBefore)
}

// Deadline is when the watch has to look next.
func (w stallWatch) Deadline() (at time.Duration, ok bool) {
	p := w.p
	if p.apart.active() || len(p.excl) > 0 {
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

// Due looks.
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
	if (p.apart.active() || len(p.excl) > 0) && p.apart.check <= p.l.Now {
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
	if n := b.depth() - 1; b.cancels > 0 || b.held || n > p.moves() {
		b.notBefore = p.l.Now + minPatience
		return false
	} else if n > 0 {
		p.moved += n
		p.st.Moved += uint64(n)
	}
	u := b.head()
	p.st.Stalls++
	defer p.unshare(b) // when it is known which of the others wait for the same
	switch {
	case u.kind == unitHidden && u.st != nil: // a statement is being prepared, for which the server opens its tables
		u.st.stall(p)
	case u.kind != unitClient || u.c == nil:
		return true
	case u.shape != nil:
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

// stall keeps a statement that cannot be prepared at the moment out of the
// pipelines, and the reads that wait for it.
func (st *stmt) stall(p *pool) {
	st.learning = false
	st.shape.Stall(p.l.Now + stallMark)
	old := p.reads
	p.reads = nil
	for _, u := range old {
		switch {
		case u.c == nil || u.c.s.Closed || u.dead:
		case u.st == st:
			p.queueSolo(u)
		default:
			p.reads = append(p.reads, u)
		}
	}
}

// moves is how many reads may be moved now: the budget comes back with time.
func (p *pool) moves() int {
	if back := int((p.l.Now - p.movedAt) / moveBack); back > 0 {
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
		n := p.moveOut(b, u)
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

// moveOut gives the client of a unit that was sent to b another in its place. What
// the server answers to the first goes to nobody.
func (p *pool) moveOut(b *backend, u *unit) *unit {
	if !b.ghosts {
		b.ghosts = true
		p.apart.ghosts++
	}
	n := p.l.newUnit(unitClient, u.cmd)
	n.c, n.seq, n.cs, n.st, n.verb, n.shape, n.effects, n.read = u.c, u.seq, u.cs, u.st, u.verb, u.shape, u.effects, u.read
	n.queuedAt, n.retries, n.tries = u.queuedAt, u.retries, u.tries
	n.raw, u.raw = u.raw, n.raw
	u.c, u.shape, u.cs = nil, nil, nil
	return n
}

// endGhosts takes note that the backend runs nobody's reads any more.
func (b *backend) endGhosts() {
	if b.ghosts {
		b.ghosts = false
		b.p.apart.ghosts--
	}
}

// readAgain queues a read that was moved, or was hit by a KILL that was meant for
// another.
func (p *pool) readAgain(u *unit) {
	if u.shape != nil && u.shape.Stalled(p.l.Now) {
		p.queueSolo(u)
		return
	}
	p.queueRead(u)
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
	for _, b := range p.backends {
		u := b.head()
		if b.mode != modeOwn || u == nil || b.cancels > 0 {
			continue
		}
		if u.kind == unitHidden {
			if u.st == nil {
				continue
			}
			if u = b.head(); b.alone != nil {
				u = b.alone // which waits for its statement to be prepared
			}
		}
		took := p.l.Now - b.headSince()
		switch {
		case u.kind == unitClient && (u.c == nil || u.c.s.Closed):
			if (u.read || b.ghosts) && took > minPatience && p.l.Now >= b.killAgain {
				b.killAgain = p.l.Now + killAgain
				b.signal(func(*mywire.Error) {})
			}
		case u.slot == slotNone || u.kind == unitClient && !u.read:
		default:
			if u.shape != nil && took > p.patience() {
				u.shape.Stall(p.l.Now + stallMark)
			}
			if (p.apart.waiting() > 0 || p.apart.used > p.slots() || p.exhausted()) && took > turn(u.tries) {
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
	if p.exhausted() {
		p.probeLocks()
	}
	p.poll()
	if p.apart.waiting() > 0 {
		p.wake()
	}
}

// exhausted tells whether somebody waits for a backend and none can be had.
func (p *pool) exhausted() bool {
	return (len(p.excl) > 0 || len(p.reads) > 0) && len(p.free) == 0 && len(p.backends)+p.dialing >= p.size
}

// preempt kills a read that runs apart, unless its answer has begun, so that it
// waits in weir and not on a backend. It runs again when it has a slot. A KILL that
// comes before the server has begun with the read does nothing, so it may take
// another.
func (b *backend) preempt(u *unit) {
	now := b.p.l.Now
	if u.wrote || u.dead || b.cancels > 0 || now < b.killAgain || u.kind == unitClient && !u.read {
		return
	}
	b.killAgain = now + killAgain
	u.preempted, u.hold = true, true
	b.p.st.Preemptions++
	b.signal(func(*mywire.Error) {})
}
