package proxybench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// side measures one way with one workload. The tables are recreated before each round, and
// afterwards compared with what was acknowledged.
func (r *rig) side(w way, clients int, work load.Workload, text bool) bench.Side {
	return bench.Side{
		Name:    w.name,
		Factors: map[string]string{"via": w.via, "window": w.window},
		Run: func(ctx context.Context, _ int) (bench.Sample, error) {
			return r.sample(ctx, w, clients, work, text, r.engine.Run)
		},
	}
}

// generator drives a database as configured.
type generator func(context.Context, load.Config) (*load.Outcome, error)

func (r *rig) sample(ctx context.Context, w way, clients int, work load.Workload, text bool, drive generator) (bench.Sample, error) {
	var none bench.Sample
	if err := r.engine.Setup(ctx, r.direct().dsn, work); err != nil {
		return none, err
	}
	before, unread := r.read(ctx, w)
	cfg := load.Config{
		DSN: w.dsn, Workload: work, Connections: clients, Text: text,
		Warmup: r.o.Plan.Warmup, Duration: r.o.Plan.Duration,
		Watch: w.watch(r.db.PID()),
	}
	got, err := r.watched(ctx, w.name, cfg, drive)
	if err != nil {
		return none, err
	}
	if len(got.WrongExamples) > 0 {
		return none, fmt.Errorf("%s gave wrong answers: %q", w.name, got.WrongExamples)
	}
	s := got.Sample
	after, err := r.read(ctx, w)
	if err := errors.Join(unread, err); err == nil {
		after.since(before, got.TotalOps, &s)
	} else if ctx.Err() == nil {
		// A round is valid without the counters.
		s.Warnings = append(s.Warnings, "the counters of server and proxy are missing: "+err.Error())
	}
	return s, r.audit(ctx, w, work, got)
}

// audit compares the table with the clients' answers.
func (r *rig) audit(ctx context.Context, w way, work load.Workload, got *load.Outcome) error {
	var wrong error
	switch work := work.(type) {
	case load.Insert:
		audit, err := r.engine.Verify(ctx, r.direct().dsn, work, got)
		if err != nil {
			return err
		}
		wrong = audit.Err()
	case load.Update:
		sum, err := r.engine.Count(ctx, r.direct().dsn, work)
		if err != nil {
			return err
		}
		wrong = work.Check(sum, got)
	}
	if wrong != nil {
		return fmt.Errorf("%s: %w", w.name, wrong)
	}
	return nil
}

// reading holds the counters of server and proxy.
type reading struct {
	suite.Counters
	groups bench.Groups
}

func (r *rig) read(ctx context.Context, w way) (g reading, err error) {
	if g.Counters, err = suite.ReadCounters(ctx, r.meter, r.db); err != nil || w.weir == nil {
		return g, err
	}
	g.groups, err = w.weir.groups(ctx)
	return g, err
}

// since stores the difference of two readings in a sample.
func (g reading) since(before reading, ops int64, s *bench.Sample) {
	s.Server = g.Since(before.Counters, ops)
	if n := g.groups.Flushes - before.groups.Flushes; n > 0 {
		s.Groups = &bench.Groups{Flushes: n, Items: g.groups.Items - before.groups.Items}
	}
}

// watched runs the load and reports its progress to Live.
func (r *rig) watched(ctx context.Context, side string, cfg load.Config, drive generator) (*load.Outcome, error) {
	if r.o.Live == nil {
		return drive(ctx, cfg)
	}
	every := 250 * time.Millisecond
	if short := cfg.Duration / 2; short > 0 {
		every = min(every, short)
	}
	cfg.Live = new(atomic.Int64)
	began := time.Now()
	stop := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				r.o.Live(side, cfg.Live.Load(), time.Since(began))
			}
		}
	})
	defer watcher.Wait()
	defer close(stop)
	return drive(ctx, cfg)
}
