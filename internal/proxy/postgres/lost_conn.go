package postgres

import (
	"slices"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file continues work on another connection when one is lost: clients that had got it
// and have sent nothing on it yet; statements of which nothing was sent; and reads,
// which have no effects, unless their answer has begun. The statement that the server was
// executing does not run again, not even a read: it may be the cause. That does not apply if
// the server itself announces that it ends connections.

// died reports whether err, the answer to a query of weir's own, means that the server has
// ended the connection.
func (b *backend) died(err *pgwire.Error) bool { return b.s.Closed || lostIn(err) }

// lostIn reports whether the error of a question of weir's own means that its connection
// was lost.
func lostIn(err error) bool {
	return pgwire.Unavailable(err) || pgwire.CodeOf(err) == pgwire.CodeConnectionFailure
}

// sendsAt records where the unit begins in the output to b: with the next
// byte.
func (u *unit) sendsAt(b *backend) { u.at = b.s.Written + uint64(b.s.Pending()) }

// unsent reports whether nothing of a unit on b was sent. It is also valid when the
// connection is lost.
func (u *unit) unsent(b *backend) bool { return u.at >= b.s.Written }

// remains reports whether a unit on b is complete, and its client would accept that it runs
// again.
func (u *unit) remains(b *backend) bool {
	c := u.c
	return u.kind == unitClient && c != nil && c != b.owner && !c.s.Closed && !c.s.Closing && !u.dead && len(u.raw) > 0 &&
		c.responder.cancelled != u && u.retries < core.MostLost && !b.p.l.Draining()
}

// withholds reports whether the server ends the connection, whichever client uses it, instead of
// answering the read at the head, which then runs elsewhere.
func (b *backend) withholds(u *unit, e *pgwire.Error) bool {
	if !pgwire.Unavailable(e) || b.p.l.Now-b.Since > core.TerminatedAfter || !e.Fatal() || !u.read || u.park || b.owner != nil || !u.remains(b) {
		return false
	}
	if u.wrote {
		if u.c.responder.markSeq != u.c.s.Flushes {
			return false
		}
		u.c.s.Out = u.c.s.Out[:u.mark]
	}
	return true
}

// asyncError handles an ErrorResponse that is not an answer: the server is
// ending the connection.
func (b *backend) asyncError(msg []byte) {
	e, err := pgwire.ParseError(msg[pgwire.HeaderLen:])
	if err != nil {
		b.malformed("ErrorResponse")
		return
	}
	b.Doomed = true
	if c := b.owner; c != nil && c.login.greeted {
		// The client holds a transaction or session state here: it is lost.
		c.fatal(e)
	}
	if e.Fatal() {
		b.s.Close(e) // as the server does: no client should get it meanwhile
	}
}

// goElsewhere moves the units in flight on a lost connection that can
// run on another, and returns the others.
func (b *backend) goElsewhere(units []*unit) (left []*unit) {
	p := b.p
	return core.MoveElsewhere(units, func(u *unit) (*client, bool) {
		return u.c, u.kind == unitClient && !u.park
	}, func(u *unit, first bool) bool {
		return u.remains(b) && (u.retry || !u.wrote && (u.unsent(b) || u.read && !first))
	}, func(u *unit, behind bool) {
		u.again()
		u.c.reader = nil
		switch {
		case behind:
			u.c.again = append(u.c.again, u)
		case b.Mode == core.ModeShared:
			p.sharing.requeue(u)
		default:
			p.alone.queue(u)
		}
	})
}

// begins starts keeping what the client sends first on the backend that it got.
func (fw *forwarder) begins() {
	c := fw.c
	fw.first, fw.held = nil, c.pins.held
	fw.fresh = c.login.greeted && c.tx == pgwire.StatusIdle && !c.listens.viaHub()
}

// keep keeps bytes that were passed on, as long as none was sent.
func (fw *forwarder) keep(p []byte) {
	u := fw.first
	if u == nil {
		return
	}
	if b := fw.c.link; b == nil || !u.unsent(b) || len(u.raw)+len(p) > maxWhole {
		u.raw, fw.first = u.raw[:0], nil
		return
	}
	u.raw = append(u.raw, p...)
}

// takesBack makes what was passed on to b, and was not sent, the client's input once
// more. units are those of the connection. It returns false if that is impossible, because it has
// changed more than names of statements, or has happened too often.
func (fw *forwarder) takesBack(b *backend, units []*unit) bool {
	c, u := fw.c, fw.first
	fw.first = nil
	switch {
	case u == nil, !u.unsent(b), u.wrote, len(u.raw) == 0, b.Cancels > 0, c.responder.cancelled != nil:
		return false
	case c.tx != pgwire.StatusIdle, c.transport.drop > 0, c.pins.held&^pinUntracked != fw.held&^pinUntracked:
		return false
	case len(c.settings.unsure) > 0, c.settings.txUnclear, c.texts.bodies, c.texts.madeBodies, c.texts.makes, c.texts.prepares != 0, c.stmts.leftovers:
		return false
	case c.l.Draining(), !fw.takeBack.Again(c.l.Now, b.Born):
		return false
	}
	c.pins.held = fw.held
	for _, x := range slices.Backward(units) {
		if x.c == c {
			c.stmts.unparse(x)
			c.stats.units--
		}
	}
	c.stmts.settleAll()
	c.p.Stats.Reruns++
	c.s.Unread(u.raw)
	return true
}

// again prepares a unit to be sent once more.
func (u *unit) again() {
	u.retries++
	u.exp, u.expAt, u.flushedTo, u.unlike, u.asking = u.exp[:0], 0, 0, nil, false
	u.wrote, u.tagged, u.failed, u.retry, u.err, u.bytes, u.tuples = false, false, false, false, nil, 0, 0
	u.preempted, u.hold, u.park, u.resp, u.instead = false, false, false, u.resp[:0], nil
	u.c.p.Stats.Reruns++
}
