package postgres

import (
	"errors"
	"io"
	"time"
	"unsafe"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A client is one session of an application. Between transactions it has no
// backend: its next unit runs on any. While it has one (link), its messages
// are translated and passed on as they come.
type client struct {
	s *netloop.Sock
	l *loop
	p *pool

	login     login          // who it is
	transport transport      // its socket: bytes become messages
	router    router         // sends statements while it has no backend
	fwd       forwarder      // sends statements while it has a backend
	responder responder      // processes answers
	pins      pins           // why it keeps its backend
	stmts     statements     // prepared statements
	texts     texts          // how texts are read
	settings  settings       // of the session
	hints     hintWarnings   // warnings about its hints
	moving    clientMover    // to another process
	cached    caching        // its reads with a ttl
	listens   clientListener // the channels it listens on, also while it has neither backend nor pin: see viaHub

	id    uint32 // for cancel requests, with secret
	addr  string
	app   string
	since time.Duration

	set *session.Set // its current settings

	tx       byte // transaction status, as last told to the client
	txSince  time.Duration
	inflight int      // units sent without a link and not answered yet
	reader   *backend // has all of these units, if they are shared reads; else nil
	again    []*unit  // of these units: those moved from behind a stalled read, which are sent in turn
	state    state
	queuedAt time.Duration
	resuming bool // on the agenda

	link *backend
	cur  *unit // while linked: the unit that is still open

	served    *backend
	draining  bool
	idleSince time.Duration
	stats     clientStats
}

// newClient makes a client on a loop.
func newClient(l *loop) *client {
	c := &client{l: l, tx: pgwire.StatusIdle}
	c.login.c, c.transport.c, c.router.c, c.fwd.c, c.responder.c = c, c, c, c, c
	c.pins.c, c.stmts.c, c.texts.c, c.settings.c, c.hints.c, c.moving.c, c.listens.c, c.cached.c = c, c, c, c, c, c, c, c
	c.cached.Client = cache.NewClient(l.srv.Cache, &c.cached)
	return c
}

type clientStats struct {
	units, grouped, errors uint64
}

func text(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }

// enter records the transaction status after a unit.
func (c *client) enter(status byte, u *unit) {
	if status != pgwire.StatusIdle && (c.tx == pgwire.StatusIdle || u.commits || u.undoes) {
		c.txSince = c.l.Now
	}
	c.tx = status
}

// reply sends an answer of weir's own.
func (c *client) reply(p []byte) {
	c.s.Write(p)
	c.idleSince = c.l.Now
}

// refuse answers the client's current unit with an error of weir's own. ReadyForQuery
// follows at once for a simple query, after the Sync otherwise. If the unit was to begin a
// transaction or to change the session's settings, the session ends: the statements that the
// client has already sent after it would run without them.
func (c *client) refuse(e *pgwire.Error) {
	c.stats.errors++
	typ, n, ok := pgwire.Peek(c.s.In)
	leads := ok && c.router.leads(typ, n, c.s.In)
	c.texts.settle(false)
	if leads {
		c.fatal(ending(e))
		return
	}
	c.router.refusal = e
	out := pgwire.AppendError(nil, e)
	if ok && typ != pgwire.ClientQuery && typ != pgwire.ClientFunction {
		c.state = stateSkipping
	} else {
		if ok {
			c.transport.drop = n
		}
		out = pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)
	}
	c.reply(out)
	c.resume()
}

// lost answers a unit whose connection was lost. A FATAL error ends the session.
func (c *client) lost(u *unit, e *pgwire.Error) {
	c.inflight--
	if c.responder.cancelled == u {
		c.responder.cancelled = nil
	}
	c.stats.errors++
	c.stmts.unparse(u) // whatever the server did with it, the names are free
	c.stmts.settle(u)
	c.cached.Wrote()
	c.cached.Leave((*cache.Flight).Fail)
	if u.wrote && u.bytes > 0 || e.Fatal() {
		// Part of the answer was sent: the session cannot continue.
		c.fatal(ending(e))
		return
	}
	c.reply(pgwire.AppendReadyForQuery(pgwire.AppendError(nil, e), pgwire.StatusIdle))
	c.nextAgain()
	c.resume()
}

// fatal sends the client an error and disconnects it. In the middle of a message it sends
// nothing, since the client would take the error for the rest of a row.
func (c *client) fatal(e *pgwire.Error) {
	if c.s.Closed || c.s.Closing {
		return
	}
	c.l.srv.Log.Debug("client closed", "client", c.addr, "user", c.p.key.user, "database", c.p.key.database, "because", e.Message)
	if !c.transport.part {
		c.s.Write(pgwire.AppendError(nil, e))
	}
	c.s.CloseAfterFlush()
}

func (c *client) protocolError(format string, args ...any) {
	c.l.ProtocolErrors++
	c.fatal(pgwire.NewFatal(pgwire.CodeProtocolViolation, format, args...))
}

