package sim

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/batch"
)

const us = time.Microsecond

// TestModelMatchesTheory checks the simulator itself against formulas.
func TestModelMatchesTheory(t *testing.T) {
	solo := Policy{Name: "solo", Config: batch.Config{Lanes: 1, MaxItems: 1}}
	near := func(what string, got, want, tolerance float64) {
		t.Helper()
		if math.Abs(got/want-1) > tolerance {
			t.Errorf("%s: %v, want %v within %v", what, got, want, tolerance)
		}
	}
	// One client without a pause: one item per flush.
	r := Simulate(Run{Cost: Cost{Fixed: 99 * us, PerItem: us}, Load: Load{Clients: 1}, Policy: solo, Length: time.Second})
	near("one client", r.Throughput, 10_000, 0.001)

	// M/D/1 at half load: busy half of the time, and half of the items do not wait.
	r = Simulate(Run{Cost: Cost{Fixed: 99 * us, PerItem: us}, Load: Load{Rate: 5000}, Policy: solo, Length: 20 * time.Second})
	near("M/D/1 throughput", r.Throughput, 5000, 0.02)
	near("M/D/1 utilisation", r.Lanes, 0.5, 0.02)

	// Overload: full groups of 256 back to back, Little's law for the wait.
	full := Policy{Name: "full", Config: batch.Config{Lanes: 1, Capacity: 4096}}
	r = Simulate(Run{Cost: Cost{Fixed: 1000 * us, PerItem: us}, Load: Load{Rate: 1e6}, Policy: full, Warmup: time.Second, Length: time.Second})
	near("overload", r.Throughput, 256/0.001256, 0.01)
	near("overload wait", r.Wait50.Seconds(), 4096/r.Throughput, 0.07)

	// Two lanes on one server are as fast as one.
	two := Policy{Name: "two", Config: batch.Config{Lanes: 2, Capacity: 4096}}
	r = Simulate(Run{Cost: Cost{Fixed: 1000 * us, PerItem: us, Servers: 1}, Load: Load{Rate: 1e6}, Policy: two, Warmup: time.Second, Length: time.Second})
	near("shared server", r.Throughput, 256/0.001256, 0.01)
}

func TestSimulateIsDeterministic(t *testing.T) {
	run := Run{Cost: Cost{Fixed: 50 * us, PerItem: us, Servers: 2}, Load: Load{Clients: 50, Think: 50 * us}, Policy: Adaptive(4), Length: 100 * time.Millisecond, Seed: 9}
	if a, b := Simulate(run), Simulate(run); a != b {
		t.Errorf("two runs differ:\n%+v\n%+v", a, b)
	}
}

// grid plays every eleventh cell, and all in `make torture`; under the race detector, which
// is ten times slower and has nothing to find in a single goroutine, a few.
func grid(loads []Load) []Cell {
	var cells []Cell
	i, every := 0, 11
	switch {
	case raceEnabled:
		every = 55
	case os.Getenv("WEIR_TORTURE") == "1":
		every = 1
	}
	for _, cost := range Costs() {
		for _, load := range loads {
			if i++; i%every != 0 {
				continue
			}
			cells = append(cells, Compare(cost, load, 4, 1))
		}
	}
	return cells
}

// check compares the misses of a target with the list of those that are known
// and explained: a miss that is not on the list fails. One that is gone is only
// logged, because arithmetic differs in the last digit between processors and
// some cells are close to the line.
func check(t *testing.T, cells []Cell, known map[string]string, miss func(*Cell) string) {
	t.Helper()
	for i := range cells {
		c := &cells[i]
		name := c.Cost.String() + " " + c.Load.String()
		got, why := miss(c), known[name]
		switch {
		case got != "" && why == "":
			t.Errorf("%s: %s", name, got)
		case got == "" && why != "":
			t.Logf("%s: no longer misses", name)
		case got != "":
			t.Logf("known miss: %s: %s: %s", name, got, why)
		}
	}
}

func table(t *testing.T, cells []Cell) {
	t.Helper()
	if testing.Verbose() {
		var b strings.Builder
		if err := WriteTable(&b, cells); err != nil {
			t.Fatal(err)
		}
		t.Log("\n" + b.String())
	}
}

// BenchmarkTable prints the whole comparison, half-decades included.
func BenchmarkTable(b *testing.B) {
	loads := append(OpenLoads(), Load{Rate: 300}, Load{Rate: 3000}, Load{Rate: 30_000}, Load{Rate: 300_000})
	for b.Loop() {
		var s strings.Builder
		_ = WriteTable(&s, grid(append(loads, ClosedLoads()...)))
		b.Log("\n" + s.String())
	}
}
