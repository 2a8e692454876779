package postgres

import "github.com/weirdb/weir/internal/proxy/core"

// This file is about answers that are too long to be kept, and about clients that read
// theirs more slowly than the server gives them.

const (
	// maxClientOut is how much of a result waits in weir for a client that
	// owns its backend, before weir stops reading from that backend.
	maxClientOut = 1 << 20
	// maxHeld is how much of an answer is kept until it is whole. It is more than what
	// lies in sockets when weir cancels a statement whose answer begins just then: that one
	// can still be run again.
	maxHeld = 16 << 20
	// maxUnread is how much waits for a client that gets nothing more run until it has
	// read that: there may be many such clients.
	maxUnread = 32 << 10
	// maxSharedOut is the same as maxClientOut for a client whose backend is shared:
	// there, to stop reading holds up others.
	maxSharedOut = 64 << 20
)

// kept reports whether the answer is kept although the client does not wait for that: it
// may have to be run again, or is acknowledged with its group.
func (u *unit) kept() bool { return u.park || u.hold }

// mayGoOn reports whether the answer may go on to its client before it is whole.
func (u *unit) mayGoOn(b *backend) bool {
	return u.flight == nil && !u.tagged && (b.Cancels == 0 || !u.hold)
}

// tooLong reports whether a row of so many bytes in an answer that is kept is to be passed
// on as it comes.
func tooLong(u *unit, b *backend, n int) bool { return n > maxHeld && u.mayGoOn(b) }

// passing reports whether the client that the unit answers has a part of a message only, to
// which nothing but the rest of it may be added.
func (u *unit) passing(part bool) {
	if u.c != nil {
		u.c.transport.part = part
	}
}

// goesOn gives the client what is here of an answer that was to be kept until it is
// whole: it is too long for that. From here on the unit cannot be run again. Of a member
// of a group these are rows; what says that they are all is kept until the group is
// flushed.
func (u *unit) goesOn(b *backend) {
	resp := u.resp
	u.resp, u.hold, u.cut, u.bound, u.preempted = nil, false, u.cut || u.bound > 0, 0, false
	c := u.c
	if c == nil || c.s.Closed {
		return
	}
	u.wrote = true
	c.responder.markSeq = c.s.Flushes - 1 // as if it had left
	c.s.Write(resp)
	b.holdBackFor(c, maxSharedOut)
}

// holdBack stops reading from the backend while much of what it has said waits for the
// client that it answers.
func (b *backend) holdBack() {
	if c := b.owner; c != nil {
		if c.s.Pending() > maxClientOut {
			c.s.HoldBack(b.s)
		}
	} else if u := b.Head(); u != nil && u.kind == unitClient && u.c != nil {
		most := maxClientOut
		if b.Mode != core.ModeOwn {
			most = maxSharedOut
		}
		b.holdBackFor(u.c, most)
	}
}

func (b *backend) holdBackFor(c *client, most int) {
	if c.s.Closed || c.s.Pending() <= most {
		return
	}
	if tr := &c.transport; tr.source != b {
		tr.source = b
		tr.reading.Holds(b.Since, c.l.Now)
		tr.waitedFor(b)
	}
	c.s.HoldBack(b.s)
}
