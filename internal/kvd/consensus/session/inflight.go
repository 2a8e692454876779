package session

import (
	"cmp"
	"iter"
	"slices"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A session can have many operations in flight. Each look-up for an operation or a message
// takes constant time: by number in a window, by key in a keyIndex.

// window finds operations by their numbers, which are consecutive. An operation that has ended
// leaves a gap until all before it have ended as well.
type window struct {
	from uint64 // number of ops[0]; all operations before it have ended
	ops  []*op  // nil: ended
}

// next returns the number of the operation that is added next.
func (w *window) next() uint64 { return w.from + uint64(len(w.ops)) }

// push adds the operation with the next number.
func (w *window) push(o *op) { w.ops = append(w.ops, o) }

// get returns the operation with number n, nil if it has ended or never existed.
func (w *window) get(n uint64) *op {
	if n < w.from || n-w.from >= uint64(len(w.ops)) {
		return nil
	}
	return w.ops[n-w.from]
}

// drop removes the operation with number n, which must be in flight.
func (w *window) drop(n uint64) {
	w.ops[n-w.from] = nil
	gone := 0
	for gone < len(w.ops) && w.ops[gone] == nil {
		gone++
	}
	w.ops = dropFirst(w.ops, gone)
	w.from += uint64(gone)
}

// few is the number of elements up to which moving or searching all of them is fastest.
const few = 16

// dropFirst removes the first n elements of a list. A short list keeps its memory.
func dropFirst[T any](list []T, n int) []T {
	if len(list) <= few {
		return slices.Delete(list, 0, n)
	}
	clear(list[:n])
	return list[n:]
}

// opList is a list of operations in order of issue.
type opList struct {
	first, last *op
	count       int
}

func (l *opList) push(o *op) {
	if o.prev = l.last; l.last == nil {
		l.first = o
	} else {
		l.last.next = o
	}
	l.last = o
	l.count++
}

func (l *opList) remove(o *op) {
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

// all yields the operations. The list must not change meanwhile.
func (l *opList) all() iter.Seq[*op] {
	return func(yield func(*op) bool) {
		for o := l.first; o != nil && yield(o); o = o.next {
		}
	}
}

// inserted and removed insert a write into a list in ascending order, and remove it.
func inserted(list []*op, o *op) []*op {
	if n := len(list); n == 0 || list[n-1].seq < o.seq {
		return append(list, o)
	}
	return slices.Insert(list, upTo(list, o.seq), o)
}

func removed(list []*op, o *op) []*op {
	at := upTo(list, o.seq)
	if at == 0 { // the usual case
		return dropFirst(list, 1)
	}
	return slices.Delete(list, at, at+1)
}

// upTo returns how many writes of the list have lower numbers than seq.
func upTo(list []*op, seq uint64) int {
	at, _ := slices.BinarySearchFunc(list, seq, func(o *op, seq uint64) int { return cmp.Compare(o.seq, seq) })
	return at
}

// keyIndex finds out whether a footprint conflicts with operations of a set. While the set is
// small it does not know, and the caller checks each operation.
type keyIndex struct {
	each  func(func(f *wire.Footprint, number uint64)) // yields the set
	keys  map[string]keyUse                            // nil while the set is small
	many  bool
	spans int // number of operations that touch spans, which are rare: with any, the caller checks each operation
	count int
}

// keyUse counts the operations on one key.
type keyUse struct {
	count int
	last  uint64 // the highest number among them; that operation may have left the set before the others
}

// add adds an operation.
func (t *keyIndex) add(f *wire.Footprint, number uint64) {
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

func (t *keyIndex) index(f *wire.Footprint, number uint64) {
	for _, k := range f.Keys {
		u := t.keys[k]
		t.keys[k] = keyUse{u.count + 1, max(u.last, number)}
	}
}

// remove removes an operation.
func (t *keyIndex) remove(f *wire.Footprint) {
	if len(f.Spans) > 0 {
		t.spans--
	}
	t.count--
	if !t.many {
		return
	}
	for _, k := range f.Keys {
		if u := t.keys[k]; u.count > 1 {
			t.keys[k] = keyUse{u.count - 1, u.last}
		} else {
			delete(t.keys, k)
		}
	}
	t.many = t.count > 0
}

// by returns a number not lower than those of all operations of the set that touch what f does,
// 0 if none does. It returns false if it does not know.
func (t *keyIndex) by(f *wire.Footprint) (last uint64, known bool) {
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
