package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is what goes on elsewhere when a connection to the server is lost: commands
// of which nothing has left weir, and reads, which have no effects, unless their answer
// has begun. What the server was at work on when the connection broke is not run again,
// not even a read: it may be what has broken it. That the server itself says that it
// ends connections is no such doubt.

// sendsAt notes where in what is sent to the server on b the unit begins: with the next
// byte.
func (u *unit) sendsAt(b *backend) { u.at = b.s.Written + uint64(b.s.Pending()) }

// unsent reports whether nothing of a unit on b has left weir. It holds when the
// connection is lost, too.
func (u *unit) unsent(b *backend) bool { return u.at >= b.s.Written }

// remains reports whether a unit on b is whole, and may run again as far as its client is
// concerned.
func (u *unit) remains(b *backend) bool {
	c := u.c
	return u.kind == unitClient && c != nil && c != b.owner && !c.s.Closed && !c.s.Closing && !u.dead && !u.wrote && len(u.raw) > 0 &&
		u.retries < core.MostLost && !b.p.l.Draining()
}

// ends reports whether the server ends the connection, no matter which client uses it, instead of
// answering the read at the head.
func (b *backend) ends(u *unit, code uint16) bool {
	if !u.read || u.retries >= core.MostLost {
		return false
	}
	return code == mywire.ErrServerShutdown || code == mywire.ErrMariaConnectionKilled && b.p.l.Now-b.Since < core.TerminatedAfter
}

// goElsewhere moves those of the units under way on a connection that is lost that can
// run on another, and returns the others.
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

// keep keeps the message of a command that is about to be passed on, for it may have to
// be taken back.
func (fw *forwarder) keep(u *unit, msg []byte) {
	c := fw.c
	held := c.pins.held
	fw.whole = 0 < len(msg) && len(msg) <= maxWhole && !c.inTx() && (held == 0 || fw.fresh && held&^(pinMode|pinUntracked) == 0)
	fw.held, fw.unjudged, fw.fresh = held, len(c.texts.unjudged), false
	if fw.whole {
		u.raw = append(u.raw[:0], msg...)
	}
}

// takeBack makes the command that was to be passed on to b, and has not left weir, the
// client's next once more. It reports false if it cannot be, or was so too often.
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

// again reports whether the client's command may go to another backend, since b is lost
// and nothing was sent there: not if that was so too often.
func (fw *forwarder) again(b *backend) bool {
	return !fw.c.l.Draining() && fw.lost.Again(fw.c.l.Now, b.Born)
}

// errLostUnsent is for a command that was not sent.
func errLostUnsent() *mywire.Error {
	return mywire.NewError(mywire.ErrNetRead, "weir: the connection to the server was lost")
}
