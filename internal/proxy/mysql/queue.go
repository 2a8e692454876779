package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file queues those who wait for a backend, and decides who gets the next one.

// queueClient gives the client a free backend at once, or queues it for one, for a command that
// waits since a time.
func (p *pool) queueClient(c *client, since time.Duration) {
	c.fwd.askedAt = since
	if len(p.Excl) == 0 {
		if b := p.take(c.set, c); b != nil {
			c.attach(b)
			return
		}
	}
	c.state.enter(stateWaiting)
	if crowded(p) {
		p.Stats.Limited[core.LimitWaiting]++
		e := full(p)
		p.l.Post(func() { // when the socket holds the bytes that are refused
			if c.state == stateWaiting && !c.s.Closed {
				c.state.leave(stateWaiting)
				c.refuse(e)
			}
		})
		return
	}
	c.queuedAt = since
	p.Enqueue(waiter{Client: c, Since: since})
}

// crowded reports whether as many statements wait as --max-waiting allows.
func crowded(p *pool) bool {
	return p.Excl.Crowded(&p.Limits, len(p.Reads)+p.Apart.Waiting())
}

// full is the error for a statement that finds the queue crowded.
func full(p *pool) *mywire.Error {
	return mywire.NewError(mywire.ErrTooManyConnections, "weir: %d statements wait for a backend of pool %s already (--max-waiting)", p.Limits.MaxWaiting, p.key)
}

// dispatch gives free backends to those who wait.
func (p *pool) dispatch() {
	p.alone.feed()
	if p.ReadsFirst() {
		p.sharing.feed()
	}
	p.soft.reclaim()
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
		if b == nil && !p.ConnManager().Spent(false) {
			// The last backend is reserved for shared reads, but those behind may use it.
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
	p.Grow(p.ReadLanes, errNoSecret)
}

// Left reports whether a waiter does not wait any more.
func (p *pool) Left(w *waiter) bool {
	switch {
	case w.Client != nil:
		return w.Client.s.Closed || w.Client.state != stateWaiting
	case w.Unit != nil:
		return w.Unit.Left()
	}
	return false
}

// setOf returns the settings for a waiter's backend.
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

// askIn runs a query of weir's own in the given settings on a backend that becomes free. done
// is called with the answer, or with u.err.
func (p *pool) askIn(set *session.Set, sql string, done func(u *unit)) {
	p.Enqueue(waiter{Ask: func(b *backend) {
		b.readied(set, nil, func(b *backend, err *mywire.Error) {
			if err != nil {
				p.release(b)
				done(&unit{err: err, failed: true})
				return
			}
			b.ask(sql, done)
			b.ask(noWarnings, func(*unit) {}) // of information_schema, and of its effect on the current database
			b.endLook()
		})
	}})
}
