package bulk

import (
	"math"
	"runtime/debug"
	"testing"
)

// The goal leaves a fifth of it beside what is alive, however many tables there are, and is the
// one that keeps a backup of 100,000 of them below 256 MiB.
func TestMemoryGoalGrowsWithTables(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	goal := func() int64 { return debug.SetMemoryLimit(-1) }
	for _, table := range []int64{BackupTable, RestoreTable} {
		m := BoundMemory(table)
		if got := goal(); got != memoryGoal {
			t.Errorf("without tables the goal is %d", got)
		}
		for _, tables := range []int{20_000, 80_000, 1, 900_000} { // more, each time
			m.Tables(tables)
			if alive := aliveBase + int64(m.tables)*table; goal()-alive < goal()/5 {
				t.Errorf("%d tables: %d bytes are alive, the goal is %d", m.tables, alive, goal())
			}
			if m.tables == 100_000 && table == BackupTable && goal() != memoryGoal {
				t.Errorf("100,000 tables: the goal is %d", goal())
			}
		}
		m.Tables(-m.tables) // begun anew
		if got := goal(); got != memoryGoal {
			t.Errorf("when all is begun anew, the goal is %d", got)
		}
		m.Close()
		if got := goal(); got != math.MaxInt64 {
			t.Errorf("after the run, the goal is %d", got)
		}
	}

	debug.SetMemoryLimit(1 << 30) // as by $GOMEMLIMIT
	m := BoundMemory(BackupTable)
	m.Tables(1_000_000)
	if got := goal(); got != 1<<30 {
		t.Errorf("the goal is %d, not its starter's", got)
	}
	m.Close()
	if got := goal(); got != 1<<30 {
		t.Errorf("after the run, the goal is %d, not its starter's", got)
	}
}
