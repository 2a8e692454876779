package mysql

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is KILL of a connection that a client of weir has: by the number
// that weir gave it. It reaches the statement that the victim has under way, and
// never one of another client on the same backend.

func errInterrupted() *mywire.Error {
	return mywire.NewError(mywire.ErrQueryInterrupted, "Query execution was interrupted")
}

// errKilled is what MariaDB tells the victim of a KILL before it hangs up. MySQL
// says nothing to it, or this of its statement.
func (s *Server) errKilled() *mywire.Error {
	if g := s.known.get(); g != nil && g.IsMariaDB() {
		return mywire.NewError(mywire.ErrMariaConnectionKilled, "Connection was killed")
	}
	return errInterrupted()
}

// kill runs the client's KILL of the connection that weir called id: of its
// statement alone if query is set. Nothing else of the client's may be under way.
// It answers the client, which takes no further commands until then.
func (c *client) kill(id uint32, query bool) {
	srv := c.l.srv
	srv.Cancels.Add(1)
	if id == c.id {
		c.killSelf(query)
		return
	}
	victims, found := srv.Owner(id)
	c.leaving = true
	finish := func(e *mywire.Error) {
		c.l.Post(func() { c.killEnded(e) })
	}
	unknown := mywire.NewError(mywire.ErrNoSuchThread, "Unknown thread id: %d", id)
	if !found {
		finish(unknown)
		return
	}
	user := c.p.key.user
	if !victims.Post(func() {
		victim := victims.Clients[id]
		switch {
		case victim == nil:
			finish(unknown) // it logs in, or has just left
		case victim.p.key.user != user && !srv.isAdmin(user):
			finish(mywire.NewError(mywire.ErrKillDenied, "You are not owner of thread %d", id))
		case query:
			victim.interrupt(finish)
		default:
			victim.disconnect(finish)
		}
	}) {
		finish(unknown)
	}
}

// killEnded answers the client that sent the KILL.
func (c *client) killEnded(e *mywire.Error) {
	c.leaving = false
	if c.s.Closed {
		return
	}
	if e != nil {
		c.refuseHere(e)
	} else {
		c.done()
	}
	c.resume()
	if c.draining {
		c.leaveIfIdle()
	}
}

// killSelf is what a client gets that names itself.
func (c *client) killSelf(query bool) {
	if query {
		c.refuseHere(errInterrupted())
		return
	}
	c.refuseHere(c.l.srv.errKilled())
	c.s.CloseAfterFlush()
}

// interrupt ends what the client waits for: a place in a queue at once; a
// statement that runs, by the server's own KILL; one that stands behind others in a
// shared pipeline at once, for nobody waits for what the server makes of it. A
// member of a group is answered when that has ended, soon. done is called when no
// later statement of the client can be hit any more.
func (c *client) interrupt(done func(*mywire.Error)) {
	if c.waiting {
		c.giveUpWaiting(errInterrupted())
		done(nil)
		return
	}
	if c.unqueue() {
		done(nil)
		return
	}
	if b := c.underWay(); b != nil {
		b.kill(b.head(), done)
		return
	}
	c.strike()
	done(nil)
}

// strike marks the client's write in a group that runs: if it is not done there, it
// is not tried again.
func (c *client) strike() {
	mark := func(units []*unit) {
		for _, u := range units {
			u.dead = u.dead || u.c == c
		}
	}
	for _, ln := range c.p.lanes {
		for _, r := range ln.runs {
			mark(r.units)
			for _, u := range r.units {
				if u.grp != nil {
					mark(u.grp.units)
				}
			}
		}
	}
}

// underWay returns the backend at whose head a command of the client is.
func (c *client) underWay() *backend {
	if b := c.link; b != nil {
		if u := b.head(); u != nil && u.c == c {
			return b
		}
		return nil
	}
	if c.inflight == 0 {
		return nil
	}
	for _, b := range c.p.backends {
		if u := b.head(); u != nil && u.c == c && !u.park {
			return b
		}
	}
	return nil
}

// unqueue answers the client's unit that has not been sent yet, if there is one.
func (c *client) unqueue() bool {
	if c.inflight == 0 || c.link != nil {
		return false
	}
	for _, list := range [][]*unit{c.p.reads, c.p.apart.fresh, c.p.apart.patient} {
		for _, u := range list {
			if u.c == c && !u.dead {
				u.dead = true
				c.lost(u, errInterrupted())
				return true
			}
		}
	}
	for _, w := range c.p.excl {
		if w.u != nil && w.u.c == c && !w.u.dead {
			w.u.dead = true
			c.lost(w.u, errInterrupted())
			return true
		}
	}
	for _, ln := range c.p.lanes {
		if ln.q.Remove(func(u *unit) bool { return u.c == c && u.kind == unitClient }) > 0 {
			c.lost(&unit{}, errInterrupted())
			return true
		}
	}
	for _, b := range c.p.shared {
		if u := b.first(c); u != nil && u != b.head() {
			c.lost(c.p.moveOut(b, u), errInterrupted()) // its answer goes to nobody
			return true
		}
	}
	return false
}

