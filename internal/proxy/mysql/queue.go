package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is who waits for a backend, and who gets one next.

// A waiter wants a free backend: exactly one field besides since is set.
type waiter struct {
	c     *client
	u     *unit
	ln    *lane
	ask   func(b *backend)
	since time.Duration
}

// queueClient gives the client a free backend at once, or queues it for one.
func (p *pool) queueClient(c *client) {
	if len(p.excl) == 0 {
		if b := p.take(c.set, c); b != nil {
			c.attach(b)
			return
		}
	}
	c.waiting = true
	if limit := p.l.cfg.MaxWaiting; limit > 0 && len(p.excl) >= limit {
		p.st.Timeouts++
		e := mywire.NewError(mywire.ErrTooManyConnections,
			"weir: %d statements wait for a backend of pool %s already (--max-waiting)", limit, p.key)
		p.l.Post(func() { // when the socket holds the bytes that are refused
			if c.waiting && !c.s.Closed {
				c.waiting = false
				c.refuse(e)
			}
		})
		return
	}
	c.queuedAt = p.l.Now
	p.enqueue(waiter{c: c})
}

func (p *pool) enqueue(w waiter) {
	w.since = p.l.Now
	p.excl = append(p.excl, w)
	p.st.Waits++
	p.watch()
	p.wake()
}

// dispatch gives free backends to what waits.
func (p *pool) dispatch() {
	p.feedApart()
	if len(p.reads) > 0 && len(p.excl) > 0 && len(p.shared) == 0 && p.reads[0].queuedAt <= p.excl[0].since {
		p.feedReads() // without a pipeline it is their turn: there may be no moment when nobody else waits
	}
	p.reclaim()
	done := 0
	var held []waiter
	for done < len(p.excl) {
		w := p.excl[done]
		if w.gone() {
			if w.u != nil {
				p.freeSlot(w.u)
			}
			done++
			continue
		}
		var b *backend
		if w.u == nil || !p.lastForShared() {
			b = p.take(w.set(p), w.c)
		}
		if b == nil && (w.c != nil || w.u != nil) && len(p.free) > 0 {
			// The last backend is for what shares, but may be for those behind.
			held = append(held, w)
			done++
			continue
		}
		if b == nil {
			break
		}
		p.st.Waited += p.l.Now - w.since
		done++
		switch {
		case w.c != nil:
			w.c.attach(b)
		case w.ln != nil:
			w.ln.give(b)
		case w.u != nil:
			p.runAlone(b, w.u)
		default:
			b.mode = modeOwn
			w.ask(b)
		}
	}
	if done > 0 {
		n := copy(p.excl, held)
		n += copy(p.excl[n:], p.excl[done:])
		clear(p.excl[n:])
		p.excl = p.excl[:n]
	}
	p.feedReads()
	p.grow()
}

// runAlone runs one whole unit on a taken backend.
func (p *pool) runAlone(b *backend, u *unit) {
	b.mode, b.alone = modeOwn, u
	c := u.c
	b.readied(p.apartSet(u), u.st, func(b *backend, err *mywire.Error) {
		b.alone = nil
		switch {
		case u.c != c || u.dead || c.s.Closed:
			p.freeSlot(u)
		case err != nil && b.s.Closed:
			p.enqueue(waiter{u: u}) // nothing was sent yet
		case err != nil && u.turnOver(err.Code, p.l.Now-b.answered):
			p.freeSlot(u)
			u.again()
			p.queueSolo(u)
		case err != nil:
			p.freeSlot(u)
			c.lost(u, err)
		default:
			b.lastUser = nil
			b.yieldID(nil)
			b.send(u)
			return
		}
		p.release(b)
	})
}

// readied brings a taken backend into the given settings and has a statement
// prepared there, if one is given; then it calls then, with an error if the backend
// is closed by then: nothing was sent yet that could not be sent to another one.
func (b *backend) readied(set *session.Set, st *stmt, then func(b *backend, err *mywire.Error)) {
	if b.s.Closed { // right behind the answer that made it ready
		then(b, mywire.NewError(mywire.ErrNetRead, "weir: the connection to the server was lost"))
		return
	}
	if b.set != set {
		if !reachable(b.set, set, b.p.key.database) {
			b.goodbye()
			then(b, mywire.NewError(mywire.ErrUnknown, "weir: a connection that has a current database cannot be one without"))
			return
		}
		b.prepare(set, func(err *mywire.Error) {
			if err != nil {
				then(b, refused(err))
				return
			}
			b.readied(set, st, then)
		})
		return
	}
	if st == nil || b.prepared[st] != nil {
		then(b, nil)
		return
	}
	b.held = true
	b.learn(st, func(err *mywire.Error) {
		b.p.l.Post(func() { // when the answer has been dealt with
			b.held = false
			if err == nil {
				b.readied(set, st, then)
				return
			}
			then(b, err)
		})
	})
}

// gone tells that nobody waits any more.
func (w *waiter) gone() bool {
	switch {
	case w.c != nil:
		return w.c.s.Closed || !w.c.waiting
	case w.u != nil:
		return w.u.c == nil || w.u.c.s.Closed || w.u.dead
	}
	return false
}

func (w *waiter) set(p *pool) *session.Set {
	switch {
	case w.c != nil:
		return w.c.set
	case w.u != nil:
		return w.u.c.set
	case w.ln != nil:
		return w.ln.set
	}
	return p.settings.Empty()
}

