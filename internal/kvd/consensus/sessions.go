package consensus

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// sessions is the replicated table by which every write is executed exactly once (RIFL, SOSP
// 2015). The writes of a session are numbered 1, 2, 3 … and enter the log in that order, so
// that a comparison tells whether a write was executed. The table is part of the state machine:
// all replicas change it at the same log entry, and snapshots contain it.
type sessions struct {
	byID map[uint64]*session
	// The list is in order of last use, least recent first, the order in which idle sessions
	// expire.
	first, last *session
}

type session struct {
	id       uint64
	next     uint64   // the first number that was not executed
	acked    uint64   // the client has the answers up to this number
	lastUsed int64    // the log's clock
	answers  []answer // of strong writes in (acked, next), by ascending number
	bytes    int      // of answers

	before, after *session
}

type answer struct {
	seq             uint64
	index, revision uint64
	result          []byte
	lost            bool // the result was too large to keep
}

// size returns roughly how much memory an answer takes.
func (a *answer) size() int { return len(a.result) + 64 }

// keep stores an answer until the client acknowledges it. Beyond mostKept bytes the result is
// left out: if the write is repeated, the leader can only say that it was executed. This
// affects the newest result, which is being sent to the client now, rather than the oldest,
// which the client waits for.
func (s *session) keep(a answer) {
	if s.bytes+a.size() > mostKept {
		a.result, a.lost = nil, true
	}
	s.answers = append(s.answers, a)
	s.bytes += a.size()
}

// owed returns the size of the answers that a client does not have if it has those up to ack.
// The client acknowledges them earlier than the log does.
func (s *session) owed(ack uint64) int {
	owed := s.bytes
	for i := 0; owed > mostOwed && i < len(s.answers) && s.answers[i].seq <= ack; i++ {
		owed -= s.answers[i].size()
	}
	return owed
}

func newSessions() *sessions { return &sessions{byID: map[uint64]*session{}} }

func (t *sessions) get(id uint64) *session { return t.byID[id] }

// grant creates sessions with the ids first, first+1 … up to count of them.
func (t *sessions) grant(first, count uint64, now int64) {
	for id := first; id < first+count; id++ {
		s := &session{id: id, next: 1, lastUsed: now}
		t.byID[id] = s
		t.pushBack(s)
	}
}

// use notes that s was used at now, and that its client has all answers up to ack.
func (t *sessions) use(s *session, ack uint64, now int64) {
	if t.last != s {
		t.unlink(s)
		t.pushBack(s)
	}
	s.lastUsed = now
	if ack <= s.acked {
		return
	}
	s.acked = ack
	n := 0
	for n < len(s.answers) && s.answers[n].seq <= ack {
		s.bytes -= s.answers[n].size()
		n++
	}
	if n > 0 {
		s.answers = slices.Delete(s.answers, 0, n)
	}
}

// expire removes the sessions that were last used before the given time, oldest first, and
// calls gone for each id.
func (t *sessions) expire(before int64, gone func(id uint64)) {
	for t.first != nil && t.first.lastUsed < before {
		s := t.first
		t.remove(s)
		gone(s.id)
	}
}

func (t *sessions) remove(s *session) {
	t.unlink(s)
	delete(t.byID, s.id)
}

func (s *session) answer(seq uint64) (answer, bool) {
	at, found := slices.BinarySearchFunc(s.answers, seq, func(a answer, seq uint64) int { return compare(a.seq, seq) })
	if !found {
		return answer{}, false
	}
	return s.answers[at], true
}

func (t *sessions) pushBack(s *session) {
	s.before, s.after = t.last, nil
	if t.last == nil {
		t.first = s
	} else {
		t.last.after = s
	}
	t.last = s
}

func (t *sessions) unlink(s *session) {
	if s.before == nil {
		t.first = s.after
	} else {
		s.before.after = s.after
	}
	if s.after == nil {
		t.last = s.before
	} else {
		s.after.before = s.before
	}
	s.before, s.after = nil, nil
}

// append appends the table in order of last use, so that equal tables give equal bytes.
func (t *sessions) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(t.byID)))
	for s := t.first; s != nil; s = s.after {
		b = binary.AppendUvarint(b, s.id)
		b = binary.AppendUvarint(b, s.next)
		b = binary.AppendUvarint(b, s.acked)
		b = binary.AppendVarint(b, s.lastUsed)
		b = binary.AppendUvarint(b, uint64(len(s.answers)))
		for _, a := range s.answers {
			b = binary.AppendUvarint(b, a.seq)
			b = binary.AppendUvarint(b, a.index)
			b = binary.AppendUvarint(b, a.revision)
			b = binary.AppendUvarint(b, uint64(len(a.result)))
			b = append(b, a.result...)
			b = appendBool(b, a.lost)
		}
	}
	return b
}

func readSessions(r *reader) (*sessions, error) {
	t := newSessions()
	n := r.uvarint()
	for i := uint64(0); i < n && !r.bad; i++ {
		s := &session{id: r.uvarint(), next: r.uvarint(), acked: r.uvarint(), lastUsed: r.varint()}
		answers := r.uvarint()
		for j := uint64(0); j < answers && !r.bad; j++ {
			a := answer{seq: r.uvarint(), index: r.uvarint(), revision: r.uvarint()}
			a.result = append([]byte(nil), r.bytes()...)
			a.lost = r.byte() != 0
			s.answers = append(s.answers, a)
			s.bytes += a.size()
		}
		if t.byID[s.id] != nil {
			return nil, fmt.Errorf("session %d is listed twice in the snapshot", s.id)
		}
		t.byID[s.id] = s
		t.pushBack(s)
	}
	if r.bad {
		return nil, fmt.Errorf("sessions: %w", errEntry)
	}
	return t, nil
}
