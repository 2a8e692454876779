package bulk

import (
	"math"
	"runtime/debug"
	"sync"
)

// memoryGoal is the memory, in bytes, up to which the Go runtime need not hurry to
// collect garbage: a run is to stay below 256 MiB, its program included; without a goal
// the heap would grow to twice of what is alive. That grows with the number of tables
// alone. Were less than a fifth of the goal left beside it, the runtime would collect
// garbage all the time, for three times the run's CPU time: then the goal grows, too.
//
// The figures are of what --json's footprint calls lists, with 2,000 and 20,000 tables of one
// row, PostgreSQL 15 and two jobs. A backup keeps 1.3 KB of each (1,268 and 1,338 bytes in two
// runs): its goal is memoryGoal up to 101,000 tables, and at 100,000 its peak was 250 MiB. A
// restore keeps 2.9 KB: its goal grows from 47,000 tables on, to 388 MiB at 100,000, of which
// 280 MiB are alive. It cannot stay below 256 MiB there.
const (
	memoryGoal = 200 << 20
	aliveBase  = 24 << 20 // buffers, compressors, sessions, and what Go itself needs

	BackupTable  = 1400 // bytes alive of a table
	RestoreTable = 3000
)

// A MemoryBound is the goal of one run for the memory of this process.
type MemoryBound struct {
	mu     sync.Mutex
	set    bool  // false: its starter has set one
	table  int64 // bytes alive of each
	tables int
}

// BoundMemory sets the goal for this process, unless its starter has set
// one by $GOMEMLIMIT. Of each table, so many bytes are alive. Close takes it back.
func BoundMemory(table int64) *MemoryBound {
	m := &MemoryBound{set: debug.SetMemoryLimit(-1) == math.MaxInt64, table: table}
	m.Tables(0)
	return m
}

// Tables tells of n tables more.
func (m *MemoryBound) Tables(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tables += n
	if m.set {
		alive := aliveBase + int64(m.tables)*m.table
		debug.SetMemoryLimit(max(memoryGoal, alive+alive/4))
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
