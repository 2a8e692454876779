package batch

import "time"

// entry is an item that waits.
type entry[T any] struct {
	item T
	at   time.Duration // when it was pushed
	size int           // bytes, by the caller's account
}

// ring is a FIFO that grows by doubling and never shrinks, so that it does not
// allocate when warm. The zero value is empty. len(buf) is a power of two.
type ring[T any] struct {
	buf   []entry[T]
	head  int // index of the oldest
	n     int // how many wait
	bytes int // sum of their sizes

	// Those of them that were cancelled: they no longer count, and are dropped in their turn.
	dead, deadBytes int
}

func (r *ring[T]) at(i int) *entry[T] { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring[T]) push(e entry[T]) {
	if r.n == len(r.buf) {
		grown := make([]entry[T], max(16, 2*len(r.buf)))
		for i := range r.n {
			grown[i] = *r.at(i)
		}
		r.buf, r.head = grown, 0
	}
	r.n++
	*r.at(r.n - 1) = e
	r.bytes += e.size
}

// pop takes the oldest. The slot is cleared: a queue must not keep alive what
// it has handed out.
func (r *ring[T]) pop() entry[T] {
	p := r.at(0)
	e := *p
	*p = entry[T]{}
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	r.bytes -= e.size
	return e
}

// remove drops all that match and keeps the order of the rest.
func (r *ring[T]) remove(match func(T) bool) int {
	kept := 0
	for i := range r.n {
		e := r.at(i)
		if match(e.item) {
			r.bytes -= e.size
			continue
		}
		if kept != i {
			*r.at(kept) = *e
		}
		kept++
	}
	for i := kept; i < r.n; i++ {
		*r.at(i) = entry[T]{}
	}
	removed := r.n - kept
	r.n = kept
	return removed
}

// bury notes that an item of this size was cancelled, and drops dead items from the
// head; all of them once they are most of the ring.
func (r *ring[T]) bury(size int, isDead func(T) bool) {
	r.dead++
	r.deadBytes += size
	if r.dead > 16 && r.dead > r.n/2 {
		r.remove(isDead)
		r.dead, r.deadBytes = 0, 0
		return
	}
	r.trim(isDead)
}

// trim drops what is dead from the head.
func (r *ring[T]) trim(isDead func(T) bool) {
	for r.dead > 0 && isDead(r.at(0).item) {
		r.deadBytes -= r.pop().size
		r.dead--
	}
}

// full reports whether a whole group waits, and by which measure.
func (r *ring[T]) full(maxItems, maxBytes int) Reason {
	switch {
	case r.n-r.dead >= maxItems:
		return ReasonItems
	case maxBytes > 0 && r.bytes-r.deadBytes >= maxBytes:
		return ReasonBytes
	}
	return ReasonNone
}
