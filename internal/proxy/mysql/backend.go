package mysql

import (
	"errors"
	"io"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A backend is one connection to the server. At any time it is in one mode:
//
//	free    nothing in flight; in pool.free
//	shared  pipelines reads of several clients
//	owned   serves one client: a statement, a transaction or a pinned session
//	laned   runs one group of writes
//	own     runs weir's own commands
//
// Its queue holds every unit sent and not yet answered, in order.
type backend struct {
	s    *netloop.Sock
	p    *pool
	id   uint32 // the server's connection id
	caps mywire.Caps

	mode  mode
	owner *client // owned
	lane  *lane   // laned

	queue   []*unit // from qHead on
	qHead   int
	answer  mywire.Answer
	walking bool          // answer is that of the head
	hold    []byte        // bytes of a packet that may end a result and is not whole yet
	status  mywire.Status // of the last OK

	set       *session.Set // settings in force when the queue is empty
	step      uint64       // auto_increment_increment of a session without an own one
	maxPacket int          // max_allowed_packet, which lasts as long as the connection
	prepared  map[*stmt]*instance
	textBytes int // of the prepared ones
	useSeq    uint64

	// lastUser is the client whose statement was the last here; its diagnostics
	// are still on the connection. nil if it was weir or several.
	lastUser *client
	// warned is the client to whom the warnings on the connection belong, if that
	// is known: a statement without a table leaves MariaDB's as they are.
	warned *client
	// inserter is the client whose LAST_INSERT_ID() is known to this connection
	// only; see lastid.go.
	inserter *client
	// holder is the client whose LAST_INSERT_ID(), in version holds, is also the
	// connection's.
	holder *client
	holds  uint64
	// sequencer is the client that keeps the connection for its sequences, of which
	// nobody else has used any here.
	sequencer *client
	// gtidOf is the client whose transaction the connection's last_gtid names; nil
	// if it is that of several or of one gone, or if hasGTID says that there is none.
	gtidOf  *client
	hasGTID bool

	greeted   bool          // has answered weir's first questions
	answered  time.Duration // when the last answer ended
	held      bool          // its session is being prepared for somebody
	freeSince time.Duration
	polled    bool // taken for a question of weir's own, which is no use
	born      time.Duration
	killAgain time.Duration // weir kills nothing here before
	notBefore time.Duration // its head does not count as stalled before
	ghosts    bool          // runs reads whose clients are served elsewhere
	alone     *unit         // is to run here when the session has been made ready
	cancels   int           // KILLs under way for this backend: it is not fed
	struck    bool          // a KILL may have hit another statement than was meant
	doomed    bool          // close when free: nobody may use it
	retired   bool          // close when free: it is out of date
}

// An instance is a prepared statement on one backend.
type instance struct {
	id   uint32
	used uint64
}

type mode uint8

const (
	modeFree mode = iota
	modeShared
	modeOwned
	modeLaned
	modeOwn
)

func (m mode) String() string {
	return [...]string{"free", "shared", "owned", "laned", "own"}[m]
}

func (b *backend) depth() int { return len(b.queue) - b.qHead }

func (b *backend) head() *unit {
	if b.qHead == len(b.queue) {
		return nil
	}
	return b.queue[b.qHead]
}

func (b *backend) push(u *unit) {
	if b.qHead > 0 && b.qHead == len(b.queue) {
		b.queue, b.qHead = b.queue[:0], 0
	} else if b.qHead > 256 {
		b.queue = b.queue[:copy(b.queue, b.queue[b.qHead:])]
		b.qHead = 0
	}
	u.sentAt = b.p.l.Now
	b.queue = append(b.queue, u)
}

func (b *backend) pop() {
	b.queue[b.qHead] = nil
	b.qHead++
	if b.qHead == len(b.queue) {
		b.queue, b.qHead = b.queue[:0], 0
	}
}

// send appends a whole unit. The bytes leave at the turn's end together with
// those of every other unit for this backend. A prepared statement must be known
// here.
func (b *backend) send(u *unit) {
	b.push(u)
	if u.cmd == mywire.ComStmtExecute {
		b.s.Out = u.appendExecute(b.s.OutBuf(), b.use(u.st))
	} else {
		b.s.Out = append(b.s.OutBuf(), u.raw...)
	}
	b.s.Touch()
}

// hidden makes and queues a unit for a command of weir's own; the caller appends
// the bytes.
func (b *backend) hidden(cmd byte, done func(u *unit)) *unit {
	u := b.p.l.newUnit(unitHidden, cmd)
	u.done, u.park = done, true
	b.push(u)
	b.s.Touch()
	return u
}

// ask runs weir's own query; done is called with the answer, or with u.err.
func (b *backend) ask(sql string, done func(u *unit)) {
	b.hidden(mywire.ComQuery, done)
	b.s.Out = mywire.AppendCommand(b.s.OutBuf(), mywire.ComQuery, sql)
	if b.mode != modeLaned {
		b.lastUser = nil
	}
}

// goodbye ends a connection that has nothing under way.
func (b *backend) goodbye() {
	if !b.s.Closed {
		b.s.Write(mywire.AppendQuit(nil))
		b.s.Flush()
	}
	b.s.Close(io.EOF)
}

// prepare brings a taken backend to the given settings, which costs a round trip,
// and then calls then. Nothing may be sent behind the command before it is
// answered: if the server refuses the settings, a statement would run in those of
// another client. On an error the backend is used up.
func (b *backend) prepare(set *session.Set, then func(err *mywire.Error)) {
	b.held = true
	l, p := b.p.l, b.p
	steps := transition(b.set, set, &p.facts, p.key.database)
	b.set = set
	p.st.Replays++
	var failure *mywire.Error
	left := len(steps)
	finish := func(u *unit) {
		if u.err != nil && failure == nil {
			failure = u.err
		}
		if left--; left > 0 {
			return
		}
		b.doomed = b.doomed || failure != nil
		l.Post(func() { // when the answer has been dealt with
			b.held = false
			then(failure)
		})
	}
	for _, st := range steps {
		b.hidden(st.cmd, finish)
		b.s.Out = mywire.AppendCommand(b.s.OutBuf(), st.cmd, st.arg)
	}
	b.lastUser = nil
}

// refused is the error for those whose settings the server did not take.
func refused(err *mywire.Error) *mywire.Error {
	return mywire.NewError(mywire.ErrUnknown, "weir could not restore the session settings on another connection: %v", err)
}

// ended is called when the head's answer is complete.
func (b *backend) ended(u *unit) {
	l := b.p.l
	b.pop()
	if !u.failed && u.tellsStatus() {
		b.status = u.ok.Status
	}
	took := l.Now - max(u.sentAt, b.answered)
	b.answered = l.Now
	if u.slot != slotNone && u.read && !u.failed && u.shape != nil && took <= b.p.patience() {
		u.shape.Flow()
	}
	b.p.freeSlot(u)
	switch u.kind {
	case unitHidden:
		u.done(u)
		l.recycle(u)
	case unitRows:
		u.grp.answered(u)
	default:
		if u.shape != nil && !u.failed {
			cost := took
			if b.mode == modeOwn && u.read {
				cost = min(cost, maxObserved)
			}
			u.shape.Observe(cost, u.bytes)
		}
		if b.mode == modeShared {
			b.p.readTime += (took - b.p.readTime) / 16
		}
		if u.park && b.mode == modeLaned {
			break // answered when its group is complete
		}
		if u.retry {
			u.retry = false
			u.again()
			b.p.runAgain(u)
			break
		}
		if u.c != nil && !u.c.s.Closed {
			if u.hold {
				u.c.s.Write(u.resp)
			}
			u.c.answered(b, u)
		}
		l.recycle(u)
	}
	if !b.s.Closed {
		b.settle()
	}
}

// settle decides what becomes of the backend when a unit has ended.
func (b *backend) settle() {
	if b.depth() > 0 {
		if b.mode == modeShared {
			b.p.feedReads()
		}
		return
	}
	if b.held {
		return // given to somebody by prepare
	}
	if b.cancels > 0 {
		return // settled again when the KILL has ended
	}
	b.struck = false
	b.endGhosts()
	switch b.mode {
	case modeShared, modeOwn:
		b.p.release(b)
	case modeOwned:
		b.owner.backendQuiet()
	case modeLaned:
		b.lane.backendQuiet(b)
	}
}

// orphaned is called when the owner has left.
func (b *backend) orphaned(c *client) {
	b.owner = nil
	if b.s.Closed {
		return
	}
	if b.inserter == c {
		b.inserter = nil
	}
	if b.p.facts.silent && b.depth() == 0 {
		b.goodbye() // in which database it is, nobody knows
		return
	}
	if b.depth() > 0 || c.pass > 0 || c.streams || c.infile {
		// The server is at work for nobody. Closing the connection ends a
		// transaction, but not a statement under way: that one runs to its end,
		// as it does when a client of the server itself goes away.
		b.s.Close(io.EOF)
		return
	}
	b.reset()
}

// reset brings the session back to what it was after the login.
func (b *backend) reset() {
	b.mode = modeOwn
	b.s.Throttle(false)
	b.renewSession()
}

// renewSession resets the session.
func (b *backend) renewSession() {
	b.hidden(mywire.ComResetConnection, func(u *unit) { b.doomed = b.doomed || u.err != nil })
	b.s.Out = mywire.AppendResetConnection(b.s.OutBuf())
	b.afterReset()
	b.introduce()
}

// afterReset forgets what a COM_RESET_CONNECTION under way takes away, and has the
// session made as a login makes it.
func (b *backend) afterReset() {
	clear(b.prepared)
	b.textBytes = 0
	db, other := b.set.Get(databaseSetting)
	b.set = b.p.settings.Empty()
	if other {
		b.set = b.p.settings.With(b.set, db) // the reset leaves the database
	}
	b.lastUser, b.inserter, b.holder, b.sequencer = nil, nil, nil, nil
	if base := b.p.facts.base; base != nil {
		// What a login sets, and a reset may set otherwise.
		b.ask(baseSQL(base), func(u *unit) { b.doomed = b.doomed || u.err != nil })
	}
	if sql := b.p.facts.initConnect; sql != "" { // several statements fail where the class has none
		b.ask(sql, func(u *unit) { b.doomed = b.doomed || u.err != nil })
	}
}

// fail closes the connection because it cannot be trusted any more.
func (b *backend) fail(err error) {
	b.p.l.srv.Log.Error("backend closed", "pool", b.p.key.String(), "connection", b.id, "error", err)
	b.s.Close(err)
}

func (b *backend) WantsMore() bool { return true }

func (b *backend) OnDrained() {
	if c := b.owner; c != nil {
		c.s.Throttle(false)
	}
}

// OnClosed reports to everybody who waits for this backend what is known of
// their statements. None is run again here, because its outcome is unknown.
func (b *backend) OnClosed(err error) {
	p := b.p
	p.lose(b, err)
	why := ""
	if err != nil && !errors.Is(err, netloop.ErrStopped) {
		why = ": " + err.Error()
	}
	// Not 2013, which is what clients themselves make of this: those built on
	// MariaDB's library take such a number from a server for a malformed packet.
	e := mywire.NewError(mywire.ErrNetRead, "weir: the connection to the server was lost%s; whether the statement took effect is unknown", why)
	owner, ln := b.owner, b.lane
	b.owner, b.lane = nil, nil
	if c := b.inserter; c != nil {
		b.inserter = nil
		c.last.loseID()
	}
	units := b.queue[b.qHead:]
	b.queue, b.qHead = nil, 0
	for _, u := range units {
		p.freeSlot(u)
		switch {
		case u.kind == unitHidden:
			u.err, u.failed = e, true
			u.done(u)
		case u.kind == unitRows:
			u.grp.lost(u, e)
		case u.park && ln != nil:
			ln.lost(u, e)
		case u.c == nil || u.c.s.Closed || u.c == owner:
		default:
			u.c.lost(u, e)
		}
	}
	if owner != nil {
		owner.backendGone(e)
	}
	if ln != nil {
		ln.backendGone(b, e)
	}
	p.wake()
}
