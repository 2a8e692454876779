package backupcmd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/version"
)

// adminFlag is the flag --admin of a verb that moves data: a live page and metrics of the run,
// while it lasts.
type adminFlag struct{ address string }

func (a *adminFlag) add(f *pflag.FlagSet) {
	f.StringVar(&a.address, "admin", "", "serve a live page and metrics at `ADDRESS` while it runs, such as 127.0.0.1:9190; no login, so keep it on loopback")
}

// serve serves the page until end is called, which may be called twice, and prints its address
// to stderr. what describes the run in a few words.
func (a *adminFlag) serve(ctx context.Context, verb, what string, state *bulk.Progress, stderr io.Writer) (end func() error, err error) {
	if a.address == "" {
		return func() error { return nil }, nil
	}
	ln, err := net.Listen("tcp", a.address)
	if err != nil {
		return nil, fmt.Errorf("listen for --admin: %w", err)
	}
	fmt.Fprintf(stderr, "%s: live page http://%s/\n", verb, ln.Addr())
	p := &runPage{verb: verb, what: what, state: state, began: time.Now()}
	page := live.New(live.Config{Page: p.page(), Source: p, Words: p.words})
	reg := prometheus.NewRegistry()
	reg.MustRegister(p, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := admin.Mux(reg)
	page.Register(mux)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { admin.Plain(w, http.StatusOK, "ready") })
	// It outlives an interrupt, so that the end of the run can be watched.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var serving errgroup.Group
	serving.Go(func() error { page.Run(ctx); return nil })
	serving.Go(func() error {
		return admin.Serve(ctx, ln, admin.Guard(mux, admin.IsLoopback(ln.Addr()), live.Policy), slog.New(slog.DiscardHandler))
	})
	return sync.OnceValue(func() error {
		stop()
		return serving.Wait()
	}), nil
}

// runPage is the source of one run's live page and metrics.
type runPage struct {
	verb, what string
	state      *bulk.Progress
	began      time.Time
	rate       rateMeter // for Detail, which one goroutine calls
}

func (p *runPage) page() live.Page {
	return live.Page{
		Title: "weir " + p.verb, Series: live.Keys(nil, "bytes", "rows", "steps", "done", "moved", "active", "left"),
		Tiles: []live.Tile{
			{Label: "Done", Key: "done", Format: live.Percent, Note: "a backup's whole is an estimate"},
			{Label: "Moved", Key: "moved", Format: live.Bytes, Parts: []live.Part{{Key: "bytes", Format: live.Bytes, Label: "per second"}}},
			{Label: "Time left", Key: "left", Format: live.Seconds, Note: "at the current rate"},
			{Label: "Rows", Key: "rows", Format: live.Count, Per: "/s"},
			{Label: "Under way", Key: "active", Format: live.Count, Parts: []live.Part{{Key: "steps", Format: live.Count, Label: "steps a second done"}}},
		},
		Charts: []live.Chart{
			{Title: "Bytes", Unit: "per second", Format: live.Bytes, Lines: []live.Line{live.Draw("bytes", "moved", 1)}},
			{Title: "Rows", Unit: "per second", Format: live.Count, Lines: []live.Line{live.Draw("rows", "moved", 1)}},
			{Title: "Done", Format: live.Percent, Lines: []live.Line{live.Draw("done", "of the whole", 3)}},
			{Title: "Steps", Unit: "chunks, definitions, indexes", Format: live.Count, Lines: []live.Line{live.Draw("steps", "done per second", 3), live.Draw("active", "under way", 2)}},
		},
	}
}

// Sample implements live.Source.
func (p *runPage) Sample(_ context.Context, s *live.Sample) error {
	now := p.state.Snapshot()
	s.Rate("bytes", float64(now.Bytes))
	s.Rate("rows", float64(now.Rows))
	s.Rate("steps", float64(now.Steps))
	s.Level("done", fraction(now))
	s.Level("moved", float64(now.Bytes))
	s.Level("active", float64(len(now.Active)))
	if left := now.Left(); left > 0 {
		s.Level("left", left.Seconds())
	}
	return nil
}

