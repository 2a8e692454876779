package proxybench

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/testkit"
)

// TestProxyScenarioEndToEnd runs every kind of experiment, briefly, with the real
// program: each round checks its answers and its rows, so an error here is a
// wrong answer, a lost row or a process that did not start or stop.
func TestProxyScenarioEndToEnd(t *testing.T) {
	testkit.Long(t, "runs every kind of experiment on both engines")
	binary := program.Path(t)
	t.Run("PostgreSQL", func(t *testing.T) {
		labtest.RequirePostgres(t)
		endToEnd(t, suite.PostgreSQL, binary)
	})
	t.Run("MariaDB", func(t *testing.T) {
		labtest.RequireMariaDB(t)
		endToEnd(t, suite.MariaDB, binary)
	})
}

func endToEnd(t *testing.T, e suite.Engine, binary string) {
	dir := t.TempDir()
	lived := false
	plan := Plan{
		Inserts: []int{8}, Windows: []time.Duration{time.Millisecond}, Isolated: true, Literals: []int{8}, Updates: []int{8},
		Reads: []int{8}, Failing: []int{8}, Crowd: []int{2, 40}, Idle: 50, Drivers: []int{4}, Leak: time.Second, Rounds: 1, Warmup: 20 * time.Millisecond, Duration: 100 * time.Millisecond,
	}
	got, err := Run(t.Context(), Options{
		Options: suite.Options{Out: dir, Say: t.Logf}, Engine: e, Binary: binary, Floor: runtime.GOOS == "linux",
		Live: func(string, int64, time.Duration) { lived = true },
		Plan: plan,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !lived {
		t.Error("nobody was told how it goes")
	}
	drivers := map[suite.Engine]int{suite.PostgreSQL: 2, suite.MariaDB: 1}[e]
	if n := len(got.Results); n != 8+drivers {
		t.Fatalf("%d experiments were run; want inserts, literals, two of reads, updates, failing, crowd, leak, %d of drivers", n, drivers)
	}
	checkWitnesses(t, dir, got, drivers)
	var names []string
	for _, s := range Steps(Options{Engine: e, Plan: plan}) {
		names = append(names, s.Names...)
	}
	for i, r := range got.Results {
		if r.Experiment.Name != names[i] {
			t.Errorf("experiment %s, and the plan calls it %s", r.Experiment.Name, names[i])
		}
	}
	if got.Idle == nil || got.Idle.Clients != 50 || got.Idle.RSSBytes < 1<<20 {
		t.Errorf("memory of idle clients: %+v", got.Idle)
	}
	if runtime.GOOS == "linux" {
		plain := got.Results[0].Find("copy")
		if plain == nil || plain.Samples[0].Ops == 0 || plain.Samples[0].Processes[bench.RoleProxy].RSSBytes == 0 {
			t.Errorf("nothing was copied, or nothing is known of the process: %+v", plain)
		}
	}
	if runtime.GOOS == "linux" {
		joined := []string{"inserts-8", "literals-8"} // every row was counted
		if e == suite.PostgreSQL {
			joined = append(joined, "updates-8")
		}
		for _, name := range joined {
			if c := got.Find(name).Find("group"); c == nil || c.Samples[0].Ops == 0 {
				t.Errorf("%s: nothing was joined: %+v", name, c)
			}
		}
	}
	auto := got.Results[0].Find("weir auto")
	if auto == nil || auto.Samples[0].Groups == nil {
		t.Fatalf("no groups were formed: %+v", auto)
	}
	if _, err := got.Save(dir); err != nil {
		t.Fatal(err)
	}
	again := &Outcome{}
	if err := file.Load(dir, again); err != nil {
		t.Fatal(err)
	}
	if again.Engine != e {
		t.Errorf("loaded as %s", again.Engine)
	}
	var before, after bytes.Buffer
	if err := got.Report().Write(&before, report.FormatMarkdown); err != nil {
		t.Fatal(err)
	}
	if err := again.Report().Write(&after, report.FormatMarkdown); err != nil {
		t.Fatal(err)
	}
	if before.String() != after.String() {
		t.Error("the report of a loaded run differs from that of the run")
	}
}

// checkWitnesses looks at what is taken beside the rounds: profiles by category and
// function, the server's own functions, the heap over time.
func checkWitnesses(t *testing.T, dir string, got *Outcome, drivers int) {
	t.Helper()
	profiles := 0
	for _, p := range got.Profiles {
		if _, err := os.Stat(filepath.Join(dir, p.File)); err != nil {
			t.Errorf("%s, %s: %v", p.Case, p.Role, err)
		}
		if slices.Contains([]string{"pq", "pgx-sql", "go-sql-driver"}, p.Case) {
			profiles++
			named := slices.ContainsFunc(p.Breakdown.Categories, func(c measure.Category) bool {
				return c.Name == "database/sql" || c.Name == "driver and protocol"
			})
			if p.Breakdown.Samples > 20 && !named {
				t.Errorf("%s: no time of drivers and database/sql among %+v", p.Case, p.Breakdown.Categories)
			}
		}
	}
	if profiles != drivers {
		t.Errorf("%d profiles of drivers, want %d", profiles, drivers)
	}
	if _, err := exec.LookPath("perf"); err != nil {
		if !slices.ContainsFunc(got.Left, func(s string) bool { return strings.Contains(s, "perf is not available here") }) {
			t.Errorf("there is no perf, and it is not said: %q", got.Left)
		}
	} else if len(got.Servers) == 0 && !slices.ContainsFunc(got.Left, func(s string) bool { return strings.Contains(s, "CPU time of the server") }) {
		t.Error("perf saw nothing of the server, and nobody says why")
	}
	if got.Leak == nil || len(got.Leak.Points) == 0 || got.Leak.Verdict() == "" {
		t.Fatalf("leak check: %+v", got.Leak)
	}
	for i, p := range got.Leak.Points {
		if p.Heap < 1<<16 || i > 0 && (p.Statements < got.Leak.Points[i-1].Statements || p.Seconds <= got.Leak.Points[i-1].Seconds) {
			t.Errorf("reading %d of the heap: %+v", i, p)
		}
	}
}

// sampleAt makes a sample whose throughput is rate and whose latencies are p50.
func sampleAt(round int, rate float64, p50 time.Duration) bench.Sample {
	h := new(measure.Hist)
	for range 100 {
		h.Record(int64(p50))
	}
	return bench.Sample{Round: round, Seconds: 1, Ops: int64(rate), Latency: h}
}

// caseAt repeats a rate over eight rounds with a little noise.
func caseAt(name, window string, rate float64, p50 time.Duration) *bench.Case {
	c := &bench.Case{Name: name, Factors: map[string]string{"window": window}}
	for i := range 8 {
		c.Samples = append(c.Samples, sampleAt(i, rate*(1+0.01*float64(i%3)), p50))
	}
	return c
}

func TestTargetsAreJudgedByTheirIntervals(t *testing.T) {
	for _, tt := range []struct {
		name    string
		factor  float64
		verdict string
	}{
		{"well above", 3, suite.Met},
		{"well below", 2, suite.NotMet},
		{"on the line", 2.5, suite.Undecided},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &bench.Result{Experiment: bench.Description{Name: "inserts-64", Baseline: "direct", Factors: map[string]string{"clients": "64"}}}
			r.Cases = []*bench.Case{caseAt("direct", bench.NotApplicable, 10000, 4*time.Millisecond), caseAt("weir auto", "auto", 10000, time.Millisecond)}
			for i := range r.Cases[1].Samples {
				// Noise of its own, so that the ratio has a width.
				r.Cases[1].Samples[i].Ops = int64(float64(r.Cases[0].Samples[i].Ops) * tt.factor * (1 + 0.02*float64(i%2*2-1)))
			}
			r.Evaluate()
			targets := outcomeOf(r).Targets()
			if len(targets) == 0 || targets[0].Verdict != tt.verdict {
				t.Errorf("targets %+v; want the first %s", targets, tt.verdict)
			}
		})
	}
}

