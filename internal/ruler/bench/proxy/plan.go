package proxybench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Plan says how much of the benchmark to run.
type Plan struct {
	// Inserts lists the numbers of clients of the insert experiments (reference report 1: one
	// INSERT per operation, hints 0, 1, 10, 100 ms and auto).
	Inserts []int
	// Windows are the fixed windows among the sides.
	Windows []time.Duration
	// PoolSizes and GroupLimits are settings at which weir is compared with itself, at the
	// first number of clients of Inserts. A single value applies to all experiments.
	PoolSizes, GroupLimits []int
	// Isolated adds weir without its multi-row lane, so that every write is its own statement
	// (PostgreSQL: and its own transaction).
	Isolated bool
	// Literals lists the numbers of clients of inserts with literals, as sent by drivers that
	// do not prepare.
	Literals []int
	// Updates lists the numbers of clients of UPDATEs by key that ask for grouping.
	Updates []int
	// Transactions lists the numbers of clients of pgbench's simple updates, a
	// transaction of five statements (PostgreSQL only).
	Transactions []int
	// SlowFsync lists flush latencies at which Slow is run again.
	SlowFsync []time.Duration
	Slow      []int
	// Reads lists the numbers of clients of the key lookups, prepared and as text.
	Reads []int
	// Cached lists the numbers of clients of key lookups that weir's cache may answer, prepared
	// and as text.
	Cached []int
	// Failing lists the numbers of clients with one failing insert in a hundred.
	Failing []int
	// Drivers lists the numbers of clients of the inserts through database/sql, by each driver
	// of the engine.
	Drivers []int
	// Leak is how long weir is loaded to see whether its heap grows. Default: not at all.
	Leak time.Duration
	// Crowd lists numbers of clients that look up keys through weir, to see whether throughput
	// holds with many more clients than connections in the pool.
	Crowd []int
	// Idle is the number of idle sessions to open, to measure weir's memory for them.
	Idle int
	// Logins lists the numbers of clients that log in anew for each statement, by each method,
	// on a private server.
	Logins []int
	// Rounds, Duration and Warmup apply to each experiment.
	Rounds   int
	Duration time.Duration
	Warmup   time.Duration
}

// most returns the largest number of connections to the server itself.
func (p Plan) most() int {
	most := slices.Max(append(slices.Concat(p.Inserts, p.Literals, p.Updates, p.Transactions, p.Slow, p.Reads, p.Cached, p.Drivers), 1))
	if len(p.PoolSizes) != 1 {
		most *= 2 // a pool that sizes itself has up to one per client
	}
	for _, n := range p.PoolSizes { // each size has its own weir
		most += n
	}
	return most + 20*len(p.GroupLimits)
}

// profiled is the number of clients at which CPU profiles are taken.
func (p Plan) profiled() int {
	if len(p.Inserts) == 0 || slices.Contains(p.Inserts, 64) {
		return 64
	}
	return p.Inserts[0]
}