// askIn runs weir's own query in the given settings on a backend that becomes
// free. done is called with the answer, or with u.err.
func (p *pool) askIn(set *session.Set, sql string, done func(u *unit)) {
	p.enqueue(waiter{ask: func(b *backend) {
		b.readied(set, nil, func(b *backend, err *mywire.Error) {
			if err != nil {
				p.release(b)
				done(&unit{err: err, failed: true})
				return
			}
			b.ask(sql, done)
			b.ask(noWarnings, func(*unit) {}) // of information_schema, and what it made of the current database
			b.endLook()
		})
	}})
}

// read sends a shared read on a pipeline, or queues it for one.
func (p *pool) read(u *unit) {
	c := u.c
	p.st.Reads++
	u.read = true
	if c.inflight > 1 {
		c.reader.send(u) // behind its own earlier ones
		return
	}
	p.readAgain(u)
}

// queueRead sends a shared read, all others of whose client have been answered.
func (p *pool) queueRead(u *unit) {
	c := u.c
	if len(p.reads) == 0 {
		if b := p.pipeline(c.set, u.st); b != nil {
			p.sendRead(b, u)
			return
		}
	}
	c.reader = nil
	p.reads = append(p.reads, u)
	p.wake()
}

// sendRead sends a read on a pipeline, which is watched from then on.
func (p *pool) sendRead(b *backend, u *unit) {
	u.c.reader = b
	b.send(u)
	p.watch()
}

// runAgain runs a unit again whose answer was withheld.
func (p *pool) runAgain(u *unit) {
	if u.read && u.tries == 0 {
		p.readAgain(u)
		return
	}
	p.queueSolo(u)
}

// feedReads moves queued reads to pipelines that have room. A read that has to
// wait for its statement to be prepared does not hold up those behind it.
func (p *pool) feedReads() {
	keep := p.reads[:0]
	for i, u := range p.reads {
		if u.c == nil || u.c.s.Closed || u.dead {
			continue
		}
		if b := p.pipeline(u.c.set, u.st); b != nil {
			p.sendRead(b, u)
			continue
		}
		if u.st == nil || !u.st.learning {
			keep = append(keep, p.reads[i:]...) // there is no room
			break
		}
		keep = append(keep, u)
	}
	clear(p.reads[len(keep):])
	p.reads = keep
}

// maxPipeline bounds the reads in flight on one backend: enough to fill a
// write and a read of the socket, few enough that the last one waits about as
// long as the network takes anyway.
const maxPipeline = 64

// pipeline returns a backend on which a read in the given settings may be sent
// now: the shared one with the shortest queue, or a free one that becomes
// shared while there are fewer than the limit.
func (p *pool) pipeline(set *session.Set, st *stmt) *backend {
	var best, unlearned *backend
	starving := p.starving()
	depth := maxPipeline
	if !p.facts.pipelines {
		depth = 1
	}
	for i, b := range p.shared {
		if i == 0 && starving {
			continue // let it run dry, for a client that needs a backend alone
		}
		if b.set != set || b.depth() >= depth || b.cancels > 0 || b.held || b.doomed || b.retired {
			continue
		}
		if st != nil && b.prepared[st] == nil {
			unlearned = b
			continue
		}
		if best == nil || b.depth() < best.depth() {
			best = b
		}
	}
	if best == nil && unlearned != nil && !st.learning {
		p.teach(unlearned, st)
	}
	limit := p.l.cfg.ReadLanes
	if n := len(p.excl); n > 0 && limit > 1 {
		limit-- // leave one for those who need a backend alone
	}
	if len(p.shared) < limit && (len(p.excl) == 0 || len(p.shared) == 0) {
		if b := p.take(set, nil); b != nil {
			b.mode = modeShared
			p.shared = append(p.shared, b)
			b.lastUser = nil
			if b.set == set && (st == nil || b.prepared[st] != nil) {
				return b
			}
			b.readied(set, st, func(b *backend, err *mywire.Error) {
				lost := b.s.Closed
				p.release(b) // and taken again by the reads that wait, in their settings
				if err != nil && !lost {
					p.failReads(set, st, err)
				}
			})
		}
	}
	return best
}

// teach has a statement prepared on a shared backend, behind what is in flight.
func (p *pool) teach(b *backend, st *stmt) {
	st.learning = true
	b.learn(st, func(err *mywire.Error) {
		st.learning = false
		if err != nil && err.Code != mywire.ErrQueryInterrupted { // that was weir, see stalled
			p.failReads(b.set, st, err)
		}
		p.wake()
	})
}

// starving tells whether somebody who needs a backend alone has waited too long
// while none becomes free by itself.
func (p *pool) starving() bool {
	return len(p.excl) > 0 && len(p.free) == 0 && len(p.backends) >= p.size && p.l.Now-p.excl[0].since > maxOvertake
}

// maxOvertake is how long reads may keep a pipeline busy while somebody waits for
// a backend of his own: some round trips, so that short waits cost nothing.
const maxOvertake = 5 * time.Millisecond

// failReads answers the queued reads in the given settings, of one statement or,
// if st is nil, of all.
func (p *pool) failReads(set *session.Set, st *stmt, e *mywire.Error) {
	reads := p.reads
	p.reads = nil
	for _, u := range reads {
		switch {
		case u.c == nil || u.c.s.Closed || u.dead:
		case u.c.set == set && (st == nil || u.st == st):
			u.c.lost(u, e)
		default:
			p.reads = append(p.reads, u)
		}
	}
}
