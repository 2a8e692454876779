package bulk

import (
	"math"
	"runtime/debug"
	"sync"
)

// memoryGoal is the memory, in bytes, up to which the Go runtime need not hurry to
// collect garbage: a backup or a restore is to stay below 256 MiB. What is alive
// grows with the number of tables, by some 2 KB for each, and with nothing else;
// without a goal the heap would grow to twice of it. What is alive of more than
// goalTables tables leaves no room below the goal, and the runtime would collect
// garbage all the time, for three times the run's CPU time: each of them raises it.
const (
	memoryGoal = 200 << 20
	goalTables = 100_000
	tableGoal  = 3 << 10
)

// A MemoryBound is the goal of one run for the memory of this process.
type MemoryBound struct {
	mu     sync.Mutex
	set    bool // false: its starter has set one
	tables int
}

// BoundMemory sets the goal for this process, unless its starter has set
// one by $GOMEMLIMIT. Close takes it back.
func BoundMemory() *MemoryBound {
	m := &MemoryBound{set: debug.SetMemoryLimit(-1) == math.MaxInt64}
	m.Tables(0)
	return m
}

// Tables tells of n tables more.
func (m *MemoryBound) Tables(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tables += n
	if m.set {
		debug.SetMemoryLimit(memoryGoal + int64(max(0, m.tables-goalTables))*tableGoal)
	}
}

// Close takes the goal back.
func (m *MemoryBound) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.set {
		debug.SetMemoryLimit(math.MaxInt64)
	}
	m.set = false
}
