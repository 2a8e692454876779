package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file ends the statement that a client has in flight, and never one of another client on
// the same backend.

func errInterrupted() *mywire.Error {
	return mywire.NewError(mywire.ErrQueryInterrupted, "Query execution was interrupted")
}

// cancel ends what the client waits for. It ends a place in a queue at once; a running
// statement by the server's KILL; a statement whose long text is being read, after that; a
// statement behind others in a shared pipeline at once, since no client needs the server's
// answer to it. A member of a group is answered when the group has ended, soon. done is called
// when the cancel cannot hit a later statement of the client.
func (c *client) cancel(done func(*mywire.Error)) {
	if c.state == stateWaiting {
		c.giveUpWaiting(errInterrupted())
		done(nil)
		return
	}
	if c.texts.reading {
		c.texts.killed = true
		done(nil)
		return
	}
	w := underWay{c}
	if w.unqueue() {
		done(nil)
		return
	}
	if b := w.behind(); b != nil {
		b.Then(func() {
			c.l.Agenda.Lane(core.Task(func() { // behind the client, which the answer resumes
				if c.s.Closed {
					done(nil)
					return
				}
				c.cancel(done)
			}))
		})
		return
	}
	if b := w.head(); b != nil {
		b.cancel(b.Head(), done)
		return
	}
	w.strike()
	done(nil)
}

// underWay finds what a client waits for: its commands in the queues of the pool and on the
// backends.
type underWay struct{ c *client }

// strike marks a client's write in a running group: if it fails there, it does not run again.
func (w underWay) strike() {
	c, p := w.c, w.c.p
	mark := func(units []*unit) {
		for _, u := range units {
			u.dead = u.dead || u.c == c
		}
	}
	for _, ln := range p.lanes.all {
		for _, r := range ln.Runs {
			mark(r.units)
			for _, u := range r.units {
				if u.grp != nil {
					mark(u.grp.units)
				}
			}
		}
	}
}

// behind returns the client's own backend if the client's command is behind one of weir's own,
// which the KILL must not hit.
func (w underWay) behind() *backend {
	c := w.c
	b := c.link
	if b == nil || c.s.Closed || c.cur == nil && len(c.s.In) == 0 {
		return nil
	}
	if u := b.Head(); u == nil || u.c == c {
		return nil
	}
	return b
}

// head returns the backend whose head is a command of the client.
func (w underWay) head() *backend {
	c := w.c
	if b := c.link; b != nil {
		if u := b.Head(); u != nil && u.c == c {
			return b
		}
		return nil
	}
	if c.inflight == 0 {
		return nil
	}
	for _, b := range c.p.Backends {
		if u := b.Head(); u != nil && u.c == c && !u.park {
			return b
		}
	}
	return nil
}

// unqueue answers a unit of the client that has not been sent yet, and reports whether there
// was one.
func (w underWay) unqueue() bool {
	c, p := w.c, w.c.p
	if c.inflight == 0 || c.link != nil {
		return false
	}
	if u, ok := p.Waits(func(u *unit) bool { return u.c == c && !u.dead }); ok {
		u.dead = true
		c.lost(u, errInterrupted())
		return true
	}
	for _, b := range p.Backends {
		if u := b.alone; u != nil && u.c == c && !u.dead {
			u.dead = true
			c.lost(u, errInterrupted())
			return true
		}
	}
	for _, ln := range p.lanes.all {
		if ln.Q.Remove(func(u *unit) bool { return u.c == c && u.kind == unitClient }) > 0 {
			c.lost(&unit{}, errInterrupted())
			return true
		}
	}
	for _, b := range p.Shared.Backends {
		if u := b.First(func(u *unit) bool { return u.kind == unitClient && u.c == c }); u != nil && u != b.Head() {
			c.lost(p.sharing.moveOut(b, u), errInterrupted()) // the server's answer is dropped
			return true
		}
	}
	return false
}

// cancel ends the head of the backend's queue by the server's KILL QUERY. Units behind it in a
// pipeline are moved elsewhere, so that the KILL can hit no other statement that a client waits
// for.
func (b *backend) cancel(u *unit, done func(*mywire.Error)) {
	u.dead = true
	if b.Mode == core.ModeShared {
		b.p.sharing.end(b)
	}
	if b.Mode == core.ModeOwn && u.read && u.Slot == core.SlotNone {
		b.p.Hold(&u.Turn, core.SlotFresh) // so that its turn is checked
	}
	b.killAgain = b.p.l.Now + core.CancelAgain
	b.signal(done)
}

// endOverdue makes the server end the head of the queue, which has run for longer than
// --query-timeout. It does not kill a member of a group, since that could hit another member.
// If the server waits for that member's client to read, it disconnects the client.
func endOverdue(b *backend) (clients bool) {
	u := b.Head()
	if u.kind != unitClient {
		return u.kind == unitRows
	}
	if u.overdue || u.dead || b.Cancels > 0 || u.c == nil || u.c.s.Closed {
		return true
	}
	if u.park {
		if u.c.transport.source == b {
			b.p.Stats.Limited[core.LimitQuery]++
			u.c.kick("it has not read a long answer within --query-timeout, and a grouped write cannot be cancelled")
		}
		return true
	}
	u.overdue = true
	b.p.Stats.Limited[core.LimitQuery]++
	b.cancel(u, func(*mywire.Error) {})
	return true
}

// signal makes the server kill the statement that the backend executes. Until the KILL is
// answered, and so has taken effect, the backend gets no further commands.
func (b *backend) signal(done func(*mywire.Error)) {
	b.Cancels++
	b.struck = true
	kill(b, "KILL QUERY", func(e *mywire.Error) {
		if b.Cancels--; b.Cancels == 0 && !b.s.Closed {
			b.s.Throttle(false)
			if c := b.owner; c != nil {
				c.resume()
			}
			b.settle()
		}
		done(e)
	})
}

// runsAgain reports whether the unit whose ERR has just come runs again: its turn apart is
// over, or a KILL of another statement has hit it. It has changed nothing: it is a read, or the
// server has rolled it back. It does not run again if its client has others in flight behind
// it, whose answers would come before.
func (b *backend) runsAgain(u *unit) bool {
	c := u.c
	if u.kind != unitClient || c == nil || c.s.Closed || u.dead || u.wrote || u.park || b.owner != nil || len(u.raw) == 0 || c.inflight != 1+len(c.again) {
		return false
	}
	code := b.answer.ErrorCode()
	if u.turnOver(code, b.p.l.Now-b.Since) {
		return true
	}
	return b.struck && u.read && code == mywire.ErrQueryInterrupted || b.ends(u, code)
}
