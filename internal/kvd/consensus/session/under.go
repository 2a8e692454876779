package session

import (
	"cmp"
	"iter"
	"slices"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Many operations of a session can be under way at once. What is looked up for
// each of them, or for each message, takes the same time however many there are:
// by number in a window, by key among the touched.

// window finds operations by their numbers, which are consecutive. One that has
// ended leaves a gap until all before it have ended, too.
type window struct {
	from uint64 // number of ops[0]; all before it have ended
	ops  []*op  // nil: ended
}

// next is the number of the operation that is added next.
func (w *window) next() uint64 { return w.from + uint64(len(w.ops)) }

// push adds the operation with the next number.
func (w *window) push(o *op) { w.ops = append(w.ops, o) }

// get is the operation with number n, nil if it has ended or never was.
func (w *window) get(n uint64) *op {
	if n < w.from || n-w.from >= uint64(len(w.ops)) {
		return nil
	}
	return w.ops[n-w.from]
}

// drop forgets the operation with number n, which is under way.
func (w *window) drop(n uint64) {
	w.ops[n-w.from] = nil
	gone := 0
	for gone < len(w.ops) && w.ops[gone] == nil {
		gone++
	}
	w.ops = behead(w.ops, gone)
	w.from += uint64(gone)
}

// few is how many elements are quicker moved, or looked through, than anything
// that is clever.
const few = 16

// behead takes the first n elements off a list. A short list keeps its memory.
func behead[T any](list []T, n int) []T {
	if len(list) <= few {
		return slices.Delete(list, 0, n)
	}
	clear(list[:n])
	return list[n:]
}

// line is a list of operations in the order in which they were issued.
type line struct {
	first, last *op
	count       int
}

func (l *line) push(o *op) {
	if o.prev = l.last; l.last == nil {
		l.first = o
	} else {
		l.last.next = o
	}
	l.last = o
	l.count++
}

func (l *line) remove(o *op) {
	if o.prev == nil {
		l.first = o.next
	} else {
		o.prev.next = o.next
	}
	if o.next == nil {
		l.last = o.prev
	} else {
		o.next.prev = o.prev
	}
	o.prev, o.next = nil, nil
	l.count--
}

// all lists the operations. Nothing is added or removed meanwhile.
func (l *line) all() iter.Seq[*op] {
	return func(yield func(*op) bool) {
		for o := l.first; o != nil && yield(o); o = o.next {
		}
	}
}

// inserted and removed add a write to a list by rising number, and take it out.
func inserted(list []*op, o *op) []*op {
	if n := len(list); n == 0 || list[n-1].seq < o.seq {
		return append(list, o)
	}
	return slices.Insert(list, upTo(list, o.seq), o)
}

func removed(list []*op, o *op) []*op {
	at := upTo(list, o.seq)
	if at == 0 { // mostly
		return behead(list, 1)
	}
	return slices.Delete(list, at, at+1)
}

// upTo is how many writes of the list have lower numbers.
func upTo(list []*op, seq uint64) int {
	at, _ := slices.BinarySearchFunc(list, seq, func(o *op, seq uint64) int { return cmp.Compare(o.seq, seq) })
	return at
}

// touched reports whether a footprint meets operations of a set. While they are few,
// it does not know, and its owner looks at each.
type touched struct {
	each  func(func(f *wire.Footprint, number uint64)) // lists the set
	keys  map[string]use                               // once they are many
	many  bool
	spans int // operations that touch spans, which are rare: with these, too, each is looked at
	count int
}

// use sums up the operations on one key.
type use struct {
	count int
	last  uint64 // the highest number among them; it may have left the set, if others have not
}

// add follows an operation that has been added to the set.
func (t *touched) add(f *wire.Footprint, number uint64) {
	if len(f.Spans) > 0 {
		t.spans++
	}
	t.count++
	switch {
	case t.many:
		t.index(f, number)
	case t.count > few:
		t.many = true
		t.each(t.index)
	}
}

func (t *touched) index(f *wire.Footprint, number uint64) {
	for _, k := range f.Keys {
		u := t.keys[k]
		t.keys[k] = use{u.count + 1, max(u.last, number)}
	}
}

// remove follows an operation that leaves the set.
func (t *touched) remove(f *wire.Footprint) {
	if len(f.Spans) > 0 {
		t.spans--
	}
	t.count--
	if !t.many {
		return
	}
	for _, k := range f.Keys {
		if u := t.keys[k]; u.count > 1 {
			t.keys[k] = use{u.count - 1, u.last}
		} else {
			delete(t.keys, k)
		}
	}
	t.many = t.count > 0
}

// by is a number not lower than those of all operations of the set that touch what
// f does, 0 if none does, unless it is not known.
func (t *touched) by(f *wire.Footprint) (last uint64, known bool) {
	switch {
	case t.count == 0:
		return 0, true
	case !t.many || t.spans > 0 || len(f.Spans) > 0:
		return 0, false
	}
	for _, k := range f.Keys {
		last = max(last, t.keys[k].last)
	}
	return last, true
}
