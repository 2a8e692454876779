package bulk

import (
	"math"
	"runtime/debug"
	"testing"
)

// More tables than the goal has room for raise it; they do not make the runtime collect
// garbage without end.
func TestMemoryGoalGrowsWithTables(t *testing.T) {
	limit := func(want int64) {
		t.Helper()
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("the limit is %d, want %d", got, want)
		}
	}
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	m := BoundMemory()
	limit(memoryGoal)
	m.Tables(60_000)
	limit(memoryGoal)
	m.Tables(60_000) // of another database
	limit(memoryGoal + 20_000*tableGoal)
	m.Tables(-60_000) // begun anew
	limit(memoryGoal)
	m.Close()
	limit(math.MaxInt64)

	debug.SetMemoryLimit(1 << 30) // as by $GOMEMLIMIT
	m = BoundMemory()
	m.Tables(1_000_000)
	limit(1 << 30)
	m.Close()
	limit(1 << 30)
}
