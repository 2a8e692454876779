package core

import (
	"errors"
	"slices"
	"time"
)

// ErrOverdue is why weir closes the connection of a statement that the server has not ended
// within --query-timeout.
var ErrOverdue = errors.New("the server has not ended a statement within --query-timeout")

// Overdue calls end for each backend whose head has run for longer than --query-timeout; end
// asks the server to end it and reports whether it is a client's statement. Overdue closes
// the backends on which that did not help.
func (h *ConnManager[B, C, U, L, N]) Overdue(end func(b B) (clients bool)) {
	p := h.p
	limit := p.Limits.QueryTimeout
	if limit <= 0 {
		return
	}
	for _, b := range slices.Clone(p.Backends) {
		c := b.Pooled()
		if c.Depth() == 0 || c.running(p.loop.Now) <= limit {
			continue
		}
		grace := OwnGrace
		if end(b) {
			grace = QueryGrace
		}
		if c.running(p.loop.Now) > limit+grace { // shorter if end has found that the server waited
			b.Cut(ErrOverdue)
		}
	}
}

const (
	// MinPatience is how long a shared read may take before the reads behind it are
	// moved. If reads take longer on average, so may this one, up to MaxPatience: on a machine
	// without a free processor everything is slow, and moving does not help.
	MinPatience = 5 * time.Millisecond
	// MaxPatience is the longest.
	MaxPatience = 50 * time.Millisecond
	// turnCheck is how often the turns of statements that run apart are checked.
	turnCheck = 10 * time.Millisecond
	// StallMark is how long reads of a shape stay out of the pipelines after one of them was
	// last held up.
	StallMark = 50 * time.Millisecond
	// CancelAgain is the least time between two cancel requests of weir's own for what
	// one backend runs.
	CancelAgain = 100 * time.Millisecond
	// MaxObserved bounds the cost that a shape learns from one read that ran apart: it
	// may have waited for a lock.
	MaxObserved = 8 * time.Millisecond
	// QueryGrace is how long the server may take to end a statement that has run for
	// longer than --query-timeout, before its connection is closed.
	QueryGrace = 5 * time.Second
	// OwnGrace is the same for weir's own queries, which have no timeout.
	OwnGrace = 30 * time.Second
	// maxMoves bounds the reads that are moved without an answer in between, so that an
	// overloaded server does not get everything twice.
	maxMoves = 512
	// moveBack is how long it takes until one more read may be moved.
	moveBack = 2 * time.Millisecond
)

// A moveBudget bounds how many reads are moved; it recovers over time.
type moveBudget struct {
	moved int
	at    time.Duration
}

// left is how many reads may be moved now.
func (m *moveBudget) left(now time.Duration) int {
	if back := int((now - m.at) / moveBack); back > 0 {
		m.moved, m.at = max(0, m.moved-back), now
	}
	return maxMoves - m.moved
}

// Stalls tracks what is held up in a pool: shared reads that keep others waiting, and the
// turns of statements apart. It is on the agenda while there may be any.
type Stalls[B Backend[U], C any, U Unit, L any, N any] struct {
	ReadTime time.Duration // average duration of a shared read

	p       *Base[B, C, U, L, N]
	watched bool // it is on the agenda
	budget  moveBudget
	check   time.Duration // when the turns are checked next
}

// Watch makes the pool check shared reads and statements apart, as long as there are
// any.
func (s *Stalls[B, C, U, L, N]) Watch() {
	if !s.watched {
		s.watched = true
		s.p.agenda.At(s)
	}
}

// Patience is how long a shared read may take.
func (s *Stalls[B, C, U, L, N]) Patience() time.Duration {
	return min(max(8*s.ReadTime, MinPatience), MaxPatience)
}

// Answered records how long a shared read took.
func (s *Stalls[B, C, U, L, N]) Answered(took time.Duration) { s.ReadTime += (took - s.ReadTime) / 16 }

// stalledAt is when the head of a shared backend, which must have one, counts as held up.
func (s *Stalls[B, C, U, L, N]) stalledAt(c *Conn[U]) time.Duration {
	return max(c.Since+s.Patience(), c.NotBefore)
}

// MoveAway reports whether the reads behind the head of a shared backend may be moved
// now, and charges them to the budget.
func (s *Stalls[B, C, U, L, N]) MoveAway(c *Conn[U]) bool {
	n := c.Depth() - 1
	if c.Cancels > 0 || c.Held || n > s.budget.left(s.p.loop.Now) {
		c.NotBefore = s.p.loop.Now + MinPatience
		return false
	}
	if n > 0 {
		s.budget.moved += n
		s.p.Stats.Moved += uint64(n)
	}
	s.p.Stats.Stalls++
	return true
}

// busy reports whether the turns must be checked.
func (s *Stalls[B, C, U, L, N]) busy() bool {
	return s.p.Apart.Active() || len(s.p.Excl)+len(s.p.Reads) > 0
}

// Deadline is when the next read counts as held up, or a turn may be over.
func (s *Stalls[B, C, U, L, N]) Deadline() (at time.Duration, ok bool) {
	if s.busy() {
		at, ok = s.check, true
	}
	for _, c := range s.p.Shared.conns {
		if c.Depth() == 0 {
			continue
		}
		if t := s.stalledAt(c); !ok || t < at {
			at, ok = t, true
		}
	}
	return at, ok
}

// Due does the checks.
func (s *Stalls[B, C, U, L, N]) Due() {
	p := s.p
	s.watched = false
	for i := 0; i < len(p.Shared.conns); {
		c := p.Shared.conns[i]
		if c.Depth() > 0 && s.stalledAt(c) <= p.loop.Now && p.side.Stalled(p.Shared.Backends[i]) {
			continue // it has left the list
		}
		i++
	}
	if s.check <= p.loop.Now && s.busy() {
		s.check = p.loop.Now + turnCheck
		p.side.CheckTurns()
	}
	if _, ok := s.Deadline(); ok {
		s.Watch()
	}
}
