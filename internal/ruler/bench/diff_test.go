package bench

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/testkit"
)

// runOf makes a result as of one run of ten rounds on a made-up machine.
func runOf(seed uint64, factor float64, change ...func(*Result)) *Result {
	m := machine{rng: rand.New(rand.NewPCG(seed, 1)), wander: 0.01, noise: 0.03}
	c := &Case{Name: "weir", Factors: map[string]string{"window": "0"}}
	for round := range 10 {
		s := fixed(int64(m.sample(factor)), 8)
		s.Round, s.Started = round, time.Unix(int64(round), 0)
		c.Samples = append(c.Samples, s)
	}
	r := result(c)
	r.Env.Durability = "prod"
	for _, f := range change {
		f(r)
	}
	r.Evaluate()
	return r
}

func row(t *testing.T, d *Diff, metric string) Comparison {
	t.Helper()
	i := slices.IndexFunc(d.Rows, func(c Comparison) bool { return c.Metric == metric })
	if i < 0 {
		t.Fatalf("no row of %s in %+v", metric, d.Rows)
	}
	return d.Rows[i]
}

func TestDiffFindsWhatChanged(t *testing.T) {
	a := runOf(1, 1)
	for _, tc := range []struct {
		name string
		b    *Result
		want Verdict // of the rate
	}{
		{"the same", runOf(2, 1), CannotTell},
		{"a fifth slower", runOf(3, 0.8), Worse},
		{"a fifth faster", runOf(4, 1.2), Better},
		{"itself", a, CannotTell},
	} {
		d, err := CompareResults(a, tc.b, DiffOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := row(t, d, "rate")
		if got.Verdict != tc.want && (tc.want != CannotTell || got.Verdict != NoDifference) {
			t.Errorf("%s: %+v, want %s", tc.name, got, tc.want)
		}
		if got.Verdict == CannotTell && got.Needed == 0 {
			t.Errorf("%s: does not say how many rounds would tell", tc.name)
		}
		if p50 := row(t, d, "p50"); (p50.Ratio.Median > 1) == (got.Ratio.Median > 1) && got.Ratio.Median != 1 {
			t.Errorf("%s: rate %v and p50 %v", tc.name, got.Ratio.Median, p50.Ratio.Median)
		}
	}
}

func TestDiffRefusesApplesAndOranges(t *testing.T) {
	a := runOf(1, 1)
	for want, change := range map[string]func(*Result){
		"the experiment is x in one and y in the other":       func(r *Result) { r.Experiment.Name = "y" },
		"the loop is closed in one and open in the other":     func(r *Result) { r.Experiment.Loop = "open" },
		"durability is prod in one and fast in the other":     func(r *Result) { r.Env.Durability = "fast" },
		"the processor is c in one and d in the other":        func(r *Result) { r.Env.CPU = "d" },
		"the number of cores is 2 in one and 64 in the other": func(r *Result) { r.Env.Cores = 64 },
		"factor clients is none in one and 64 in the other":   func(r *Result) { r.Experiment.Factors = map[string]string{"clients": "64"} },
		"they have no case in common":                         func(r *Result) { r.Cases[0].Name, r.Experiment.Baseline = "else", "else" },
		"case weir differs in window":                         func(r *Result) { r.Cases[0].Factors = map[string]string{"window": "5"} },
	} {
		b := runOf(2, 1, change)
		_, err := CompareResults(a, b, DiffOptions{})
		var refused *NotComparableError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want mention of %q", err, want)
		}
		d, err := CompareResults(a, b, DiffOptions{Anyway: true})
		if strings.Contains(want, "in common") {
			if err == nil {
				t.Error("nothing to compare, and compared anyway")
			}
			continue
		}
		if err != nil || !strings.Contains(strings.Join(d.Warnings, "\n"), want) {
			t.Errorf("anyway: %v, %+v", err, d)
		}
	}
	if _, err := CompareResults(a, a, DiffOptions{Metrics: []string{"speed"}}); err == nil || !strings.Contains(err.Error(), "rate") {
		t.Errorf("unknown metric: %v", err)
	}
}

