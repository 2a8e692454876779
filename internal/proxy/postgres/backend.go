package postgres

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A backend is one connection to the server. Its units are those that were sent and
// not yet answered, in order.
type backend struct {
	core.Conn[*unit]
	s      *netloop.Sock
	p      *pool
	pid    uint32
	secret []byte
	number uint32                // unique among clients and backends; 0 without an Authenticator
	via    *pgwire.ConnectConfig // see backendConn
	params map[string]string     // ParameterStatus, as last reported
	lex    lexical               // derived from params: how it reads texts
	// bytewise: texts in its client_encoding can be read byte by byte.
	bytewise bool

	owner *client // if owned
	lane  *lane   // if laned

	status byte // of the last ReadyForQuery

	backendSession
	backendStmts

	pass int // bytes of the current message that are still to be passed on

	auditedAt   time.Duration
	served      bool          // has answered something
	lastWriter  *client       // the only client whose statements may have advanced sequences here, or nil
	mixed       bool          // statements of several clients may have
	cancelAgain time.Duration // weir cancels nothing here before this
	hazard      bool          // a cancel request may have hit another statement than the intended one
}

// send translates and appends a whole unit. The bytes leave at the turn's end
// together with those of every other unit for this backend. A write whose columns weir
// asks the server for follows later, see goOn: nothing may be sent behind it before.
func (b *backend) send(u *unit) {
	u.sendsAt(b)
	b.Push(u, b.p.l.Now)
	if u.simple {
		b.s.Out = append(b.s.OutBuf(), u.raw...)
		b.s.Touch()
		return
	}
	b.begin(u)
	if asksFirst(b, u) {
		return
	}
	b.sendMessages(u)
}

// sendMessages translates and appends the messages of a unit.
func (b *backend) sendMessages(u *unit) {
	special := len(u.exp) > 0
	var bound struct { // the last one, which may be described next
		st            *stmt
		portal, named uint32
	}
	for i := range u.ops {
		o := &u.ops[i]
		msg := u.raw[o.off:o.end]
		before := len(u.exp)
		switch o.kind {
		case pgwire.ClientParse:
			counted(b.p, &b.p.Stats.Parses)
			b.putParse(u, o.st)
			special = true
		case pgwire.ClientBind:
			counted(b.p, &b.p.Stats.Binds)
			if (u.read || u.refresh) && b.mustAsk(u, o.st) {
				b.askColumns(u, o.st)
			}
			name := b.bindName(u, o.st)
			special = special || len(u.exp) > before
			b.putBind(msg, int(o.name-o.off), int(o.rest-o.off), name)
			u.exp = append(u.exp, expect{code: expBind})
			at, rest := int(o.name-o.off), int(o.rest-o.off)
			bound.st, bound.portal = o.st, numberOf(text(msg[pgwire.HeaderLen:at-1]))
			bound.named = numberOf(text(cutName(msg[at : rest-1])))
		case pgwire.ClientDescribe:
			x := expect{code: expDescribe}
			name := msg[pgwire.HeaderLen+1 : len(msg)-1]
			if o.st != nil {
				b.need(u, o.st)
				special = special || len(u.exp) > before
				b.s.Out = pgwire.AppendDescribe(b.s.OutBuf(), pgwire.KindStatement, o.st.srvName)
				x.st, x.named = o.st, numberOf(text(cutName(name)))
				special = special || o.st.desc.params == nil || b.mustAsk(u, o.st)
			} else {
				b.s.Out = append(b.s.OutBuf(), msg...)
				if bound.st != nil && bound.portal == numberOf(text(name)) {
					x.st, x.named = bound.st, bound.named
					special = special || !x.st.desc.heard
				}
			}
			u.exp = append(u.exp, x)
		case pgwire.ClientClose:
			if o.st != nil || msg[pgwire.HeaderLen] == pgwire.KindStatement {
				u.exp = append(u.exp, expect{code: expOwnClose})
				special = true
			} else {
				b.s.Out = append(b.s.OutBuf(), msg...)
				u.exp = append(u.exp, expect{code: expClose})
			}
		case pgwire.ClientExecute:
			b.s.Out = append(b.s.OutBuf(), msg...)
			u.exp = append(u.exp, expect{code: expExecute})
		default:
			b.s.Out = append(b.s.OutBuf(), msg...)
		}
	}
	if !special {
		u.exp = u.exp[:0] // every answer is passed on as it comes
	}
	b.s.Touch()
}

// putBind appends a Bind message with the statement's name replaced. nameAt
// and restAt are the offsets in msg of that name and of what follows it.
func (b *backend) putBind(msg []byte, nameAt, restAt int, srvName string) {
	out := b.s.OutBuf()
	n := len(msg) - (restAt - nameAt) + len(srvName) + 1
	out = append(out, pgwire.ClientBind, byte((n-1)>>24), byte((n-1)>>16), byte((n-1)>>8), byte(n-1))
	out = append(out, msg[pgwire.HeaderLen:nameAt]...)
	out = append(out, srvName...)
	out = append(out, 0)
	b.s.Out = append(out, msg[restAt:]...)
}

