package batch

import "time"

// Queue gathers items and says when a group may go. It is the pure core: it
// has no goroutine, no clock and no lock, and is not safe for concurrent use.
// The time comes in as now, a monotonic time since any fixed origin, the same
// one in all calls; a now that lies before an earlier one counts as that.
//
// The owner's loop is: Push what arrives; after a batch of pushes and after
// each Done, Take until it returns nothing; sleep until an event or the
// Deadline.
//
//	Push ─► waiting (FIFO) ─► Take ─► a group occupies a lane ─► Done
//
// Warm, no method allocates.
type Queue[T any] struct {
	gate gate
	ring ring[T]
}

// NewQueue returns an empty queue. It panics when cfg is invalid (see
// [Config.Validate]).
func NewQueue[T any](cfg Config) *Queue[T] {
	if err := cfg.validate(); err != nil {
		panic(err)
	}
	q := new(Queue[T])
	q.gate.init(cfg.withDefaults())
	return q
}

// Push appends an item; size is its weight in bytes for the byte limits (0 when
// there are none). It returns [ErrFull] or [ErrClosed] and keeps nothing then.
func (q *Queue[T]) Push(now time.Duration, item T, size int) error {
	now = q.gate.tick(now)
	if err := q.gate.arrive(size); err != nil {
		return err
	}
	q.ring.push(entry[T]{item: item, at: now, size: size})
	return nil
}

// Take appends the next group to into and says why it went. It returns into
// unchanged and [ReasonNone] when nothing may go now: nothing waits, all lanes
// are busy, or the window is still open. A group that was taken occupies a lane
// until Done. Call it again: a second lane may be free.
func (q *Queue[T]) Take(now time.Duration, into []T) ([]T, Reason) {
	now = q.gate.tick(now)
	if q.ring.n == 0 {
		return into, ReasonNone
	}
	reason := q.gate.admit(now, q.ring.at(0).at, q.ring.full(q.gate.cfg.MaxItems, q.gate.cfg.MaxBytes))
	if reason == ReasonNone {
		return into, ReasonNone
	}
	n, bytes := 0, 0
	for q.ring.n > 0 && n < q.gate.cfg.MaxItems {
		if !q.gate.fits(n, bytes, q.ring.at(0).size) {
			break
		}
		e := q.ring.pop()
		into = append(into, e.item)
		q.gate.stats.Wait.Record(int64(now - e.at))
		bytes += e.size
		n++
	}
	q.gate.depart(n, bytes, reason)
	return into, reason
}

// Done frees the lane of a group of n items whose flush took so long. It feeds
// the controller, so it is called for failed flushes too.
func (q *Queue[T]) Done(now time.Duration, n int, took time.Duration) {
	q.gate.done(q.gate.tick(now), n, took)
}

// Back takes n items out of the groups in flight: they do not go with their group after all.
// Done is called without them. To send them with another group, Push them again.
func (q *Queue[T]) Back(n int) {
	if n > q.gate.flying {
		panic("batch: Back of items that are not in flight")
	}
	q.gate.flying -= n
}

// Deadline is when Take may succeed even if nothing else happens; ok is false
// when only a Push or a Done can change anything. A deadline in the past means
// now. Without Window and MaxWait it is only ever set while the queue holds a
// lane back (see [Config.NoHold]) or when Take can succeed at once.
func (q *Queue[T]) Deadline() (at time.Duration, ok bool) {
	if q.ring.n == 0 {
		return 0, false
	}
	return q.gate.deadline(q.ring.at(0).at, q.ring.full(q.gate.cfg.MaxItems, q.gate.cfg.MaxBytes))
}

// Remove drops the waiting items for which match is true (cancelled ones) and
// returns how many. It keeps the order of the others, and looks at every
// waiting item.
func (q *Queue[T]) Remove(match func(T) bool) int {
	before := q.ring.bytes
	n := q.ring.remove(match)
	q.gate.remove(n, before-q.ring.bytes)
	return n
}

// Close refuses every later Push and lets waiting items go as lanes become
// free, without a window. The owner keeps calling Take and Done until Len and
// InFlight are zero.
func (q *Queue[T]) Close() { q.gate.closed = true }

// Len is how many items wait.
func (q *Queue[T]) Len() int { return q.ring.n }

// Bytes is the sum of the sizes of the items that wait.
func (q *Queue[T]) Bytes() int { return q.ring.bytes }

// InFlight is how many lanes are in use.
func (q *Queue[T]) InFlight() int { return q.gate.lanes }

// Lanes is how many lanes may be in use now: the controller's present answer.
func (q *Queue[T]) Lanes() int { return q.gate.limit() }

// Stats is a copy of all counters, about 9 KiB.
func (q *Queue[T]) Stats() Stats { return q.gate.snapshot() }
