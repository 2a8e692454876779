package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is what goes on elsewhere when a connection to the server is lost: statements
// of which nothing has left weir, and reads, which have no effects, unless their answer
// has begun. What the server was at work on when the connection broke is not run again,
// not even a read: it may be what has broken it. That the server itself says that it
// ends connections is no such doubt.

const (
	// mostLost bounds how often a statement is run again for that.
	mostLost = 3
	// killedAfter is from when on a read that is ended with its connection may be what
	// somebody meant to end, who has seen it in the server's list.
	killedAfter = time.Second
)

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
		u.retries < mostLost && !b.p.l.Draining()
}

// ends reports whether the server ends the connection, no matter which client uses it, instead of
// answering the read at the head.
func (b *backend) ends(u *unit, code uint16) bool {
	if !u.read || u.retries >= mostLost {
		return false
	}
	return code == mywire.ErrServerShutdown || code == mywire.ErrMariaConnectionKilled && b.p.l.Now-b.Since < killedAfter
}

// goElsewhere moves those of the units under way on a connection that is lost that can
// run on another, and returns the others.
func (b *backend) goElsewhere(units []*unit) (left []*unit) {
	p := b.p
	waiting := map[*client]bool{} // for the answer to an earlier one
	moved := map[*client]bool{}
	for i, u := range units {
		c := u.c
		switch {
		case u.kind != unitClient || u.park:
			left = append(left, u)
			continue
		case moved[c]: // in order, behind the one before
		case !u.remains(b) || !u.unsent(b) && !(u.read && i > 0):
			waiting[c] = true
			left = append(left, u)
			continue
		}
		moved[c] = true
		u.again()
		u.retry = false
		c.reader = nil
		switch {
		case waiting[c]:
			c.again = append(c.again, u)
		case b.Mode == core.ModeShared:
			p.sharing.again(u)
		default:
			p.alone.queue(u)
		}
		waiting[c] = true
	}
	return left
}
