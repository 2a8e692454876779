package state

import (
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

const benchKeys = 1_000_000

func benchKey(i int) string { return fmt.Sprintf("key:%012d", i) }

// million returns a store of a million keys of 100 bytes. Benchmarks share it:
// each leaves as many keys as it found.
var million = sync.OnceValue(func() *Store {
	s := New(Config{})
	for i := range benchKeys {
		s.Apply(uint64(i+1), start, (&wire.Command{Verb: wire.Set, Key: benchKey(i), Value: make([]byte, 100)}).Append(nil))
	}
	return s
})

// forms returns the forms of commands on random keys.
func forms(make func(key string) wire.Command) [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	list := [1 << 16][]byte{}
	for i := range list {
		c := make(benchKey(r.IntN(benchKeys)))
		list[i] = c.Append(nil)
	}
	return list[:]
}

func BenchmarkApply(b *testing.B) {
	value := make([]byte, 100)
	for _, c := range []struct {
		name string
		make func(key string) wire.Command
	}{
		{"set", func(key string) wire.Command { return wire.Command{Verb: wire.Set, Key: key, Value: value} }},
		{"set-if-present", func(key string) wire.Command {
			return wire.Command{Verb: wire.Set, Key: key, Value: value, Cond: wire.IfPresent}
		}},
		{"set-for-a-while", func(key string) wire.Command {
			return wire.Command{Verb: wire.Set, Key: key, Value: value, TTL: 1_000_000}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, list := million(), forms(c.make)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Apply(s.Revision()+1, start, list[i%len(list)])
			}
		})
	}
}

func BenchmarkEvaluate(b *testing.B) {
	get := func(key string) wire.Command { return wire.Command{Verb: wire.Get, Key: key} }
	set := func(key string) wire.Command {
		return wire.Command{Verb: wire.Set, Key: key, Value: make([]byte, 100)}
	}
	rangeOf := func(key string) wire.Command { return wire.Command{Verb: wire.Range, Key: key, Limit: 100} }
	for _, c := range []struct {
		name   string
		make   func(key string) wire.Command
		writes int
	}{
		{"get", get, 0},
		{"get-over-4-writes", get, 4},
		{"set", set, 0},
		{"count", func(key string) wire.Command { return wire.Command{Verb: wire.Count, Key: key} }, 0},
		{"range-of-100", rangeOf, 0},
		{"range-of-100-over-4-writes", rangeOf, 4},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, list, writes := million(), forms(c.make), forms(set)[:c.writes]
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Evaluate(start, writes, list[i%len(list)])
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s := million()
	var keys [1 << 16]string
	r := rand.New(rand.NewPCG(1, 2))
	for i := range keys {
		keys[i] = benchKey(r.IntN(benchKeys))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok := s.Get(keys[i%len(keys)]); !ok {
			b.Fatal("a key is missing")
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := million()
	b.SetBytes(s.Bytes())
	for b.Loop() {
		if _, err := s.Snapshot().WriteTo(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
