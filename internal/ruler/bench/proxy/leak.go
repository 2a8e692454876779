package proxybench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/report"
)

// leakExperiment is the name of the leak check.
const leakExperiment = "leak"

// Leak is what a long load leaves in the proxy's heap.
type Leak struct {
	Case    string  `json:"case"`
	Clients int     `json:"clients"`
	Seconds float64 `json:"seconds"`
	// Points are readings over the load, each after two collections.
	Points []LeakPoint `json:"points"`
	// Growth is the slope of the heap over the statements, in bytes for each, without
	// the first fifth of the load, in which pools and caches fill.
	Growth bench.Interval `json:"growth"`
}

// LeakPoint is one reading.
type LeakPoint struct {
	Seconds    float64 `json:"seconds"` // since the load began
	Statements int64   `json:"statements"`
	Heap       float64 `json:"heap"` // bytes in use after a collection
	RSS        int64   `json:"rss"`  // bytes of the process
}

// leakReadings is how many readings a leak check takes at most, leastBetween the least
// time between two.
const (
	leakReadings = 60
	leastBetween = 250 * time.Millisecond
)

// leakFile is where the readings lie beside the sample, so that a run that is resumed
// has them.
const leakFile = "leak.json"

// leak loads weir for a long time and reads what its heap holds meanwhile.
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
	l := &Leak{}
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
	if err := r.engine.setup(ctx, r.direct().dsn, work); err != nil {
		return none, err
	}
	l := &Leak{Case: w.name, Clients: clients}
	cfg := load.Config{
		DSN: w.dsn, Workload: work, Connections: clients, Duration: r.o.Plan.Leak, Live: new(atomic.Int64),
		Watch: map[string]func() (measure.Usage, error){bench.RoleProxy: w.proxy},
	}
	read, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.readHeap(read, l, w, cfg.Live) }()
	got, err := r.engine.run(ctx, cfg)
	cancel()
	failed := <-done
	if err != nil {
		return none, err
	}
	if failed != nil {
		r.Leave("readings of the heap: %v", failed)
	}
	l.Seconds = got.Sample.Seconds
	l.judge()
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
func (r *run) readHeap(ctx context.Context, l *Leak, w way, statements *atomic.Int64) error {
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

func (r *run) leakPoint(ctx context.Context, w way, statements *atomic.Int64, began time.Time) (p LeakPoint, err error) {
	if _, err := w.weir.heap(ctx); err != nil { // which collects
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

// judge computes the growth.
func (l *Leak) judge() {
	var xs, ys []float64
	for _, p := range l.Points {
		if p.Seconds >= l.Seconds/5 {
			xs, ys = append(xs, float64(p.Statements)), append(ys, p.Heap)
		}
	}
	l.Growth = bench.Interval{N: len(xs)}
	if s := bench.Slope(xs, ys, 0.95); s.Method != "none" { // JSON knows no infinity
		l.Growth = s
	}
}

// Verdict says what the growth tells.
func (l *Leak) Verdict() string {
	switch g := l.Growth; {
	case g.N < leastReadings:
		return fmt.Sprintf("%d readings tell no slope; %d would", g.N, leastReadings)
	case l.Grows():
		return fmt.Sprintf("the heap grows by %s B for each statement [%s, %s]: something is kept of each", bench.Figure(g.Median), bench.Figure(g.Lo), bench.Figure(g.Hi))
	case l.Flat():
		return fmt.Sprintf("the heap grows by less than an object for each statement: %s B [%s, %s]", bench.Figure(g.Median), bench.Figure(g.Lo), bench.Figure(g.Hi))
	default:
		return fmt.Sprintf("cannot tell: %s B for each statement [%s, %s], an object is %d B", bench.Figure(g.Median), bench.Figure(g.Lo), bench.Figure(g.Hi), SmallestObject)
	}
}

// Grows tells that something is kept of each statement: the whole interval is at an object
// or above.
func (l *Leak) Grows() bool { return l.Growth.N >= leastReadings && l.Growth.Lo >= SmallestObject }

// Flat tells that no object is kept of each statement: the whole interval is below one.
func (l *Leak) Flat() bool { return l.Growth.N >= leastReadings && l.Growth.Hi < SmallestObject }

// leastReadings is how many readings tell a slope.
const leastReadings = 8

// Section shows the heap over time.
func (l *Leak) Section() report.Section {
	s := report.Section{
		Title: "Memory over a long load",
		Text: []string{fmt.Sprintf("%s, %s for %.0f s; %s. The heap is read after two collections, which slow the load down: no rate of it is quoted.",
			l.Case, clientsName(l.Clients), l.Seconds, l.Verdict())},
	}
	if len(l.Points) == 0 {
		return s
	}
	first, last := l.Points[0], l.Points[len(l.Points)-1]
	s.Tables = []report.Table{{
		Title: "Heap and memory of the proxy",
		Columns: []report.Column{
			{Name: "reading"},
			{Name: "after", Unit: "s", Numeric: true},
			{Name: "statements", Numeric: true},
			{Name: "heap in use", Unit: "kB", Numeric: true},
			{Name: "memory of the process", Unit: "MB", Numeric: true},
		},
		Rows: [][]report.Cell{pointRow("first", first), pointRow("middle", l.Points[len(l.Points)/2]), pointRow("last", last)},
		Note: fmt.Sprintf("%d readings. Slope by least squares without the first fifth of the time: %s B for each statement, 95 %% interval [%s, %s].", len(l.Points), bench.Figure(l.Growth.Median), bench.Figure(l.Growth.Lo), bench.Figure(l.Growth.Hi)),
	}}
	heap := report.Chart{
		Title: "Heap in use after a collection, over time", Kind: report.TimeSeries, XLabel: "seconds", YLabel: "bytes", Unit: "B", Tabled: true,
		Series: []report.Series{{Name: "heap in use"}},
	}
	rate := report.Chart{
		Title: "Statements answered, over time", Kind: report.TimeSeries, XLabel: "seconds", YLabel: "statements per second", Tabled: true,
		Series: []report.Series{{Name: "statements per second"}},
	}
	for i, p := range l.Points {
		heap.Series[0].Points = append(heap.Series[0].Points, report.Point{X: p.Seconds, Y: p.Heap})
		if i > 0 && p.Seconds > l.Points[i-1].Seconds {
			before := l.Points[i-1]
			rate.Series[0].Points = append(rate.Series[0].Points, report.Point{X: p.Seconds, Y: float64(p.Statements-before.Statements) / (p.Seconds - before.Seconds)})
		}
	}
	if len(l.Points) > 2 {
		s.Charts = []report.Chart{heap, rate}
	}
	return s
}

func pointRow(name string, p LeakPoint) []report.Cell {
	return report.Cells(name, fmt.Sprintf("%.1f", p.Seconds), strconv.FormatInt(p.Statements, 10), fmt.Sprintf("%.0f", p.Heap/1e3), fmt.Sprintf("%.1f", float64(p.RSS)/1e6))
}
