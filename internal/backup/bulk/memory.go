package bulk

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// memoryGoal is the memory limit, in bytes, that the Go runtime gets: a run shall use less
	// than 256 MiB, including the program; without a limit the heap would grow to twice the
	// size of live memory.
	//
	// If less than a fifth of the limit were free beside live memory, the garbage collector
	// would run all the time and triple the run's CPU time; then the limit grows. Live memory
	// grows with the number of tables and chunks. With PostgreSQL 15 and two jobs, a backup
	// keeps 1.3 KB for each table of one row, and stays below 256 MiB up to 100,000 tables; a
	// restore keeps 2.9 KB, so its limit grows from 47,000 tables on, to 388 MiB at 100,000.
	memoryGoal = 200 << 20

	memoryLook = 250 * time.Millisecond
)

// A MemoryBound is the memory limit of this process for one run.
type MemoryBound struct {
	stop  chan struct{}
	ended sync.WaitGroup
}

// BoundMemory sets the memory limit of this process until Close, unless $GOMEMLIMIT sets one.
func BoundMemory() *MemoryBound {
	m := &MemoryBound{stop: make(chan struct{})}
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return m
	}
	debug.SetMemoryLimit(memoryGoal)
	m.ended.Go(func() {
		defer debug.SetMemoryLimit(math.MaxInt64)
		t := time.NewTicker(memoryLook)
		defer t.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-t.C:
				debug.SetMemoryLimit(goalBeside(alive()))
			}
		}
	})
	return m
}

// goalBeside returns the limit for the given number of live bytes.
func goalBeside(alive int64) int64 { return max(memoryGoal, alive+alive/4) }

// alive returns the number of live bytes after the last garbage collection, including memory
// outside of the heap.
func alive() int64 {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, // the heap, with its unused parts
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	n := int64(samples[0].Value.Uint64() + samples[1].Value.Uint64())
	for _, s := range samples[2:] {
		n -= int64(s.Value.Uint64())
	}
	return n
}

// Close restores the previous limit.
func (m *MemoryBound) Close() {
	close(m.stop)
	m.ended.Wait()
}
