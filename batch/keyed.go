package batch

import "time"

// line is the FIFO of one key.
type line[K comparable, T any] struct {
	ring[T]
	key    K
	flying int  // groups of this key in flight
	listed bool // is in ready
}

// keyed is [Queue] with one FIFO per key and the lanes shared by all. Keys with
// something to send stand in a queue of their own and take turns, one group
// each, so that none starves. Like Queue it has no clock, goroutine or lock.
type keyed[K comparable, T any] struct {
	gate    gate
	ordered bool // never two groups of one key in flight
	lines   map[K]*line[K, T]
	ready   ring[*line[K, T]] // keys that may send, in turn
	free    []*line[K, T]
	isDead  func(T) bool // whether an item was cancelled
}

// push appends an item to its key's line.
func (q *keyed[K, T]) push(now time.Duration, key K, item T, size int) (*line[K, T], error) {
	now = q.gate.tick(now)
	if err := q.gate.arrive(size); err != nil {
		return nil, err
	}
	l := q.lines[key]
	if l == nil {
		if n := len(q.free); n > 0 {
			l, q.free = q.free[n-1], q.free[:n-1]
		} else {
			l = new(line[K, T])
		}
		l.key = key
		q.lines[key] = l
	}
	l.push(entry[T]{item: item, at: now, size: size})
	q.list(l)
	return l, nil
}

// list appends a line that may send to the queue of keys.
func (q *keyed[K, T]) list(l *line[K, T]) {
	if l.n > 0 && !l.listed && (!q.ordered || l.flying == 0) {
		l.listed = true
		q.ready.push(entry[*line[K, T]]{item: l})
	}
}

// drop removes a line that has nothing to do; its memory is reused.
func (q *keyed[K, T]) drop(l *line[K, T]) {
	if l.n == 0 && l.flying == 0 && !l.listed {
		delete(q.lines, l.key)
		var zero K
		l.key = zero
		q.free = append(q.free, l)
	}
}

func (q *keyed[K, T]) full(l *line[K, T]) Reason {
	return l.full(q.gate.cfg.MaxItems, q.gate.cfg.MaxBytes)
}

// take appends the next group to into. The line is nil when nothing may be sent; the caller
// passes it to done.
func (q *keyed[K, T]) take(now time.Duration, into []T) ([]T, *line[K, T]) {
	now = q.gate.tick(now)
	for range q.ready.n {
		l := q.ready.pop().item
		l.listed = false
		if l.n == 0 { // emptied by remove
			q.drop(l)
			continue
		}
		why := q.gate.admit(now, l.at(0).at, q.full(l))
		if why == ReasonNone {
			q.list(l)
			continue
		}
		n, bytes := 0, 0
		for l.n > 0 && n < q.gate.cfg.MaxItems && q.gate.fits(n, bytes, l.at(0).size) {
			e := l.pop()
			into = append(into, e.item)
			q.gate.stats.Wait.Record(int64(now - e.at))
			bytes += e.size
			n++
			l.trim(q.isDead)
		}
		l.flying++
		q.gate.depart(n, bytes, why)
		q.list(l)
		return into, l
	}
	return into, nil
}

// done frees the lane of a group of l.
func (q *keyed[K, T]) done(now time.Duration, l *line[K, T], n int, took time.Duration) {
	q.gate.done(q.gate.tick(now), n, took)
	l.flying--
	q.list(l)
	q.drop(l)
}

// giveUp removes a waiting item of this size that is now dead. It walks through the line
// only when half of it is dead, so that the cost per item stays constant even if all give up.
func (q *keyed[K, T]) giveUp(key K, size int) {
	l := q.lines[key]
	l.bury(size, q.isDead)
	q.gate.remove(1, size)
	q.drop(l)
}

// deadlineOf is when a group of l may go by time alone.
func (q *keyed[K, T]) deadlineOf(l *line[K, T]) (time.Duration, bool) {
	if !l.listed || l.n == 0 {
		return 0, false
	}
	return q.gate.deadline(l.at(0).at, q.full(l))
}

// deadline is the earliest of all keys'.
func (q *keyed[K, T]) deadline() (at time.Duration, ok bool) {
	for i := range q.ready.n {
		if d, may := q.deadlineOf(q.ready.at(i).item); may && (!ok || d < at) {
			at, ok = d, true
		}
	}
	return at, ok
}
