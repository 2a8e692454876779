package bulk

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// The goal leaves a fifth of it beside what is alive, however much that is.
func TestMemoryGoal(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	for _, alive := range []int64{0, 20 << 20, 160 << 20, 200 << 20, 5 << 30} {
		if goal := goalBeside(alive); goal-alive < goal/5 || goal < memoryGoal || goal > max(memoryGoal, 2*alive) {
			t.Errorf("%d bytes are alive, the goal is %d", alive, goal)
		}
	}
	goal := func() int64 { return debug.SetMemoryLimit(-1) }
	m := BoundMemory()
	if got := goal(); got != memoryGoal {
		t.Errorf("at the beginning the goal is %d", got)
	}
	kept := make([]byte, memoryGoal) // nothing writes into it: it takes no memory of the machine
	runtime.GC()
	for end := time.Now().Add(time.Minute); goal() < memoryGoal*5/4; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are alive, the goal is %d", alive(), goal())
		}
	}
	runtime.KeepAlive(kept)
	m.Close()
	if got := goal(); got != math.MaxInt64 {
		t.Errorf("after the run, the goal is %d", got)
	}

	debug.SetMemoryLimit(1 << 30) // as by $GOMEMLIMIT
	BoundMemory().Close()
	if got := goal(); got != 1<<30 {
		t.Errorf("after the run, the goal is %d, not its starter's", got)
	}
}
