package kvload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
)

// Workload is what the streams do.
type Workload struct {
	// WeakPercent of the operations are weak, WritePercent of either kind writes.
	WeakPercent, WritePercent float64
	// Keys is the number of keys that all streams share. Required.
	Keys int
	// Skew is the exponent of Zipf's law by which keys are drawn: the k-th key is
	// asked for in proportion to k^-Skew. 0: all alike.
	Skew float64
	// ConflictPercent of the operations go to one single key, which all streams
	// share.
	ConflictPercent float64
	// ValueBytes is the size of values, at least LeastValue. Default: 100.
	ValueBytes int
	// OwnEvery makes one of so many operations go to a key that its stream alone
	// writes, so that what it reads there can be judged. Default: 64. Negative:
	// none.
	OwnEvery int
	// Seed makes another sequence of operations. The same one gives the same.
	Seed uint64
}

// LeastValue is the size of the smallest value, which says where it is from.
const LeastValue = 24

func (w Workload) withDefaults() Workload {
	if w.ValueBytes == 0 {
		w.ValueBytes = 100
	}
	if w.OwnEvery == 0 {
		w.OwnEvery = 64
	}
	return w
}

// Validate says what cannot be.
func (w Workload) Validate() error {
	percent := func(p float64) bool { return p >= 0 && p <= 100 }
	switch {
	case !percent(w.WeakPercent) || !percent(w.WritePercent) || !percent(w.ConflictPercent):
		return errors.New("workload: percentages must be from 0 to 100")
	case w.Keys < 1:
		return fmt.Errorf("workload with %d keys: want at least one", w.Keys)
	case !(w.Skew >= 0 && w.Skew <= maxSkew):
		return fmt.Errorf("workload: skew %v: want 0 to %v", w.Skew, maxSkew)
	case w.ValueBytes != 0 && w.ValueBytes < LeastValue:
		return fmt.Errorf("workload: values of %d bytes: want at least %d", w.ValueBytes, LeastValue)
	}
	return nil
}

// keyName is the name of a key by its number; those of the streams' own follow
// those that are shared.
func keyName(n int) string { return fmt.Sprintf("weir:bench:%08d", n) }

// keyNames are the names of all shared keys.
func (w Workload) keyNames() []string {
	names := make([]string, w.Keys)
	for i := range names {
		names[i] = keyName(i)
	}
	return names
}

// Values yields what each of the shared keys holds before a run. A value is valid
// until the next.
func (w Workload) Values() iter.Seq2[string, []byte] {
	w = w.withDefaults()
	return func(yield func(string, []byte) bool) {
		buf := newValue(w.ValueBytes)
		for i := range w.Keys {
			stamp(buf, i, nobody, 0)
			if !yield(keyName(i), buf) {
				return
			}
		}
	}
}

// A value begins with where it is from: the key's number (8 bytes), the stream
// (8) and how many writes of that stream went to the key before (8). Keys that
// are shared have no such count, since nothing could be concluded from it.
const nobody = 1<<32 - 1 // the stream of values that were there before

func newValue(size int) []byte { return slices.Repeat([]byte{'v'}, size) }

func stamp(value []byte, key, stream int, count uint64) {
	binary.BigEndian.PutUint64(value, uint64(key))
	binary.BigEndian.PutUint64(value[8:], uint64(stream))
	binary.BigEndian.PutUint64(value[16:], count)
}

// origin is what a value says of where it is from; false when it is none of ours.
func origin(value []byte, size int) (key, stream int, count uint64, ok bool) {
	if len(value) != size {
		return 0, 0, 0, false
	}
	return int(binary.BigEndian.Uint64(value)), int(binary.BigEndian.Uint64(value[8:])), binary.BigEndian.Uint64(value[16:]), true
}

// chooser draws the operations of one stream. One goroutine.
type chooser struct {
	w    Workload
	rng  *rand.Rand
	zipf *zipf // nil: all keys alike
}

func newChooser(w Workload, stream int) *chooser {
	c := &chooser{w: w, rng: rand.New(rand.NewPCG(w.Seed, uint64(stream)+1))}
	if w.Skew > 0 {
		c.zipf = newZipf(w.Keys, w.Skew)
	}
	return c
}

// class draws a class.
func (c *chooser) class() Class {
	weak := c.percent(c.w.WeakPercent)
	write := c.percent(c.w.WritePercent)
	switch {
	case weak && write:
		return WeakWrite
	case weak:
		return WeakRead
	case write:
		return StrongWrite
	default:
		return StrongRead
	}
}

func (c *chooser) percent(p float64) bool {
	return p > 0 && (p >= 100 || c.rng.Float64()*100 < p)
}

// key draws a shared key. The first one is the one that conflicts are about.
func (c *chooser) key() int {
	switch {
	case c.percent(c.w.ConflictPercent):
		return 0
	case c.zipf != nil:
		return c.zipf.draw(c.rng)
	default:
		return c.rng.IntN(c.w.Keys)
	}
}

// own reports whether the next operation is for the stream's own key.
func (c *chooser) own() bool {
	return c.w.OwnEvery > 0 && c.rng.IntN(c.w.OwnEvery) == 0
}
