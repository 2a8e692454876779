package resp

import "github.com/weirdb/weir/internal/kvd/wire"

// The answers for a client that does not read them wait here. The size of an answer is known
// when it arrives. So a connection accepts answers while there is room, and the session gets
// the others again when the client has read. It drops answers to queries only, since a write
// must not be executed twice.

// smallAnswer is the size, in bytes, up to which answers are not counted: MaxInFlight limits
// their number.
const smallAnswer = 4 << 10

// unread counts answers that are complete and not written. Guarded by conn.mu.
type unread struct {
	bytes   int
	refused bool // an answer was rejected; the session must be told when there is room
}

// Accept counts an answer of this size, and reports whether it may be passed to Done. If it does
// not fit beside those that the client has not read, the session drops it, and gets it again
// after Session.Resume. The oldest answer that a client waits for is always accepted, because
// without it the client gets no other.
func (r *Reply) Accept(bytes int) bool {
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

// CouldAccept reports whether Accept would take an answer of this size after others, of coming
// bytes, that were requested again.
func (r *Reply) CouldAccept(bytes, coming int) bool {
	if r.conn == nil {
		return true
	}
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	return r.fits(bytes, coming)
}

// ForceAccept counts an answer that cannot be requested again.
func (r *Reply) ForceAccept(bytes int) {
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

// fits reports whether there is room after coming bytes of other answers. The caller holds
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

// oldest returns the first reply that the writer has not taken.
func (r *ring) oldest() *Reply {
	if r.head == r.tail {
		return nil
	}
	return r.replies[r.head&uint64(len(r.replies)-1)]
}

// maxValueWrites is the largest number of writes in flight whose answers have values: those answers
// are always accepted.
const maxValueWrites = 16

// answersWithValues reports whether cmd is a write whose answer has values.
func answersWithValues(cmd *wire.Command) bool {
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