// always are the settings of every weir.
func (p Plan) always() []string {
	var out []string
	if len(p.PoolSizes) == 1 {
		out = append(out, "--pool-size", strconv.Itoa(p.PoolSizes[0]))
	}
	if len(p.GroupLimits) == 1 {
		out = append(out, "--group-limit", strconv.Itoa(p.GroupLimits[0]))
	}
	return out
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
		"smoke": {
			Inserts: []int{4}, Windows: ms(1), Isolated: true, Literals: []int{4}, Updates: []int{4}, Transactions: []int{4},
			SlowFsync: ms(2), Slow: []int{4}, Reads: []int{4}, Cached: []int{4}, Failing: []int{4},
			Crowd: []int{4, 40}, Idle: 50, Drivers: []int{4}, Leak: time.Second, Logins: []int{2},
			Rounds: 1, Duration: 100 * time.Millisecond, Warmup: 20 * time.Millisecond,
		},
		"demo": {Inserts: []int{64}, Rounds: 3, Duration: 2 * time.Second, Warmup: 600 * time.Millisecond},
		"mini": {
			Inserts: []int{64, 256}, Windows: ms(1, 10), Rounds: 3,
			Duration: 2 * time.Second, Warmup: 500 * time.Millisecond, Reads: []int{64}, Cached: []int{64}, Drivers: []int{64}, Leak: 10 * time.Second,
		},
		"full": {
			Inserts: []int{1, 16, 64, 256, 1000}, Windows: ms(1, 10, 100), Isolated: true, Literals: []int{1, 64, 256},
			Updates: []int{64}, Transactions: []int{16, 64, 256},
			SlowFsync: ms(2), Slow: []int{64, 256}, Reads: []int{16, 64, 256}, Cached: []int{64}, Failing: []int{64, 256},
			Crowd: []int{64, 256, 2000}, Idle: 10000, Drivers: []int{64}, Leak: 5 * time.Minute, Logins: []int{10},
			Rounds: 6, Duration: 2 * time.Second, Warmup: 600 * time.Millisecond,
		},
	}
}

// overrides are settings of the command line that override a plan's. Zero or empty ones do not.
type overrides struct {
	clients, poolSizes, groupLimits []int
	windows                         []string
	rounds                          int
	duration, leak                  time.Duration
}

// mostInGroup is the largest number of rows that weir groups.
const mostInGroup = 256

// maxWindow is the longest window that a hint may ask for, in milliseconds.
const maxWindow = 10_000

// with returns the plan with the given overrides. Its error names the flag.
func (p Plan) with(k overrides) (Plan, error) {
	err := cmp.Or(suite.CheckNumbers("--clients", k.clients, 1), suite.CheckNumbers("--pool-size", k.poolSizes, 1), suite.CheckNumbers("--group-limit", k.groupLimits, 1))
	if err != nil {
		return p, err
	}
	if i := slices.IndexFunc(k.groupLimits, func(n int) bool { return n > mostInGroup }); i >= 0 {
		return p, fmt.Errorf("--group-limit %d: weir groups at most %d", k.groupLimits[i], mostInGroup)
	}
	if k.rounds < 0 || k.duration < 0 || k.leak < 0 {
		return p, errors.New("--rounds, --duration and --leak must not be negative")
	}
	if len(k.clients) > 0 {
		for _, list := range []*[]int{&p.Inserts, &p.Literals, &p.Updates, &p.Transactions, &p.Slow, &p.Reads, &p.Cached, &p.Failing, &p.Crowd, &p.Drivers, &p.Logins} {
			if len(*list) > 0 {
				*list = k.clients
			}
		}
	}
	if len(k.windows) > 0 {
		p.Windows = nil
	}
	for _, text := range k.windows {
		w, err := parseWindow(text)
		if err != nil {
			return p, fmt.Errorf("--windows: %w", err)
		}
		if slices.Contains(p.Windows, w) {
			return p, fmt.Errorf("--windows names %v twice", w)
		}
		p.Windows = append(p.Windows, w)
	}
	p.PoolSizes, p.GroupLimits = k.poolSizes, k.groupLimits
	p.Rounds, p.Duration = cmp.Or(k.rounds, p.Rounds), cmp.Or(k.duration, p.Duration)
	p.Leak = cmp.Or(k.leak, p.Leak)
	return p, nil
}

// parseWindow parses milliseconds, as in hints, or a duration of whole milliseconds.
func parseWindow(text string) (time.Duration, error) {
	w, err := time.ParseDuration(text)
	if n, errMS := strconv.Atoi(text); errMS == nil {
		w, err = time.Duration(n)*time.Millisecond, nil
	}
	if err != nil || w < 0 || w > maxWindow*time.Millisecond || w%time.Millisecond != 0 {
		return 0, fmt.Errorf("%q: want milliseconds from 0 to %d, such as 0,1,10,100", text, maxWindow)
	}
	return w, nil
}
