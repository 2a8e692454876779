package session

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Receive processes a message from a replica. The session owns the message's byte slices from
// now on.
func (s *Session) Receive(now int64, from uint64, m *wire.Message) {
	s.now = now
	in := answers{s}
	if s.expired {
		return
	}
	switch m.Kind {
	case wire.NewView:
		in.newView(m)
	case wire.Done:
		if m.Session != s.id {
			return
		}
		in.committed(m.Stable)
		s.Join(Token{m.View, m.Index})
		if o := s.writes.get(m.Seq); o != nil {
			s.expired = o.final
			s.path.took(o, now)
			s.end(o, Outcome{Result: m.Data, Revision: m.Revision})
		}
	case wire.Spec, wire.Vote:
		if m.Session == s.id {
			in.voted(from, m)
		}
	case wire.WeakDone:
		if m.Session != s.id {
			return
		}
		in.committed(m.Stable)
		s.Join(Token{m.View, m.Index}) // stable writes are no longer sent along with reads, which must therefore see at least this state
		in.acknowledged(m.Seq)
		if o := s.writes.get(m.Seq); o != nil && o.kind == weakWrite {
			s.end(o, Outcome{})
		}
	case wire.ReadDone:
		in.readDone(from, m)
	case wire.Redirect:
		in.redirected(from, m)
	case wire.Refused:
		in.refused(m)
	}
}

// answers processes messages about operations in flight.
type answers struct{ *Session }

// acknowledged notes that a weak write is as durable as its level demands.
func (s answers) acknowledged(seq uint64) {
	if _, found := s.unstableAt(seq); found {
		s.acked = max(s.acked, seq)
	}
}

// unstableAt returns the index of the weak write with number seq among those not known to be
// committed, or where it would be.
func (s answers) unstableAt(seq uint64) (at int, found bool) {
	return slices.BinarySearchFunc(s.unstable, seq, func(w *weak, seq uint64) int { return cmp.Compare(w.seq, seq) })
}

// committed notes that the writes up to stable are committed.
func (s answers) committed(stable uint64) {
	if stable <= s.stable {
		return
	}
	first := max(s.stable+1, s.writes.from)
	s.stable = stable
	n := 0
	for n < len(s.unstable) && s.unstable[n].seq <= stable {
		s.bytes -= len(s.unstable[n].command)
		s.byWeak.remove(&s.unstable[n].foot)
		n++
	}
	s.unstable = dropFirst(s.unstable, n)
	// A committed weak write counts as acknowledged.
	for seq := first; seq <= stable && seq < s.writes.next(); seq++ {
		if o := s.writes.get(seq); o != nil && o.kind == weakWrite {
			s.end(o, Outcome{})
		}
	}
}

// newView follows a new leader: everything unanswered is sent again, in order, weak writes
// first.
func (s answers) newView(m *wire.Message) {
	if m.View < s.view || m.Leader == 0 {
		return
	}
	s.switches = decodeSwitches(m.Code)
	if m.View == s.view && m.Leader == s.leader {
		return
	}
	fresh := m.View > s.view
	s.view, s.leader = m.View, m.Leader
	if s.peer(s.leader) == nil {
		return
	}
	if fresh && s.id != 0 {
		s.resendWeak(s.now)
	}
	s.resend(func(o *op) bool {
		return fresh && !(o.kind == weakRead && o.sent != 0) || o.sent == 0 || o.to != s.leader && o.kind != weakRead
	})
}

// voted counts a witness's vote, or the leader's speculative result, for a strong write.
func (s answers) voted(from uint64, m *wire.Message) {
	o := s.writes.get(m.Seq)
	if o == nil || o.kind != strongWrite || !o.fast || m.View != s.view {
		return
	}
	switch {
	case m.Flags&wire.FlagYes == 0:
		s.gathers(o, false) // it may still complete if the other votes suffice
		return
	case m.Kind == wire.Spec:
		if from != s.leader {
			return
		}
		spec := *m
		o.spec, o.speaker = &spec, from
	default:
		for _, v := range o.votes {
			if v.replica == from {
				return
			}
		}
		o.votes = append(o.votes, vote{from, m.View, m.Revision})
	}
	if o.spec == nil {
		return
	}
	held := 1 // the leader's
	for _, v := range o.votes {
		// S4: votes of one view and the same members count. The leader has one vote, even if
		// s.leader has changed since.
		if v.view == o.spec.View && v.members == o.spec.Revision && v.replica != o.speaker {
			held++
		}
	}
	if held < wire.FastQuorum(int(o.spec.Count)) {
		return
	}
	s.Join(Token{o.spec.View, o.spec.Index})
	s.path.took(o, s.now)
	s.end(o, Outcome{Result: o.spec.Data, Fast: true})
}

