package study

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/profile"
	"github.com/weirdb/weir/internal/ruler/report"
)

func TestCasesAreAllCombinations(t *testing.T) {
	for _, tt := range []struct {
		name string
		axes Axes
		want string
	}{
		{"one", Axes{}, "profile"},
		{"cold and warm", Axes{Cold: true}, "warm; cold"},
		{"pools", Axes{Concurrency: []int{100}, Pools: []int{100, 5}, Cold: true}, "pool 100, warm; pool 100, cold; pool 5, warm; pool 5, cold"},
		{"grid", Axes{Concurrency: []int{1, 8}, Pools: []int{1, 4}}, "1 worker, pool 1; 1 worker, pool 4; 8 workers, pool 1; 8 workers, pool 4"},
		{"pools of their workers", Axes{Concurrency: []int{1, 8}}, "1 worker, pool 1; 8 workers, pool 8"},
		{"drivers", Axes{Drivers: []string{"pgx", "pq"}, Transports: []profile.Transport{{Kind: "unix"}, {RTT: time.Millisecond}}}, "pgx, unix; pgx, rtt:1ms; pq, unix; pq, rtt:1ms"},
		{"twice the same", Axes{Concurrency: []int{4, 4}}, "profile"},
		{"sequential has one worker", Axes{Modes: []profile.Mode{profile.Sequential, profile.Async}, Concurrency: []int{4}}, "sequential, 1 worker, pool 1; async, 4 workers, pool 4"},
	} {
		var names []string
		for _, c := range tt.axes.cases(profile.EnginePostgres) {
			names = append(names, c.name)
		}
		if got := strings.Join(names, "; "); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
	cold := Axes{Base: profile.Config{Duration: time.Second}, Concurrency: []int{100}, Cold: true}.cases(profile.EnginePostgres)[1].config
	if cold.Requests != 2000 || cold.Duration != 0 || !cold.Cold {
		t.Errorf("a cold case of 100 workers: %+v, want report 4's 2000 requests", cold)
	}
}

func TestLargestPool(t *testing.T) {
	for _, tt := range []struct {
		axes Axes
		want int
	}{{Axes{}, 1}, {Axes{Concurrency: []int{3, 40}}, 40}, {Axes{Pools: []int{5, 9}, Concurrency: []int{2}}, 9}} {
		if got := tt.axes.LargestPool(); got != tt.want {
			t.Errorf("%+v: %d, want %d", tt.axes, got, tt.want)
		}
	}
}

// sleeping runs a study without a database.
func sleeping(t *testing.T, ctx context.Context, s *Study, dsn string, o Options) (*bench.Result, error) {
	t.Helper()
	target, err := profile.ParseTarget(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	return s.Run(ctx, target, o)
}

func sleepStudy() *Study {
	return &Study{
		Name: "profile-sleep", Title: "sleep", Workload: "ping", Rows: 1, Rounds: 2,
		Axes: Axes{
			Base:        profile.Config{Requests: 40, Warmup: 50 * time.Millisecond},
			Concurrency: []int{2, 8}, Pools: []int{1, 4},
		},
	}
}

func TestStudyReport(t *testing.T) {
	store, err := bench.OpenStore(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := sleepStudy()
	s.OverheadPairs = 6
	r, err := sleeping(t, t.Context(), s, "sleep://?latency=2ms", Options{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 4 || len(r.Overhead) != 2 || r.Experiment.Sweep != FactorPool {
		t.Errorf("%d cases, %d overheads, sweep %q", len(r.Cases), len(r.Overhead), r.Experiment.Sweep)
	}
	doc := Document("weir profile: ping", r)
	for _, f := range report.Formats() {
		var b bytes.Buffer
		if err := doc.Write(&b, f); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		if f != report.FormatText {
			continue
		}
		text := strings.Join(strings.Fields(b.String()), " ")
		for _, want := range []string{
			"What another pool size would do", "Where the time of an operation goes", "100.00 %", "Tracing costs, at 2 in flight", "at 8 in flight",
			"waiting for a connection of the pool", "Before the measured window",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("the report lacks %q:\n%s", want, b.String())
			}
		}
	}
}

func TestWhatIfTakesTheSmallestOfEqualPools(t *testing.T) {
	r := &bench.Result{Schema: bench.Schema}
	add := func(pool, workers string, rate ...float64) {
		c := &bench.Case{Name: pool + "/" + workers, Factors: map[string]string{FactorPool: pool, FactorConcurrency: workers}}
		for i, v := range rate {
			c.Samples = append(c.Samples, bench.Sample{Round: i, Seconds: 1, Ops: int64(v)})
		}
		r.Cases = append(r.Cases, c)
	}
	add("1", "2", 100, 101, 102)
	add("5", "2", 200, 210, 220)
	add("9", "2", 205, 211, 223)
	add("1", "8", 100, 100, 100)
	add("5", "8", 400, 401, 402)
	r.Evaluate()
	table, chart, ok := whatIf(r)
	if !ok {
		t.Fatal("no table")
	}
	var strong []string
	for _, row := range table.Rows {
		for i, c := range row {
			if c.Strong {
				strong = append(strong, row[0].Text+" at "+table.Columns[i].Name)
			}
		}
	}
	if want := []string{"5 at 2 workers", "5 at 8 workers", "9 at 2 workers"}; !slices.Equal(strong, want) {
		t.Errorf("strong: %q, want %q", strong, want)
	}
	if last := chart.Series[2].Points[1]; !last.None || table.Rows[2][2].Text != "-" {
		t.Errorf("a case that was not measured: %+v, %q", last, table.Rows[2][2].Text)
	}
}

// Operations that are longer than a slice leave the cost of tracing open.
func TestOverheadOfSlowOperationsIsUnknown(t *testing.T) {
	s := sleepStudy()
	s.Axes.Concurrency, s.Axes.Pools = []int{1}, nil
	s.Axes.Base.Requests, s.Rounds, s.OverheadPairs = 1, 1, 6
	r, err := sleeping(t, t.Context(), s, "sleep://?latency=700ms", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Overhead) != 0 || !strings.Contains(strings.Join(r.Warnings, " "), "the cost of tracing at 1 in flight is unknown") {
		t.Errorf("overhead %+v, warnings %q", r.Overhead, r.Warnings)
	}
}

func TestInterruptedStudy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := sleepStudy()
	n := 0
	r, err := sleeping(t, ctx, s, "sleep://?latency=1ms", Options{Progress: func(bench.Progress) {
		if n++; n == 3 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	if r == nil || !r.Partial {
		t.Fatalf("result = %+v, want what was measured, marked as partial", r)
	}
	var b bytes.Buffer
	if err := Document("x", r).Write(&b, report.FormatText); err != nil || !strings.Contains(b.String(), "interrupted") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// made is a result of six rounds in which operations took so long, nearly, all but
// a tenth of it in the server.
func made(took time.Duration) *bench.Result {
	r := &bench.Result{
		Schema: bench.Schema, ID: "made", Env: measure.ReadEnvironment(),
		Experiment: bench.Description{Name: "profile-sleep", Loop: "closed", Factors: map[string]string{"engine": "sleep", "workload": "ping"}},
		Cases:      []*bench.Case{{Name: "profile"}},
	}
	for i := range 6 {
		ns := int64(took) + int64(i)*int64(took)/100
		s := bench.Sample{Round: i, Seconds: 1, Ops: int64(time.Second) / ns, Latency: &measure.Hist{}, Boundary: &bench.Boundary{}}
		for _, part := range []struct {
			name string
			ns   int64
		}{{bench.SegmentEncode, ns / 10}, {bench.SegmentServer, ns - ns/10}} {
			h := &measure.Hist{}
			h.RecordN(part.ns, uint64(s.Ops))
			s.Boundary.Segments = append(s.Boundary.Segments, bench.Segment{Name: part.name, Hist: h})
		}
		s.Latency.RecordN(ns, uint64(s.Ops))
		r.Cases[0].Samples = append(r.Cases[0].Samples, s)
	}
	r.Evaluate()
	return r
}

func TestDiff(t *testing.T) {
	for _, tt := range []struct {
		before, after time.Duration
		want          bench.Verdict
	}{
		{2 * time.Millisecond, 8 * time.Millisecond, bench.Worse},
		{8 * time.Millisecond, 2 * time.Millisecond, bench.Better},
		{2 * time.Millisecond, 2 * time.Millisecond, bench.NoDifference},
	} {
		doc, err := Diff(made(tt.before), made(tt.after))
		if err != nil {
			t.Fatal(err)
		}
		verdicts := make(map[string]string)
		for _, row := range doc.Sections[0].Tables[0].Rows {
			verdicts[row[0].Text] = row[6].Text
		}
		for _, metric := range []string{"throughput", "p50", "in server", "in encode"} {
			if verdicts[metric] != string(tt.want) {
				t.Errorf("%v against %v: %s is %q, want %q", tt.after, tt.before, metric, verdicts[metric], tt.want)
			}
		}
		var b bytes.Buffer
		if err := doc.Write(&b, report.FormatHTML); err != nil {
			t.Error(err)
		}
	}
}

func TestDiffOfWhatIsNotComparable(t *testing.T) {
	a := made(time.Millisecond)
	for want, change := range map[string]func(*bench.Result){
		`engine is "sleep" in one and "postgres"`: func(r *bench.Result) { r.Experiment.Factors["engine"] = "postgres" },
		"a closed loop and an open one":           func(r *bench.Result) { r.Experiment.Loop = "open" },
		"elsewhere":                               func(r *bench.Result) { r.Cases[0].Name = "elsewhere" },
	} {
		b := made(time.Millisecond)
		change(b)
		if _, err := Diff(a, b); !errors.Is(err, ErrNotComparable) || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %q", err, want)
		}
	}
	b := made(time.Millisecond)
	b.Env.Kernel, b.Env.Durability = "7.0", "fast"
	doc, err := Diff(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(doc.Sections[0].Text, " "); !strings.Contains(text, "and 7.0") || !strings.Contains(text, "durability") {
		t.Errorf("the environments differ, and the report says %q", text)
	}
}

func TestExperimentsAreKnown(t *testing.T) {
	for _, name := range Experiments() {
		e, err := Experiment(name)
		if err != nil || len(e.Engines) == 0 || len(e.Pools) < 2 {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
	if _, err := Experiment("nothing"); err == nil || !strings.Contains(err.Error(), "pools") {
		t.Errorf("an unknown experiment: %v", err)
	}
}
