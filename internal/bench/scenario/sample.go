package scenario

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/bench/load"
	"github.com/weirdb/weir/internal/measure"
)

// side measures one way with one workload. The tables are made anew before each
// round and compared with what was acknowledged after it.
func (r *rig) side(w way, clients int, work load.Workload, text bool) bench.Side {
	return bench.Side{
		Name:    w.name,
		Factors: map[string]string{"via": w.via, "window": w.window},
		Run: func(ctx context.Context, _ int) (bench.Sample, error) {
			return r.sample(ctx, w, clients, work, text)
		},
	}
}

func (r *rig) sample(ctx context.Context, w way, clients int, work load.Workload, text bool) (bench.Sample, error) {
	var none bench.Sample
	direct := r.direct().dsn
	if err := r.engine.setup(ctx, direct, work); err != nil {
		return none, err
	}
	before, err := r.meter.Counters(ctx)
	if err != nil {
		return none, err
	}
	flushes, err := r.db.Flushes()
	if err != nil {
		return none, err
	}
	var groups bench.Groups
	if w.weir != nil {
		if groups, err = w.weir.groups(ctx); err != nil {
			return none, err
		}
	}
	cfg := load.Config{
		DSN: w.dsn, Workload: work, Connections: clients, Text: text,
		Warmup: r.o.Plan.Warmup, Duration: r.o.Plan.Duration,
		Watch: map[string]func() (measure.Usage, error){
			bench.RoleServer: func() (measure.Usage, error) { return measure.Tree(r.db.PID()) },
		},
	}
	if w.proxy != nil {
		cfg.Watch[bench.RoleProxy] = w.proxy
	}
	got, err := r.watched(ctx, w.name, cfg)
	if err != nil {
		return none, err
	}
	if len(got.WrongExamples) > 0 {
		return none, fmt.Errorf("%s gave wrong answers: %q", w.name, got.WrongExamples)
	}
	after, err := r.meter.Counters(ctx)
	if err != nil {
		return none, err
	}
	s := got.Sample
	s.Server = load.CountersSince(after, before, got.TotalOps)
	// The server's own count comes late from sessions that a proxy keeps.
	now, err := r.db.Flushes()
	if err != nil {
		return none, err
	}
	s.Server.Fsyncs = int64(now - flushes)
	if w.weir != nil {
		now, err := w.weir.groups(ctx)
		if err != nil {
			return none, err
		}
		if n := now.Flushes - groups.Flushes; n > 0 {
			s.Groups = &bench.Groups{Flushes: n, Items: now.Items - groups.Items}
		}
	}
	if ins, ok := work.(load.Insert); ok {
		audit, err := r.engine.verify(ctx, direct, ins, got)
		if err != nil {
			return none, err
		}
		if err := audit.Err(); err != nil {
			return none, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return s, nil
}

// watched runs the load while Live is told how it goes.
func (r *rig) watched(ctx context.Context, side string, cfg load.Config) (*load.Outcome, error) {
	if r.o.Live == nil {
		return r.engine.run(ctx, cfg)
	}
	cfg.Live = new(atomic.Int64)
	began := time.Now()
	stop := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		t := time.NewTicker(250 * time.Millisecond)
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
	return r.engine.run(ctx, cfg)
}

// run measures an experiment and keeps its samples and result.
func (r *rig) run(ctx context.Context, e bench.Experiment) (*bench.Result, error) {
	dir := filepath.Join(r.o.Out, e.Name)
	store, err := bench.OpenStore(dir, r.o.Resume)
	if err != nil {
		return nil, err
	}
	env := measure.ReadEnvironment()
	env.Durability = "prod"
	env.Servers = []measure.Server{r.info}
	r.o.Say("%s", e.Title)
	res, err := bench.Run(ctx, e, bench.Options{Store: store, Env: &env, FlushDir: r.o.Out, Progress: r.o.Progress})
	return res, errors.Join(err, store.Close())
}
