package kvbench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// The groups of experiments, in the order in which they run.
const (
	Delay    = "delay"    // fixed delays of batches and none, under the load of report 2
	Validate = "validate" // the best of them again, round by round
	Tunings  = "tunings"  // the settings that report 2 recommends, and its steps to them
	Grid     = "grid"     // operations in flight per session x delays of batches
	Writer   = "writer"   // delays of messages between replicas, changed while they run
	CPU      = "cpu"      // where the CPU time of replicas goes
	Pendings = "pendings" // operations in flight per session
	Threads  = "threads"  // sessions
	Length   = "length"   // ten times as many operations
	Presets  = "presets"  // the five protocols compared
	WAN      = "wan"      // the same at a distance, with 3 and 5 replicas
	Etcd     = "etcd"     // etcd under the same load
	Cells    = "cells"    // no delay and fixed ones by distance, clients and durability
	Single   = "single"   // one client with one operation in flight
)

// groups lists them.
func groups() []string {
	return []string{Delay, Validate, Tunings, Grid, Writer, CPU, Pendings, Threads, Length, Presets, WAN, Etcd, Cells, Single}
}

// Plan says how much to run.
type Plan struct {
	// Rounds is the number of rounds of each experiment except the sweep of delays
	// (SweepRounds) and the validation (ValidationRounds).
	Rounds, SweepRounds, ValidationRounds int
	// Warmup and Duration are those of a round.
	Warmup, Duration time.Duration
	// Keys is the number of keys, which all exist before a round.
	Keys int
	// Delays to sweep, in microseconds; no delay is always included.
	Delays []int
	// GridPendings and GridDelays (microseconds) are the levels of Grid, PeerDelays
	// (microseconds, and none) those of Writer.
	GridPendings, GridDelays, PeerDelays []int
	// Profile is the shortest length of a round of CPU.
	Profile time.Duration
	// Pendings and Threads are levels to sweep.
	Pendings, Threads []int
	// ShortOps and LongOps are the operations per session in the two runs of Length.
	ShortOps, LongOps int64
	// RTTs are the round trips between replicas of WAN, Sizes its cluster sizes.
	RTTs  []time.Duration
	Sizes []int
	// Clients are the numbers of clients of Etcd.
	Clients []int
	// CellRTTs, CellClients and CellDelays (microseconds) are the levels of Cells; with
	// CellMemory each cell is measured without a disk, too.
	CellRTTs    []time.Duration
	CellClients []int
	CellDelays  []int
	CellMemory  bool
	// Hasty leaves out the calibrations of the disk, which take longer than the rounds of a
	// smoke run.
	Hasty bool
}

// The load of reference report 2: two clients of two threads with 15 operations each, half of
// them weak, a tenth writes, values of 100 bytes.
const (
	reportStreams  = 4
	reportPendings = 15
	reportWeak     = 50
	reportWrites   = 10
	reportSkew     = 0.9
	// reportWeakMs is the report's limit on the median of weak operations, in ms.
	reportWeakMs = 2
	// reportBest is the best delay in the report, in microseconds.
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
			Keys: 100, Delays: []int{150}, GridPendings: []int{5, 15}, GridDelays: []int{0, 150}, PeerDelays: []int{150}, Profile: time.Second, Pendings: []int{5, 15}, Threads: []int{1, 4},
			ShortOps: 50, LongOps: 500, RTTs: ms(0, 10), Sizes: []int{3}, Clients: []int{4},
			CellRTTs: ms(0), CellClients: []int{4}, CellDelays: []int{150},
		},
		"mini": {
			Rounds: 2, SweepRounds: 3, ValidationRounds: 5, Warmup: 300 * time.Millisecond, Duration: time.Second,
			Keys: 10_000, Delays: []int{0, 25, 50, 75, 100, 150}, GridPendings: []int{5, 15}, GridDelays: []int{0, 150}, PeerDelays: []int{50, 150},
			Profile: 4 * time.Second, Pendings: []int{5, 15, 30}, Threads: []int{1, 4, 16},
			ShortOps: 10_000, LongOps: 100_000,
			RTTs: ms(0, 10), Sizes: []int{3}, Clients: []int{1, 60},
			CellRTTs: ms(0, 10), CellClients: []int{1, 60}, CellDelays: []int{50, 150},
		},
		"full": {
			Rounds: 5, SweepRounds: 6, ValidationRounds: 5, Warmup: 500 * time.Millisecond, Duration: 2 * time.Second,
			Keys: 10_000, Delays: []int{0, 25, 50, 75, 100, 150}, GridPendings: []int{5, 10, 15, 20, 30}, GridDelays: []int{0, 25, 50, 75, 100, 150},
			PeerDelays: []int{25, 50, 75, 100, 150, 500}, Profile: 10 * time.Second, Pendings: []int{5, 10, 15, 20, 30}, Threads: []int{1, 2, 4, 8, 16, 60},
			ShortOps: 10_000, LongOps: 100_000,
			RTTs: ms(0, 1, 10, 50), Sizes: []int{3, 5}, Clients: []int{1, 16, 60, 256},
			CellRTTs: ms(0, 1, 10, 50), CellClients: []int{1, 16, 60, 256, 1024}, CellDelays: []int{50, 150, 500}, CellMemory: true,
		},
	}
}

