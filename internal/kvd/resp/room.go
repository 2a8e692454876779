package resp

import "github.com/weirdb/weir/internal/kvd/wire"

// A client that asks and does not read what it is told has its answers wait here. How
// large an answer is, is known when it comes. So a connection takes as many as there is
// room for, and the session gets others again once the client has read: it forgets
// answers to queries only, since a write is not executed twice.

// smallAnswer is up to which size, in bytes, an answer is not counted: MaxInFlight
// bounds how many there are.
const smallAnswer = 4 << 10

// unread is what a connection counts of answers that are complete and not written.
// conn.mu guards it.
type unread struct {
	bytes   int
	refused bool // an answer found no room; the session is to be told when there is some
}

// Takes counts an answer of so many bytes, and reports that it may be given to Done. If
// it does not fit beside those that the client has not read, a session forgets it, and
// gets it again after Session.Resume. The oldest one that a client waits for, without
// which it gets no other, is taken in any case.
func (r *Reply) Takes(bytes int) bool {
	if r.conn == nil || bytes <= smallAnswer {
		return true
	}
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	if !r.fits(bytes, 0) {
		return false
	}
	r.count(bytes)
	return true
}

// TakesLater reports whether Takes would take an answer of so many bytes after others,
// of coming bytes, that were asked for again.
func (r *Reply) TakesLater(bytes, coming int) bool {
	if r.conn == nil {
		return true
	}
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	return r.fits(bytes, coming)
}

// Must counts an answer that cannot be had again.
func (r *Reply) Must(bytes int) {
	if r.conn == nil || bytes <= smallAnswer {
		return
	}
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	r.count(bytes)
}

func (r *Reply) count(bytes int) {
	r.size = bytes
	r.conn.unread.bytes += bytes
}

// fits reports whether there is room behind coming bytes of others. The caller holds
// conn.mu.
func (r *Reply) fits(bytes, coming int) bool {
	c := r.conn
	before := c.unread.bytes + coming
	if before == 0 || before+bytes <= c.srv.cfg.MaxInFlightBytes || c.ring.oldest() == r {
		return true
	}
	c.unread.refused = true
	return false
}

// oldest is the first reply that the writer has not taken.
func (r *ring) oldest() *Reply {
	if r.head == r.tail {
		return nil
	}
	return r.replies[r.head&uint64(len(r.replies)-1)]
}

// mayTell is how many writes whose answers hold values are under way at most: those
// answers are taken in any case.
const mayTell = 16

// tells reports whether cmd is a write whose answer holds values.
func tells(cmd *wire.Command) bool {
	if cmd.Verb != wire.Transaction {
		return cmd.Verb.IsWrite() && cmd.Options&wire.ReturnOld != 0
	}
	writes, values := false, false
	for i := range cmd.Commands {
		c := &cmd.Commands[i]
		writes = writes || c.Verb.IsWrite()
		values = values || c.Options&wire.ReturnOld != 0 || !c.Verb.IsWrite() && c.Options&wire.KeysOnly == 0
	}
	return writes && values
}
