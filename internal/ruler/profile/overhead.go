package profile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/loop"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// OverheadConfig is how Overhead is measured.
type OverheadConfig struct {
	// Pairs is the number of pairs of slices. Default: 24.
	Pairs int
	// Slice is the length of a slice. Default: 50 ms.
	Slice time.Duration
}

// slice is the rate and the CPU time per operation of one slice. Both are 0 if no operation
// ended.
type slice struct{ rate, cpu float64 }

// MeasureOverhead runs the workload as configured and measures the cost of tracing: the same
// workers on the same connections, in short slices with and without tracing, in pairs of random
// order. It does not include what stays when tracing is off: the loop itself, a pointer load
// for each read and write, and the kernel's time stamps.
func (t *Target) MeasureOverhead(ctx context.Context, w *Workload, c Config, o OverheadConfig) (_ *bench.Overhead, err error) {
	if o.Pairs == 0 {
		o.Pairs = 24
	}
	if o.Slice == 0 {
		o.Slice = 50 * time.Millisecond
	}
	c.Rate = 0 // the rate of an open loop does not depend on the cost of an operation
	c = c.WithDefaults(t.Engine)
	if err := t.Validate(c); err != nil {
		return nil, err
	}
	r, err := t.begin(ctx, w, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	out := &bench.Overhead{Concurrency: c.Concurrency, SliceSeconds: o.Slice.Seconds()}
	ctx, stop := context.WithCancel(r.ctx)
	defer stop()
	var failure error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer stop()
		failure = r.compareSlices(ctx, o, out)
	}()
	lc := loop.Config{Workers: c.Concurrency, Duration: 24 * time.Hour, Classify: classify, Interval: time.Minute}
	_, err = loop.Run(ctx, lc, r.load.op)
	close(r.load.over)
	stop()
	<-done
	if cause := context.Cause(r.ctx); cause != nil {
		return nil, cause
	}
	if failure == nil && !errors.Is(err, context.Canceled) {
		failure = err
	}
	return out, failure
}

// compareSlices switches tracing on and off while the workers run.
func (r *run) compareSlices(ctx context.Context, o OverheadConfig, out *bench.Overhead) error {
	if err := r.pool.fill(ctx, min(r.config.PoolMax, r.config.Concurrency)); err != nil {
		return fmt.Errorf("fill the pool: %w", err)
	}
	var rates, cpus [2][]float64 // untraced, traced
	for range 2 {                // warm-up
		if _, err := r.slice(ctx, true, o.Slice); err != nil {
			return err
		}
	}
	for range o.Pairs {
		order := [2]int{0, 1}
		if rand.IntN(2) == 1 {
			order = [2]int{1, 0}
		}
		var pair [2]slice
		for _, traced := range order {
			s, err := r.slice(ctx, traced == 1, o.Slice)
			if err != nil {
				return err
			}
			pair[traced] = s
		}
		if pair[0].rate == 0 || pair[1].rate == 0 {
			continue // the machine stood still: nothing to compare
		}
		for i, s := range pair {
			rates[i], cpus[i] = append(rates[i], s.rate), append(cpus[i], s.cpu)
		}
	}
	if len(rates[0]) < 2 {
		return fmt.Errorf("%w within slices of %v, which are too short for these operations", ErrNothing, o.Slice)
	}
	const confidence = 0.95
	out.Rate = bench.PairedRatio(rates[0], rates[1], confidence)
	out.CPU = bench.PairedRatio(cpus[0], cpus[1], confidence)
	return nil
}

// slice lets the workers run for a while and measures it.
func (r *run) slice(ctx context.Context, traced bool, d time.Duration) (slice, error) {
	r.load.traced.Store(traced)
	before, err := measure.Self()
	if err != nil {
		return slice{}, err
	}
	ops, begin := r.load.ended.Load(), r.load.clock.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return slice{}, context.Cause(ctx)
	}
	ops, seconds := r.load.ended.Load()-ops, float64(r.load.clock.Now()-begin)/1e9
	after, err := measure.Self()
	if err != nil {
		return slice{}, err
	}
	if ops == 0 {
		return slice{}, nil
	}
	return slice{float64(ops) / seconds, after.Since(before).CPUSeconds() / float64(ops)}, nil
}
