package postgres

import "github.com/weirdb/weir/internal/proxy/core"

// This file is about answers that are too long to be kept, and about clients that read
// more slowly than the server answers.

const (
	// maxClientOut is how much of a result waits in weir for a client that
	// owns its backend before weir stops reading from that backend.
	maxClientOut = 1 << 20
	// maxHeld is how much of an answer is kept until it is complete. It is more than the sockets'
	// buffers hold when weir cancels a statement whose answer has just begun, so that such a
	// statement can still run again.
	maxHeld = 16 << 20
	// maxUnread is how much may wait for a client that owns no backend; beyond it, the client's next
	// statement waits until it has read that: there may be many such clients.
	maxUnread = 32 << 10
	// maxSharedOut is the same as maxClientOut for a client whose backend is shared:
	// there, to stop reading holds up others.
	maxSharedOut = 64 << 20
)

// kept reports whether the answer is kept although the client could get it: the unit
// may have to run again, or is acknowledged with its group.
func (u *unit) kept() bool { return u.park || u.hold }

// mayGoOn reports whether the answer may be passed to its client before it is complete.
func (u *unit) mayGoOn(b *backend) bool {
	return u.flight == nil && !u.tagged && (b.Cancels == 0 || !u.hold)
}

// tooLong reports whether a row of n bytes in an answer that is kept must be passed
// on as it comes.
func tooLong(u *unit, b *backend, n int) bool { return n > maxHeld && u.mayGoOn(b) }

// passing records whether the client has got only a part of a message, after
// which nothing but the rest of it may follow.
func (u *unit) passing(part bool) {
	if u.c != nil {
		u.c.transport.part = part
	}
}

// goesOn passes on the beginning of an answer that was to be kept until it is
// complete, because it is too long for that. From now on the unit cannot run again. For a member
// of a group these are rows; the end of its answer is kept until the group is
// flushed.
func (u *unit) goesOn(b *backend) {
	resp := u.resp
	u.resp, u.hold, u.cut, u.bound, u.preempted = nil, false, u.cut || u.bound > 0, 0, false
	c := u.c
	if c == nil || c.s.Closed {
		return
	}
	u.wrote = true
	c.responder.markSeq = c.s.Flushes - 1 // as if it had been sent
	c.s.Write(resp)
	b.holdBackFor(c, maxSharedOut)
}

// holdBack stops reading from the backend while much of its output waits for the
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
