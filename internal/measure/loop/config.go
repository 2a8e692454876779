package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// Op is one operation of a worker; workers are numbered from 0. It returns nil if it was
// answered as expected. It must return soon after ctx is done.
type Op func(ctx context.Context, worker int) error

// Config configures a run.
type Config struct {
	// Workers is the number of concurrent operations: in a closed loop always, in an open loop
	// at most. Required.
	Workers int
	// Arrivals makes the loop an open one. Default: closed.
	Arrivals Arrivals
	// Warmup is the longest time to wait for the rate and the median latency to settle (see
	// measure.Steady) before the window opens. Default: none, the window includes the first
	// operation.
	Warmup time.Duration
	// FixedWarmup makes the warm-up last the whole of Warmup. Default: it ends
	// as soon as the run has settled.
	FixedWarmup bool
	// Duration is the length of the measured window. Duration or Count is required; with both,
	// the run ends at whichever is reached first.
	Duration time.Duration
	// Count is the number of operations to start within the window.
	Count int64
	// Drain is how long to wait for answers after the window. Default: 10 s.
	Drain time.Duration
	// MaxBacklog is how many starts may be due and wait for a worker; further ones are dropped
	// and counted. Default: 65536.
	MaxBacklog int
	// Interval is that of the time series. Default: 1 s.
	Interval time.Duration
	// Classify returns the class of an error. Default: "error".
	Classify func(error) string
	// Watch reads the usage of processes, by role, at both ends of the window. Without an entry
	// for measure.ClientRole, that is this process.
	Watch map[string]func() (measure.Usage, error)
	// Window, if not nil, is called when the window opens, before any operation belongs to it:
	// to reset what operations record themselves, for example.
	Window func()

	// Ended, if not nil, is called for each operation that is recorded in Cold.Latency or
	// Outcome.Latency, by its worker right after it, so that more can be recorded about the
	// same operations.
	Ended func(Ended)

	// sleeper returns what the open loop waits with, in its own goroutine.
	sleeper func() sleeper
}

type sleeper interface {
	Until(ctx context.Context, clock measure.Clock, ns int64) error
}

// Ended is an operation that was answered as expected. Times are in nanoseconds since the
// beginning of the run.
type Ended struct {
	Worker                     int
	Cold                       bool // it belongs to the phase before the window
	Intended, Began, Completed int64
}

func (c Config) withDefaults() Config {
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	c.MaxBacklog = cmp.Or(c.MaxBacklog, 1<<16)
	c.Interval = cmp.Or(c.Interval, time.Second)
	if c.Classify == nil {
		c.Classify = func(error) string { return "error" }
	}
	if c.sleeper == nil {
		c.sleeper = func() sleeper { return measure.NewSleeper() }
	}
	return c
}

func (c Config) validate(op Op) error {
	switch {
	case op == nil:
		return errors.New("loop has no operation")
	case c.Workers < 1:
		return fmt.Errorf("loop with %d workers: want at least one", c.Workers)
	case c.Duration <= 0 && c.Count <= 0:
		return errors.New("loop over nothing: want a duration or a count")
	case c.Duration < 0 || c.Count < 0 || c.Warmup < 0 || c.Drain < 0 || c.Interval < 0 || c.MaxBacklog < 0:
		return errors.New("loop: times and counts must not be negative")
	}
	return nil
}

// shards returns how many recorders the workers share: enough that they rarely contend, and few
// enough that a thousand workers do not need 200 MB.
func (c Config) shards() int { return min(c.Workers, 4*runtime.GOMAXPROCS(0)) }

// Outcome is the result of a run.
type Outcome struct {
	Started time.Time
	// Seconds is the length of the window.
	Seconds float64
	// Ops counts operations answered as expected, Errors the others by class. In a closed loop
	// an operation belongs to the window in which it ended; in an open loop to that of its
	// intended start, so that late answers are not lost.
	Ops    int64
	Errors map[string]int64
	// Latency has the operations in Ops, Service the same from their actual start (nil in a
	// closed loop), FailedLatency those in Errors.
	Latency, Service, FailedLatency *measure.Hist
	Series                          *measure.Series
	// MeanInFlight is the mean number of operations that were running or waiting for a worker.
	MeanInFlight float64
	Generator    measure.Generator
	Processes    map[string]measure.Usage
	Machine      measure.Activity
	// Cold is the phase before the window. Nil without a warm-up.
	Cold *Cold
	// Interrupted says that the run ended early. The figures are valid for the part that ran.
	Interrupted bool
}

// Cold is the phase before the window.
type Cold struct {
	Seconds float64
	Ops     int64
	Latency *measure.Hist
	Steady  bool // it settled; otherwise Config.Warmup ended it
}
