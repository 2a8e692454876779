package mysql

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles KILL of a connection of one of weir's clients, by the id that weir gave it,
// and sends KILLs to the server.

// errKilled is the error that MariaDB sends the victim of a KILL before it closes the
// connection. MySQL sends nothing, or errInterrupted for its statement.
func (s *Server) errKilled() *mywire.Error {
	if g := s.known.get(); g != nil && g.IsMariaDB() {
		return mywire.NewError(mywire.ErrMariaConnectionKilled, "Connection was killed")
	}
	return errInterrupted()
}

// kill executes the client's KILL of the client with the given id: only of its statement if
// query is set. The client must have nothing else in flight. It gets the answer, and executes
// no further commands before that.
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

// A killRequest is a KILL of a connection id that a weir has given.
type killRequest struct {
	id    uint32
	query bool   // only the statement
	user  string // who requests it
	admin bool   // and may kill the sessions of others
}

// here executes it on a client of this weir. It calls finish once, on any goroutine.
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
			finish(unknown) // it is logging in, or has just left
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

// killSelf answers a client that kills itself.
func (c *client) killSelf(query bool) {
	if query {
		c.responder.refuseHere(errInterrupted())
		return
	}
	c.responder.refuseHere(c.l.srv.errKilled())
	c.s.CloseAfterFlush()
}

// disconnect ends the client's session, and its statement in flight.
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
		// This backend is not used again, and the server never reuses its id, so the KILL may
		// come at any time.
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

// A killOrder is a KILL for the server to execute. done is called on the loop.
type killOrder struct {
	p    *pool
	at   upstream.Endpoint
	sql  string
	done func(*mywire.Error)
}

// send makes the server execute it: on a new connection, since all others may be busy, or on a
// free one if weir cannot open any.
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
		p.l.Post(func() { o.done(o.outcome(err)) })
	})
}

// byFree executes it on a free backend, if that is one of the same server: another has other
// connections.
func (o killOrder) byFree(why error) {
	p := o.p
	b := p.take(p.settings.Empty(), nil)
	if b != nil && b.Endpoint != o.at {
		p.release(b)
		b = nil
	}
	if b == nil {
		o.done(o.outcome(why))
		return
	}
	b.Mode = core.ModeOwn
	b.ask(o.sql, func(u *unit) {
		var err error
		if u.err != nil {
			err = u.err
		}
		e := o.outcome(err)
		p.l.Post(func() { o.done(e) }) // after the current answer is processed
	})
}

// outcome returns the error for the client that sent the KILL. If there is nothing to kill any
// more, the KILL has succeeded.
func (o killOrder) outcome(err error) *mywire.Error {
	if err == nil || mywire.CodeOf(err) == mywire.ErrNoSuchThread {
		return nil
	}
	o.p.l.srv.Log.Warn("statement not killed", "pool", o.p.key.String(), "command", o.sql, "error", err)
	return mywire.NewError(mywire.ErrUnknown, "weir could not have the server kill the statement: %v", err)
}
