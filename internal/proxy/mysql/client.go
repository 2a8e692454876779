package mysql

import (
	"errors"
	"time"
	"unsafe"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A client is one session of an application. Between transactions it has no backend, and its
// next command can run on any. While it has one (link), its commands are passed on as they
// come, one at a time.
type client struct {
	s *netloop.Sock
	l *loop
	p *pool

	login     login        // who it is
	transport transport    // its socket: cuts commands from the bytes
	router    router       // sends commands while it has no backend
	fwd       forwarder    // sends commands while it has a backend
	responder responder    // processes answers
	pins      pins         // why it keeps its backend
	stmts     statements   // prepared statements
	texts     texts        // how texts are read
	settings  settings     // session variables and the database
	diag      diagnostics  // diagnostics of its last statements
	hints     hintWarnings // warnings about its hints
	moving    clientMover  // hands it over to another process
	cached    caching      // its reads with a ttl

	id    uint32 // the connection id that the client got
	addr  string
	caps  mywire.Caps // agreed with the client
	since time.Duration

	set    *session.Set // its current settings
	status mywire.Status
	// txSince is when the current transaction began.
	txSince time.Duration

	inflight int      // units sent without a link and not answered yet
	reader   *backend // the backend of all these units if they are shared reads; otherwise nil
	again    []*unit  // of these units: those moved from behind a stalled read, which are sent in turn
	state    state
	queuedAt time.Duration
	resuming bool // on the agenda

	link *backend
	cur  *unit // while linked: the command in flight

	served *backend

	draining  bool
	idleSince time.Duration
	stats     clientStats

	begun unstartedCommand
}

// newClient makes a client on a loop.
func newClient(l *loop) *client {
	c := &client{l: l}
	c.login.c, c.transport.c, c.router.c, c.fwd.c, c.responder.c = c, c, c, c, c
	c.transport.rest.tr = &c.transport
	c.pins.c, c.stmts.c, c.texts.c, c.settings.c, c.diag.c, c.hints.c, c.moving.c, c.begun.c, c.cached.c = c, c, c, c, c, c, c, c, c
	c.cached.Client = cache.NewClient(l.srv.Cache, &c.cached)
	return c
}

type clientStats struct {
	units, grouped, errors uint64
}

func text(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }

// inTx reports whether the session is in a transaction, as far as is known.
func (c *client) inTx() bool { return c.status&mywire.StatusInTrans != 0 }

// autocommit reports whether each statement outside a transaction commits by itself. The status
// of a login that the server has not answered yet does not say so.
func (c *client) autocommit() bool {
	return c.status&mywire.StatusAutocommit != 0 && !c.settings.manual
}

// reply sends an answer of weir's own.
func (c *client) reply(p []byte) {
	c.s.Write(p)
	c.idleSince = c.l.Now
}

// refuse answers the command that the socket's buffer begins with by an error, and drops its
// bytes.
func (c *client) refuse(e *mywire.Error) {
	c.texts.killed = false // the kill was for this command
	if n, ok := mywire.Message(c.s.In); ok {
		c.transport.drop = n
		c.responder.seq = seqBehind(n)
		c.transport.voids = n < len(c.s.In) && c.router.leads(c.s.In[:n])
		c.texts.settle(false)
	} else if len(c.s.In) > 0 {
		c.transport.refusal, c.transport.streams = &refusal{err: e}, true
		c.resume()
		return
	}
	c.responder.refuseHere(e)
	c.resume()
}

// lost answers a unit with an error because its connection was lost.
func (c *client) lost(u *unit, e *mywire.Error) {
	c.inflight--
	c.stats.errors++
	c.cached.Wrote()
	c.cached.Leave((*cache.Flight).Fail)
	if u.wrote {
		// Part of the answer was sent: the session cannot continue.
		c.kick("the connection to the server was lost in the middle of an answer")
		return
	}
	c.diag.forget()
	c.reply(mywire.AppendError(nil, u.firstSeq(), e))
	c.nextAgain()
	c.resume()
}

// fatal sends the client an error and disconnects it. In the middle of an answer it sends
// nothing.
func (c *client) fatal(e *mywire.Error) {
	if c.s.Closed || c.s.Closing {
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
		c.s.Write(mywire.AppendError(nil, seq, e))
	}
	c.s.CloseAfterFlush()
}

func (c *client) protocolError(what string) {
	c.l.ProtocolErrors++
	c.fatal(mywire.NewError(mywire.ErrMalformedPacket, "weir: %s", what))
}

// kick disconnects a client without an error packet.
func (c *client) kick(why string) {
	c.l.srv.Log.Warn("client disconnected", "client", c.addr, "user", c.p.key.user, "database", c.p.key.database, "reason", why)
	c.s.Close(errors.New(why))
}

func (c *client) OnClosed(error) {
	c.p.Stats.Received += c.s.Taken
	c.p.Stats.Sent += c.s.Written
	c.state.leave(stateWaiting)
	c.router.stopAwaiting()
	delete(c.l.Clients, c.id)
	c.l.srv.Left(c.id)
	c.l.srv.SessionCounts.Leave(c.p.key.database, c.p.key.user)
	c.l.Taken()
	c.stmts.forget()
	c.cached.Leave((*cache.Flight).Leave)
	c.transport.freeSource()
	if b := c.link; b != nil {
		c.link = nil
		b.orphaned(c)
	}
}

// leaveIfIdle ends the session if it has nothing in flight.
func (c *client) leaveIfIdle() {
	if c.inflight == 0 && c.cur == nil && !c.inTx() && c.state != stateWaiting && !c.state.leaving() {
		c.fatal(errShutdown())
	}
}

// Drain implements core.Client.
func (c *client) Drain() {
	c.draining = true
	c.leaveIfIdle()
}

// Shutdown implements core.Client.
func (c *client) Shutdown() { c.fatal(errShutdown()) }

// Tick enforces timeouts.
func (c *client) Tick() {
	limits := &c.p.Limits
	c.transport.checkReading()
	c.transport.rest.check()
	if c.s.Closed || c.s.Closing {
		return
	}
	c.begun.check()
	c.cached.tick()
	if c.inTx() && limits.TransactionTimeout > 0 && c.l.Now-c.txSince > limits.TransactionTimeout {
		c.p.Stats.Limited[core.LimitTransaction]++
		c.fatal(mywire.NewError(mywire.ErrInteractionTimeout,
			"The client was disconnected because its transaction took longer than %s (--transaction-timeout of weir).", limits.TransactionTimeout))
		return
	}
	switch {
	case c.cur != nil || c.inflight > 0 || c.state == stateWaiting || c.state.leaving():
	case c.inTx() && limits.IdleInTransactionTimeout > 0 && c.l.Now-c.idleSince > limits.IdleInTransactionTimeout:
		c.p.Stats.Limited[core.LimitIdleTransaction]++
		c.fatal(mywire.NewError(mywire.ErrInteractionTimeout,
			"The client was disconnected because it sat in a transaction for longer than %s (--idle-in-transaction-timeout of weir).", limits.IdleInTransactionTimeout))
	case c.idle() && limits.ClientIdleTimeout > 0 && c.l.Now-c.idleSince > limits.ClientIdleTimeout:
		c.p.Stats.Limited[core.LimitIdle]++
		c.fatal(mywire.NewError(mywire.ErrInteractionTimeout,
			"The client was disconnected by weir because of inactivity (--client-idle-timeout %s).", limits.ClientIdleTimeout))
	}
}

// idle reports whether the client is idle outside a transaction: no command is in flight, and
// weir does nothing for it. It may own a backend.
func (c *client) idle() bool {
	if c.inTx() {
		return false
	}
	tr := &c.transport
	return c.link == nil || c.state == stateOpen && c.link.Depth() == 0 && tr.pass == 0 && !tr.streams && tr.drop == 0 && !c.resuming
}
