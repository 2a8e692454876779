package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql/catalogue"
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
	srv := c.l.srv
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
		kill(b, "KILL", func(*mywire.Error) { done(nil) })
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

// A killOrder is a KILL of a backend's connection, or of its statement, for the server to
// execute. done is called on the loop.
//
// The server is asked first whether the connection is weir's: the address may lead to another
// server by now, where the id is that of another client.
type killOrder struct {
	p    *pool
	at   upstream.Endpoint
	verb string // KILL or KILL QUERY
	id   uint32 // of the connection
	port int    // of weir's end of the connection, 0 if it has none
	sure bool   // only if the server shows that the connection is weir's
	done func(*mywire.Error)
}

// kill makes the server kill the backend's connection, or its statement. If weir has closed the
// connection, the server's process list has to show that it is weir's.
func kill(b *backend, verb string, done func(*mywire.Error)) {
	killOrder{p: b.p, at: b.Endpoint, verb: verb, id: b.id, port: b.port, sure: b.s.Closed, done: done}.send()
}

func (o killOrder) sql() string { return fmt.Sprintf("%s %d", o.verb, o.id) }

// send makes the server execute it: on a new connection, since all others may be busy, or on a
// free one if weir cannot open any.
func (o killOrder) send() {
	p, srv := o.p, o.p.l.srv
	if o.sure && o.port == 0 {
		o.done(o.outcome(o.unproven()))
		return
	}
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
		err = o.execute(ctx, conn)
		_ = conn.Close()
		p.l.Post(func() { o.done(o.outcome(err)) })
	})
}

// execute has the server of a new connection execute it.
func (o killOrder) execute(ctx context.Context, conn *mywire.Server) error {
	rows, err := conn.Query(ctx, o.listSQL())
	if err != nil && mywire.CodeOf(err) == 0 {
		return err
	}
	list := make(processList)
	for _, row := range rows {
		list.add(row[0].String, row[1].String)
	}
	if err := list.misleads(&o, conn.Greeting.ConnectionID, portOf(conn.Conn)); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, o.sql())
	return err
}

// byFree has a free backend of the same server execute it.
func (o killOrder) byFree(why error) {
	p := o.p
	b := p.takeAt(o.at)
	if b == nil {
		o.done(o.outcome(why))
		return
	}
	b.Mode = core.ModeOwn
	end := func(err error) {
		e := o.outcome(err)
		p.l.Post(func() { o.done(e) }) // after the current answer is processed
	}
	b.ask(o.listSQL(), func(u *unit) {
		list := make(processList)
		for _, row := range u.result(p.key.caps) {
			list.add(string(row[0]), string(row[1]))
		}
		if err := list.misleads(&o, b.id, b.port); err != nil || b.s.Closed {
			end(cmp.Or(err, why))
			return
		}
		b.ask(o.sql(), func(u *unit) {
			if u.err != nil {
				end(u.err)
				return
			}
			end(nil)
		})
	})
	b.ask(noWarnings, func(*unit) {}) // of information_schema, and of its effect on the current database
	b.endLook()
}

// listSQL asks for the connection to kill, and for the one that asks.
func (o *killOrder) listSQL() string {
	return fmt.Sprintf("SELECT CAST(ID AS BINARY), CAST(HOST AS BINARY) FROM information_schema.PROCESSLIST WHERE ID IN (%d, CONNECTION_ID())%s", o.id, catalogue.AllRows)
}

// A processList has the ports of clients as the server sees them, by the ids of their
// connections.
type processList map[uint64]int

func (l processList) add(id, host string) {
	port := 0
	if at := strings.LastIndexByte(host, ':'); at >= 0 {
		port = int(parseUint([]byte(host[at+1:])))
	}
	l[parseUint([]byte(id))] = port
}

// misleads returns an error if the connection to kill is not there, or is not weir's. own and
// port are the id of the connection that asks, and the port of weir's end of it: if the server
// sees another one, something in between hides weir's ports, and the list proves nothing.
func (l processList) misleads(o *killOrder, own uint32, port int) error {
	seen, asks := l[uint64(own)]
	victim, there := l[uint64(o.id)]
	proves := asks && seen == port && port != 0 && o.port != 0
	switch {
	case asks && !there:
		return mywire.NewError(mywire.ErrNoSuchThread, "Unknown thread id: %d", o.id)
	case proves && victim != o.port:
		return fmt.Errorf("connection %d of %s is another client's: the address leads to another server than before, or something between weir and the server changed its port", o.id, o.at.Host)
	case !proves && o.sure:
		return o.unproven()
	}
	return nil
}

func (o *killOrder) unproven() error {
	return fmt.Errorf("the server does not show whether connection %d of %s is weir's", o.id, o.at.Host)
}

// portOf returns the port of weir's end of a connection, or 0 if it has none.
func portOf(conn net.Conn) int {
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// outcome returns the error for the client that sent the KILL. If there is nothing to kill any
// more, the KILL has succeeded.
func (o killOrder) outcome(err error) *mywire.Error {
	if err == nil || mywire.CodeOf(err) == mywire.ErrNoSuchThread {
		return nil
	}
	o.p.l.srv.Log.Warn("statement not killed", "pool", o.p.key.String(), "command", o.sql(), "error", err)
	return mywire.NewError(mywire.ErrUnknown, "weir could not have the server kill the statement: %v", err)
}