// tunings are the steps of report 2 from its starting point to its recommendation for
// throughput, and the two other settings that it names: operations in flight per session, and
// the delay in microseconds.
var tunings = []struct{ pendings, delay int }{{10, 0}, {12, 50}, {15, 0}, {15, 150}}

// overrides are settings of the command line that override a plan's. Zero or empty ones do not.
type overrides struct {
	rounds, keys               int
	duration                   time.Duration
	delays, pendings, sessions []int
	peerDelays                 []int
	ops                        []int64
}

// with returns the plan with the given overrides. Two numbers of operations are the short and
// the long run of Length; a single one is the short run, and the long one is ten times as long.
func (p Plan) with(k overrides) Plan {
	if k.rounds > 0 {
		p.Rounds, p.SweepRounds, p.ValidationRounds = k.rounds, k.rounds, k.rounds
	}
	p.Duration, p.Keys = cmp.Or(k.duration, p.Duration), cmp.Or(k.keys, p.Keys)
	for list, given := range map[*[]int][]int{&p.Delays: k.delays, &p.PeerDelays: k.peerDelays, &p.Pendings: k.pendings, &p.Threads: k.sessions} {
		if len(given) > 0 {
			*list = given
		}
	}
	switch len(k.ops) {
	case 1:
		p.ShortOps, p.LongOps = k.ops[0], 10*k.ops[0]
	case 2:
		p.ShortOps, p.LongOps = k.ops[0], k.ops[1]
	}
	return p
}

// mostDelay is the longest delay that weir kv accepts, in microseconds.
const mostDelay = 10_000

// validate returns an error that names the flag.
func (k overrides) validate() error {
	if k.rounds < 0 || k.duration < 0 || k.keys < 0 {
		return errors.New("--rounds, --duration and --keys must not be negative")
	}
	err := cmp.Or(suite.CheckNumbers("--delays", k.delays, 0), suite.CheckNumbers("--peer-delays", k.peerDelays, 1),
		suite.CheckNumbers("--pendings", k.pendings, 1), suite.CheckNumbers("--sessions", k.sessions, 1))
	if err != nil {
		return err
	}
	for flag, delays := range map[string][]int{"--delays": k.delays, "--peer-delays": k.peerDelays} {
		if len(delays) > 0 && slices.Max(delays) > mostDelay {
			return fmt.Errorf("%s %d: want at most %d, which is 10 ms, the longest delay of weir kv", flag, slices.Max(delays), mostDelay)
		}
	}
	switch {
	case len(k.ops) > 2:
		return fmt.Errorf("--ops: %d numbers, want a short run and a long one", len(k.ops))
	case slices.ContainsFunc(k.ops, func(n int64) bool { return n < 1 }):
		return errors.New("--ops: want at least 1")
	case len(k.ops) == 2 && k.ops[0] >= k.ops[1]:
		return fmt.Errorf("--ops: the long run of %d is not longer than the short one of %d", k.ops[1], k.ops[0])
	}
	return nil
}

// parseTarget parses a limit such as weak_p50<=2 or rate>=23000.
func parseTarget(s string) (bench.Constraint, error) {
	for _, op := range []string{"<=", ">="} {
		key, number, ok := strings.Cut(s, op)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || v < 0 {
			return bench.Constraint{}, fmt.Errorf("%q: want a number after %s", s, op)
		}
		c := bench.Constraint{Metric: strings.TrimSpace(key), Max: &v}
		if op == ">=" {
			c.Max, c.Min = nil, &v
		}
		if _, ok := bench.MetricByKey(c.Metric, kvs.Subject); !ok {
			return c, fmt.Errorf("%q: no figure is called %q; there are rate, p50, p99, weak_p50, weak_p99, strong_p50, strong_p99 and others", s, c.Metric)
		}
		return c, nil
	}
	return bench.Constraint{}, fmt.Errorf("%q: want a figure and its limit, such as weak_p50<=2 or rate>=23000", s)
}

// reportLimits are the limits of report 2 on the median of weak operations.
func reportLimits() []bench.Constraint {
	limit := float64(reportWeakMs)
	return []bench.Constraint{{Metric: "weak_p50", Max: &limit}}
}
