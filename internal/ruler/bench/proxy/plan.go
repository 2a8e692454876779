package proxybench

import (
	"cmp"
	"slices"
	"time"
)

// Plan says how much of the benchmark is run.
type Plan struct {
	// Inserts lists the numbers of clients of the insert experiments (reference
	// report 1: one INSERT per operation, hints 0, 1, 10, 100 ms and auto).
	Inserts []int
	// Windows are the fixed windows among the sides.
	Windows []time.Duration
	// Isolated adds weir without its multi-row lane, so that every write is a
	// statement of its own (PostgreSQL: and a transaction of its own).
	Isolated bool
	// Literals lists the numbers of clients of inserts that hold their values as
	// literals, as drivers send them that do not prepare.
	Literals []int
	// SlowFsync lists flush latencies at which Slow is run again.
	SlowFsync []time.Duration
	Slow      []int
	// Reads lists the numbers of clients of the key lookups, prepared and as
	// text.
	Reads []int
	// Failing lists the numbers of clients with one failing insert in a hundred.
	Failing []int
	// Crowd lists numbers of clients that look up keys through weir, to see
	// whether throughput holds when they are many times the pool's size.
	Crowd []int
	// Idle is the number of sessions to open and leave alone, to see what weir
	// needs for them.
	Idle int
	// Rounds, Duration and Warmup are those of each experiment.
	Rounds   int
	Duration time.Duration
	Warmup   time.Duration
}

// most returns the largest number of clients that connect to the server itself.
func (p Plan) most() int {
	return slices.Max(append(slices.Concat(p.Inserts, p.Literals, p.Slow, p.Reads), 1))
}

// Plans are the plans by name.
func Plans() map[string]Plan {
	ms := func(n ...int) (out []time.Duration) {
		for _, v := range n {
			out = append(out, time.Duration(v)*time.Millisecond)
		}
		return out
	}
	return map[string]Plan{
		"demo": {Inserts: []int{64}, Rounds: 3, Duration: 2 * time.Second, Warmup: 600 * time.Millisecond},
		"mini": {
			Inserts: []int{64, 256}, Windows: ms(1, 10), Rounds: 3,
			Duration: 2 * time.Second, Warmup: 500 * time.Millisecond, Reads: []int{64},
		},
		"full": {
			Inserts: []int{1, 16, 64, 256, 1000}, Windows: ms(1, 10, 100), Isolated: true, Literals: []int{64},
			SlowFsync: ms(2), Slow: []int{64, 256}, Reads: []int{16, 64, 256}, Failing: []int{64, 256},
			Crowd: []int{64, 256, 2000}, Idle: 10000,
			Rounds: 6, Duration: 2 * time.Second, Warmup: 600 * time.Millisecond,
		},
	}
}

// with returns the plan with other numbers where they are given.
func (p Plan) with(clients []int, rounds int, duration time.Duration) Plan {
	if len(clients) > 0 {
		for _, list := range []*[]int{&p.Inserts, &p.Literals, &p.Slow, &p.Reads, &p.Failing, &p.Crowd} {
			if len(*list) > 0 {
				*list = clients
			}
		}
	}
	p.Rounds, p.Duration = cmp.Or(rounds, p.Rounds), cmp.Or(duration, p.Duration)
	return p
}