// returned ends the extra session of a registration that was sent twice, which
// is not used.
func (s answers) returned(from uint64, m *wire.Message) {
	if m.Request == s.cfg.Requests+1 && s.cfg.ID == 0 && m.Count == 1 && m.Revision != s.id && s.id != 0 {
		s.send(from, wire.Message{Kind: wire.Strong, Flags: wire.FlagEnd, Session: m.Revision, Seq: 1})
	}
}

func (s answers) readDone(from uint64, m *wire.Message) {
	o := s.asks.get(m.Request)
	if o == nil {
		s.returned(from, m)
		return
	}
	switch o.kind {
	case register:
		s.id = m.Revision
		s.end(o, Outcome{})
		s.resend(func(o *op) bool { return o.sent == 0 })
		return
	case strongRead, weakRead:
		if m.Session != s.id && m.Session != 0 {
			return
		}
		s.Join(Token{m.View, m.Index})
	case wait:
		if m.Session != s.id {
			return // of a session that had the numbers of this one before
		}
		s.Join(Token{m.View, m.Index})
	case strongWrite, weakWrite:
		return
	}
	s.committed(m.Stable)
	s.end(o, Outcome{Result: m.Data, Command: o.command, Token: Token{m.View, m.Index}})
}

// redirected notes that a replica does not serve an operation. Without a hint about the leader,
// the retry asks the next replica.
func (s answers) redirected(from uint64, m *wire.Message) {
	o := s.asks.get(m.Request)
	if o == nil && m.Request == 0 && m.Session == s.id {
		o = s.writes.get(m.Seq)
	}
	if o == nil || o.to != from {
		return
	}
	if o.kind == weakRead || o.kind == weakWrite {
		o.atLeader = true
		s.strengthen(o)
	}
	switch {
	case m.Leader != 0 && m.Leader != from && s.peer(m.Leader) != nil:
		if m.View >= s.view {
			s.leader = m.Leader
		}
	case from == s.leader:
		s.leader = 0
		s.rotation++
		return // the retry asks the next replica
	case s.leader == 0:
		s.rotation++
		return
	}
	if s.target(o) != from {
		s.transmit(o)
	}
}

func (s answers) refused(m *wire.Message) {
	o := s.asks.get(m.Request)
	if o == nil && m.Request == 0 && m.Session == s.id {
		o = s.writes.get(m.Seq)
	}
	switch m.Code {
	case wire.CodeExpired:
		if m.Session == s.id && s.id != 0 {
			s.fail(ErrExpired, s.neverFrom(o))
		}
	case wire.CodeUnkept:
		if o != nil && o.kind == strongWrite {
			s.end(o, Outcome{Err: ErrUnkept, Unknown: true})
		}
	case wire.CodeInvalid:
		why := errors.Join(ErrInvalid, errors.New(string(m.Data)))
		switch {
		case o == nil || o.kind == register:
		case o.kind == strongWrite || o.kind == weakWrite:
			s.void(o, why)
		default:
			s.end(o, Outcome{Err: why})
		}
	}
	// Busy: it is sent again later, in order.
}

// neverFrom returns the number of the first write that cannot have happened, given that the
// refusal of o says that the session has expired. A write that was sent once, a moment ago, is
// refused because the session had expired before, and no write is executed without its
// predecessors. A write that was sent repeatedly, or long ago, may have arrived while the
// session was alive.
func (s answers) neverFrom(o *op) uint64 {
	if o != nil && (o.kind == strongWrite || o.kind == weakWrite) && o.tries == 1 && s.now-o.issued < int64(s.cfg.Retry) {
		return o.seq
	}
	return math.MaxUint64
}

// nothing is a write that changes nothing.
var nothing = (&wire.Command{Verb: wire.Delete}).Append(nil)

// void ends a write that a replica cannot execute, for example because its version differs.
// Later writes wait for a write of this number, so one that changes nothing takes its place. If
// another replica has received the original, one of the two is executed, and it is unknown
// which.
func (s answers) void(o *op, why error) {
	if o.silent || o.final {
		return // every version can execute these
	}
	s.outcomes = append(s.outcomes, Outcome{Tag: o.tag, Err: why, Unknown: o.tries > 1 || o.seq+1 < s.writes.next()})
	if o.kind == strongWrite {
		s.gathers(o, false)
		s.byStrong.remove(&o.foot)
	} else {
		if at, found := s.unstableAt(o.seq); found {
			s.bytes -= len(o.command)
			s.byWeak.remove(&o.foot)
			s.unstable = slices.Delete(s.unstable, at, at+1)
		}
		s.waiting = inserted(s.waiting, o)
	}
	o.kind, o.silent, o.command, o.foot = strongWrite, true, nothing, wire.Footprint{}
	s.byStrong.add(&o.foot, o.seq)
	s.transmit(o)
}