// Detail implements live.Source.
func (p *runPage) Detail(context.Context) (live.Detail, error) {
	s, now := p.state.Snapshot(), time.Now()
	rate := p.rate.add(now, s.Bytes)
	run := live.Table{Title: "Run", Columns: live.Columns(":", ":")}
	add := func(what string, c live.Cell) { run.Rows = append(run.Rows, []live.Cell{live.Text(what), c}) }
	phase := s.Phase
	if phase == "" {
		phase = "starting"
	}
	add("phase", live.Text(phase))
	add("done", live.Bar(fraction(s)))
	add("bytes", live.Size(s.Bytes))
	if s.TotalBytes > 0 {
		add("of about", live.Size(s.TotalBytes))
	}
	add("bytes a second, of the last ten seconds", live.Size(int64(rate)))
	add("rows", live.Number(s.Rows))
	if s.TotalSteps > 0 {
		add("steps", live.Text(fmt.Sprintf("%d of %d", s.Steps, s.TotalSteps)))
	}
	if text := left(s, rate); text != "" {
		add("about left", live.Text(text))
	}
	under := live.Table{Title: "Under way", Columns: live.Columns(":Object"), Empty: "Nothing: the run is starting or ending."}
	for _, name := range s.Active {
		under.Rows = append(under.Rows, []live.Cell{live.Text(name)})
	}
	return live.Detail{
		Facts:  []string{p.what, "weir " + version.Current().Version, "up " + live.Age(now.Sub(p.began))},
		Tables: []live.Table{run, under},
	}, nil
}

// words returns the state as text for programs that do not accept HTML.
func (p *runPage) words() string {
	s := p.state.Snapshot()
	line := plainLine(p.verb, s, s.Rate())
	if line == "" {
		line = p.verb + ": starting"
	}
	return line + "\n\n/metrics  /healthz  /debug/pprof/"
}

// runMetrics are the metrics of a run. Their label verb is backup, base backup or restore.
var runMetrics = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(bulk.Snapshot) float64
}{
	{runDesc("bytes_total", "Bytes of tables or files that the run has moved, before compression."), prometheus.CounterValue, func(s bulk.Snapshot) float64 { return float64(s.Bytes) }},
	{runDesc("rows_total", "Rows that the run has moved."), prometheus.CounterValue, func(s bulk.Snapshot) float64 { return float64(s.Rows) }},
	{runDesc("steps_total", "Chunks, definitions and indexes that are done."), prometheus.CounterValue, func(s bulk.Snapshot) float64 { return float64(s.Steps) }},
	{runDesc("expected_bytes", "Bytes to move; for a backup an estimate, by the sizes of its tables."), prometheus.GaugeValue, func(s bulk.Snapshot) float64 { return float64(s.TotalBytes) }},
	{runDesc("expected_steps", "Steps to do, as far as they are known."), prometheus.GaugeValue, func(s bulk.Snapshot) float64 { return float64(s.TotalSteps) }},
	{runDesc("active_objects", "Tables, indexes and the like in progress."), prometheus.GaugeValue, func(s bulk.Snapshot) float64 { return float64(len(s.Active)) }},
	{runDesc("elapsed_seconds", "Time since the run's first phase began."), prometheus.GaugeValue, func(s bulk.Snapshot) float64 { return s.Elapsed.Seconds() }},
}

func runDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("weir_backup_run_"+name, help, []string{"verb"}, nil)
}

// Describe implements prometheus.Collector.
func (p *runPage) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range runMetrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (p *runPage) Collect(ch chan<- prometheus.Metric) {
	s := p.state.Snapshot()
	for _, m := range runMetrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(s), p.verb)
	}
}
