package loop

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// virtual waits on the clock of a synctest bubble, in which everything takes
// exactly as long as it says.
type virtual struct{}

func (virtual) Until(ctx context.Context, clock measure.Clock, ns int64) error {
	t := time.NewTimer(time.Duration(ns - clock.Now()))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drive runs in virtual time.
func drive(t *testing.T, c Config, op Op) *Outcome {
	t.Helper()
	var o *Outcome
	synctest.Test(t, func(t *testing.T) {
		c.sleeper = func() sleeper { return virtual{} }
		var err error
		if o, err = Run(t.Context(), c, op); err != nil {
			t.Fatal(err)
		}
	})
	return o
}

func takes(d time.Duration) Op {
	return func(ctx context.Context, _ int) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func within(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*math.Abs(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestClosedLoopKeepsItsWorkersBusy(t *testing.T) {
	o := drive(t, Config{Workers: 5, Duration: 10*time.Second - time.Millisecond}, takes(20*time.Millisecond))
	within(t, "operations", float64(o.Ops), 5*10/0.02, 0.003)
	within(t, "p99", float64(o.Latency.Quantile(.99)), 20e6, 0.01)
	within(t, "in flight", o.MeanInFlight, 5, 0.001)
	within(t, "rate times latency", float64(o.Ops)/o.Seconds*o.Latency.Mean()/1e9, 5, 0.003)
	if o.Service != nil || o.Cold != nil || o.Interrupted || len(o.Errors) != 0 || o.Generator.Unfinished != 0 {
		t.Errorf("outcome %+v", o)
	}
	if n := len(o.Series.Intervals); n != 10 || o.Series.Intervals[5].Ops != 250 {
		t.Errorf("series %+v", o.Series)
	}
	if o.Processes[measure.ClientRole].Threads == 0 {
		t.Error("the usage of this process is missing")
	}
}

// The server stops for half a second in the middle of ten. At 1000 starts a
// second 500 users come meanwhile and wait 250 ms in the mean, which is 5 % of
// all. A closed loop sees one slow operation for each worker and calls it p99.99.
func TestOpenLoopSeesAStallAsItsUsersDo(t *testing.T) {
	server := func() Op {
		begin := time.Now()
		return func(ctx context.Context, _ int) error {
			if since := time.Since(begin); since >= 5*time.Second && since < 5500*time.Millisecond {
				time.Sleep(5500*time.Millisecond - since)
			}
			time.Sleep(100 * time.Microsecond)
			return nil
		}
	}
	run := func(c Config) *Outcome {
		var o *Outcome
		synctest.Test(t, func(t *testing.T) {
			c.sleeper = func() sleeper { return virtual{} }
			var err error
			if o, err = Run(t.Context(), c, server()); err != nil {
				t.Fatal(err)
			}
		})
		return o
	}
	open := run(Config{Workers: 64, Arrivals: must(t)(Constant(1000)), Duration: 10*time.Second - 500*time.Microsecond})
	if open.Ops != 10000 || open.Generator.Intended != 10000 || open.Generator.Dropped != 0 {
		t.Fatalf("%d operations of %d intended", open.Ops, open.Generator.Intended)
	}
	// Of 10 000 operations the 500 in the stall took from 0 to 500 ms, evenly.
	for _, q := range []struct{ q, ms float64 }{{.94, 0.1}, {.96, 100}, {.98, 300}, {.99, 400}, {.998, 480}} {
		within(t, "latency at "+time.Duration(q.ms*1e6).String(), float64(open.Latency.Quantile(q.q)), q.ms*1e6, 0.03)
	}
	within(t, "largest latency", float64(open.Latency.Max()), 500e6, 0.01)
	// Only those that a worker had begun can say so themselves.
	if p := open.Service.Quantile(.99); p > 1e6 {
		t.Errorf("service p99 %d ns, want what the server needs when it works", p)
	}
	if b := open.Generator.MaxBacklog; b < 430 || b > 440 {
		t.Errorf("backlog %d, want the 500 less 64 that workers hold", b)
	}
	within(t, "in flight by rate and latency", float64(open.Ops)/open.Seconds*open.Latency.Mean()/1e9, open.MeanInFlight, 0.01)

	closed := run(Config{Workers: 1, Duration: 10 * time.Second})
	if p := closed.Latency.Quantile(.999); p > 1e6 {
		t.Errorf("closed loop p99.9 %d ns: expected it to miss the stall, which is why there is an open one", p)
	}
}

func TestOpenLoopThatIsTooFastDropsAndSaysSo(t *testing.T) {
	// One worker can do 100 a second; 300 are asked for, and 50 may wait.
	o := drive(t, Config{
		Workers: 1, Arrivals: must(t)(Constant(300)), Duration: 10 * time.Second, MaxBacklog: 50, Drain: time.Millisecond,
	}, takes(10*time.Millisecond))
	g := o.Generator
	within(t, "answered", float64(g.Answered), 1000, 0.005)
	within(t, "intended", float64(g.Intended), 3000, 0.001)
	within(t, "dropped", float64(g.Dropped), 2000-50, 0.01)
	if g.MaxBacklog != 50 || g.Unfinished < 50 || g.Unfinished > 52 {
		t.Errorf("generator %+v", g)
	}
	if g.LateMaxNs != 0 {
		t.Errorf("late by %d ns, but time stood still meanwhile", g.LateMaxNs)
	}
}

// stalls is virtual, but cannot wait for what is due from one moment until another:
// its processor was taken from it.
type stalls struct{ from, until time.Duration }

func (s stalls) Until(ctx context.Context, clock measure.Clock, ns int64) error {
	if now := clock.Now(); ns >= int64(s.from) && now < int64(s.until) {
		time.Sleep(s.until - time.Duration(now))
	}
	return virtual{}.Until(ctx, clock, ns)
}

// A generator that hangs while the window closes hands out later what was due, and
// says how late it was: the schedule does not depend on it.
func TestStartsThatWereDueAreHandedOutLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Workers: 4, Arrivals: must(t)(Constant(1000)), Duration: time.Second - 500*time.Microsecond}
		c.sleeper = func() sleeper { return stalls{900 * time.Millisecond, 1050 * time.Millisecond} }
		o, err := Run(t.Context(), c, takes(100*time.Microsecond))
		if err != nil {
			t.Fatal(err)
		}
		if g := o.Generator; o.Ops != 1000 || g.Intended != 1000 || g.Dropped != 0 || g.Unfinished != 0 {
			t.Errorf("%d operations, generator %+v", o.Ops, g)
		}
		within(t, "largest lateness", float64(o.Generator.LateMaxNs), 150e6, 0.01)
		if o.Latency.Max() < 150e6 {
			t.Errorf("the slowest took %d ns by its schedule", o.Latency.Max())
		}
	})
}