func TestDiffWarns(t *testing.T) {
	a := runOf(1, 1, func(r *Result) {
		r.Env.FsyncBefore = &measure.Flush{P50Ns: 60_000}
		r.Env.Servers = []measure.Server{{Name: "PostgreSQL", Version: "15.1"}}
	})
	b := runOf(2, 1, func(r *Result) {
		r.Env.FsyncBefore = &measure.Flush{P50Ns: 3_000_000}
		r.Env.Kernel, r.Partial = "7", true
		r.Cases[0].Samples[3].Machine = &measure.Activity{Seconds: 1, StealSeconds: 1, CPUKnown: true}
		r.Cases = append(r.Cases, &Case{Name: "new", Samples: r.Cases[0].Samples})
	})
	d, err := CompareResults(a, b, DiffOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(d.Warnings, "\n")
	for _, want := range []string{"kernel: 6 in one, 7", "servers: PostgreSQL 15.1 in one, none", "the second is of an interrupted run", "the second was disturbed in 2 of 20 rounds", "60 us around one run and 3 ms around the other"} {
		if !strings.Contains(got, want) {
			t.Errorf("no warning %q in\n%s", want, got)
		}
	}
	if !slices.Equal(d.OnlyB, []string{"new"}) || d.OnlyA != nil || row(t, d, "rate").LeftOut != 1 {
		t.Errorf("diff %+v", d)
	}
	if d, err := CompareResults(a, b, DiffOptions{Cases: []string{"weir"}}); err != nil || d.OnlyB != nil {
		t.Errorf("of one case: %+v, %v", d, err)
	}
	a.Cases[0].Samples = a.Cases[0].Samples[:1]
	if d, err := CompareResults(a, b, DiffOptions{}); err != nil || !strings.Contains(strings.Join(d.Warnings, "\n"), "not compared: "+a.Cases[0].Name) {
		t.Errorf("one round of a case: %+v, %v", d, err)
	}
	if _, err := CompareResults(a, b, DiffOptions{Cases: []string{"wier"}}); err == nil || !strings.Contains(err.Error(), "none of the cases [\"wier\"] is in both; the first has ") {
		t.Errorf("a case that neither has: %v", err)
	}
}

func TestGate(t *testing.T) {
	failing := func(r *Result) {
		for i := range r.Cases[0].Samples {
			r.Cases[0].Samples[i].Errors = map[string]int64{"53300": 500}
		}
	}
	noisy := func(r *Result) {
		for i := range r.Cases[0].Samples {
			if i%3 == 0 {
				r.Cases[0].Samples[i] = fixed(3000, 8)
				r.Cases[0].Samples[i].Round = i
			}
		}
	}
	floor := map[string]Floor{"rate": {Paired: 0.02, Apart: 0.3}}
	for _, tc := range []struct {
		name    string
		b       *Result
		maxLoss float64
		floors  map[string]Floor
		want    GateOutcome
	}{
		{"the same", runOf(2, 1), 0.10, nil, GatePassed},
		{"faster", runOf(2, 1.5), 0.10, nil, GatePassed},
		{"a fifth slower", runOf(2, 0.8), 0.10, nil, GateFellShort},
		{"a fifth slower, and 30 % are allowed", runOf(2, 0.8), 0.30, nil, GatePassed},
		{"a fifth slower, within the noise", runOf(2, 0.8), 0.10, floor, GatePassed},
		{"half as fast, beyond the noise", runOf(2, 0.5), 0.10, floor, GateFellShort},
		{"too noisy", runOf(2, 1, noisy), 0.10, nil, GateUndecided},
		{"it fails", runOf(2, 1, failing), 0.10, nil, GateFellShort},
	} {
		d, err := CompareResults(runOf(1, 1), tc.b, DiffOptions{Metrics: []string{"rate"}})
		if err != nil {
			t.Fatal(err)
		}
		g := d.Judge(tc.maxLoss, tc.floors)
		if g.Outcome != tc.want {
			t.Errorf("%s: %s, want %s: %+v", tc.name, g.Outcome, tc.want, g.Gated)
		}
		if _, err := json.Marshal(g); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	missing, err := CompareResults(runOf(1, 1, func(r *Result) { r.Cases = append(r.Cases, &Case{Name: "gone", Samples: r.Cases[0].Samples}) }), runOf(2, 1), DiffOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if g := missing.Judge(0.5, nil); g.Outcome != GateUndecided {
		t.Errorf("a case that is not there any more: %s", g.Outcome)
	}
}

func TestSimulatedGate(t *testing.T) {
	testkit.Alone(t)
	fell, doubt, missed := 0, 0, 0
	const trials = 150
	for i := range uint64(trials) {
		for _, factor := range []float64{1, 0.75} {
			d, err := CompareResults(runOf(1000+i, 1), runOf(5000+i, factor), DiffOptions{Metrics: []string{"rate"}})
			if err != nil {
				t.Fatal(err)
			}
			switch g := d.Judge(0.10, nil); {
			case factor == 1 && g.Outcome == GateFellShort:
				fell++
			case factor == 1 && g.Outcome == GateUndecided:
				doubt++
			case factor != 1 && g.Outcome != GateFellShort:
				missed++
			}
		}
	}
	t.Logf("of %d gates between equal runs %d fell short and %d were undecided; of as many with a quarter lost, %d were missed", trials, fell, doubt, missed)
	if fell > trials/100 || missed > trials/20 {
		t.Error("the gate cries wolf, or sleeps")
	}
}

func TestNoiseFloor(t *testing.T) {
	m := machine{rng: rand.New(rand.NewPCG(1, 1)), wander: 0.05, noise: 0.02}
	a, b := &Case{Name: "a"}, &Case{Name: "b"}
	for round := range 40 {
		for i, c := range []*Case{a, b} {
			s := fixed(int64(m.sample(1)), 8)
			s.Round, s.Started = round, time.Unix(int64(2*round+i), 0)
			c.Samples = append(c.Samples, s)
		}
	}
	r := result(a, b)
	floors, err := NoiseFloor(r)
	if err != nil {
		t.Fatal(err)
	}
	f := floors["rate"]
	if f.Paired <= 0 || f.Paired > 0.06 || f.Apart < 2*f.Paired || f.Rounds != 16 {
		t.Errorf("floor %+v: a machine that wanders differs more apart than in turn", f)
	}
	for name, change := range map[string]func(*Result){
		"one case": func(r *Result) { r.Cases = r.Cases[:1] },
		"other things": func(r *Result) {
			r.Cases[0].Factors, r.Cases[1].Factors = map[string]string{"x": "1"}, map[string]string{"x": "2"}
		},
		"few rounds": func(r *Result) {
			r.Cases[0].Samples = r.Cases[0].Samples[:2]
		},
	} {
		r := result(a, b)
		change(r)
		if _, err := NoiseFloor(r); err == nil {
			t.Errorf("%s: has a noise floor", name)
		}
	}
}

func TestDocumentsOfDiffAndGate(t *testing.T) {
	a, b := runOf(1, 1), runOf(2, 0.8, func(r *Result) { r.Env.Commit = "0123456789abcdef+dirty" })
	d, err := CompareResults(a, b, DiffOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []*report.Doc{DiffDocument(&b.Env, d), GateDocument(&b.Env, d.Judge(0.1, nil))} {
		var text strings.Builder
		if err := doc.Write(&text, report.FormatText); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"x (commit 0123456+dirty)", "throughput", "not taken in turn"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("lacks %q:\n%s", want, text.String())
			}
		}
	}
}