func TestAdaptiveIsHeldAgainstTheBestWindow(t *testing.T) {
	r := &bench.Result{Experiment: bench.Description{Name: "inserts-64", Baseline: "direct", Factors: map[string]string{"clients": "64"}}}
	r.Cases = []*bench.Case{
		caseAt("direct", bench.NotApplicable, 10000, 4*time.Millisecond),
		caseAt("weir 0", "0", 90000, time.Microsecond), // no window: not a candidate
		caseAt("weir 1", "1", 20000, 3*time.Millisecond),
		caseAt("weir 10", "10", 5000, 11*time.Millisecond),
		caseAt("weir auto", "auto", 40000, time.Millisecond),
	}
	r.Evaluate()
	var claims []string
	for _, g := range outcomeOf(r).Targets() {
		if strings.Contains(g.Evidence, "weir 1,") || strings.Contains(g.Evidence, "over weir 1") {
			claims = append(claims, g.Verdict)
		}
		if strings.Contains(g.Evidence, "over weir 0") || strings.Contains(g.Evidence, "over weir 10") {
			t.Errorf("compared with the wrong window: %s", g.Evidence)
		}
	}
	if len(claims) != 2 || claims[0] != suite.Met || claims[1] != suite.Met {
		t.Errorf("verdicts against the best window: %v; want two met", claims)
	}
}

func outcomeOf(r *bench.Result) *Outcome {
	return &Outcome{Outcome: suite.Outcome{Engine: suite.PostgreSQL, Results: []*bench.Result{r}}}
}