func TestOperationsAfterTheWindowAreNotLost(t *testing.T) {
	// Each takes 2 s, so those of the last two seconds end while it drains.
	o := drive(t, Config{Workers: 100, Arrivals: must(t)(Constant(10)), Duration: 4950 * time.Millisecond}, takes(2*time.Second))
	if o.Ops != 50 || o.Generator.Answered != 30 || o.Generator.Unfinished != 0 {
		t.Errorf("%d operations, %d answered within the window, %d unfinished", o.Ops, o.Generator.Answered, o.Generator.Unfinished)
	}
}

func TestCountEndsTheRun(t *testing.T) {
	closed := drive(t, Config{Workers: 4, Count: 100}, takes(time.Second))
	if closed.Ops != 100 || math.Abs(closed.Seconds-25) > 1e-6 {
		t.Errorf("closed: %d operations in %v s", closed.Ops, closed.Seconds)
	}
	open := drive(t, Config{Workers: 4, Arrivals: must(t)(Constant(10)), Count: 20}, takes(time.Millisecond))
	if open.Ops != 20 || open.Seconds < 1.9 || open.Seconds > 2.1 {
		t.Errorf("open: %d operations in %v s", open.Ops, open.Seconds)
	}
}

func TestColdPhaseIsKeptApart(t *testing.T) {
	var n atomic.Int64
	opened := false
	o := drive(t, Config{
		Workers: 1, Warmup: 20 * time.Second, Duration: 2 * time.Second, Window: func() { opened = true },
	}, func(context.Context, int) error {
		i := n.Add(1)
		time.Sleep(time.Millisecond + max(0, 50-time.Duration(i))*2*time.Millisecond)
		return nil
	})
	if !o.Cold.Steady || !opened {
		t.Error("never settled")
	}
	if o.Cold.Seconds < 2.5 || o.Cold.Seconds > 6 {
		t.Errorf("warm after %v s; the cold operations alone take 2.5", o.Cold.Seconds)
	}
	if o.Cold.Ops < 50 || o.Cold.Latency.Max() < 90e6 {
		t.Errorf("cold: %d operations, slowest %d ns", o.Cold.Ops, o.Cold.Latency.Max())
	}
	if o.Latency.Max() > 1.01e6 || o.Ops < 1990 {
		t.Errorf("warm: %d operations, slowest %d ns", o.Ops, o.Latency.Max())
	}
}

func TestWarmUpEndsEvenIfNothingSettles(t *testing.T) {
	var n atomic.Int64
	o := drive(t, Config{Workers: 1, Warmup: 3 * time.Second, Duration: time.Second}, func(context.Context, int) error {
		time.Sleep(time.Duration(n.Add(1)) * 100 * time.Microsecond)
		return nil
	})
	if o.Cold.Steady || math.Abs(o.Cold.Seconds-3) > 0.01 {
		t.Errorf("cold = %+v", o.Cold)
	}
}

