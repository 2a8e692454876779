package postgres

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is who waits for a backend, and who gets one next.

// A waiter wants a free backend: exactly one field besides since is set.
type waiter struct {
	c     *client
	u     *unit
	ln    *lane
	ask   func(b *backend)
	any   bool // of ask: in whatever settings it is
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
	limit := p.l.cfg.MaxWaiting
	if limit > 0 && len(p.excl) >= limit {
		p.st.Timeouts++
		c.waiting = true
		e := pgwire.NewError(pgwire.CodeTooManyConnections,
			"weir: %d statements wait for a backend of pool %s already (--max-waiting)", limit, p.key)
		p.l.Post(func() { // when the socket holds the bytes that are refused
			if c.waiting && !c.s.Closed {
				c.waiting = false
				c.refuse(e)
			}
		})
		return
	}
	c.waiting = true
	c.queuedAt = p.l.Now
	p.enqueue(waiter{c: c})
}

// crowded reports whether so many wait for a backend that the client would be
// refused one.
func (c *client) crowded() bool {
	limit := c.l.cfg.MaxWaiting
	return limit > 0 && len(c.p.excl) >= limit || c.l.cfg.Mode == session.ModeSession
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
	done, kept := 0, 0 // of those looked at, the first kept ones wait on
	for ; done < len(p.excl); done++ {
		w := p.excl[done]
		if w.gone() {
			if w.u != nil {
				p.freeSlot(w.u)
			}
			continue
		}
		var b *backend
		switch {
		case w.any && len(p.free) > 0:
			b = p.pick(len(p.free) - 1)
		case w.u == nil || !p.lastForShared():
			b = p.take(w.set(p), w.c)
		}
		if b == nil && len(p.free) > 0 {
			// The last backend is for what shares, or those that are free cannot be
			// brought into these settings, but they may be for those behind.
			p.excl[kept] = w
			kept++
			continue
		}
		if b == nil {
			break
		}
		p.st.Waited += p.l.Now - w.since
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
	if kept < done {
		n := kept + copy(p.excl[kept:], p.excl[done:])
		clear(p.excl[n:])
		p.excl = p.excl[:n]
	}
	p.feedReads()
	p.grow()
}

// runAlone runs one whole unit on a taken backend.
func (p *pool) runAlone(b *backend, u *unit) {
	b.mode = modeOwn
	c, set, app := u.c, p.apartSet(u), b.app
	if u.read {
		app = b.appFor(c.app)
	}
	p.watch()
	if b.in(set, app) {
		p.sendAlone(b, u)
		return
	}
	b.prepare(set, app, func(err *pgwire.Error) {
		if err != nil || u.c != c || u.dead || c.s.Closed {
			p.freeSlot(u)
		}
		switch {
		case err != nil:
			p.release(b)
			if u.c == c && !u.dead && !c.s.Closed {
				c.lost(u, refused(err))
			}
		case u.c != c || u.dead || c.s.Closed:
			p.release(b)
		default:
			p.sendAlone(b, u)
		}
	})
}

// sendAlone sends a unit on a backend in its settings.
func (p *pool) sendAlone(b *backend, u *unit) {
	if b.bytewise {
		b.retired = b.retired || p.outgrown(u)
		b.send(u)
		return
	}
	p.freeSlot(u)
	p.release(b)
	u.c.lost(u, misread())
}

// keptWaiting tells whether clients wait for a backend that does not become free
// in a moment. What weir itself asks waits without hurry.
func (p *pool) keptWaiting() bool {
	for i := range p.excl {
		if w := &p.excl[i]; w.ask == nil && !w.gone() && p.l.Now-w.since > 20*maxOvertake {
			return true
		}
	}
	return false
}

// gone tells that nobody waits any more.
func (w *waiter) gone() bool {
	switch {
	case w.c != nil:
		return w.c.s.Closed || !w.c.waiting
	case w.u != nil:
		if w.u.c == nil || w.u.c.s.Closed || w.u.dead {
			return true
		}
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
// free. done is called with the rows, or with u.err.
func (p *pool) askIn(set *session.Set, sql string, done func(u *unit)) {
	p.enqueue(waiter{ask: func(b *backend) {
		if b.in(set, b.app) {
			b.ask(sql, done)
			return
		}
		b.prepare(set, b.app, func(err *pgwire.Error) {
			if err != nil {
				p.release(b)
				done(&unit{err: err})
				return
			}
			b.ask(sql, done)
		})
	}})
}

// read sends a shared read on a pipeline, or queues it for one.
func (p *pool) read(u *unit) {
	c := u.c
	p.st.Reads++
	u.read = true
	p.watch() // what is sent now must not be held up for long
	if c.inflight > 1 {
		c.reader.send(u) // behind its own earlier ones
		return
	}
	if u.stalled(p.l.Now) {
		p.queueSolo(u)
		return
	}
	if len(p.reads) == 0 {
		if b := p.pipeline(c.set); b != nil {
			c.reader = b
			b.send(u)
			return
		}
	}
	p.queueRead(u)
}

// readAlone runs a read that may not share a pipeline: it is slow or long, or weir
// does not know it yet. Its client owns no backend meanwhile, so that the read can
// wait in weir instead where it waits for a lock (probeLocks).
func (p *pool) readAlone(u *unit) {
	u.read = true
	u.c.reader = nil
	if u.stalled(p.l.Now) {
		p.queueSolo(u)
		return
	}
	p.enqueue(waiter{u: u})
}

// queueRead queues a read for a pipeline.
func (p *pool) queueRead(u *unit) {
	u.c.reader = nil
	p.reads = append(p.reads, u)
	p.watch()
	p.wake()
}

// outgrown tells whether a unit was judged before something was made that its
// statements may reach. It runs alone then, and nothing runs behind it.
func (p *pool) outgrown(u *unit) bool { return u.queuedAt <= p.proof.grewAt && p.proof.grewAt > 0 }

// feedReads moves queued reads to pipelines that have room.
func (p *pool) feedReads() {
	done := 0
	for done < len(p.reads) {
		u := p.reads[done]
		if u.c == nil || u.c.s.Closed || u.dead {
			done++
			continue
		}
		if p.outgrown(u) {
			p.enqueue(waiter{u: u})
			done++
			continue
		}
		b := p.pipeline(u.c.set)
		if b == nil {
			break
		}
		u.c.reader = b
		b.send(u)
		p.watch()
		done++
	}
	if done > 0 {
		n := copy(p.reads, p.reads[done:])
		clear(p.reads[n:])
		p.reads = p.reads[:n]
	}
}

// maxPipeline bounds the reads in flight on one backend: enough to fill a
// write and a read of the socket, few enough that the last one waits about as
// long as the network takes anyway.
const maxPipeline = 64

// pipeline returns a backend on which a read in the given settings may be sent
// now: the shared one with the shortest queue, or a free one that becomes
// shared while there are fewer than the limit.
func (p *pool) pipeline(set *session.Set) *backend {
	var best *backend
	starving := p.starving()
	for i, b := range p.shared {
		if i == 0 && starving {
			continue // let it run dry, for a client that needs a backend alone
		}
		if b.set == set && b.bytewise && b.depth() < maxPipeline && b.cancels == 0 && !b.held && !b.doomed && !b.retired && (best == nil || b.depth() < best.depth()) {
			best = b
		}
	}
	limit := p.l.cfg.ReadLanes
	if n := len(p.excl); n > 0 && limit > 1 {
		limit-- // leave one for those who need a backend alone
	}
	if len(p.shared) < limit && (len(p.excl) == 0 || len(p.shared) == 0) {
		if b := p.take(set, nil); b != nil {
			b.mode = modeShared
			p.shared = append(p.shared, b)
			if b.in(set, b.app) {
				if b.bytewise {
					return b
				}
				p.release(b)
				p.l.Post(func() { p.failReads(set, misread()) })
				return nil
			}
			b.prepare(set, b.app, func(err *pgwire.Error) {
				p.release(b) // and taken again by the reads that wait, in their settings
				if err != nil {
					p.failReads(set, refused(err))
				}
			})
		}
	}
	return best
}

// starving tells whether somebody who needs a backend alone has waited too long
// while none becomes free by itself.
func (p *pool) starving() bool {
	return len(p.excl) > 0 && len(p.free) == 0 && len(p.backends) >= p.size && p.l.Now-p.excl[0].since > maxOvertake
}

// maxOvertake is how long reads may keep a pipeline busy while somebody waits for
// a backend of his own: some round trips, so that short waits cost nothing.
const maxOvertake = 5 * time.Millisecond

// failReads answers the queued reads in the given settings.
func (p *pool) failReads(set *session.Set, e *pgwire.Error) {
	reads := p.reads
	p.reads = nil
	for _, u := range reads {
		switch {
		case u.c == nil || u.c.s.Closed || u.dead:
		case u.c.set == set:
			u.c.lost(u, e)
		default:
			p.reads = append(p.reads, u)
		}
	}
}