// ask runs weir's own query; done is called with the rows, or with u.err.
func (b *backend) ask(sql string, done func(u *unit)) *unit {
	u := b.p.l.newUnit(unitHidden)
	u.done = done
	b.Push(u, b.p.l.Now)
	b.s.Out = pgwire.AppendQuery(b.s.OutBuf(), sql)
	b.s.Touch()
	if c := b.owner; c != nil {
		c.stmts.unnamedAt = 0 // a simple query ends the server's unnamed statement
	}
	return u
}

// ready ends a unit.
func (b *backend) ready(u *unit, status byte) {
	l := b.p.l
	took := b.Pop(l.Now)
	u.took = took
	b.ended(u)
	b.status = status
	if !b.served {
		b.served = true
		b.p.Works()
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
		u.grp.ready()
	default:
		if u.shape != nil && !u.failed {
			if b.Mode == core.ModeOwn && u.read {
				took = min(took, core.MaxObserved) // it may include the wait for a lock
			}
			u.shape.Observe(took, u.bytes)
		}
		if b.Mode == core.ModeShared {
			b.p.Answered(took)
		}
		if u.failed {
			b.unlearn(u) // messages sent after the error were skipped, too
		}
		if u.c != nil {
			u.c.state.leave(stateCopying) // also if it ended with an error
			u.c.fwd.concluded(b, u)
		}
		if u.retry {
			b.rerun(u)
		} else if u.park {
			// answered when its group is complete
		} else if u.c != nil && !u.c.s.Closed {
			if u.held() {
				u.c.s.Write(u.resp)
			}
			if u.flight != nil {
				u.land(status)
			}
			u.c.answered(b, u, status)
			l.recycle(u)
		} else {
			if u.refresh {
				b.p.refreshes.answered(u, status)
			}
			l.recycle(u)
		}
	}
	if !b.s.Closed {
		b.settle()
	}
}

// rerun queues a unit again after an error that weir caused.
func (b *backend) rerun(u *unit) {
	u.again()
	if givenUp(u) {
		return // its turn ended before the request arrived
	}
	if u.read && u.Tries > 0 && u.shape != nil {
		u.shape.Stall(b.p.l.Now + core.StallMark)
	}
	b.p.alone.queue(u)
}

// settle decides what happens to the backend when a unit has ended.
func (b *backend) settle() {
	if b.Depth() > 0 {
		switch b.Mode {
		case core.ModeShared:
			b.p.sharing.feed()
		case core.ModeOwned:
			b.giveOwn()
		}
		return
	}
	if b.Held {
		return // prepare has given it away
	}
	if b.Cancels > 0 {
		return // settled again when the cancel request has ended
	}
	b.hazard = false
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

// Goodbye ends a connection that has nothing in flight.
func (b *backend) Goodbye() {
	if !b.s.Closed {
		b.s.Write(pgwire.AppendTerminate(nil))
		b.s.Flush()
	}
	b.s.Close(io.EOF)
}

// Cut implements core.Backend. A server that is busy with an overdue statement does not notice
// that the connection is closed, and is told.
func (b *backend) Cut(err error) {
	b.s.Close(err)
	if errors.Is(err, core.ErrOverdue) {
		b.signal(func() {})
	}
}

// malformed ends the connection for a message that cannot be read.
func (b *backend) malformed(message string) {
	b.Cut(fmt.Errorf("server sent a malformed %s message", message))
}

func (b *backend) WantsMore() bool { return true }

func (b *backend) OnDrained() {
	if c := b.owner; c != nil {
		c.s.Throttle(false)
	}
}

// OnClosed answers the clients whose statements were on this backend. No statement whose
// outcome is unknown runs again.
func (b *backend) OnClosed(err error) {
	p := b.p
	p.lose(b, err)
	e := pgwire.NewError(pgwire.CodeConnectionFailure,
		"the connection to the server was lost; whether the statement took effect is unknown")
	e.Detail = lostDetail(err)
	fatal := *e
	fatal.Severity, fatal.SeverityRaw = "FATAL", "FATAL"
	fatal.Message = "the connection to the server was lost, and with it this session's transaction or state"
	owner, ln := b.owner, b.lane
	if u := b.Head(); u != nil && u.c != nil && u.c.transport.source == b {
		u.c.transport.source = nil
	}
	units := b.Lose()
	all := slices.Clone(units)
	for _, u := range units {
		p.FreeSlot(&u.Turn)
		p.unknown(u)
	}
	units = b.goElsewhere(units)
	b.owner, b.lane = nil, nil
	for _, u := range units {
		switch {
		case u.kind == unitHidden:
			u.err = e
			u.done(u)
		case u.kind == unitRows && u.unsent(b):
			u.grp.unsent()
		case u.kind == unitRows:
			u.grp.lost(u, e)
		case u.park && u.unsent(b):
			ln.unsent(u)
		case u.park:
			ln.lost(u, e)
		case u.refresh:
			p.refreshes.lost(u)
		case u.c == nil || u.c.s.Closed || u.c == owner:
		case u.unsent(b) && givenUp(u):
		default:
			u.c.lost(u, e)
		}
	}
	if owner != nil {
		owner.backendGone(b, &fatal, all, e)
	}
	if ln != nil {
		ln.backendGone(b, e)
	}
	p.Wake()
}

func lostDetail(err error) string {
	if err == nil || errors.Is(err, netloop.ErrStopped) {
		return ""
	}
	return err.Error()
}
