package postgres

import (
	"bytes"
	"slices"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// transport is the client's socket: it splits the input into messages, and passes on or drops
// the parts of messages that are not read whole.
type transport struct {
	c *client

	reading core.ReadProgress
	source  *backend // answers the client but is not its own, and is held back until the client's output is written
	drop    int      // bytes of the current message to drop
	part    bool     // the client was sent a part of a server's message, and lacks the rest
	pass    int      // while linked: bytes of the current message still to be passed on
}

// WantsMore implements netloop.Handler. Messages are bounded by the configured limit, which
// frame checks, so reading may go on until then.
func (c *client) WantsMore() bool {
	if c.state == stateWaiting || c.inflight > 0 {
		return false
	}
	_, n, ok := pgwire.Peek(c.s.In)
	return ok && n > len(c.s.In)
}

func (c *client) OnData(p []byte) int {
	n := c.transport.take(p)
	c.texts.settle(n == len(p))
	return n
}

// take is OnData; the texts that are read lie within p.
func (tr *transport) take(p []byte) int {
	c := tr.c
	i := 0
	for i < len(p) && !c.s.Closed {
		if c.s.Closing {
			return len(p)
		}
		if c.transport.drop > 0 {
			n := min(c.transport.drop, len(p)-i)
			c.transport.drop -= n
			c.texts.forget()
			i += n
			continue
		}
		if c.state == stateWaiting || !c.login.greeted {
			return i
		}
		if c.cur == nil && c.transport.pass == 0 && c.s.Pending() > maxUnread {
			c.s.NotifyDrained() // it asks faster than it reads, and holds no backend meanwhile
			return i
		}
		if c.transport.pass > 0 {
			n := min(c.transport.pass, len(p)-i)
			c.transport.pass -= n
			c.transport.toServer(p[i : i+n])
			c.fwd.keep(p[i : i+n])
			i += n
			continue
		}
		typ, n, ok := pgwire.Peek(p[i:])
		if !ok {
			return i
		}
		if n < pgwire.HeaderLen || n > c.l.cfg.MaxMessage {
			c.protocolError("message of type %q is %d bytes long; the limit is %d", typ, n-1, c.l.cfg.MaxMessage)
			return len(p)
		}
		switch typ {
		case pgwire.ClientSync, pgwire.ClientFlush:
			if n != pgwire.HeaderLen {
				c.protocolError("message of type %q is %d bytes long", typ, n-1)
				return len(p)
			}
		case pgwire.ClientDescribe, pgwire.ClientClose, pgwire.ClientExecute:
			if n-1 > maxSmall { // the length does not include the type
				c.protocolError("message of type %q is %d bytes long", typ, n-1)
				return len(p)
			}
		}
		if c.l.Giving() != nil && c.moving.waits() {
			return i
		}
		if typ != pgwire.ClientTerminate && c.turnedAway() {
			return len(p)
		}
		if c.p.catalogue.stale && reads(typ) || c.link != nil && c.link.Held && typ != pgwire.ClientTerminate {
			return i // tried again when the new functions are known
		}
		linked := c.link != nil
		var used int
		if linked {
			used = c.fwd.feed(typ, n, p[i:])
			c.fwd.keep(p[i : i+used])
		} else {
			used = c.router.feed(typ, n, p[i:])
		}
		if used == 0 && (linked || c.link == nil) {
			return i
		}
		if used > 0 {
			c.texts.forget()
		}
		i += used // 0 if a backend was linked just now: it gets the same bytes
	}
	return i
}

// terminate executes the client's Terminate when everything that it sent before is answered, as
// the server does.
func (tr *transport) terminate() int {
	if tr.unfinished() {
		return 0 // tried again after the next answer
	}
	tr.c.s.CloseAfterFlush()
	return pgwire.HeaderLen
}

// unfinished reports whether the server has not yet answered everything that the client
// has sent.
func (tr *transport) unfinished() bool {
	c := tr.c
	b := c.link
	if b == nil {
		return c.inflight > 0 || c.state == stateWaiting
	}
	return b.Depth() > 0 && b.Head() != c.cur && (c.state != stateCopying || c.fwd.dataEnded)
}

// Lingers reports whether statements must still run that the client sent before it said
// goodbye and closed its connection.
func (c *client) Lingers() bool {
	return bytes.HasSuffix(c.s.In, terminate) && c.transport.unfinished()
}

var terminate = pgwire.AppendTerminate(nil)

// reads reports whether a message contains, or executes, a text that weir analyzes.
func reads(typ byte) bool {
	switch typ {
	case pgwire.ClientQuery, pgwire.ClientParse, pgwire.ClientBind, pgwire.ClientFunction:
		return true
	}
	return false
}

// maxSmall bounds messages that only contain names, as the server does.
const maxSmall = 10000

// resume schedules the client's held input to be read again, later in this turn.
func (c *client) resume() {
	if len(c.s.In) > 0 && !c.resuming && !c.s.Closed {
		c.resuming = true
		c.l.Agenda.Session(c)
	}
}

// Look reads the held input again.
func (c *client) Look() {
	c.resuming = false
	if !c.moving.move() {
		c.s.Consume()
	}
}

// takeDrop drops input of a message that must be dropped.
func (tr *transport) takeDrop(have int) int {
	n := min(tr.drop, have)
	tr.drop -= n
	return n
}

// stream passes on a message of which only the beginning may be here.
func (tr *transport) stream(n int, p []byte) int {
	have := min(n, len(p))
	tr.toServer(p[:have])
	tr.pass = n - have
	return have
}

// toServer appends bytes for the linked backend.
func (tr *transport) toServer(p []byte) {
	b := tr.c.link
	if b == nil {
		return
	}
	b.s.Write(p)
	if b.s.Pending() > maxClientOut {
		b.s.HoldBack(tr.c.s)
	}
}

func (c *client) OnDrained() {
	if c.link != nil {
		c.link.s.Throttle(false)
	}
	c.transport.freeSource()
	c.resume()
}

// freeSource resumes reading from the backend that was held back.
func (tr *transport) freeSource() {
	if b := tr.source; b != nil {
		tr.source = nil
		tr.reading.Frees(tr.c.l.Now)
		tr.waitedFor(b)
		b.s.Throttle(false)
	}
}

// waitedFor records that the wait for the client of a member of a group begins, or ends: that
// time does not count for other members.
func (tr *transport) waitedFor(b *backend) {
	if b.Mode == core.ModeLaned {
		b.Resumed = tr.c.l.Now
	}
}

// holdsUp reports whether others wait while b is held back for the client: for answers from
// b, or for a connection.
func (tr *transport) holdsUp(b *backend) bool {
	c, p := tr.c, tr.c.p
	other := func(u *unit) bool { return u.kind == unitRows || u.kind == unitClient && u.c != c && !u.Left() }
	if len(p.Reads)+p.Apart.Waiting() > 0 || p.ConnManager().Awaited() || slices.ContainsFunc(b.Units(), other) {
		return true
	}
	return b.lane != nil && (b.lane.Q.Len() > 0 || slices.ContainsFunc(b.lane.Runs[b].units, other))
}

// checkReading disconnects a client that has not read for long while its answer holds a
// backend that others wait for, or while weir keeps notifications for it.
func (tr *transport) checkReading() {
	c := tr.c
	if b := tr.source; b != nil && b.Mode != core.ModeOwn {
		if why := tr.reading.HoldsUp(c.s.Written, c.l.Now, c.l.cfg.ClientWriteTimeout, tr.holdsUp(b)); why != "" {
			c.kick(why)
		}
		return
	}
	limit, most := c.l.cfg.ClientWriteTimeout, maxClientOut
	if c.link != nil && c.link.Depth() == 0 {
		most = maxUnread // its next statement waits until it reads
	}
	if limit <= 0 || (c.link == nil && tr.source == nil && !c.listens.viaHub()) || c.s.Pending() <= most {
		tr.reading.Reads(c.s.Written, c.l.Now)
		return
	}
	if !tr.reading.Stuck(c.s.Written, c.l.Now, limit) {
		return
	}
	if c.listens.viaHub() {
		c.listens.tooSlow()
	} else if c.p.ConnManager().Awaited() || tr.source != nil && c.p.Apart.Waiting() > 0 {
		c.kick("it has read nothing of its answer for " + limit.String() + " while others wait for its backend (--client-write-timeout)")
	}
}

// maxWhole bounds what weir gathers of one unit before it decides: a longer
// one gets a backend of its own and is passed on as it comes.
const maxWhole = 256 << 10
