package kvbench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	kvload "github.com/weirdb/weir/internal/ruler/bench/kv/load"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// stand is a Redis server that stands for every cluster: what is tested here is
// what is run and said, not a store.
type stand struct {
	processes
	redis *lab.Redis
	of    cluster
	book  *book
}

// book is what was started.
type book struct {
	started []cluster
	running int
	most    int
	spoil   bool
	read    int // readings of counters
	delays  []time.Duration
}

func (b *book) start(redis *lab.Redis) func(context.Context, cluster) (store, error) {
	return func(_ context.Context, c cluster) (store, error) {
		b.started = append(b.started, c)
		b.running++
		b.most = max(b.most, b.running)
		pids := func() []int { return []int{redis.PID()} }
		return &stand{processes: processes{pids}, redis: redis, of: c, book: b}, nil
	}
}

func (s *stand) driver(shape) kvload.Driver {
	d := &kvload.RESP{Addrs: []string{s.redis.Addr()}}
	if s.book.spoil {
		return spoiled{d}
	}
	return d
}

func (s *stand) describe() measure.Server {
	return measure.Server{Name: "stand-in", Version: "1", Settings: s.of.factors()}
}

func (s *stand) counters(context.Context) (map[string]float64, error) {
	s.book.read++
	n := float64(s.book.read)
	return map[string]float64{
		"rounds_total": 2 * n, "operations_total": 6 * n, "fsync_seconds_count": 5 * n, "log_bytes_total": 700 * n,
		"peer_sent_messages_total": 30 * n, "peer_sent_writes_total": 4 * n, "client_sent_messages_total": 10 * n, "client_sent_writes_total": 4 * n,
	}, nil
}

func (s *stand) setPeerDelay(_ context.Context, d time.Duration) error {
	s.book.delays = append(s.book.delays, d)
	return nil
}

// profile is one of two samples in two functions: the stand-in is no Go program.
func (s *stand) profile(_ context.Context, d time.Duration) (*profile.Profile, error) {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7, DurationNanos: int64(d),
	}
	for i, name := range []string{"syscall.write", "github.com/weirdb/weir/internal/kvd/consensus.(*Core).Step"} {
		f := &profile.Function{ID: uint64(i + 1), Name: name, SystemName: name}
		l := &profile.Location{ID: uint64(i + 1), Line: []profile.Line{{Function: f}}}
		p.Function, p.Location = append(p.Function, f), append(p.Location, l)
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{l}, Value: []int64{100, 1e9}})
	}
	return p, p.CheckValid()
}

func (s *stand) stop(context.Context) error {
	s.book.running--
	return nil
}

// spoiled answers reads with values that were never written.
type spoiled struct{ kvload.Driver }

func (d spoiled) Open(ctx context.Context, stream, pendings int) (kvload.Client, error) {
	c, err := d.Driver.Open(ctx, stream, pendings)
	return spoiledClient{c}, err
}

type spoiledClient struct{ kvload.Client }

func (c spoiledClient) Poll(ended func(int, kvload.Answer)) error {
	return c.Client.Poll(func(slot int, a kvload.Answer) {
		if a.Found && len(a.Value) > 2 {
			a.Value = a.Value[1:]
		}
		ended(slot, a)
	})
}

func smoke(t *testing.T, b *book) Options {
	t.Helper()
	plan := Plans()["smoke"]
	// The load takes all processors as long as it lasts.
	plan.Warmup, plan.Duration, plan.Profile = 5*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond
	return Options{
		Options: suite.Options{Out: t.TempDir()}, Plan: plan, Binary: "/nonexistent",
		start: b.start(labtest.SharedRedis(t)), etcd: true, servers: []measure.Server{{Name: "stand-in", Version: "1"}},
	}
}

