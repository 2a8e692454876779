package bulk

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// memoryGoal is the memory, in bytes, up to which the Go runtime need not hurry to
	// collect garbage: a run is to stay below 256 MiB, its program included; without a goal
	// the heap would grow to twice of what is alive.
	//
	// Were less than a fifth of the goal left beside what is alive, the runtime would collect
	// garbage all the time, for three times the run's CPU time: then the goal grows, too. What
	// is alive grows with the number of tables and chunks. With PostgreSQL 15 and two jobs, a backup
	// keeps 1.3 KB of each table of one row, and stays below 256 MiB up to 100,000 of them; a
	// restore keeps 2.9 KB, so that its goal grows from 47,000 on, to 388 MiB at 100,000.
	memoryGoal = 200 << 20

	memoryLook = 250 * time.Millisecond
)

// A MemoryBound is the goal of one run for the memory of this process.
type MemoryBound struct {
	stop  chan struct{}
	ended sync.WaitGroup
}

// BoundMemory sets the goal for this process until Close, unless its starter has set
// one by $GOMEMLIMIT.
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

// goalBeside is the goal when so many bytes are alive.
func goalBeside(alive int64) int64 { return max(memoryGoal, alive+alive/4) }

// alive is how many bytes were alive after the last collection, what is not of the heap included.
func alive() int64 {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, // the heap, and what is not in use of it
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

// Close takes the goal back.
func (m *MemoryBound) Close() {
	close(m.stop)
	m.ended.Wait()
}
