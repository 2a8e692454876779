package kvbench

import (
	"cmp"
	"time"
)

// The groups of experiments, in the order in which they are run.
const (
	Delay     = "delay"     // fixed delays of batches and none, at the load of report 2
	Validate  = "validate"  // the best of them again, round by round
	Pendings  = "pendings"  // operations under way in each session
	Threads   = "threads"   // sessions
	Conflicts = "conflicts" // operations that meet at one key, and skew
	Length    = "length"    // ten times as many operations
	Presets   = "presets"   // the five protocols side by side
	WAN       = "wan"       // the same at a distance, with 3 and 5 replicas
	Etcd      = "etcd"      // etcd at the same load
	Cells     = "cells"     // no delay against fixed ones by distance, clients and durability
	Single    = "single"    // one client with one operation
)

// groups lists them.
func groups() []string {
	return []string{Delay, Validate, Pendings, Threads, Conflicts, Length, Presets, WAN, Etcd, Cells, Single}
}

// Plan says how much is run.
type Plan struct {
	// Rounds are those of each experiment but the sweep of delays (SweepRounds)
	// and the validation (ValidationRounds).
	Rounds, SweepRounds, ValidationRounds int
	// Warmup and Duration are those of a round.
	Warmup, Duration time.Duration
	// Keys is the number of keys, all of which are there before a round.
	Keys int
	// Delays are swept, in microseconds; none is always among them.
	Delays []int
	// Pendings and Threads are swept, and the percentages Conflicts and exponents
	// Skews.
	Pendings, Threads []int
	Conflicts, Skews  []float64
	// ShortOps and LongOps are the operations of each session in the two runs of
	// Length.
	ShortOps, LongOps int64
	// RTTs are the round trips between replicas of WAN, Sizes its clusters.
	RTTs  []time.Duration
	Sizes []int
	// Clients are those of Etcd.
	Clients []int
	// CellRTTs, CellClients, CellDelays (microseconds) and CellMemory are those of
	// Cells; with CellMemory each cell is measured without a disk, too.
	CellRTTs    []time.Duration
	CellClients []int
	CellDelays  []int
	CellMemory  bool
	// Hasty leaves the calibrations of the disk out, which take longer than the
	// rounds of a smoke run.
	Hasty bool
}

// The load of reference report 2: two clients of two threads with 15 operations
// each, half of them weak, a tenth writes, values of 100 bytes.
const (
	reportStreams  = 4
	reportPendings = 15
	reportWeak     = 50
	reportWrites   = 10
	reportSkew     = 0.9
	// reportWeakMs is its limit on the median of weak operations, in ms.
	reportWeakMs = 2
	// reportBest is the delay that it found best, in microseconds.
	reportBest = 150
)

// Plans are the plans by name.
func Plans() map[string]Plan {
	ms := func(n ...int) (out []time.Duration) {
		for _, v := range n {
			out = append(out, time.Duration(v)*time.Millisecond)
		}
		return out
	}
	return map[string]Plan{
		"smoke": {
			Hasty: true, Rounds: 1, SweepRounds: 1, ValidationRounds: 2, Warmup: 20 * time.Millisecond, Duration: 100 * time.Millisecond,
			Keys: 100, Delays: []int{150}, Pendings: []int{5, 15}, Threads: []int{1, 4}, Conflicts: []float64{0, 50}, Skews: []float64{0, 0.9},
			ShortOps: 50, LongOps: 500, RTTs: ms(0, 10), Sizes: []int{3}, Clients: []int{4},
			CellRTTs: ms(0), CellClients: []int{4}, CellDelays: []int{150},
		},
		"mini": {
			Rounds: 2, SweepRounds: 3, ValidationRounds: 5, Warmup: 300 * time.Millisecond, Duration: time.Second,
			Keys: 10_000, Delays: []int{0, 25, 50, 75, 100, 150}, Pendings: []int{5, 15, 30}, Threads: []int{1, 4, 16},
			Conflicts: []float64{0, 50}, Skews: []float64{0, 0.99}, ShortOps: 10_000, LongOps: 100_000,
			RTTs: ms(0, 10), Sizes: []int{3}, Clients: []int{1, 60},
			CellRTTs: ms(0, 10), CellClients: []int{1, 60}, CellDelays: []int{50, 150},
		},
		"full": {
			Rounds: 5, SweepRounds: 6, ValidationRounds: 5, Warmup: 500 * time.Millisecond, Duration: 2 * time.Second,
			Keys: 10_000, Delays: []int{0, 25, 50, 75, 100, 150}, Pendings: []int{5, 10, 15, 20, 30}, Threads: []int{1, 2, 4, 8, 16, 60},
			Conflicts: []float64{0, 2, 10, 50, 100}, Skews: []float64{0, 0.5, 0.9, 0.99, 1.2}, ShortOps: 10_000, LongOps: 100_000,
			RTTs: ms(0, 1, 10, 50), Sizes: []int{3, 5}, Clients: []int{1, 16, 60, 256},
			CellRTTs: ms(0, 1, 10, 50), CellClients: []int{1, 16, 60, 256, 1024}, CellDelays: []int{50, 150, 500}, CellMemory: true,
		},
	}
}

// with returns the plan with other numbers where they are given.
func (p Plan) with(rounds, keys int, duration time.Duration) Plan {
	if rounds > 0 {
		p.Rounds, p.SweepRounds, p.ValidationRounds = rounds, rounds, rounds
	}
	p.Duration, p.Keys = cmp.Or(duration, p.Duration), cmp.Or(keys, p.Keys)
	return p
}
