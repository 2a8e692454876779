package postgres

import (
	"errors"
	"io"
	"strings"
	"time"
	"unsafe"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A client is one session of an application. Between transactions it has no
// backend: its next unit runs on any. While it has one (link), its messages
// are translated and passed on as they come.
type client struct {
	s *netloop.Sock
	l *loop
	p *pool

	id        uint32 // for cancel requests, with secret
	secret    []byte
	addr      string
	app       string
	lex       lexical        // as the client knows it
	bytewise  bool           // its texts can be read byte by byte
	owed      []pgwire.Param // changed by the server, and to be told
	lexicalTx bool           // the transaction under way has changed how they are read
	// startApp is the application name of the startup message.
	startApp string
	since    time.Duration

	set      *session.Set // in force for the client
	startSet *session.Set // from its startup message: what RESET goes back to
	stmts    map[string]*stmt
	unnamed  *stmt
	// unnamedAt is the link during which the unnamed statement was parsed on
	// the backend itself, unnamed there too; 0 if it was not.
	unnamedAt uint64

	tx       byte     // transaction status, as last told to the client
	inflight int      // units sent without a link and not answered
	source   *backend // runs a read of the client's apart, held back until its output is written
	reader   *backend // has all of these units, if they are shared reads; else nil
	again    []*unit  // of these units: moved from behind a stalled one, to be sent in turn
	greeted  bool
	waiting  bool // for a backend, in the pool's queue
	queuedAt time.Duration
	wantOwn  bool // for the backend where it wrote last, if that is free
	skipping bool // until Sync: the client was told of an error that the server does not know of
	drop     int  // bytes of the present message that go nowhere
	resuming bool // on the agenda

	partialAt  time.Duration // since when messages without a Sync wait; 0 if none do
	partialDue bool          // they have waited long enough

	link    *backend
	linkSeq uint64
	cur     *unit // linked: the unit that is still open
	pass    int   // linked: bytes of the present message that are still to be passed on
	copyIn  bool  // linked: the server waits for CopyData

	pins      pin
	look      bool     // ask the server which state is left, when quiet
	asking    bool     // ... that question is under way
	pinsAsked pin      // pins of statements sent behind it
	unsure    []string // settings that the server is to be asked for, when quiet
	// bodies: functions were made in the transaction under way; what they do is not
	// known before it ends. madeBodies: it has ended.
	bodies, madeBodies bool
	makesSurely        bool                // not only perhaps
	makes              bool                // relations, by a transaction that has not ended
	unread             map[string]struct{} // texts that nothing was known of
	unreadBytes        int
	prepares           uint64   // the epoch in which the session first had SQL-prepared statements
	leftovers          bool     // SQL-prepared statements may be left on the backend
	lent               []string // protocol-level statements that the backend has under the client's names
	txSets             []sqlscan.SetClause
	reached            []*reach // in the transaction under way
	txUnclear          bool     // a savepoint was rolled back: txSets may not all hold
	awaiting           int      // units under way for whose answers what is behind them waits

	taken   uint64        // bytes of its output that it had taken
	takenAt time.Duration // ... when that was last looked at and had changed

	markSeq   uint64
	long      *longRead // linked: the text of the next message, which is being read
	cancelled *unit     // a cancel request is meant for this one
	served    *backend
	draining  bool
	noticed   map[string]bool // hints already complained of
	idleSince time.Duration
	stats     clientStats
}

type clientStats struct {
	units, grouped, errors uint64
}

// maxWhole bounds what weir gathers of one unit before it decides: a longer
// one gets a backend of its own and is passed on as it comes.
const maxWhole = 256 << 10

// maxSmall bounds messages that only name something, as the server does.
const maxSmall = 10000

func text(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }

// scan reads a text, which is the loop's afterwards, in the form in which
// lexical.reads has it, unless it cannot be read.
func (c *client) scan(sql string) reading {
	if !c.readable(sql) {
		return opaque
	}
	t := &c.l.text
	t.Read(c.lexical().reads(sql))
	return c.p.judge(scan(sql, t), t)
}

// WantsMore: a message is never larger than the configured limit, which
// frame checks; until then reading goes on.
func (c *client) WantsMore() bool {
	if c.waiting || c.inflight > 0 {
		return false
	}
	_, n, ok := pgwire.Peek(c.s.In)
	return ok && n > len(c.s.In)
}

func (c *client) OnData(p []byte) int {
	i := 0
	for i < len(p) && !c.s.Closed {
		if c.s.Closing {
			return len(p)
		}
		if c.drop > 0 {
			n := min(c.drop, len(p)-i)
			c.drop -= n
			i += n
			continue
		}
		if c.waiting || !c.greeted {
			return i
		}
		if c.cur == nil && c.pass == 0 && c.s.Pending() > maxClientOut {
			c.s.NotifyDrained() // it asks faster than it reads, and holds no backend meanwhile
			return i
		}
		if c.pass > 0 {
			n := min(c.pass, len(p)-i)
			c.pass -= n
			c.toServer(p[i : i+n])
			i += n
			continue
		}
		typ, n, ok := pgwire.Peek(p[i:])
		if !ok {
			return i
		}
		if n < pgwire.HeaderLen || n > c.l.cfg.MaxMessage {
			c.protocolError("message of type %q is %d bytes long; the limit is %d", typ, n-1, c.l.cfg.MaxMessage)
			return len(p)
		}
		switch typ {
		case pgwire.ClientSync, pgwire.ClientFlush:
			if n != pgwire.HeaderLen {
				c.protocolError("message of type %q is %d bytes long", typ, n-1)
				return len(p)
			}
		case pgwire.ClientDescribe, pgwire.ClientClose, pgwire.ClientExecute:
			if n-1 > maxSmall { // the length does not count the type
				c.protocolError("message of type %q is %d bytes long", typ, n-1)
				return len(p)
			}
		}
		if c.p.proof.stale && reads(typ) || c.link != nil && c.link.Held && typ != pgwire.ClientTerminate {
			return i // looked at again when the functions that were made are known
		}
		linked := c.link != nil
		var used int
		if linked {
			used = c.feedLinked(typ, n, p[i:])
		} else {
			used = c.feedFree(typ, n, p[i:])
		}
		if used == 0 && (linked || c.link == nil) {
			return i
		}
		i += used // nothing if a backend was linked just now: it gets the same bytes
	}
	return i
}

// feedFree takes the next unit of a client without a backend. It returns how
// much of p it consumed; 0 means that more is needed, or that the client waits.
func (c *client) feedFree(typ byte, n int, p []byte) int {
	if typ == pgwire.ClientTerminate {
		c.s.Close(io.EOF)
		return n
	}
	if c.skipping && typ != pgwire.ClientSync {
		c.drop = n
		return c.takeDrop(len(p))
	}
	switch typ {
	case pgwire.ClientSync:
		if c.inflight > 0 {
			return 0
		}
		c.skipping = false
		c.reply(pgwire.AppendReadyForQuery(nil, pgwire.StatusIdle))
		return n
	case pgwire.ClientCopyData, pgwire.ClientCopyDone, pgwire.ClientCopyFail:
		// Left over from a COPY that the server has ended with an error.
		c.drop = n
		return c.takeDrop(len(p))
	case pgwire.ClientFlush:
		return n
	case pgwire.ClientQuery:
		return c.feedQuery(n, p)
	case pgwire.ClientParse, pgwire.ClientBind, pgwire.ClientDescribe, pgwire.ClientExecute, pgwire.ClientClose:
		return c.feedExtended(p)
	case pgwire.ClientFunction:
		return c.needBackend(false)
	default:
		c.protocolError("unknown message type %q", typ)
		return len(p)
	}
}

// reads tells whether a message has, or runs, a text that weir judges.
func reads(typ byte) bool {
	switch typ {
	case pgwire.ClientQuery, pgwire.ClientParse, pgwire.ClientBind, pgwire.ClientFunction:
		return true
	}
	return false
}

// takeDrop consumes what is here of a message to be dropped.
func (c *client) takeDrop(have int) int {
	n := min(c.drop, have)
	c.drop -= n
	return n
}

// needBackend queues the client for a backend of its own. It returns 0: nothing
// is consumed until there is one.
func (c *client) needBackend(own bool) int {
	if c.inflight > 0 {
		return 0 // in order: after its earlier units are answered
	}
	c.wantOwn = own
	c.p.queueClient(c)
	return 0
}

// feedQuery takes a simple query.
func (c *client) feedQuery(n int, p []byte) int {
	if n > len(p) {
		if len(p) > maxWhole {
			return c.needBackend(false)
		}
		return 0
	}
	if n > maxScanned {
		return c.needBackend(false)
	}
	sql, err := pgwire.ParseQuery(p[pgwire.HeaderLen:n])
	if err != nil {
		c.protocolError("malformed Query message")
		return len(p)
	}
	info := c.scan(text(sql))
	if info.Hints.Bad != nil {
		c.complain(info.Hints.Bad)
	}
	if c.intercept(&info.Statement) {
		return n
	}
	if !c.bytewise {
		return c.needBackend(false)
	}
	switch routeOf(&info.Statement) {
	case routeRead:
		sh := c.shape(text(sql), &info)
		if !sh.Sharable() {
			if c.inflight > 0 {
				return 0
			}
			if c.crowded() {
				return c.needBackend(false)
			}
			c.unname("")
			u := c.unitOf(p[:n])
			u.simple, u.shape = true, sh
			c.p.sharing.runAlone(u)
			return n
		}
		if c.inflight > 0 && (!c.mayFollow() || sh.Stalled(c.l.Now)) {
			return 0
		}
		c.unname("") // as the server does
		u := c.unitOf(p[:n])
		u.simple, u.shape = true, sh
		c.p.sharing.run(u)
		return n
	case routeWrite:
		window, ok := c.batchWindow(&info.Statement)
		if !ok {
			break
		}
		if c.inflight > 0 {
			return 0
		}
		ln, shape, row := c.laneForText(text(sql), &info.Statement, window)
		if ln == nil {
			break
		}
		c.unname("")
		u := c.unitOf(p[:n])
		u.simple = true
		u.shape = shape
		u.row = row
		ln.push(u)
		return n
	}
	return c.needBackend(info.Effects.Has(sqlscan.EffSequenceRead))
}

// unitOf makes a unit of whole messages, which it copies.
func (c *client) unitOf(p []byte) *unit {
	u := c.l.newUnit(unitClient)
	u.c = c
	u.raw = append(u.raw[:0], p...)
	u.queuedAt = c.l.Now
	c.inflight++
	c.stats.units++
	return u
}

// mayFollow tells whether one more shared read may be sent behind the client's
// earlier ones, on the same backend, so that their answers come in order.
func (c *client) mayFollow() bool {
	b := c.reader
	return b != nil && b.Mode == core.ModeShared && !b.Retired && b.set == c.set && b.Depth() < core.MaxPipeline && b.Cancels == 0 && !b.Doomed && len(c.p.Reads) == 0 && len(c.again) == 0
}

// batchWindow tells whether a write is to join a group, and the most it may
// wait for others: 0 is adaptive.
func (c *client) batchWindow(info *sqlscan.Statement) (time.Duration, bool) {
	cfg := c.l.cfg
	if c.tx != pgwire.StatusIdle || c.pins != 0 || cfg.Mode == session.ModeSession {
		return 0, false
	}
	if _, known := c.p.facts.lockTimeout(c.set); !known {
		return 0, false // nor is how long it may wait in a group
	}
	h := info.Hints.Batch
	switch h.Kind {
	case sqlscan.BatchOff:
		return 0, false
	case sqlscan.BatchAuto:
		return 0, true
	case sqlscan.BatchWindow:
		return h.Window, true
	}
	return cfg.BatchDefault(c.p.key.database, c.p.key.user)
}

// answered is called when a unit of this client has been answered.
func (c *client) answered(b *backend, u *unit, status byte) {
	c.served = b
	c.idleSince = c.l.Now
	if u.failed {
		c.stats.errors++
		c.unparse(u)
	}
	if c.cancelled == u {
		c.cancelled = nil
	}
	if b.owner == c {
		c.settled(b, u, status)
	} else {
		c.inflight--
		if status != pgwire.StatusIdle {
			c.fatal(pgwire.NewFatal(pgwire.CodeInternalError, "weir did not see that a statement begins a transaction, which is rolled back"))
		}
		c.nextAgain()
	}
	c.pay()
	c.p.count(u, c.l.Now)
	if status == pgwire.StatusIdle {
		c.p.Stats.Transactions++
	}
	c.resume()
	if c.draining {
		c.leaveIfIdle()
	}
}

// unparse takes back what the messages of a failed unit did to the client's
// names, from the one that failed: the server skipped those behind it.
func (c *client) unparse(u *unit) {
	done := 0
	for _, x := range u.exp[:min(u.expAt, len(u.exp))] {
		if x.code == expParse || x.code == expOwnParse || x.code == expOwnClose {
			done++
		}
	}
	for i := len(u.parsed) - 1; i >= done; i-- {
		n := &u.parsed[i]
		now := c.unnamed
		if n.name != "" {
			now = c.stmts[n.name]
		}
		if now != n.st {
			continue // something later gave the name another meaning
		}
		refused := i == done && u.expAt < len(u.exp) && u.exp[u.expAt].code == expParse
		if n.prev == nil || (refused && n.name == "") {
			c.unname(n.name) // a refused Parse ends the unnamed statement
		} else if n.prev != n.st {
			c.name(n.name, n.prev)
		}
	}
}

// rename makes a client's name point to st, nil for nothing, as a message of u
// asks, and remembers how to take it back.
func (c *client) rename(u *unit, n parsedName) {
	n.prev = c.unnamed
	if n.name != "" {
		n.prev = c.stmts[n.name]
	}
	if n.st == nil {
		c.unname(n.name)
	} else if n.prev != n.st || n.name == "" {
		c.name(n.name, n.st)
	}
	u.parsed = append(u.parsed, n)
}

// resume has the client's held bytes looked at again, later in this turn.
func (c *client) resume() {
	if len(c.s.In) > 0 && !c.resuming && !c.s.Closed {
		c.resuming = true
		c.l.Agenda.Session(c)
	}
}

// Look looks at the held bytes again.
func (c *client) Look() {
	c.resuming = false
	c.s.Consume()
}

// reply sends weir's own answer.
func (c *client) reply(p []byte) {
	c.s.Write(p)
	c.idleSince = c.l.Now
}

// refuse answers the client's present unit with an error of weir's own.
// ReadyForQuery follows at once for a simple query, after the Sync otherwise.
func (c *client) refuse(e *pgwire.Error) {
	c.stats.errors++
	out := pgwire.AppendError(nil, e)
	typ, n, ok := pgwire.Peek(c.s.In)
	if ok && typ != pgwire.ClientQuery && typ != pgwire.ClientFunction {
		c.skipping = true
	} else {
		if ok {
			c.drop = n
		}
		out = pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)
	}
	c.reply(out)
	c.resume()
}

