package mysql

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is KILL of a connection that a client of weir has: by the number
// that weir gave it; and how weir has the server carry one out.

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
	c.state.enter(stateLeaving)
	finish := func(e *mywire.Error) {
		c.l.Post(func() { c.killEnded(e) })
	}
	k := killRequest{id: id, query: query, user: c.p.key.user, admin: srv.isAdmin(c.p.key.user)}
	if _, found := srv.Owner(id); !found && k.elsewhere(srv.cfg()) {
		srv.Background.Go(func() { finish(k.passOn(srv)) })
		return
	}
	k.here(srv, finish)
}

// A killRequest is a KILL of a number that a weir has given.
type killRequest struct {
	id    uint32
	query bool   // of the statement alone
	user  string // who wants it
	admin bool   // and may kill what belongs to others
}

// here carries it out on a client of this weir. It calls finish once, on any goroutine.
func (k killRequest) here(srv *Server, finish func(*mywire.Error)) {
	unknown := mywire.NewError(mywire.ErrNoSuchThread, "Unknown thread id: %d", k.id)
	victims, found := srv.Owner(k.id)
	if !found && srv.Handover.HasBefore() {
		srv.Background.Go(func() {
			e, ok := k.before(srv)
			if !ok {
				e = unknown
			}
			finish(e)
		})
		return
	}
	if !found || !victims.Post(func() {
		victim := victims.Clients[k.id]
		switch {
		case victim == nil:
			finish(unknown) // it logs in, or has just left
		case victim.p.key.user != k.user && !k.admin:
			finish(mywire.NewError(mywire.ErrKillDenied, "You are not owner of thread %d", k.id))
		case k.query:
			victim.cancel(finish)
		default:
			victim.disconnect(finish)
		}
	}) {
		finish(unknown)
	}
}

// killEnded answers the client that sent the KILL.
func (c *client) killEnded(e *mywire.Error) {
	c.state.leave(stateLeaving)
	if c.s.Closed {
		return
	}
	if e != nil {
		c.responder.refuseHere(e)
	} else {
		c.responder.done()
	}
	c.resume()
	if c.draining {
		c.leaveIfIdle()
	}
}

// killSelf is what a client gets that names itself.
func (c *client) killSelf(query bool) {
	if query {
		c.responder.refuseHere(errInterrupted())
		return
	}
	c.responder.refuseHere(c.l.srv.errKilled())
	c.s.CloseAfterFlush()
}

// disconnect ends the client's session, and the statement that it has under way.
func (c *client) disconnect(done func(*mywire.Error)) {
	srv, p := c.l.srv, c.p
	b := underWay{c}.head()
	if b == nil {
		b = underWay{c}.behind()
	}
	switch {
	case b == nil:
		defer done(nil)
	case b == c.link:
		// This backend is used up. Its number is never given again, so that the
		// KILL may come as late as it likes.
		killOrder{p, b.Endpoint, fmt.Sprintf("KILL %d", b.id), func(*mywire.Error) { done(nil) }}.send()
	default:
		b.cancel(b.Head(), func(*mywire.Error) { done(nil) })
	}
	if c.s.Closed {
		return
	}
	if c.cur == nil || !c.cur.wrote {
		seq := byte(0)
		switch {
		case c.cur != nil:
			seq = c.cur.firstSeq()
		case c.inflight > 0 || c.state == stateWaiting:
			seq = c.responder.seq
		}
		c.s.Write(mywire.AppendError(nil, seq, srv.errKilled()))
		c.s.Flush()
	}
	c.s.Close(errors.New("killed by another client"))
}

// A killOrder is a KILL that the server is to run. done is called on the loop.
type killOrder struct {
	p    *pool
	at   upstream.Endpoint
	sql  string
	done func(*mywire.Error)
}

// send has the server run it: on a connection made for it, since all others may be busy,
// or on a free one where weir cannot make any.
func (o killOrder) send() {
	p, srv := o.p, o.p.l.srv
	if !srv.mayDial(p.key) {
		o.byFree(errNoSecret)
		return
	}
	srv.Background.Go(func() {
		ctx, cancel := context.WithTimeout(srv.DialCtx, srv.cfg().ConnectTimeout)
		defer cancel()
		conn, err := srv.connectTo(ctx, p.key, srv.at(srv.connectConfig(p.key), o.at))
		if err != nil {
			p.l.Post(func() { o.byFree(err) })
			return
		}
		_, err = conn.Exec(ctx, o.sql)
		_ = conn.Close()
		p.l.Post(func() { o.done(o.told(err)) })
	})
}

// byFree has a free backend run it.
func (o killOrder) byFree(why error) {
	p := o.p
	b := p.take(p.settings.Empty(), nil)
	if b == nil {
		o.done(o.told(why))
		return
	}
	b.Mode = core.ModeOwn
	b.ask(o.sql, func(u *unit) {
		var err error
		if u.err != nil {
			err = u.err
		}
		e := o.told(err)
		p.l.Post(func() { o.done(e) }) // when the answer has been dealt with
	})
}

// told is what the client that sent the KILL hears of err. That there is nothing
// to kill any more is what it wanted.
func (o killOrder) told(err error) *mywire.Error {
	if err == nil || mywire.CodeOf(err) == mywire.ErrNoSuchThread {
		return nil
	}
	o.p.l.srv.Log.Warn("statement not killed", "pool", o.p.key.String(), "command", o.sql, "error", err)
	return mywire.NewError(mywire.ErrUnknown, "weir could not have the server kill the statement: %v", err)
}
