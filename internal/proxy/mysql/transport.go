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

// transport is the client's socket: it cuts commands from the bytes, and passes on or drops
// those of a message that is not read whole.
type transport struct {
	c *client

	reading core.ReadProgress
	source  *backend // the backend, not owned, that answers the client and is not read from until the output is written
	pass    int      // bytes of the current packet still to be passed on
	streams bool     // ... and another packet of the same message follows
	drop    int      // bytes of the current message still to be dropped
	refusal *refusal // weir's answer to a message that is not passed on; nil if there is none
	rest    rest     // the rest of a message that is dropped
	asksID  asksID   // finds LAST_INSERT_ID() in the message that is passed on unread
	voids   bool     // weir refused a command on which commands already received depend; see leads
}

// A refusal is the error with which weir answers a message that it has not received completely:
// the sequence number of the answer depends on the message's last packet.
type refusal struct {
	err    *mywire.Error
	closes bool // the session ends after it
}

// refuse answers the message that begins in p with an error when it is complete. It returns how
// much of p it consumed.
func (tr *transport) refuse(p []byte, e *mywire.Error, closes bool) int {
	tr.refusal = &refusal{e, closes}
	return tr.nextPacket(p)
}

// A rest watches how the client sends the rest of a message that weir drops.
type rest struct {
	tr *transport

	since, at time.Duration // when the wait for it began, and when bytes of it last came
	taken     uint64        // bytes received from the client by then
}

// check disconnects a client that does not send the rest of a message that weir has refused, or
// will refuse when it is complete, as the server does when it waits for one.
func (r *rest) check() {
	tr := r.tr
	c := tr.c
	if tr.refusal == nil && tr.drop == 0 {
		r.since, r.at, r.taken = c.l.Now, c.l.Now, c.s.Taken
		return
	}
	if r.at == 0 { // the client's first message is already one of these
		r.since = c.l.Now
	}
	if r.taken != c.s.Taken || r.at == 0 {
		r.taken, r.at = c.s.Taken, c.l.Now
	}
	if c.l.Now-r.at > c.l.restWithin || tr.refusal != nil && tr.refusal.closes && c.l.Now-r.since > refusedInAll {
		c.kick("it does not send the rest of a message that was refused")
	}
}

// refused sends the error for a message that is now complete.
func (tr *transport) refused() {
	r := tr.refusal
	tr.refusal = nil
	tr.c.responder.refuseHere(r.err)
	if r.closes {
		tr.c.s.CloseAfterFlush()
	}
}

// WantsMore implements netloop.Owner. OnData refuses messages larger than the configured limit;
// until then reading goes on.
func (c *client) WantsMore() bool {
	if c.state != stateOpen && c.state != stateSending || c.inflight > 0 || c.cur != nil {
		return false // its bytes stay in the buffer until then
	}
	n, ok := mywire.Message(c.s.In)
	return !ok || n > len(c.s.In)
}

// OnData executes the client's commands one by one.
func (c *client) OnData(p []byte) int {
	n := c.transport.take(p)
	c.texts.settle(n == len(p))
	return n
}

// take is OnData without its cleanup: the texts that it reads point into p.
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
			c.texts.forget()
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
			c.s.HoldBack(c.s) // a client that does not read is not served
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
		if used > 0 {
			c.texts.forget()
		}
		i += used // nothing if a backend was linked just now, the first or another: it gets the same bytes
	}
	tr.voids = false // a client that has sent nothing more reads the error first
	return i
}

// feed executes one command. It returns how much of p it consumed: 0 means that it needs more,
// or that the client waits.
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
		return 0 // an answer of weir's own comes after those in flight
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
	n = c.router.feed(cmd, msg)
	c.router.again = nil // what comes behind is new
	return n
}

// mayFollowOthers reports whether weir looks at a command of a client that has others in flight
// before those are answered.
func mayFollowOthers(cmd byte) bool {
	return cmd == mywire.ComQuery || cmd == mywire.ComStmtExecute || cmd == mywire.ComStmtClose
}

// resume schedules another look at the client's buffered bytes, later in this turn.
func (c *client) resume() {
	if len(c.s.In) > 0 && !c.resuming && !c.s.Closed {
		c.resuming = true
		c.l.Agenda.Session(c)
	}
}