// lost answers a unit whose backend is gone.
func (c *client) lost(u *unit, e *pgwire.Error) {
	c.inflight--
	c.stats.errors++
	c.unparse(u) // whatever the server made of it, the names are free
	if u.wrote && u.bytes > 0 {
		// Part of the answer has left: the session cannot be continued.
		f := *e
		f.Severity, f.SeverityRaw = "FATAL", "FATAL"
		c.fatal(&f)
		return
	}
	c.reply(pgwire.AppendReadyForQuery(pgwire.AppendError(nil, e), pgwire.StatusIdle))
	c.nextAgain()
	c.resume()
}

// fatal tells the client why and disconnects it.
func (c *client) fatal(e *pgwire.Error) {
	if c.s.Closed || c.s.Closing {
		return
	}
	c.s.Write(pgwire.AppendError(nil, e))
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

// complain warns once per session about a hint that cannot be used.
func (c *client) complain(bad []string) {
	for _, msg := range bad {
		c.l.BadHints++
		if c.noticed[msg] || len(c.noticed) >= 32 {
			continue
		}
		if c.noticed == nil {
			c.noticed = make(map[string]bool)
		}
		c.noticed[strings.Clone(msg)] = true
		if c.inflight == 0 && (c.link == nil || c.link.Depth() == 0) { // never within an answer
			c.s.Write(pgwire.AppendNotice(nil, &pgwire.Error{
				Severity: "WARNING", SeverityRaw: "WARNING", Code: "01000",
				Message: "weir ignores a hint: " + msg,
			}))
		}
	}
}

func (c *client) OnDrained() {
	if c.link != nil {
		c.link.s.Throttle(false)
	}
	c.freeSource()
	c.resume()
}

// freeSource has the backend that was held back go on.
func (c *client) freeSource() {
	if b := c.source; b != nil {
		c.source = nil
		b.s.Throttle(false)
	}
}

func (c *client) OnClosed(err error) {
	c.p.Stats.Received += c.s.Taken
	c.p.Stats.Sent += c.s.Written
	c.waiting = false
	delete(c.l.Clients, c.id)
	c.l.srv.Left(c.id)
	c.l.Taken()
	for _, st := range c.stmts {
		st.refs--
	}
	if c.unnamed != nil {
		c.unnamed.refs--
	}
	c.stmts, c.unnamed = nil, nil
	c.freeSource()
	if b := c.link; b != nil {
		c.link = nil
		b.orphaned()
	}
}

// leaveIfIdle ends the session when nothing of it is under way.
func (c *client) leaveIfIdle() {
	if c.inflight == 0 && c.cur == nil && c.tx == pgwire.StatusIdle && !c.copyIn && (c.link == nil || c.link.Depth() == 0) {
		c.fatal(errShutdown())
	}
}

// checkReading disconnects a client that has taken nothing of its answer for long,
// holds a backend by that, and keeps others waiting.
func (c *client) checkReading() {
	limit := c.l.cfg.ClientWriteTimeout
	if limit <= 0 || (c.link == nil && c.source == nil) || c.s.Pending() <= maxClientOut || c.s.Written != c.taken {
		c.taken, c.takenAt = c.s.Written, c.l.Now
		return
	}
	if c.l.Now-c.takenAt > limit && c.p.keptWaiting() {
		c.kick("it has read nothing of its answer for " + limit.String() + " while others wait for its backend (--client-write-timeout)")
	}
}

// Drain implements core.Client.
func (c *client) Drain() {
	c.draining = true
	c.leaveIfIdle()
}

// Shutdown implements core.Client.
func (c *client) Shutdown() { c.fatal(errShutdown()) }

// Tick enforces the limits that are counted in time.
func (c *client) Tick() {
	cfg := c.l.cfg
	c.checkReading()
	if c.s.Closed {
		return
	}
	if c.tx != pgwire.StatusIdle && c.link != nil && c.link.Depth() == 0 &&
		cfg.IdleInTransactionTimeout > 0 && c.l.Now-c.idleSince > cfg.IdleInTransactionTimeout {
		c.fatal(pgwire.NewFatal(pgwire.CodeIdleInTransactionTimeout,
			"terminating connection due to idle-in-transaction timeout (%s, set in weir)", cfg.IdleInTransactionTimeout))
		return
	}
	if cfg.ClientIdleTimeout > 0 && c.tx == pgwire.StatusIdle && c.inflight == 0 && c.link == nil && !c.waiting &&
		c.l.Now-c.idleSince > cfg.ClientIdleTimeout {
		c.fatal(pgwire.NewFatal(pgwire.CodeIdleSessionTimeout, "terminating connection due to idle-session timeout (%s, set in weir)", cfg.ClientIdleTimeout))
	}
}
