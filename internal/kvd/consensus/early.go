package consensus

import (
	"slices"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// early holds writes that arrived before a write of their session with a lower number. Clients
// keep writes that were refused and send them again.
type early struct {
	of    map[uint64]*earlyWrites // by session
	bytes int                     // of all sessions
}

// earlyWrites are the early writes of one session, by ascending number.
type earlyWrites struct {
	writes []earlyWrite
	bytes  int
}

type earlyWrite struct {
	from Addr
	m    *wire.Message
}

// weight returns roughly how much memory a message takes.
func weight(m *wire.Message) int {
	const own = 200
	n := own + len(m.Data)
	for i := range m.Bundle {
		n += own + len(m.Bundle[i].Command)
	}
	return n
}

// full reports whether there is no room for another write of the session, because of its own
// limits or because of the limit for all sessions. The last write may exceed either.
func (e *early) full(session uint64) bool {
	s := e.of[session]
	return s != nil && (len(s.writes) >= maxHeld || s.bytes >= maxHeldBytes) || e.bytes >= maxWaitingBytes
}

func (e *early) add(session uint64, at int, w earlyWrite) {
	s := e.of[session]
	if s == nil {
		s = &earlyWrites{}
		e.of[session] = s
	}
	s.writes = slices.Insert(s.writes, at, w)
	s.bytes += weight(w.m)
	e.bytes += weight(w.m)
}

// take removes and returns the session's first write if its number is at most seq.
func (e *early) take(session, seq uint64) (earlyWrite, bool) {
	s := e.of[session]
	if s == nil || s.writes[0].m.Seq > seq {
		return earlyWrite{}, false
	}
	w := s.writes[0]
	s.writes[0] = earlyWrite{}
	s.writes = s.writes[1:]
	s.bytes -= weight(w.m)
	e.bytes -= weight(w.m)
	if len(s.writes) == 0 {
		delete(e.of, session)
	}
	return w, true
}

// drop removes a session's writes.
func (e *early) drop(session uint64) {
	if s := e.of[session]; s != nil {
		e.bytes -= s.bytes
		delete(e.of, session)
	}
}

// hold keeps a write until those of its session with lower numbers have arrived (S14: however
// long that takes; the client sends them again).
func (l *leadership) hold(s *session, from Addr, m *wire.Message) {
	at := 0
	if held := l.early.of[s.id]; held != nil {
		var found bool
		at, found = slices.BinarySearchFunc(held.writes, m.Seq, func(h earlyWrite, seq uint64) int {
			return compare(h.m.Seq, seq)
		})
		if found {
			if from != 0 && m.Flags&wire.FlagForward == 0 {
				more := weight(m) - weight(held.writes[at].m)
				held.writes[at] = earlyWrite{from, m}
				held.bytes += more
				l.early.bytes += more
			}
			return
		}
	}
	if l.early.full(s.id) {
		if m.Flags&wire.FlagForward == 0 {
			l.c.refuse(from, m, wire.CodeBusy, "too many writes of the session wait for an earlier one")
		}
		return
	}
	l.early.add(s.id, at, earlyWrite{from, m})
}

// unhold processes writes that are no longer early.
func (l *leadership) unhold(s *session) {
	for {
		w, ok := l.early.take(s.id, l.nextSeq(s))
		if !ok {
			return
		}
		l.inOrder(s, w.from, w.m)
	}
}
