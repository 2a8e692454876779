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
	// WeakPercent of the operations are weak; WritePercent of the weak and of the strong ones
	// are writes.
	WeakPercent, WritePercent float64
	// Keys is the number of keys that all streams share. Required.
	Keys int
	// Skew is the exponent of Zipf's law for keys: the k-th key is chosen in proportion to
	// k^-Skew. 0: uniform.
	Skew float64
	// ValueBytes is the size of values, at least LeastValue. Default: 100.
	ValueBytes int
	// OwnEvery makes one in so many operations use a key that only its stream writes, so that
	// reads of it can be checked. Default: 64. Negative: none.
	OwnEvery int
	// Seed selects the sequence of operations: the same seed gives the same sequence.
	Seed uint64
}

// LeastValue is the size of the smallest value, which only contains its origin.
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

// Validate returns what is invalid.
func (w Workload) Validate() error {
	percent := func(p float64) bool { return p >= 0 && p <= 100 }
	switch {
	case !percent(w.WeakPercent) || !percent(w.WritePercent):
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

// keyName is the name of a key by its number; the streams' own keys follow the shared ones.
func keyName(n int) string { return fmt.Sprintf("weir:bench:%08d", n) }

// keyNames are the names of all shared keys.
func (w Workload) keyNames() []string {
	names := make([]string, w.Keys)
	for i := range names {
		names[i] = keyName(i)
	}
	return names
}

// Values yields the initial values of the shared keys. A value is valid until the next.
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

// A value starts with its origin: the key's number (8 bytes), the stream (8) and the number of
// earlier writes of that stream to the key (8). For shared keys that number is 0, since nothing
// could be concluded from it.
const nobody = 1<<32 - 1 // the stream of values that were there before

func newValue(size int) []byte { return slices.Repeat([]byte{'v'}, size) }

func stamp(value []byte, key, stream int, count uint64) {
	binary.BigEndian.PutUint64(value, uint64(key))
	binary.BigEndian.PutUint64(value[8:], uint64(stream))
	binary.BigEndian.PutUint64(value[16:], count)
}

// origin parses the origin of a value; false if the value is not one of ours.
func origin(value []byte, size int) (key, stream int, count uint64, ok bool) {
	if len(value) != size {
		return 0, 0, 0, false
	}
	return int(binary.BigEndian.Uint64(value)), int(binary.BigEndian.Uint64(value[8:])), binary.BigEndian.Uint64(value[16:]), true
}

// chooser chooses the operations of one stream. It is used by one goroutine.
type chooser struct {
	w    Workload
	rng  *rand.Rand
	zipf *zipf // nil: uniform keys
}

func newChooser(w Workload, stream int) *chooser {
	c := &chooser{w: w, rng: rand.New(rand.NewPCG(w.Seed, uint64(stream)+1))}
	if w.Skew > 0 {
		c.zipf = newZipf(w.Keys, w.Skew)
	}
	return c
}

// class chooses a class.
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

// key chooses a shared key.
func (c *chooser) key() int {
	if c.zipf != nil {
		return c.zipf.draw(c.rng)
	}
	return c.rng.IntN(c.w.Keys)
}

// own reports whether the next operation uses the stream's own key.
func (c *chooser) own() bool {
	return c.w.OwnEvery > 0 && c.rng.IntN(c.w.OwnEvery) == 0
}
