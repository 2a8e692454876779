package session

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/weirdb/weir/internal/testkit"
)

// A client that has a value of its own with each statement takes nothing from others.
func TestSetsThatNobodyUsesAreForgotten(t *testing.T) {
	t.Parallel()
	table := NewTable()
	of := func(value string) *Set {
		return table.With(table.Empty(), Setting{Name: "app.tenant", Value: value, Literal: true})
	}
	used := of("used")
	n := 0
	more := func(sets int) {
		for range sets {
			n++
			of(strconv.Itoa(n))
		}
	}
	more(20 * sweepMin)
	testkit.Eventually(t, "the table forgets", func() bool {
		runtime.GC()
		more(sweepMin)
		return len(table.byKey) <= 2*sweepMin
	})
	another := of("another")
	if of("another") != another {
		t.Error("a set that is in use has two pointers")
	}
	if of("used") != used {
		t.Error("a set that was in use all the time has two pointers")
	}
	if got := table.Without(used, "app.tenant"); got != table.Empty() {
		t.Errorf("without its only setting a set is %q, not the empty set", got.Key())
	}
	runtime.KeepAlive(another)
	runtime.KeepAlive(used)
}

func BenchmarkIntern(b *testing.B) {
	table := NewTable()
	kept := table.With(table.Empty(), Setting{Name: "lock_timeout", Value: "25ms", Literal: true})
	b.ReportAllocs()
	for b.Loop() {
		if table.With(table.Empty(), Setting{Name: "lock_timeout", Value: "25ms", Literal: true}) != kept {
			b.Fatal("another set")
		}
	}
}
