package mysql

import (
	"errors"
	"io"
	"time"
	"unsafe"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A client is one session of an application. Between transactions it has no
// backend: its next command runs on any. While it has one (link), its commands
// are passed on as they come, one at a time.
type client struct {
	s *netloop.Sock
	l *loop
	p *pool

	id   uint32 // the connection id that the client was told
	addr string
	caps mywire.Caps // agreed with the client
	salt []byte      // the challenge that it has answered; COM_CHANGE_USER refers to it
	tls  bool        // somebody in between cannot listen
	// packs: has announced to compress what it sends, though that was not offered, and
	// has sent nothing yet.
	packs bool
	// borrows: may have what the server grants weir without a password; see trust.go.
	borrows bool
	since   time.Duration

	set      *session.Set // in force for the client
	startSet *session.Set // from its login: what COM_RESET_CONNECTION goes back to
	mode     myscan.Mode  // how its texts are to be read
	// strict: a value that does not fit is an error. Without it a statement of
	// several rows is more lenient than several statements.
	strict   bool
	status   mywire.Status
	stmts    map[uint32]*clientStmt
	lastStmt *clientStmt // prepared last: MariaDB's clients call it -1
	stmtSeq  uint32

	inflight int      // units sent without a link and not answered
	reader   *backend // has all of these units, if they are shared reads; else nil
	apartOn  *backend // runs one of them apart, and waits for the client to read
	again    []*unit  // of these units: moved from behind a stalled one, to be sent in turn
	waiting  bool     // for a backend, in the pool's queue
	queuedAt time.Duration
	resuming bool // on the agenda
	leaving  bool // on its way to a login of another user

	link    *backend
	cur     *unit             // linked: the command under way
	pass    int               // bytes of the present packet that are still to be passed on
	streams bool              // ... and another packet of the same message follows
	softly  bool              // in pool.soft
	drop    int               // bytes of the present message that go nowhere
	probing bool              // linked: the server is asked for the state of the transaction
	scanned *myscan.Statement // of the long text that is to be passed on next
	infile  bool              // linked: the client sends a file

	pins      pin
	draws     bool // may have used a sequence
	wroteGTID bool // a transaction of it has got a GTID
	// owed is what the server has told weir of this session in the answer to a
	// question of weir's own: the client's next OK has it.
	owed []byte
	// The client has chosen itself of which variables, or whether of changes of
	// the session's state, it is told.
	choseVariables, choseChanges bool

	locks []string // names of locks asked for by GET_LOCK with a literal
	named []string // statements prepared in SQL
	// namedEffects are what those may do; unjudged are texts that ran while the
	// catalog was not known to say what they do.
	namedEffects myscan.Effect
	unjudged     []unjudged
	last         lastStatement
	// keepsIDs: has asked for a LAST_INSERT_ID() that was not kept. Its writes with
	// ids of its own join no groups.
	keepsIDs bool
	served   *backend

	draining  bool
	noticed   map[string]bool // hints already complained of
	idleSince time.Duration
	stats     clientStats

	taken   uint64 // bytes that it had read at takenAt; see checkReading
	takenAt time.Duration

	tableLocks tableLock // as far as weir knows
	attempt    uint64    // at getting a backend; an earlier one is given up
	readying   *backend  // is being made ready for it

	begunMark uint64 // what had been written to it at begunAt; see checkBegun
	begunAt   time.Duration
}

type clientStats struct {
	units, grouped, errors uint64
}

const (
	// maxWhole bounds what weir gathers of a message before it decides: a
	// longer one gets a backend of its own.
	maxWhole = 256 << 10
	// maxGathered bounds the messages that weir reads whole at all; a longer one
	// is passed on unread, and pins.
	maxGathered = 64 << 20
)

func text(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }

// inTx tells whether the session is in a transaction, as far as is known.
func (c *client) inTx() bool { return c.status&mywire.StatusInTrans != 0 }

func (c *client) autocommit() bool { return c.status&mywire.StatusAutocommit != 0 }

// WantsMore: a message is never larger than the configured limit, which OnData
// checks; until then reading goes on.
func (c *client) WantsMore() bool {
	if c.waiting || c.inflight > 0 || c.cur != nil {
		return false // its bytes are held until then
	}
	n, ok := mywire.Message(c.s.In)
	return !ok || n > len(c.s.In)
}

// OnData takes the client's commands one by one.
func (c *client) OnData(p []byte) int {
	i := 0
	for i < len(p) && !c.s.Closed {
		if c.s.Closing {
			return len(p)
		}
		if c.drop > 0 || c.pass > 0 || c.streams {
			n := c.through(p[i:])
			if n == 0 {
				return i
			}
			i += n
			continue
		}
		if c.infile {
			n := c.feedFile(p[i:])
			if n == 0 {
				return i
			}
			i += n
			continue
		}
		if c.waiting || c.cur != nil || c.probing || c.leaving {
			return i
		}
		if c.s.Pending() > maxClientOut {
			c.s.HoldBack(c.s) // who does not read is not served
			return i
		}
		attempt := c.attempt
		used := c.feed(p[i:])
		if used == 0 && (c.link == nil || c.attempt == attempt) {
			return i
		}
		i += used // nothing if a backend was linked just now, the first or another: it gets the same bytes
	}
	return i
}

// through passes on or drops what is here of a long message.
func (c *client) through(p []byte) int {
	if c.drop > 0 {
		n := min(c.drop, len(p))
		c.drop -= n
		return n
	}
	if c.pass == 0 {
		return c.nextPacket(p)
	}
	n := min(c.pass, len(p))
	c.pass -= n
	c.toServer(p[:n])
	return n
}

// nextPacket begins to pass on a packet of a message that is not read whole. It
// returns 0 while its header is not here.
func (c *client) nextPacket(p []byte) int {
	n, seq, ok := mywire.Peek(p)
	if !ok {
		return 0
	}
	c.streams = n == mywire.MaxPayload
	if c.cur != nil {
		c.cur.seq = seq + 1
	}
	size := mywire.HeaderLen + n
	have := min(size, len(p))
	c.toServer(p[:have])
	c.pass = size - have
	return have
}

// feed takes one command. It returns how much of p it consumed: 0 means that
// more is needed, or that the client waits.
func (c *client) feed(p []byte) int {
	size, seq, ok := mywire.Peek(p)
	if !ok || (size > 0 && len(p) == mywire.HeaderLen) {
		return 0
	}
	if c.packs {
		if whole := size > 0 && len(p) >= mywire.HeaderLen+size; len(p) < mywire.TellsCompressed && (!whole || p[mywire.HeaderLen] == 0) {
			return 0
		}
		if c.refusesCompression(p) {
			return len(p)
		}
	}
	if c.inflight > 0 && (seq != 0 || size == 0 || !mayFollowOthers(p[mywire.HeaderLen])) {
		return 0 // what weir says to it comes after what is under way
	}
	if seq != 0 || size == 0 {
		c.protocolError("packets out of order")
		return len(p)
	}
	n, whole := mywire.Message(p)
	if n > c.l.cfg.MaxMessage && c.inflight > 0 {
		return 0
	}
	if n > c.l.cfg.MaxMessage {
		c.refuseHere(mywire.NewError(mywire.ErrPacketTooLarge, "Got a packet bigger than weir's limit of %d bytes (--max-message)", c.l.cfg.MaxMessage))
		c.s.CloseAfterFlush()
		return len(p)
	}
	whole = whole && n <= len(p)
	if !whole && (c.link != nil || n <= maxWhole) && n <= maxGathered {
		return 0
	}
	cmd := p[mywire.HeaderLen]
	if !whole && c.link == nil {
		return c.needBackend()
	}
	if !whole {
		return c.streamLinked(cmd, p)
	}
	msg := p[:n]
	if handled := c.feedOwn(cmd, msg); handled {
		return n
	}
	if c.link != nil {
		return c.feedLinked(cmd, msg)
	}
	return c.feedFree(cmd, msg)
}

// refusesCompression tells a client that compresses its commands that weir does not
// read that, and reports whether it did.
func (c *client) refusesCompression(p []byte) bool {
	c.packs = false
	if !mywire.IsCompressed(p) {
		return false
	}
	c.s.Write(mywire.AppendCompressedError(nil, mywire.NewError(mywire.ErrNotSupportedYet,
		"weir does not offer compression, and the client compresses nevertheless: connect without it (compress=False)")))
	c.l.srv.Log.Info("client disconnected: it compresses, which was not offered", "client", c.addr, "user", c.p.key.user)
	c.s.CloseAfterFlush()
	return true
}

// mayFollowOthers tells whether a command of a client that has others under way
// is looked at before those are answered.
func mayFollowOthers(cmd byte) bool {
	return cmd == mywire.ComQuery || cmd == mywire.ComStmtExecute || cmd == mywire.ComStmtClose
}

// needBackend queues the client for a backend of its own. It returns 0: nothing
// is consumed until there is one.
func (c *client) needBackend() int {
	if c.inflight > 0 {
		return 0 // in order: after its earlier units are answered
	}
	c.p.queueClient(c)
	return 0
}

// unitOf makes a unit of a whole message, which it copies.
func (c *client) unitOf(cmd byte, msg []byte) *unit {
	u := c.l.newUnit(unitClient, cmd)
	u.c, u.seq = c, answerSeq(msg)
	u.raw = append(u.raw[:0], msg...)
	u.queuedAt = c.l.Now
	c.inflight++
	c.stats.units++
	return u
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

// done answers a command with an OK of weir's own.
func (c *client) done() {
	c.s.Out = mywire.AppendOK(c.s.OutBuf(), 1, c.caps, &mywire.OK{Status: c.status})
	c.s.Touch()
	c.idleSince = c.l.Now
}

// refuseHere answers a command with an error of weir's own.
func (c *client) refuseHere(e *mywire.Error) {
	c.stats.errors++
	if c.link != nil {
		c.link.lastUser = nil // what is there is not this error
	}
	c.reply(mywire.AppendError(nil, 1, e))
	c.forgetDiagnostics()
}

// refuse answers the command whose bytes the socket holds, and drops them.
func (c *client) refuse(e *mywire.Error) {
	if n, ok := mywire.Message(c.s.In); ok {
		c.drop = n
	} else if len(c.s.In) > 0 {
		c.refuseHere(e) // the rest of a long message would have to be waited for
		c.s.CloseAfterFlush()
		return
	}
	c.refuseHere(e)
	c.resume()
}

// lost answers a unit that weir cannot have answered by the server.
func (c *client) lost(u *unit, e *mywire.Error) {
	c.inflight--
	c.stats.errors++
	if u.wrote {
		// Part of the answer has left: the session cannot be continued.
		c.kick("the connection to the server was lost in the middle of an answer")
		return
	}
	c.reply(mywire.AppendError(nil, u.firstSeq(), e))
	c.nextAgain()
	c.resume()
}

// fatal tells the client why and disconnects it.
func (c *client) fatal(e *mywire.Error) {
	if c.s.Closed || c.s.Closing {
		return
	}
	if c.cur == nil || !c.cur.wrote {
		seq := byte(0)
		switch {
		case c.cur != nil:
			seq = c.cur.firstSeq()
		case c.inflight > 0 || c.waiting:
			seq = 1
		}
		c.s.Write(mywire.AppendError(nil, seq, e))
	}
	c.s.CloseAfterFlush()
}

func (c *client) protocolError(what string) {
	c.l.ProtocolErrors++
	c.fatal(mywire.NewError(mywire.ErrMalformedPacket, "weir: %s", what))
}

// kick disconnects a client without a word.
func (c *client) kick(why string) {
	c.l.srv.Log.Warn("client disconnected", "client", c.addr, "user", c.p.key.user, "database", c.p.key.database, "reason", why)
	c.s.Close(errors.New(why))
}

func (c *client) OnDrained() {
	if c.link != nil {
		c.link.s.Throttle(false)
	}
	c.letRead()
	c.s.Throttle(false)
	c.resume()
}

// letRead goes on with what runs apart for the client, if it was held back because the
// client reads slowly.
func (c *client) letRead() {
	if b := c.apartOn; b != nil {
		c.apartOn = nil
		b.s.Throttle(false)
	}
}

func (c *client) OnClosed(error) {
	c.p.Stats.Received += c.s.Taken
	c.p.Stats.Sent += c.s.Written
	c.waiting = false
	delete(c.l.Clients, c.id)
	c.l.srv.Left(c.id)
	c.l.Taken()
	c.forgetStatements()
	c.letRead()
	if b := c.link; b != nil {
		c.link = nil
		b.orphaned(c)
	}
}

// leaveIfIdle ends the session when nothing of it is under way.
func (c *client) leaveIfIdle() {
	if c.inflight == 0 && c.cur == nil && !c.inTx() && !c.waiting && !c.leaving {
		c.fatal(errShutdown())
	}
}

// checkReading disconnects a client that has taken nothing of its answer for long,
// holds a backend by that, and keeps others waiting.
func (c *client) checkReading() {
	limit := c.l.cfg.ClientWriteTimeout
	if limit <= 0 || c.link == nil && c.apartOn == nil || c.s.Pending() <= maxClientOut || c.s.Written != c.taken {
		c.taken, c.takenAt = c.s.Written, c.l.Now
		return
	}
	if c.l.Now-c.takenAt > limit && len(c.p.Excl) > 0 {
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
	c.checkBegun()
	idle := c.cur == nil && c.inflight == 0 && !c.waiting
	switch {
	case !idle || c.leaving:
	case c.inTx() && cfg.IdleInTransactionTimeout > 0 && c.l.Now-c.idleSince > cfg.IdleInTransactionTimeout:
		c.fatal(mywire.NewError(mywire.ErrInteractionTimeout,
			"The client was disconnected because it sat in a transaction for longer than %s (--idle-in-transaction-timeout of weir).", cfg.IdleInTransactionTimeout))
	case !c.inTx() && c.link == nil && cfg.ClientIdleTimeout > 0 && c.l.Now-c.idleSince > cfg.ClientIdleTimeout:
		c.fatal(mywire.NewError(mywire.ErrInteractionTimeout,
			"The client was disconnected by weir because of inactivity (--client-idle-timeout %s).", cfg.ClientIdleTimeout))
	}
}

// quit ends the session as the client asks.
func (c *client) quit() { c.s.Close(io.EOF) }
