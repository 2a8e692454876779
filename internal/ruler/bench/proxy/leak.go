package proxybench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// leakExperiment is the name of the leak check.
const leakExperiment = "leak"

// leakReadings is the largest number of readings of a leak check, leastBetween the shortest
// time between two.
const (
	leakReadings = 60
	leastBetween = 250 * time.Millisecond
)

// leakFile is the file with the readings, next to the sample, so that a resumed run has them.
const leakFile = "leak.json"

// leak loads weir for a long time and reads its heap meanwhile.
func (r *run) leak(ctx context.Context) error {
	clients := r.o.Plan.Inserts[0]
	w := weirWay(r.weir, "weir auto", "/* batch */", "auto")
	e := r.experiment(leakExperiment, clients, fmt.Sprintf("Leak check: grouped INSERTs by %s for %v", clientsName(clients), r.o.Plan.Leak))
	e.Name, e.Baseline, e.Rounds = leakExperiment, "", 1
	e.Factors["seconds"] = r.o.Plan.Leak.String()
	s := r.side(w, clients, r.insert(w.hint), false)
	s.Run = func(ctx context.Context, _ int) (bench.Sample, error) { return r.leakRound(ctx, w, clients) }
	e.Sides = []bench.Side{s}
	if err := r.measure(ctx, e); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(r.o.Out, leakFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was not chosen, or ended too early
	}
	l := &suite.Leak{}
	if err == nil {
		err = json.Unmarshal(b, l)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", leakFile, err)
	}
	r.out.Leak = l
	return nil
}

// leakRound is the load of a leak check.
func (r *run) leakRound(ctx context.Context, w way, clients int) (bench.Sample, error) {
	var none bench.Sample
	work := r.insert(w.hint)
	if err := r.engine.Setup(ctx, r.direct().dsn, work); err != nil {
		return none, err
	}
	l := &suite.Leak{Case: w.name, Clients: clients}
	cfg := load.Config{
		DSN: w.dsn, Workload: work, Connections: clients, Duration: r.o.Plan.Leak, Live: new(atomic.Int64),
		Watch: map[string]func() (measure.Usage, error){bench.RoleProxy: w.proxy},
	}
	read, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.readHeap(read, l, w, cfg.Live) }()
	got, err := r.engine.Run(ctx, cfg)
	cancel()
	failed := <-done
	if err != nil {
		return none, err
	}
	if failed != nil {
		r.Leave("readings of the heap: %v", failed)
	}
	l.Seconds = got.Sample.Seconds
	l.Judge()
	b, err := json.MarshalIndent(l, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(r.o.Out, leakFile), append(b, '\n'), 0o644)
	}
	if err != nil {
		return none, fmt.Errorf("keep the readings of the heap: %w", err)
	}
	return got.Sample, r.audit(ctx, w, work, got)
}

// readHeap takes readings until the context ends.
func (r *run) readHeap(ctx context.Context, l *suite.Leak, w way, statements *atomic.Int64) error {
	every := max(leastBetween, r.o.Plan.Leak/leakReadings)
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		p, err := r.leakPoint(ctx, w, statements, began)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		l.Points = append(l.Points, p)
	}
}

func (r *run) leakPoint(ctx context.Context, w way, statements *atomic.Int64, began time.Time) (p suite.LeakPoint, err error) {
	if _, err := w.weir.heap(ctx); err != nil { // a heap profile collects garbage first
		return p, err
	}
	p.Seconds, p.Statements = time.Since(began).Seconds(), statements.Load()
	counters, err := w.weir.memory(ctx)
	if err != nil {
		return p, err
	}
	u, err := w.weir.usage()
	p.Heap, p.RSS = counters[heapInUse], u.RSSBytes
	return p, err
}