// kick disconnects a client that harms others.
func (c *client) kick(why string) {
	c.l.srv.Log.Warn("client disconnected", "client", c.addr, "user", c.p.key.user, "database", c.p.key.database, "reason", why)
	c.s.Close(errors.New(why))
}

func (c *client) OnClosed(err error) {
	c.p.Stats.Received += c.s.Taken
	c.p.Stats.Sent += c.s.Written
	c.state.leave(stateWaiting)
	delete(c.l.Clients, c.id)
	c.l.srv.Left(c.id)
	c.l.Taken()
	if c.login.entry != nil {
		c.login.entry.left()
	} else {
		c.l.srv.SessionCounts.Leave(c.p.key.database, c.p.key.user)
	}
	for _, st := range c.stmts.byName {
		st.refs--
	}
	if c.stmts.unnamed != nil {
		c.stmts.unnamed.refs--
	}
	c.stmts.byName, c.stmts.unnamed = nil, nil
	c.transport.freeSource()
	c.listens.forget()
	c.cached.Leave((*cache.Flight).Leave)
	if b := c.link; b != nil {
		c.link = nil
		b.orphaned()
	}
}

// leaveIfIdle ends the session if it has nothing in flight.
func (c *client) leaveIfIdle() {
	if c.inflight == 0 && c.cur == nil && c.tx == pgwire.StatusIdle && c.state != stateCopying && (c.link == nil || c.link.Depth() == 0) {
		c.fatal(c.l.errShutdown())
	}
}

// Drain implements core.Client.
func (c *client) Drain() {
	c.draining = true
	if c.login.entry == nil || c.state == stateWaiting && c.link == nil {
		c.leaveIfIdle()
	}
}

// turnedAway ends the session of a client that asks for a backend although clients may get
// none any more.
func (c *client) turnedAway() bool {
	if c.draining && c.login.entry != nil && c.link == nil && c.inflight == 0 {
		c.fatal(c.l.errShutdown())
		return true
	}
	return false
}

// Shutdown implements core.Client.
func (c *client) Shutdown() {
	if c.login.entry != nil {
		c.s.Close(netloop.ErrStopped) // without an error, as PgBouncer does
		return
	}
	c.fatal(c.l.errShutdown())
}

// Tick enforces timeouts.
func (c *client) Tick() {
	limits := &c.p.Limits
	c.transport.checkReading()
	c.responder.insist()
	c.listens.Tick()
	c.cached.tick()
	if c.s.Ended() && !c.transport.unfinished() {
		c.s.Close(io.EOF)
	}
	if c.s.Closed || c.s.Closing {
		return
	}
	if c.tx != pgwire.StatusIdle && limits.TransactionTimeout > 0 && c.l.Now-c.txSince > limits.TransactionTimeout {
		c.p.Stats.Limited[core.LimitTransaction]++
		if c.transport.part {
			c.kick("its transaction took longer than --transaction-timeout")
			return
		}
		c.fatal(c.l.worded("transaction timeout",
			pgwire.NewFatal(pgwire.CodeTransactionTimeout, "terminating connection due to transaction timeout (%s, set in weir)", limits.TransactionTimeout)))
		return
	}
	if c.tx != pgwire.StatusIdle && c.link != nil && c.link.Depth() == 0 &&
		limits.IdleInTransactionTimeout > 0 && c.l.Now-c.idleSince > limits.IdleInTransactionTimeout {
		c.p.Stats.Limited[core.LimitIdleTransaction]++
		c.fatal(c.l.worded("idle transaction timeout", pgwire.NewFatal(pgwire.CodeIdleInTransactionTimeout,
			"terminating connection due to idle-in-transaction timeout (%s, set in weir)", limits.IdleInTransactionTimeout)))
		return
	}
	if limits.ClientIdleTimeout > 0 && c.idle() && c.l.Now-c.idleSince > limits.ClientIdleTimeout {
		c.p.Stats.Limited[core.LimitIdle]++
		c.fatal(c.l.worded("client_idle_timeout",
			pgwire.NewFatal(pgwire.CodeIdleSessionTimeout, "terminating connection due to idle-session timeout (%s, set in weir)", limits.ClientIdleTimeout)))
	}
}

// idle reports whether --client-idle-timeout applies to the client: it is idle, outside a
// transaction, and does not listen, since listeners exist to wait. In the PgBouncer mode it does
// not apply to clients that hold a connection.
func (c *client) idle() bool {
	if c.tx != pgwire.StatusIdle || c.inflight > 0 || c.state == stateWaiting || c.listens.viaHub() {
		return false
	}
	b := c.link
	return b == nil || c.login.entry == nil && c.login.greeted && b.Depth() == 0 && !b.Held && c.transport.pass == 0 && !c.resuming && c.pins.held&pinListen == 0
}