func TestEveryScenarioIsRunSavedAndReadBack(t *testing.T) {
	b := &book{}
	o := smoke(t, b)
	out, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for i, s := range Steps(o) {
		if i >= len(out.Results) || s.Names[0] != out.Results[i].Experiment.Name {
			t.Fatalf("step %d is called %v, of %d results", i, s.Names, len(out.Results))
		}
	}
	for _, r := range out.Results {
		seen[r.Experiment.Factors["scenario"]] = true
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
		for _, c := range r.Cases {
			if r.Factor(c, "durability") == bench.NotApplicable {
				t.Errorf("%s, %s: the durability is not said", r.Experiment.Name, c.Name)
			}
			if len(kvs.Of(c.Samples[0].Parts).RSSBytes) != 1 || c.Samples[0].Processes[bench.RoleServer].Threads == 0 {
				t.Errorf("%s, %s: the server was not watched", r.Experiment.Name, c.Name)
			}
			if s := &c.Samples[0]; c.Summary["group"].Median != 3 || s.Server == nil || s.Server.Fsyncs != 5 || s.Server.LogBytes != 700 || kvs.Of(s.Parts).Counters["rounds_total"] != 2 {
				t.Errorf("%s, %s: counters %v, groups %+v, server %+v", r.Experiment.Name, c.Name, kvs.Of(s.Parts).Counters, s.Groups, s.Server)
			}
		}
	}
	for _, g := range groups() {
		if !seen[g] {
			t.Errorf("nothing of %s", g)
		}
	}
	if len(out.Invalid()) != 0 || b.running != 0 || b.most != 1 {
		t.Errorf("invalid %q; %d clusters still run, at most %d did at once", out.Invalid(), b.running, b.most)
	}
	page, err := out.Save(o.Out)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{page, filepath.Join(o.Out, "report.md"), filepath.Join(o.Out, "report.csv"), filepath.Join(o.Out, "report.json"), filepath.Join(o.Out, "summary.csv")} {
		if info, err := os.Stat(name); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	var text bytes.Buffer
	if err := out.Brief().Write(&text, report.FormatText); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Delay of batches", "Round by round", "durability", "deviation", "valid"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report for the terminal says nothing of %q", want)
		}
	}
	back := &Outcome{}
	if err := file.Load(o.Out, back); err != nil {
		t.Fatal(err)
	}
	if len(back.Results) != len(out.Results) {
		t.Errorf("read back: %d results of %d", len(back.Results), len(out.Results))
	}
	var again bytes.Buffer
	if err := back.Brief().Write(&again, report.FormatText); err != nil || again.String() != text.String() {
		t.Errorf("the report that was read back differs: %v", err)
	}
	// Resumed, nothing is started: every sample is there.
	b.started = nil
	o.Resume = true
	if _, err := Run(t.Context(), o); err != nil || len(b.started) != 0 {
		t.Errorf("resumed: %v; started %v", err, b.started)
	}
}

// The delay at the writers is changed while one cluster runs, its messages and system
// calls are counted, and the CPU time of the replicas is told by category and function.
func TestWritersAndCPUOfReplicas(t *testing.T) {
	b := &book{}
	o := smoke(t, b)
	o.Experiments = []string{Writer, CPU}
	out, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if want := []time.Duration{0, 150 * time.Microsecond}; !slices.Equal(b.delays, want) || len(b.started) != 3 {
		t.Errorf("delays %v on %d clusters, want %v on one, and two for the CPU time", b.delays, len(b.started), want)
	}
	w := out.Find(Writer)
	if w == nil {
		t.Fatal("no result of the writers")
	}
	for _, c := range w.Cases {
		if m := c.Summary["messages_per_write"]; m.Median != 5 || c.Summary["peer_messages_per_write"].Median != 7.5 || c.Summary["writes_rate"].Median <= 0 || c.Summary["calls_rate"].Median <= 0 {
			t.Errorf("%s: %v messages in a write, %v writes/s, %v calls/s", c.Name, m.Median, c.Summary["writes_rate"].Median, c.Summary["calls_rate"].Median)
		}
	}
	if w.Cases[1].Factors["peer_delay"] != "150" {
		t.Errorf("factors %v", w.Cases[1].Factors)
	}
	if len(out.Profiles) != 2 || out.Profiles[0].Case != "0 us" || out.Profiles[0].Role != bench.RoleReplica {
		t.Fatalf("profiles %+v", out.Profiles)
	}
	if _, err := out.Save(o.Out); err != nil {
		t.Fatal(err)
	}
	back := &Outcome{}
	if err := file.Load(o.Out, back); err != nil || len(back.Profiles) != 2 {
		t.Fatalf("read back: %v, %d profiles", err, len(back.Profiles))
	}
	var page bytes.Buffer
	doc, err := suite.Document(o.Out, back)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Write(&page, report.FormatText); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"syscall.write", "consensus and store", "Functions of each category", "messages in a write", "Functions by the CPU time they took themselves"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the report says nothing of %q", want)
		}
	}
	// Resumed, the profiles are those that lie there.
	o.Resume = true
	if again, err := Run(t.Context(), o); err != nil || len(again.Profiles) != 2 || len(b.started) != 3 {
		t.Errorf("resumed: %v, %d profiles, %d clusters", err, len(again.Profiles), len(b.started))
	}
}

func TestGridIsDrawn(t *testing.T) {
	b := &book{}
	o := smoke(t, b)
	o.Experiments = []string{Grid}
	out, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	charts := gridChart(out.Find(Grid))
	if len(charts) != 1 {
		t.Fatalf("%d charts", len(charts))
	}
	if ch := charts[0]; len(ch.Series) != 2 || !slices.Equal(ch.Categories, []string{"0", "150"}) || len(ch.Series[1].Points) != 2 || ch.Series[1].Points[1].Y <= 0 {
		t.Errorf("%+v", ch)
	}
}

func TestClustersAreSharedOnlyWhereTheyAreTheSame(t *testing.T) {
	b := &book{}
	o := smoke(t, b)
	o.Plan.Rounds = 2
	o.Experiments = []string{Pendings}
	if _, err := Run(t.Context(), o); err != nil || len(b.started) != 1 {
		t.Errorf("%v: %d clusters for loads that differ, want one", err, len(b.started))
	}
	b.started, o.Out = nil, t.TempDir()
	o.Experiments = []string{Presets}
	if _, err := Run(t.Context(), o); err != nil || len(b.started) != 10 {
		t.Errorf("%v: %d clusters for 5 protocols in 2 rounds, want a fresh one each time", err, len(b.started))
	}
	b.started, o.Out = nil, t.TempDir()
	o.Experiments = []string{Length}
	if _, err := Run(t.Context(), o); err != nil || len(b.started) != 4 {
		t.Errorf("%v: %d clusters for 2 lengths in 2 rounds, want a fresh one each time", err, len(b.started))
	}
}

