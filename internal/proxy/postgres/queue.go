package postgres

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file decides who waits for a backend, and who gets one next.

// queueClient gives the client a free backend at once, or queues it for one.
func (p *pool) queueClient(c *client) {
	c.fwd.askedAt = p.l.Now
	if len(p.Excl) == 0 {
		if b := p.take(c.set, c); b != nil {
			c.attach(b)
			return
		}
	}
	if crowded(p) {
		p.Stats.Limited[core.LimitWaiting]++
		c.state = stateWaiting
		e := full(p)
		p.l.Post(func() { // when the socket holds the bytes that are refused
			if c.state == stateWaiting && !c.s.Closed {
				c.state.leave(stateWaiting)
				c.refuse(e)
			}
		})
		return
	}
	c.state = stateWaiting
	c.queuedAt = p.l.Now
	p.Enqueue(waiter{Client: c})
}

// full is the error for a statement that may not wait, because --max-waiting is reached.
func full(p *pool) *pgwire.Error {
	return pgwire.NewError(pgwire.CodeTooManyConnections, "weir: %d statements wait for a backend of pool %s already (--max-waiting)", p.Limits.MaxWaiting, p.key)
}

// crowded reports whether --max-waiting is reached.
func crowded(p *pool) bool {
	return p.Excl.Crowded(&p.Limits, len(p.Reads)+p.Apart.Waiting())
}

// crowded reports whether so many wait for a backend that the client would be
// refused one.
func (c *client) crowded() bool {
	return crowded(c.p) || c.mode() == session.ModeSession
}

// dispatch gives free backends to waiters.
func (p *pool) dispatch() {
	p.alone.feed()
	if p.ReadsFirst() {
		p.sharing.feed()
	}
	pass := p.Excl.Pass()
	for w, ok := pass.Next(); ok; w, ok = pass.Next() {
		if p.Left(&w) {
			p.Forget(&w)
			continue
		}
		var b *backend
		switch {
		case w.Any && len(p.Free) > 0:
			b = p.Pick(len(p.Free) - 1)
		case w.Unit == nil || !p.lastForShared():
			b = p.take(p.setOf(&w), w.Client)
		}
		if b == nil && !p.ConnManager().Spent(false) {
			// The last backend is reserved for shared reads, or these settings cannot be applied on the
			// free ones; but they may suit later waiters.
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
			p.alone.run(b, w.Unit)
		default:
			b.Mode = core.ModeOwn
			w.Ask(b)
		}
	}
	pass.End()
	p.sharing.feed()
	if p.Waiting() > 0 {
		p.listeners.relieve(p)
	}
	p.Grow(p.ReadLanes, errNoSecret)
}

// Left reports whether a waiter has stopped waiting.
func (p *pool) Left(w *waiter) bool {
	switch {
	case w.Client != nil:
		return w.Client.s.Closed || w.Client.state != stateWaiting
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
// free. done is called with the rows, each with so many columns, or with u.err.
func (p *pool) askIn(set *session.Set, sql string, columns int, done func(u *unit)) {
	p.Enqueue(waiter{Ask: func(b *backend) {
		if b.in(set, b.app) {
			b.ask(sql, done).columns = columns
			return
		}
		b.prepare(set, b.app, func(err *pgwire.Error) {
			if err != nil {
				p.release(b)
				done(&unit{err: err})
				return
			}
			b.ask(sql, done).columns = columns
		})
	}})
}
