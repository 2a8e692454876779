package mysql

import (
	"bytes"
	"io"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// transport is the client's socket: commands are cut from its bytes, and those of a message
// that is not read whole are passed on or dropped.
type transport struct {
	c *client

	reading core.ReadProgress
	source  *backend // answers the client and is not its own, held back until its output is written
	pass    int      // bytes of the present packet that are still to be passed on
	streams bool     // ... and another packet of the same message follows
	drop    int      // bytes of the present message that go nowhere
	refusal *refusal // of a message that is passed on to nobody; nil if there is none
	rest    rest     // of the message that goes nowhere
	asksID  asksID   // of the message that is passed on unread
	voids   bool     // weir has answered with an error what the commands that are here already rely on; see leads
}

// A refusal is weir's answer to a message that it does not take, and of which it has not
// all: only its last packet says which sequence number the answer has.
type refusal struct {
	err    *mywire.Error
	closes bool // the session ends with it
}

// refuse answers the message that begins in p when it is here whole. It returns how much
// of p it consumed.
func (tr *transport) refuse(p []byte, e *mywire.Error, closes bool) int {
	tr.refusal = &refusal{e, closes}
	return tr.nextPacket(p)
}

// A rest is that of a message that goes nowhere.
type rest struct {
	tr *transport

	since, at time.Duration // when it was first waited for, and when something of it last came
	taken     uint64        // the bytes that had come from the client by then
}

// check disconnects a client that does not send the rest of a message that weir has
// refused, or will when it is here, as the server does where it waits for one.
func (r *rest) check() {
	tr := r.tr
	c := tr.c
	if tr.refusal == nil && tr.drop == 0 {
		r.since, r.at, r.taken = c.l.Now, c.l.Now, c.s.Taken
		return
	}
	if r.at == 0 { // its first message is such a one
		r.since = c.l.Now
	}
	if r.taken != c.s.Taken || r.at == 0 {
		r.taken, r.at = c.s.Taken, c.l.Now
	}
	if c.l.Now-r.at > c.l.restWithin || tr.refusal != nil && tr.refusal.closes && c.l.Now-r.since > refusedInAll {
		c.kick("it does not send the rest of a message that was refused")
	}
}

// refused answers a message whose refusal was decided before.
func (tr *transport) refused() {
	r := tr.refusal
	tr.refusal = nil
	tr.c.responder.refuseHere(r.err)
	if r.closes {
		tr.c.s.CloseAfterFlush()
	}
}

// WantsMore: a message is never larger than the configured limit, which OnData
// checks; until then reading goes on.
func (c *client) WantsMore() bool {
	if c.state != stateOpen && c.state != stateSending || c.inflight > 0 || c.cur != nil {
		return false // its bytes are held until then
	}
	n, ok := mywire.Message(c.s.In)
	return !ok || n > len(c.s.In)
}

// OnData takes the client's commands one by one.
func (c *client) OnData(p []byte) int {
	n := c.transport.take(p)
	c.texts.forget()
	return n
}

// take is OnData, in whose bytes the texts are that were read.
func (tr *transport) take(p []byte) int {
	c := tr.c
	i := 0
	for i < len(p) && !c.s.Closed {
		if c.transport.voids && c.transport.drop == 0 {
			c.transport.voids = false
			c.l.srv.Log.Warn("client disconnected", "client", c.addr, "user", c.p.key.user, "database", c.p.key.database,
				"reason", "it has sent commands behind one that was to begin a transaction, or set its session, and could not be run")
			c.s.CloseAfterFlush()
		}
		if c.s.Closing {
			return len(p)
		}
		if c.transport.drop > 0 || c.transport.pass > 0 || c.transport.streams {
			n := c.transport.through(p[i:])
			if n == 0 {
				return i
			}
			i += n
			continue
		}
		if c.state == stateSending {
			n := c.transport.feedFile(p[i:])
			if n == 0 {
				return i
			}
			i += n
			continue
		}
		if c.state != stateOpen || c.cur != nil {
			return i
		}
		if c.s.Pending() > maxClientOut {
			c.s.HoldBack(c.s) // who does not read is not served
			return i
		}
		if c.l.Giving() != nil && c.moving.waits() {
			return i
		}
		attempt := c.fwd.attempt
		used := c.feed(p[i:])
		if used == 0 && (c.link == nil || c.fwd.attempt == attempt) {
			return i
		}
		i += used // nothing if a backend was linked just now, the first or another: it gets the same bytes
	}
	tr.voids = false // who has sent nothing more reads the error first
	return i
}

// feed takes one command. It returns how much of p it consumed: 0 means that
// more is needed, or that the client waits.
func (c *client) feed(p []byte) int {
	c.login.reset()
	size, seq, ok := mywire.Peek(p)
	if !ok || (size > 0 && len(p) == mywire.HeaderLen) {
		return 0
	}
	if c.login.packs {
		if whole := size > 0 && len(p) >= mywire.HeaderLen+size; len(p) < mywire.TellsCompressed && (!whole || p[mywire.HeaderLen] == 0) {
			return 0
		}
		if c.login.refusesCompression(p) {
			return len(p)
		}
	}
	if c.inflight > 0 && (seq != 0 || size == 0 || !mayFollowOthers(p[mywire.HeaderLen])) {
		return 0 // what weir says to it comes after what is under way
	}
	if seq != 0 || size == 0 {
		c.protocolError("packets out of order")
		return len(p)
	}
	n, whole := mywire.Message(p)
	if n > c.l.cfg.MaxMessage && c.inflight > 0 {
		return 0
	}
	if n > c.l.cfg.MaxMessage {
		return c.transport.refuse(p, mywire.NewError(mywire.ErrPacketTooLarge, "Got a packet bigger than weir's limit of %d bytes (--max-message)", c.l.cfg.MaxMessage), true)
	}
	whole = whole && n <= len(p)
	c.responder.seq = 1
	if whole {
		c.responder.seq = answerSeq(p[:n])
	}
	if !whole && (c.link != nil || n <= maxWhole) && n <= c.l.gathers {
		return 0
	}
	cmd := p[mywire.HeaderLen]
	if c.texts.lost && cmd != mywire.ComQuit && !c.texts.settlesLost() {
		return 0
	}
	if !whole && c.link == nil {
		return c.router.needBackend()
	}
	if !whole {
		return c.fwd.stream(cmd, p)
	}
	msg := p[:n]
	if handled := c.router.own(cmd, msg); handled {
		return n
	}
	if c.link != nil {
		return c.fwd.feed(cmd, msg)
	}
	return c.router.feed(cmd, msg)
}

// mayFollowOthers reports whether a command of a client that has others under way
// is looked at before those are answered.
func mayFollowOthers(cmd byte) bool {
	return cmd == mywire.ComQuery || cmd == mywire.ComStmtExecute || cmd == mywire.ComStmtClose
}

// resume has the client's held bytes looked at again, later in this turn.
func (c *client) resume() {
	if len(c.s.In) > 0 && !c.resuming && !c.s.Closed {
		c.resuming = true
		c.l.Agenda.Session(c)
	}
}

// Look looks at the held bytes again.
func (c *client) Look() {
	c.resuming = false
	if !c.moving.move() {
		c.s.Consume()
	}
}

// through passes on or drops what is here of a long message.
func (tr *transport) through(p []byte) int {
	if tr.drop > 0 {
		n := min(tr.drop, len(p))
		tr.drop -= n
		return n
	}
	if tr.pass == 0 {
		return tr.nextPacket(p)
	}
	n := min(tr.pass, len(p))
	tr.pass -= n
	tr.streamed(p[:n], 0)
	if tr.refusal != nil && tr.pass == 0 && !tr.streams {
		tr.refused()
	}
	return n
}

// nextPacket begins to pass on a packet of a message that is not read whole. It
// returns 0 while its header is not here.
func (tr *transport) nextPacket(p []byte) int {
	n, seq, ok := mywire.Peek(p)
	if !ok {
		return 0
	}
	tr.streams = n == mywire.MaxPayload
	if tr.c.cur != nil {
		tr.c.cur.seq = seq + 1
	}
	size := mywire.HeaderLen + n
	have := min(size, len(p))
	tr.streamed(p[:have], mywire.HeaderLen)
	tr.pass = size - have
	if tr.refusal != nil {
		tr.c.responder.seq = seq + 1
		if tr.pass == 0 && !tr.streams {
			tr.refused()
		}
	}
	return have
}

// toServer appends bytes for the linked backend.
func (tr *transport) toServer(p []byte) {
	b := tr.c.link
	if b == nil || tr.refusal != nil {
		return
	}
	b.s.Write(p)
	if b.s.Pending() > maxClientOut {
		b.s.HoldBack(tr.c.s)
	}
}

// streamed passes on a part of a message that is not read whole. Its text begins at head.
// Nothing of it counts any more once the server has answered it.
func (tr *transport) streamed(p []byte, head int) {
	if tr.refusal == nil && tr.c.cur != nil && tr.asksID.in(p[head:]) {
		tr.breakOff(gone("LAST_INSERT_ID()"))
		return
	}
	tr.toServer(p)
}

// breakOff refuses a message of which the server has a part only: it closes the connection
// there, and the client's when the client has sent the rest.
func (tr *transport) breakOff(e *mywire.Error) {
	c := tr.c
	b, u := c.link, c.cur
	tr.refusal, c.responder.seq = &refusal{e, true}, u.seq
	u.c, b.owner, c.link, c.cur = nil, nil, nil, nil
	c.s.Throttle(false) // what it sent need not be written any more
	b.s.Close(io.EOF)
}

// An asksID looks for LAST_INSERT_ID() in a text that is passed on unread, if that must not
// be in it.
type asksID struct {
	on   bool
	tail []byte // of what it has seen
}

// in reports whether the next part of the text asks, with the end of the one before. What
// may stand between the parts of a name is passed over: white space and quotes. A name in a
// literal or a comment counts: whether it is in one depends on all of the text before.
func (a *asksID) in(p []byte) bool {
	if !a.on {
		return false
	}
	seen := a.tail
	for _, b := range p {
		if !lexicon.IsSpace(b) && b != '`' && b != '"' {
			seen = append(seen, b)
		}
	}
	seen = bytes.ToLower(seen)
	a.tail = bytes.Clone(seen[max(0, len(seen)-len("@@session.identity")+1):])
	return slices.ContainsFunc(forID[:], func(s string) bool { return bytes.Contains(seen, []byte(s)) })
}

// forID are what a text asks by, in lower case.
var forID = [...]string{"last_insert_id", "@@identity", "@@session.identity", "@@local.identity"}

// sendFile has the client send the file that the server asks for.
func (tr *transport) sendFile() {
	tr.c.state.enter(stateSending)
	tr.c.resume()
}

// feedFile passes on one packet of a file. An empty one ends it.
func (tr *transport) feedFile(p []byte) int {
	n, seq, ok := mywire.Peek(p)
	if !ok {
		return 0
	}
	size := mywire.HeaderLen + n
	have := min(size, len(p))
	tr.toServer(p[:have])
	tr.pass = size - have
	if n == 0 {
		tr.c.state.leave(stateSending)
		tr.c.link.answer.Resume(seq + 1)
	}
	return have
}

func (c *client) OnDrained() {
	if c.link != nil {
		c.link.s.Throttle(false)
	}
	c.transport.freeSource()
	c.s.Throttle(false)
	c.resume()
}

// holdBack stops reading from the backend while much of what it has said waits for the
// client.
func (tr *transport) holdBack(b *backend) {
	c, most := tr.c, maxClientOut
	if b.owner == nil && b.Mode != core.ModeOwn {
		most = maxSharedOut
	}
	if c.s.Pending() <= most {
		return
	}
	if b.owner == nil && tr.source != b {
		tr.source = b
		tr.reading.Holds(b.Since, c.l.Now)
		tr.waitedFor(b)
	}
	c.s.HoldBack(b.s)
}

// freeSource has the backend that answers the client, and is not its own, be read from
// again.
func (tr *transport) freeSource() {
	if b := tr.source; b != nil {
		tr.source = nil
		tr.reading.Frees(tr.c.l.Now)
		tr.waitedFor(b)
		b.s.Throttle(false)
	}
}

// waitedFor notes that the time for which the client of a member of a group is waited for
// begins, or ends: it is no other's.
func (tr *transport) waitedFor(b *backend) {
	if b.Mode == core.ModeLaned {
		b.Resumed = tr.c.l.Now
	}
}

// holdsUp reports whether others wait while b is held back for the client: for answers that
// come from b, or for a connection.
func (tr *transport) holdsUp(b *backend) bool {
	c, p := tr.c, tr.c.p
	other := func(u *unit) bool { return u.kind == unitRows || u.kind == unitClient && u.c != c && !u.Left() }
	if len(p.Reads)+p.Apart.Waiting() > 0 || p.ConnManager().Awaited() || slices.ContainsFunc(b.Units(), other) {
		return true
	}
	return b.lane != nil && (b.lane.Q.Len() > 0 || slices.ContainsFunc(b.lane.Runs[b].units, other))
}

// checkReading disconnects a client that has taken nothing of its answer for long,
// holds a backend by that, and keeps others waiting.
func (tr *transport) checkReading() {
	c := tr.c
	if b := tr.source; b != nil && b.Mode != core.ModeOwn {
		if why := tr.reading.HoldsUp(c.s.Written, c.l.Now, c.l.cfg.ClientWriteTimeout, tr.holdsUp(b)); why != "" {
			c.kick(why)
		}
		return
	}
	limit := c.l.cfg.ClientWriteTimeout
	if limit <= 0 || c.link == nil && tr.source == nil || c.s.Pending() <= maxClientOut {
		tr.reading.Reads(c.s.Written, c.l.Now)
		return
	}
	if tr.reading.Stuck(c.s.Written, c.l.Now, limit) && (c.p.ConnManager().Awaited() || tr.source != nil && c.p.Apart.Waiting() > 0) {
		c.kick("it has read nothing of its answer for " + limit.String() + " while others wait for its backend (--client-write-timeout)")
	}
}

const (
	// restWithin is how long a client may send nothing in the middle of a message that
	// weir refuses: the server's net_read_timeout by default. refusedInAll bounds such a
	// message where the session ends with it.
	restWithin   = 30 * time.Second
	refusedInAll = 5 * time.Minute

	// maxWhole bounds what weir gathers of a message before it decides: a
	// longer one gets a backend of its own.
	maxWhole = 256 << 10
	// maxGathered bounds the messages that weir reads whole at all; a longer one
	// is passed on unread, and pins.
	maxGathered = 64 << 20
)