// Look processes the buffered bytes again.
func (c *client) Look() {
	c.resuming = false
	if !c.moving.move() {
		c.s.Consume()
	}
}

// through passes on or drops the next bytes of a long message.
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

// nextPacket begins to pass on a packet of a message that is not read whole. It returns 0 until
// the packet's header is complete.
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

// toServer appends bytes to the linked backend's output, unless the message is refused.
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

// streamed passes on a part of a message that is not read whole; its text begins at head. It
// drops the part if the server has already answered the message.
func (tr *transport) streamed(p []byte, head int) {
	if tr.refusal == nil && tr.c.cur != nil && tr.asksID.in(p[head:]) {
		tr.breakOff(goneUnread("LAST_INSERT_ID()"))
		return
	}
	tr.toServer(p)
}

// breakOff refuses a message of which the server has received only a part: it closes the
// connection at once, and the client's when the client has sent the rest.
func (tr *transport) breakOff(e *mywire.Error) {
	c := tr.c
	b, u := c.link, c.cur
	tr.refusal, c.responder.seq = &refusal{e, true}, u.seq
	u.c, b.owner, c.link, c.cur = nil, nil, nil, nil
	c.s.Throttle(false) // its bytes need not be written any more
	b.s.Close(io.EOF)
}

// An asksID looks for LAST_INSERT_ID() in a text that is passed on unread, if weir has to
// refuse it there.
type asksID struct {
	on   bool
	tail []byte // the end of what it has read
}

// in reports whether the next part of the text, with the end of the part before it, asks for
// the id. It skips what may stand between the parts of a name: white space and quotes. A name
// in a literal or a comment counts, since all of the text before it decides whether it is in
// one.
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
	return slices.ContainsFunc(idNames[:], func(s string) bool { return bytes.Contains(seen, []byte(s)) })
}

// idNames are the names by which a text asks for the id, in lower case.
var idNames = [...]string{"last_insert_id", "@@identity", "@@session.identity", "@@local.identity"}

// sendFile waits for the file that the server requests from the client.
func (tr *transport) sendFile() {
	tr.c.state.enter(stateSending)
	tr.c.resume()
}

// feedFile passes on one packet of a file. An empty packet ends the file.
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

// holdBack stops reading from the backend while too much of its output waits for the client.
func (tr *transport) holdBack(b *backend) {
	c, most := tr.c, maxClientOut
	if b.owner == nil && b.Mode != core.ModeOwn {
		most = c.l.cfg.sharedOut
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

// freeSource resumes reading from the backend that answers the client and is not its own.
func (tr *transport) freeSource() {
	if b := tr.source; b != nil {
		tr.source = nil
		tr.reading.Frees(tr.c.l.Now)
		tr.waitedFor(b)
		b.s.Throttle(false)
	}
}

// waitedFor notes that weir begins or ceases to wait for the client of a group's member. The
// time does not count against the group.
func (tr *transport) waitedFor(b *backend) {
	if b.Mode == core.ModeLaned {
		b.Resumed = tr.c.l.Now
	}
}

// holdsUp reports whether other clients wait while b is held back for this one: for answers
// from b, or for a connection.
func (tr *transport) holdsUp(b *backend) bool {
	c, p := tr.c, tr.c.p
	other := func(u *unit) bool { return u.kind == unitRows || u.kind == unitClient && u.c != c && !u.Left() }
	if len(p.Reads)+p.Apart.Waiting() > 0 || p.ConnManager().Awaited() || slices.ContainsFunc(b.Units(), other) {
		return true
	}
	return b.lane != nil && (b.lane.Q.Len() > 0 || slices.ContainsFunc(b.lane.Runs[b].units, other))
}

// checkReading disconnects a client that has read nothing of its answer for too long, occupies
// a backend by that, and keeps others waiting.
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
	// restWithin is how long a client may send nothing in the middle of a message that weir
	// refuses: the server's default net_read_timeout. refusedInAll bounds the whole time of
	// such a message if the session ends with it.
	restWithin   = 30 * time.Second
	refusedInAll = 5 * time.Minute

	// maxWhole bounds the messages that weir buffers without a backend; a client with a longer
	// one gets a backend of its own.
	maxWhole = 256 << 10
	// maxGathered bounds the messages that weir reads whole; it passes a longer one on unread,
	// and the session is pinned.
	maxGathered = 64 << 20
)
