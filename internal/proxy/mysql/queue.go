package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is who waits for a backend, and who gets one next.

// queueClient gives the client a free backend at once, or queues it for one.
func (p *pool) queueClient(c *client) {
	if len(p.Excl) == 0 {
		if b := p.take(c.set, c); b != nil {
			c.attach(b)
			return
		}
	}
	c.waiting = true
	if limit := p.l.cfg.MaxWaiting; limit > 0 && len(p.Excl) >= limit {
		p.Stats.Timeouts++
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
	p.Enqueue(waiter{Client: c})
}

// dispatch gives free backends to what waits.
func (p *pool) dispatch() {
	p.feedApart()
	if p.ReadsFirst() {
		p.feedReads()
	}
	p.reclaim()
	pass := p.Excl.Pass()
	for w, ok := pass.Next(); ok; w, ok = pass.Next() {
		if p.Left(&w) {
			p.Forget(&w)
			continue
		}
		var b *backend
		if w.Unit == nil || !p.lastForShared() {
			b = p.take(p.setOf(&w), w.Client)
		}
		if b == nil && len(p.Free) > 0 {
			// The last backend is for what shares, but may be for those behind.
			pass.Keep()
			continue
		}
		if b == nil {
			pass.Back()
			break
		}
		p.Stats.Waited += p.l.Now - w.Since
		switch {
		case w.Client != nil:
			w.Client.attach(b)
		case w.Lane != nil:
			w.Lane.give(b)
		case w.Unit != nil:
			p.runAlone(b, w.Unit)
		default:
			b.Mode = core.ModeOwn
			w.Ask(b)
		}
	}
	pass.End()
	p.feedReads()
	p.Grow(p.l.cfg.ReadLanes, errNoSecret)
}

// runAlone runs one whole unit on a taken backend.
func (p *pool) runAlone(b *backend, u *unit) {
	b.Mode, b.alone = core.ModeOwn, u
	c := u.c
	b.readied(p.apartSet(u), u.st, func(b *backend, err *mywire.Error) {
		b.alone = nil
		switch {
		case u.c != c || u.dead || c.s.Closed:
			p.FreeSlot(&u.Turn)
		case err != nil && b.s.Closed:
			p.Enqueue(waiter{Unit: u}) // nothing was sent yet
		case err != nil && u.turnOver(err.Code, p.l.Now-b.Answered):
			p.FreeSlot(&u.Turn)
			u.again()
			p.queueApart(u)
		case err != nil:
			p.FreeSlot(&u.Turn)
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
			b.Goodbye()
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
	b.Held = true
	b.learn(st, func(err *mywire.Error) {
		b.p.l.Post(func() { // when the answer has been dealt with
			b.Held = false
			if err == nil {
				b.readied(set, st, then)
				return
			}
			then(b, err)
		})
	})
}

// Left reports whether a waiter does not wait any more.
func (p *pool) Left(w *waiter) bool {
	switch {
	case w.Client != nil:
		return w.Client.s.Closed || !w.Client.waiting
	case w.Unit != nil:
		return w.Unit.Left()
	}
	return false
}

// setOf is the settings for a waiter's backend.
func (p *pool) setOf(w *waiter) *session.Set {
	switch {
	case w.Client != nil:
		return w.Client.set
	case w.Unit != nil:
		return w.Unit.c.set
	case w.Lane != nil:
		return w.Lane.set
	}
	return p.settings.Empty()
}

// askIn runs weir's own query in the given settings on a backend that becomes
// free. done is called with the answer, or with u.err.
func (p *pool) askIn(set *session.Set, sql string, done func(u *unit)) {
	p.Enqueue(waiter{Ask: func(b *backend) {
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
	p.Stats.Reads++
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
	if len(p.Reads) == 0 {
		if b := p.pipeline(c.set, u.st); b != nil {
			p.sendRead(b, u)
			return
		}
	}
	c.reader = nil
	p.Reads = append(p.Reads, u)
	p.Watch()
	p.Wake()
}

// sendRead sends a read on a pipeline, which is watched from then on.
func (p *pool) sendRead(b *backend, u *unit) {
	u.c.reader = b
	b.send(u)
	p.Watch()
}

// runAgain runs a unit again whose answer was withheld.
func (p *pool) runAgain(u *unit) {
	if u.read && u.Tries == 0 {
		p.readAgain(u)
		return
	}
	p.queueApart(u)
}

// feedReads moves queued reads to pipelines that have room. A read that has to
// wait for its statement to be prepared does not hold up those behind it.
func (p *pool) feedReads() {
	keep := p.Reads[:0]
	for i, u := range p.Reads {
		if u.Left() {
			continue
		}
		if b := p.pipeline(u.c.set, u.st); b != nil {
			p.sendRead(b, u)
			continue
		}
		if u.st == nil || !u.st.learning {
			keep = append(keep, p.Reads[i:]...) // there is no room
			break
		}
		keep = append(keep, u)
	}
	clear(p.Reads[len(keep):])
	p.Reads = keep
}

// pipeline returns a backend on which a read in the given settings may be sent
// now: the shared one with the shortest queue, or a free one that becomes
// shared while there are fewer than the limit.
func (p *pool) pipeline(set *session.Set, st *stmt) *backend {
	var best, unlearned *backend
	starving := p.Starving()
	depth := core.MaxPipeline
	if !p.facts.pipelines {
		depth = 1
	}
	for i, b := range p.Shared.Backends {
		if i == 0 && starving {
			continue // let it run dry, for a client that needs a backend alone
		}
		if b.set != set || b.Depth() >= depth || !b.Feedable() {
			continue
		}
		if st != nil && b.prepared[st] == nil {
			unlearned = b
			continue
		}
		if best == nil || b.Depth() < best.Depth() {
			best = b
		}
	}
	if best == nil && unlearned != nil && !st.learning {
		p.teach(unlearned, st)
	}
	if p.MayShareMore(p.l.cfg.ReadLanes) {
		if b := p.take(set, nil); b != nil {
			p.Shared.Add(b, &b.Conn)
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
		p.Wake()
	})
}

// failReads answers the queued reads in the given settings, of one statement or,
// if st is nil, of all.
func (p *pool) failReads(set *session.Set, st *stmt, e *mywire.Error) {
	p.Reads.Drop(func(u *unit) bool {
		if !u.Left() {
			if u.c.set != set || st != nil && u.st != st {
				return false
			}
			u.c.lost(u, e)
		}
		return true
	})
}