func TestFactorsAreOnlyWhatDiffers(t *testing.T) {
	r := &run{rig: &rig{o: Options{Plan: Plans()["smoke"], Preset: "raft-ht"}}}
	e := r.experiment(Delay, "x", "x", 1, side{name: "a", cluster: r.usual(), shape: r.reportShape()}, side{name: "b", cluster: r.usual().at(150), shape: r.reportShape()})
	if len(e.Sides[0].Factors) != 1 || e.Sides[0].Factors["delay"] != "auto" || e.Sides[1].Factors["delay"] != "150" {
		t.Errorf("factors %v and %v, want the delay alone", e.Sides[0].Factors, e.Sides[1].Factors)
	}
	if e.Factors["durability"] != "disk" || e.Factors["delay"] != "" || e.Factors["scenario"] != "delay" || e.Factors["preset"] != "raft-ht" {
		t.Errorf("factors of the experiment: %v", e.Factors)
	}
}

func TestWrongAnswersMakeARoundInvalid(t *testing.T) {
	b := &book{spoil: true}
	o := smoke(t, b)
	o.Experiments = []string{Presets}
	out, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Invalid()) != 5 || len(out.Targets()) != 0 {
		t.Errorf("invalid rounds %q, targets %v", out.Invalid(), out.Targets())
	}
	d := out.Report()
	wrong := func(f report.Finding) bool { return f.Warn && strings.Contains(f.Claim, "rounds are invalid") }
	if !slices.ContainsFunc(d.Findings[:min(2, len(d.Findings))], wrong) { // behind what the reader must know first
		t.Errorf("findings %+v", d.Findings)
	}
	if cell := d.Sections[0].Tables[0].Rows[0]; cell[len(cell)-1].Text != "WRONG ANSWERS" {
		t.Errorf("row %+v", cell)
	}
}

func TestAnInterruptedRunLeavesWhatItHas(t *testing.T) {
	b := &book{}
	o := smoke(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	o.Progress = func(p bench.Progress) {
		if p.Experiment == "validate" {
			cancel()
		}
	}
	out, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || len(out.Results) != 2 || !out.Results[1].Partial || b.running != 0 {
		t.Fatalf("error %v, %d results, %d clusters still run", err, len(out.Results), b.running)
	}
	if _, err := out.Save(o.Out); err != nil {
		t.Error(err)
	}
}

func TestCountersAreAddedUp(t *testing.T) {
	sum := make(map[string]float64)
	page := `# HELP weir_kv_rounds_total Rounds.
weir_kv_rounds_total{replica="1"} 3
weir_kv_rounds_total{replica="2"} 4.5
weir_kv_term 7
go_gc_total 9
go_gc_duration_seconds{quantile="1"} 0.5
go_gc_duration_seconds_sum 0.004
go_gc_duration_seconds_count 10
weir_kv_fsync_seconds_sum 1e-3
`
	for range 2 {
		if err := addCounters(sum, strings.NewReader(page)); err != nil {
			t.Fatal(err)
		}
	}
	if len(sum) != 4 || sum["rounds_total"] != 15 || sum["fsync_seconds_sum"] != 2e-3 {
		t.Errorf("counters %v", sum)
	}
	pause, _ := bench.MetricByKey("gc_pause", kvs.Subject)
	if us, ok := pause.Of(&bench.Sample{Parts: []bench.Part{&kvs.KV{Counters: sum}}}); !ok || us != 400 {
		t.Errorf("20 pauses of 8 ms in all are %v us each, %v; want 400", us, ok)
	}
	if us, ok := pause.Of(&bench.Sample{Parts: []bench.Part{&kvs.KV{}}}); ok {
		t.Errorf("a store that counts no pauses has them of %v us", us)
	}
	if got := since(map[string]float64{"a": 5, "b": 2}, map[string]float64{"a": 3, "b": 2}); len(got) != 1 || got["a"] != 2 {
		t.Errorf("since: %v", got)
	}
	if err := addCounters(sum, strings.NewReader("weir_kv_x_total seven\n")); err == nil {
		t.Error("a counter that is no number was taken")
	}
}

func TestPlansAreWhole(t *testing.T) {
	for name, p := range Plans() {
		if p.Rounds < 1 || p.SweepRounds < 1 || p.ValidationRounds < 1 || p.Duration <= 0 || p.Keys < 1 || p.Warmup > time.Second {
			t.Errorf("plan %s: %+v", name, p)
		}
		if name != "smoke" && !slices.Equal(p.Delays, []int{0, 25, 50, 75, 100, 150}) {
			t.Errorf("plan %s sweeps %v, and not the delays of the report", name, p.Delays)
		}
	}
}
