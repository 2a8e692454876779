// Package noise measures the same thing twice, to find out how much differences vary on this
// machine: an A/A run, with two identical sides that take turns of a few dozen milliseconds in
// random order. The result is the noise floor. With a slowdown planted in one side, it shows
// instead whether the machine can detect it.
package noise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/loop"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// The names of the two sides.
const (
	SideA = "a"
	SideB = "b"
)

// Config is the configuration of an A/A run.
type Config struct {
	// Workload is the name of a workload in Workloads. Default: cpu.
	Workload string
	// Workers is the number of operations in flight. Default: 1.
	Workers int
	// Pairs is how many turns each side takes, and Slice how long a turn is. Default: 80 of 60
	// ms, which is ten seconds.
	Pairs int
	Slice time.Duration
	// Slower makes each operation of side b take longer, as a share of its usual time, by
	// computing. Default: 0, an A/A run.
	Slower float64
	// Dir is the directory for files. Default: the directory for temporary files.
	Dir string
	// Progress is called after each turn. Default: none.
	Progress func(bench.Progress)
}

func (c Config) withDefaults() Config {
	c.Workload = cmp.Or(c.Workload, "cpu")
	c.Workers = cmp.Or(c.Workers, 1)
	c.Pairs = cmp.Or(c.Pairs, 80)
	c.Slice = cmp.Or(c.Slice, 60*time.Millisecond)
	return c
}

// Validate returns why the run is impossible.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case find(c.Workload) == nil:
		return fmt.Errorf("workload %q: want one of %s", c.Workload, strings.Join(Names(), ", "))
	case c.Workers < 1 || c.Workers > 1000:
		return fmt.Errorf("%d workers: want 1 to 1000", c.Workers)
	case c.Pairs < 9 || c.Pairs > 10_000:
		return fmt.Errorf("%d pairs: want 9 to 10000; with fewer, nothing reaches 99 %% confidence", c.Pairs)
	case c.Slice < 5*time.Millisecond || c.Slice > time.Minute:
		return fmt.Errorf("turns of %v: want 5ms to 1m", c.Slice)
	case c.Slower < 0 || c.Slower > 10:
		return fmt.Errorf("slower by %v: want 0 to 10, where 0.05 is 5 %%", c.Slower)
	}
	return nil
}

// Run measures and returns the result with two cases, a and b. If ctx is done, it returns the
// error with the result so far, which is nil if there is none.
func Run(ctx context.Context, c Config) (_ *bench.Result, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	w, err := find(c.Workload).open(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("prepare workload %s: %w", c.Workload, err)
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	env := measure.ReadEnvironment()
	env.Durability, env.Servers = w.durability, w.servers
	planted := func(share float64) map[string]string {
		return map[string]string{"slower": strconv.FormatFloat(share, 'g', -1, 64)}
	}
	e := bench.Experiment{
		Description: bench.Description{
			Name: "aa-" + c.Workload, Title: "The same twice: " + find(c.Workload).About, Loop: "closed",
			Rounds: c.Pairs, Warmup: min(max(3, int(500*time.Millisecond/c.Slice)), 10), Baseline: SideA, Shuffle: true,
			Factors: map[string]string{"workload": c.Workload, "workers": strconv.Itoa(c.Workers), "slice": c.Slice.String()},
		},
		Sides: []bench.Side{
			{Name: SideA, Factors: planted(0), Run: c.side(w, w.op)},
			{Name: SideB, Factors: planted(c.Slower), Run: c.side(w, slowed(w.op, c.Slower, c.Workers))},
		},
	}
	return bench.Run(ctx, e, bench.Options{Env: &env, Progress: c.Progress})
}

// turns is how often a turn is tried in which no operation ended because something else used
// the processor all the time.
const turns = 5

// side takes one turn.
func (c Config) side(w *opened, op loop.Op) func(context.Context, int) (bench.Sample, error) {
	return func(ctx context.Context, _ int) (bench.Sample, error) {
		for range turns {
			o, err := loop.Run(ctx, loop.Config{Workers: c.Workers, Duration: c.Slice, Interval: c.Slice, Watch: w.watch}, op)
			if err != nil {
				return bench.Sample{}, err
			}
			if len(o.Errors) > 0 {
				return bench.Sample{}, fmt.Errorf("operations of %s fail: %v", c.Workload, o.Errors)
			}
			if o.Ops > 0 {
				s := bench.SampleOf(o)
				s.InFlight = c.Workers
				s.Series = nil // one interval adds nothing to the sample
				return s, nil
			}
		}
		return bench.Sample{}, fmt.Errorf("no operation of %s ended within %v: take longer turns", c.Workload, c.Slice)
	}
}

// slowed makes an operation take longer by computing for a share of its usual time. A share of
// its actual time would be wrong: an operation that lost its processor for milliseconds would
// be slowed by a share of those, too.
func slowed(op loop.Op, share float64, workers int) loop.Op {
	if share == 0 {
		return op
	}
	usual := make([]time.Duration, workers)
	return func(ctx context.Context, worker int) error {
		start := time.Now()
		err := op(ctx, worker)
		end := time.Now()
		usual[worker] = settle(usual[worker], end.Sub(start))
		for until := end.Add(time.Duration(share * float64(usual[worker]))); time.Now().Before(until); {
			continue // computes, as a slower operation would
		}
		return err
	}
}

// settle moves usual towards a new value by a sixteenth, whatever the distance, so that it
// settles near the median.
func settle(usual, v time.Duration) time.Duration {
	switch {
	case usual == 0:
		return v
	case v > usual:
		return usual + usual/16
	default:
		return max(usual-usual/16, 1)
	}
}
