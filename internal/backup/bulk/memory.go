package bulk

import (
	"math"
	"runtime/debug"
)

// memoryGoal is the memory, in bytes, up to which the Go runtime need not hurry to
// collect garbage: a backup or a restore is to stay below 256 MiB. What is alive
// grows with the number of tables, by some 2 KB for each, and with nothing else;
// without a goal the heap would grow to twice of it.
const memoryGoal = 200 << 20

// BoundMemory sets the goal for this process, unless its starter has set
// one by $GOMEMLIMIT. The function that it returns takes it back.
func BoundMemory() (undo func()) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return func() {}
	}
	debug.SetMemoryLimit(memoryGoal)
	return func() { debug.SetMemoryLimit(math.MaxInt64) }
}