func TestErrorsAreKeptOutOfThePercentiles(t *testing.T) {
	busy := errors.New("53300")
	var n atomic.Int64
	o := drive(t, Config{Workers: 1, Count: 100, Classify: func(err error) string { return err.Error() }}, func(context.Context, int) error {
		if n.Add(1)%10 == 0 {
			time.Sleep(time.Second)
			return busy
		}
		time.Sleep(time.Millisecond)
		return nil
	})
	if o.Ops != 90 || o.Errors["53300"] != 10 || o.Latency.Max() != 1e6 || o.FailedLatency.Count() != 10 || o.FailedLatency.Min() != 1e9 {
		t.Errorf("%d operations, slowest %d ns, errors %v", o.Ops, o.Latency.Max(), o.Errors)
	}
}

func TestInterruptedRunKeepsWhatItHas(t *testing.T) {
	enough := errors.New("enough")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(enough) })
		o, err := Run(ctx, Config{Workers: 2, Duration: time.Minute}, takes(10*time.Millisecond))
		if !errors.Is(err, enough) || o == nil || !o.Interrupted {
			t.Fatalf("outcome %+v, error %v", o, err)
		}
		within(t, "seconds", o.Seconds, 3, 0.01)
		within(t, "operations", float64(o.Ops), 600, 0.02)
		if len(o.Errors) != 0 {
			t.Errorf("operations that were given up count as errors: %v", o.Errors)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(enough) })
		o, err := Run(ctx, Config{Workers: 2, Warmup: time.Hour, FixedWarmup: true, Duration: time.Minute}, takes(10*time.Millisecond))
		if !errors.Is(err, enough) || o != nil {
			t.Errorf("before the window: outcome %+v, error %v", o, err)
		}
	})
}

func TestHungOperationsAreGivenUp(t *testing.T) {
	o := drive(t, Config{Workers: 3, Duration: time.Second, Drain: 2 * time.Second}, func(ctx context.Context, w int) error {
		if w == 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		time.Sleep(100 * time.Millisecond)
		return nil
	})
	if o.Generator.Unfinished != 1 || len(o.Errors) != 0 || o.Ops < 18 {
		t.Errorf("%d operations, unfinished %d, errors %v", o.Ops, o.Generator.Unfinished, o.Errors)
	}
	within(t, "in flight", o.MeanInFlight, 3, 0.01)
}

func TestRunIsRefused(t *testing.T) {
	op := takes(0)
	for name, c := range map[string]Config{
		"no workers":        {Duration: 1},
		"nothing to do":     {Workers: 1},
		"negative":          {Workers: 1, Duration: 1, Warmup: -1},
		"negative duration": {Workers: 1, Duration: -1, Count: 3},
	} {
		if _, err := Run(t.Context(), c, op); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	if _, err := Run(t.Context(), Config{Workers: 1, Count: 1}, nil); err == nil {
		t.Error("no operation: was taken")
	}
	broken := errors.New("gone")
	_, err := Run(t.Context(), Config{Workers: 1, Count: 1, Watch: map[string]func() (measure.Usage, error){
		"server": func() (measure.Usage, error) { return measure.Usage{}, broken },
	}}, op)
	if !errors.Is(err, broken) {
		t.Errorf("error = %v", err)
	}
}

// With the real clock and timer: everything arrives, nothing before its time.
func TestOpenLoopInRealTime(t *testing.T) {
	o, err := Run(t.Context(), Config{Workers: 4, Arrivals: must(t)(Constant(2000)), Duration: 200 * time.Millisecond, Warmup: 50 * time.Millisecond},
		func(context.Context, int) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(o.Seconds * 2000); o.Ops < want-2 && o.Generator.Dropped == 0 || o.Latency.Min() < 0 {
		t.Errorf("%d operations in %v s", o.Ops, o.Seconds)
	}
	t.Logf("handed out %.0f us late at the median, %.0f at p99", float64(o.Generator.LateP50Ns)/1e3, float64(o.Generator.LateP99Ns)/1e3)
}

// Ended is called for the operations that the histograms hold.
func TestEndedIsCalledForWhatIsRecorded(t *testing.T) {
	var cold, window atomic.Int64
	var coldNs, windowNs atomic.Int64
	n := 0
	o := drive(t, Config{
		Workers: 3, Duration: time.Second, Warmup: time.Second, FixedWarmup: true,
		Ended: func(e Ended) {
			if e.Cold {
				cold.Add(1)
				coldNs.Add(e.Completed - e.Intended)
				return
			}
			window.Add(1)
			windowNs.Add(e.Completed - e.Intended)
		},
	}, func(ctx context.Context, worker int) error {
		if worker == 0 {
			n++
			if n%2 == 0 {
				return errors.New("no")
			}
		}
		return takes(7*time.Millisecond)(ctx, worker)
	})
	if cold.Load() != o.Cold.Ops || window.Load() != o.Ops || cold.Load() == 0 || window.Load() == 0 {
		t.Errorf("told of %d cold and %d other operations, recorded %d and %d", cold.Load(), window.Load(), o.Cold.Ops, o.Ops)
	}
	if uint64(coldNs.Load()) != o.Cold.Latency.Sum() || uint64(windowNs.Load()) != o.Latency.Sum() {
		t.Errorf("told of %d ns and %d ns, recorded %d and %d", coldNs.Load(), windowNs.Load(), o.Cold.Latency.Sum(), o.Latency.Sum())
	}
}
