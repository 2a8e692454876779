package mysql

import (
	"errors"
	"io"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A backend is one connection to the server. Its units are those that were sent and are not
// answered yet, in order.
type backend struct {
	core.Conn[*unit]
	s    *netloop.Sock
	p    *pool
	id   uint32 // the server's connection id
	port int    // of weir's end of the connection, 0 if it has none
	caps mywire.Caps

	owner *client // owned
	lane  *lane   // laned

	answer  mywire.Answer
	walking bool          // answer parses the head's answer
	hold    []byte        // bytes of a packet that may end a result and is not complete yet
	status  mywire.Status // of the last OK

	backendSession
	backendStmts
	leftDiagnostics

	greeted   bool          // weir's first queries are answered
	polled    bool          // taken for a query of weir's own, which does not count as use
	killAgain time.Duration // weir kills nothing here before this
	alone     *unit         // runs here when the session is prepared
	struck    bool          // a KILL may have hit another statement than the intended one
}

// send appends a whole unit. The bytes are sent at the end of the turn together with those of
// every other unit for this backend. A prepared statement must exist here.
func (b *backend) send(u *unit) {
	b.push(u)
	if u.cmd == mywire.ComStmtExecute {
		b.s.Out = u.appendExecute(b.s.OutBuf(), b.use(u.st))
	} else {
		b.s.Out = append(b.s.OutBuf(), u.raw...)
	}
	b.s.Touch()
}

// push puts a unit in flight; the caller appends its bytes next.
func (b *backend) push(u *unit) {
	u.sendsAt(b)
	b.Push(u, b.p.l.Now)
	b.pace()
}

// pace holds back commands until those before them are answered, if the server cannot be sent
// several at once.
func (b *backend) pace() {
	at := uint64(0)
	if units := b.Units(); len(units) > 1 && !b.p.facts.pipelines {
		at = units[1].at
	}
	b.s.WriteUntil(at)
}

// hidden makes and queues a unit for a command of weir's own; the caller appends the bytes.
func (b *backend) hidden(cmd byte, done func(u *unit)) *unit {
	u := b.p.l.newUnit(unitHidden, cmd)
	u.done, u.park = done, true
	b.push(u)
	b.s.Touch()
	return u
}

// ask runs a query of weir's own; done is called with the answer, or with u.err.
func (b *backend) ask(sql string, done func(u *unit)) *unit {
	u := b.hidden(mywire.ComQuery, done)
	b.s.Out = mywire.AppendCommand(b.s.OutBuf(), mywire.ComQuery, sql)
	if b.Mode != core.ModeLaned {
		b.lastUser = nil
	}
	return u
}

// Goodbye implements core.Backend.
func (b *backend) Goodbye() {
	if b.saveIDAndClose() {
		return
	}
	if !b.s.Closed {
		b.s.Write(mywire.AppendQuit(nil))
		b.s.Flush()
	}
	b.s.Close(io.EOF)
}

// refused is the error for clients whose settings the server did not accept.
func refused(err *mywire.Error) *mywire.Error {
	return mywire.NewError(mywire.ErrUnknown, "weir could not restore the session settings on another connection: %v", err)
}

// ended is called when the head's answer is complete.
func (b *backend) ended(u *unit) {
	l := b.p.l
	took := b.Pop(l.Now)
	b.pace()
	u.took = took
	if !u.failed && u.hasStatus() {
		b.status = u.ok.Status
	}
	if u.Slot != core.SlotNone && u.read && !u.failed && u.shape != nil && took <= b.p.Patience() {
		u.shape.Flow()
	}
	b.p.FreeSlot(&u.Turn)
	if c := u.c; c != nil && c.transport.source == b {
		c.transport.freeSource()
	}
	switch u.kind {
	case unitHidden:
		u.done(u)
		l.recycle(u)
	case unitRows:
		u.grp.answered(u)
	default:
		if u.shape != nil && !u.failed {
			cost := took
			if b.Mode == core.ModeOwn && u.read {
				cost = min(cost, core.MaxObserved)
			}
			u.shape.Observe(cost, u.bytes)
		}
		if b.Mode == core.ModeShared {
			b.p.Answered(took)
		}
		if u.park && b.Mode == core.ModeLaned {
			break // answered when its group is complete
		}
		if u.retry {
			u.retry = false
			u.again()
			b.p.sharing.rerun(u)
			break
		}
		if u.c != nil && !u.c.s.Closed {
			if u.held() {
				u.c.s.Write(u.resp)
			}
			if u.flight != nil {
				u.endFlight()
			}
			u.c.answered(b, u)
		} else if u.refresh {
			b.p.refreshes.answered(u)
		}
		l.recycle(u)
	}
	if !b.s.Closed {
		b.settle()
	}
}

// settle decides what the backend does next when a unit has ended.
func (b *backend) settle() {
	if b.Depth() > 0 {
		if b.Mode == core.ModeShared {
			b.p.sharing.feed()
		}
		return
	}
	if b.Held {
		return // prepare has reserved it
	}
	if b.Cancels > 0 {
		return // settled again when the KILL has ended
	}
	b.struck = false
	b.p.Apart.EndGhosts(&b.Conn)
	switch b.Mode {
	case core.ModeShared, core.ModeOwn:
		b.p.release(b)
	case core.ModeOwned:
		b.owner.backendQuiet()
	case core.ModeLaned:
		b.lane.backendQuiet(b)
	}
}

// orphaned is called when the owner has left.
func (b *backend) orphaned(c *client) {
	b.owner = nil
	if b.s.Closed {
		return
	}
	if b.idOwner == c {
		b.idOwner = nil
	}
	if b.p.facts.silent && b.Depth() == 0 {
		b.Goodbye() // its current database is unknown
		return
	}
	if b.Depth() > 0 || c.transport.pass > 0 || c.transport.streams || c.state == stateSending {
		// The server works for a client that has left. Closing the connection ends a
		// transaction, but not a running statement: it runs to its end, as it does when a
		// client of the server itself disconnects.
		b.s.Close(io.EOF)
		return
	}
	if c.pins.held&pinXA != 0 {
		b.Goodbye() // see pins.mayHideXA
		return
	}
	c.texts.forgetUnjudged(b)
	if !c.pins.mayHideXA() {
		b.reset()
		return
	}
	b.Mode = core.ModeOwn
	b.s.Throttle(false)
	b.ask(rollbackSQL, func(u *unit) {
		switch {
		case b.s.Closed:
		case u.err != nil:
			b.Goodbye()
		default:
			b.reset()
		}
	})
}

// rollbackSQL rolls back a transaction. The server refuses it within an XA transaction.
const rollbackSQL = "ROLLBACK AND NO CHAIN NO RELEASE"

// reset resets the session to its state after the login.
func (b *backend) reset() {
	b.Mode = core.ModeOwn
	b.s.Throttle(false)
	b.renewSession()
}

// Cut implements core.Backend. A server that is busy with an overdue statement does not notice
// that the connection is closed, and is told. KILL QUERY would not do: behind it, the server
// would run what else it has received, such as the COMMIT of a group.
func (b *backend) Cut(err error) {
	b.s.Close(err)
	if errors.Is(err, core.ErrOverdue) {
		kill(b, "KILL", func(*mywire.Error) {})
	}
}

// fail closes the connection because weir cannot rely on its state any more.
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

// OnClosed reports to the clients that wait for this backend what is known about their
// statements. It never reruns a statement whose outcome is unknown.
func (b *backend) OnClosed(err error) {
	p := b.p
	p.lose(b, err)
	why := ""
	if err != nil && !errors.Is(err, netloop.ErrStopped) {
		why = ": " + err.Error()
	}
	// Not 2013, which is the number that clients themselves use for this: those built on
	// MariaDB's library take it from a server for a malformed packet.
	e := mywire.NewError(mywire.ErrNetRead, "weir: the connection to the server was lost%s; whether the statement took effect is unknown", why)
	owner, ln := b.owner, b.lane
	if c := b.idOwner; c != nil {
		b.idOwner = nil
		c.diag.last.loseID()
	}
	if u := b.Head(); u != nil && u.c != nil && u.c.transport.source == b {
		u.c.transport.source = nil
	}
	units := b.Lose()
	for _, u := range units {
		p.FreeSlot(&u.Turn)
		p.l.defined(u)
		p.l.renewSoon = p.l.renewSoon || u.change&changeSessions != 0
	}
	units = b.goElsewhere(units)
	b.owner, b.lane = nil, nil
	for _, u := range units {
		switch {
		case u.kind == unitHidden:
			u.err, u.failed = e, true
			u.done(u)
		case u.kind == unitRows && u.unsent(b):
			u.grp.apart()
		case u.kind == unitRows:
			u.grp.lost(u, e)
		case u.park && ln != nil && u.unsent(b):
			ln.unsent(b, u)
		case u.park && ln != nil:
			ln.lost(u, e)
		case u.refresh:
			p.refreshes.lost(u)
		case u.c == nil || u.c.s.Closed || u.c == owner:
		default:
			u.c.lost(u, e)
		}
	}
	if owner != nil {
		owner.backendGone(b, e)
	}
	if ln != nil {
		ln.backendGone(b, e)
	}
	p.Wake()
}