// first returns the first unit of a client in the queue, or nil.
func (b *backend) first(c *client) *unit {
	for _, u := range b.queue[b.qHead:] {
		if u.kind == unitClient && u.c == c {
			return u
		}
	}
	return nil
}

// disconnect ends the client's session, and the statement that it has under way.
func (c *client) disconnect(done func(*mywire.Error)) {
	srv, p := c.l.srv, c.p
	b := c.underWay()
	switch {
	case b == nil:
		defer done(nil)
	case b == c.link:
		// This backend is used up. Its number is never given again, so that the
		// KILL may come as late as it likes.
		p.tell(fmt.Sprintf("KILL %d", b.id), func(*mywire.Error) { done(nil) })
	default:
		b.kill(b.head(), func(*mywire.Error) { done(nil) })
	}
	if c.s.Closed {
		return
	}
	if c.cur == nil || !c.cur.wrote {
		seq := byte(0)
		if c.cur != nil || c.inflight > 0 || c.waiting {
			seq = 1
		}
		c.s.Write(mywire.AppendError(nil, seq, srv.errKilled()))
		c.s.Flush()
	}
	c.s.Close(errors.New("killed by another client"))
}

// kill ends the head of the backend's queue by the server's own KILL QUERY. What is
// behind it in a pipeline is moved elsewhere, so that the KILL can hit nothing else
// that anybody waits for.
func (b *backend) kill(u *unit, done func(*mywire.Error)) {
	u.dead = true
	if b.mode == modeShared {
		b.p.unshare(b)
	}
	b.signal(done)
}

// signal has the server kill what the backend runs. Until that has been answered,
// by when the signal is out, the backend gets no further commands.
func (b *backend) signal(done func(*mywire.Error)) {
	b.cancels++
	b.struck = true
	b.p.tell(fmt.Sprintf("KILL QUERY %d", b.id), func(e *mywire.Error) {
		if b.cancels--; b.cancels == 0 && !b.s.Closed {
			b.s.Throttle(false)
			if c := b.owner; c != nil {
				c.resume()
			}
			b.settle()
		}
		done(e)
	})
}

// runsAgain tells whether the unit whose ERR has just come is to be run again: its
// turn apart is over, or it was hit by a KILL that was meant for another. It has
// changed nothing: it is a read, or the server has taken it back. But not if its
// client has others in flight behind it, whose answers would come before.
func (b *backend) runsAgain(u *unit) bool {
	c := u.c
	if u.kind != unitClient || c == nil || c.s.Closed || u.dead || u.wrote || u.park || b.owner != nil || len(u.raw) == 0 || c.inflight != 1+len(c.again) {
		return false
	}
	code := b.answer.ErrorCode()
	if u.turnOver(code, b.p.l.Now-b.headSince()) {
		return true
	}
	return b.struck && u.read && code == mywire.ErrQueryInterrupted
}

// tell has the server run a KILL: on a connection made for it, since all others
// may be busy, or on a free one where weir cannot make any. done is called on the
// loop.
func (p *pool) tell(sql string, done func(*mywire.Error)) {
	srv := p.l.srv
	if !srv.mayDial(p.key) {
		p.tellByFree(sql, errNoSecret, done)
		return
	}
	srv.Background.Go(func() {
		ctx, cancel := context.WithTimeout(srv.DialCtx, srv.cfg().ConnectTimeout)
		defer cancel()
		conn, err := srv.connect(ctx, p.key)
		if err != nil {
			p.l.Post(func() { p.tellByFree(sql, err, done) })
			return
		}
		_, err = conn.Exec(ctx, sql)
		_ = conn.Close()
		p.l.Post(func() { done(p.told(sql, err)) })
	})
}

// tellByFree has a free backend run a KILL.
func (p *pool) tellByFree(sql string, why error, done func(*mywire.Error)) {
	b := p.take(p.settings.Empty(), nil)
	if b == nil {
		done(p.told(sql, why))
		return
	}
	b.mode = modeOwn
	b.ask(sql, func(u *unit) {
		var err error
		if u.err != nil {
			err = u.err
		}
		e := p.told(sql, err)
		p.l.Post(func() { done(e) }) // when the answer has been dealt with
	})
}

// told is what the client that sent the KILL hears of err. That there is nothing
// to kill any more is what it wanted.
func (p *pool) told(sql string, err error) *mywire.Error {
	if err == nil || mywire.CodeOf(err) == mywire.ErrNoSuchThread {
		return nil
	}
	p.l.srv.Log.Warn("statement not killed", "pool", p.key.String(), "command", sql, "error", err)
	return mywire.NewError(mywire.ErrUnknown, "weir could not have the server kill the statement: %v", err)
}
