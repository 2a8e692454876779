package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file decides what runs again when a connection to the server is lost: commands of which
// nothing was sent, and reads, which have no effects, unless their answer has begun. The
// statement that the server was executing when the connection broke does not run again, not
// even if it is a read: it may be the cause. If the server itself reports that it ends
// connections, that doubt does not apply.

// sendsAt records where in the bytes sent to the server on b the unit begins: at the next byte.
func (u *unit) sendsAt(b *backend) { u.at = b.s.Written + uint64(b.s.Pending()) }

// unsent reports whether none of a unit's bytes on b have been sent. It also works after the
// connection is lost.
func (u *unit) unsent(b *backend) bool { return u.at >= b.s.Written }

// remains reports whether a unit on b is whole, and whether its client allows it to run again.
func (u *unit) remains(b *backend) bool {
	c := u.c
	return u.kind == unitClient && c != nil && c != b.owner && !c.s.Closed && !c.s.Closing && !u.dead && !u.wrote && len(u.raw) > 0 &&
		u.retries < core.MostLost && !b.p.l.Draining()
}

// ends reports whether the server ends the connection, whichever client uses it, instead of
// answering the read at the head.
func (b *backend) ends(u *unit, code uint16) bool {
	if !u.read || u.retries >= core.MostLost {
		return false
	}
	return code == mywire.ErrServerShutdown || code == mywire.ErrMariaConnectionKilled && b.p.l.Now-b.Since < core.TerminatedAfter
}

// goElsewhere moves those of the units in flight on a lost connection that can run on another
// one, and returns the others.
func (b *backend) goElsewhere(units []*unit) (left []*unit) {
	p := b.p
	return core.MoveElsewhere(units, func(u *unit) (*client, bool) {
		return u.c, u.kind == unitClient && !u.park
	}, func(u *unit, first bool) bool {
		return u.remains(b) && (u.unsent(b) || u.read && !first)
	}, func(u *unit, behind bool) {
		u.again()
		u.retry = false
		u.c.reader = nil
		switch {
		case behind:
			u.c.again = append(u.c.again, u)
		case b.Mode == core.ModeShared:
			p.sharing.again(u)
		default:
			p.alone.queue(u)
		}
	})
}

// keep keeps the message of a command that is about to be passed on, since it may have to be
// undone.
func (fw *forwarder) keep(u *unit, msg []byte) {
	c := fw.c
	held := c.pins.held
	fw.whole = 0 < len(msg) && len(msg) <= maxWhole && !c.inTx() && (held == 0 || fw.fresh && held&^(pinMode|pinUntracked) == 0)
	fw.held, fw.unjudged, fw.fresh = held, len(c.texts.unjudged), false
	if fw.whole {
		u.raw = append(u.raw[:0], msg...)
	}
}

// takeBack makes the command that was passed on to b, and was not sent, the client's next
// command again. It returns false if that is impossible, or has happened too often.
func (fw *forwarder) takeBack(b *backend, u *unit) bool {
	c := fw.c
	if !fw.whole || u.dead || b.Cancels > 0 || !fw.again(b) {
		return false
	}
	c.pins.held = fw.held &^ pinUntracked
	c.texts.unjudged = c.texts.unjudged[:fw.unjudged]
	c.texts.lost = len(c.texts.unjudged) > 0
	c.stmts.leave()
	c.diag.lost(b)
	c.p.Stats.Reruns++
	c.s.Unread(u.raw)
	return true
}

// again reports whether the client's command may go to another backend, since b is lost and
// nothing was sent there: not if that has happened too often.
func (fw *forwarder) again(b *backend) bool {
	return !fw.c.l.Draining() && fw.lost.Again(fw.c.l.Now, b.Born)
}

// errLostUnsent is the error for a command that was not sent.
func errLostUnsent() *mywire.Error {
	return mywire.NewError(mywire.ErrNetRead, "weir: the connection to the server was lost")
}
