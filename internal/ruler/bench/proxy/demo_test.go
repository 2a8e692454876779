package proxybench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// demoOutcome is one of two rounds on each side.
func demoOutcome(e suite.Engine, direct, weir int64) *Outcome {
	side := func(name string, ops int64) *bench.Case {
		c := &bench.Case{Name: name}
		for round := range 2 {
			h := new(measure.Hist)
			h.Record(2_000_000)
			c.Samples = append(c.Samples, bench.Sample{
				Round: round, Seconds: 1, Ops: ops, Latency: h,
				Server: &bench.ServerCounters{Ops: ops, Fsyncs: ops / 10},
			})
		}
		return c
	}
	env := measure.ReadEnvironment()
	env.Durability, env.Servers = "prod", []measure.Server{{Name: e.Title(), Version: "1"}}
	r := &bench.Result{
		Env:        env,
		Experiment: bench.Description{Name: "inserts-64", Baseline: "direct", Rounds: 2},
		Cases:      []*bench.Case{side("direct", direct), side("weir auto", weir)},
	}
	r.Evaluate()
	return &Outcome{Outcome: suite.Outcome{Engine: e, Results: []*bench.Result{r}}}
}

func TestDemoPutsEnginesIntoOneTable(t *testing.T) {
	var b bytes.Buffer
	printDemo(&b, []*Outcome{demoOutcome(suite.PostgreSQL, 1000, 3000), demoOutcome(suite.MariaDB, 2000, 8000)})
	var lines [][]string
	for line := range strings.Lines(b.String()) {
		if f := strings.Fields(line); len(f) > 0 {
			lines = append(lines, f)
		}
	}
	want := []string{"inserts/s", "PostgreSQL direct 1000", "weir auto 3000 3.00 x", "MariaDB direct 2000", "weir auto 8000 4.00 x", "28000 rows acknowledged"}
	if len(lines) != len(want) {
		t.Fatalf("%d lines:\n%s", len(lines), b.String())
	}
	for i, w := range want {
		if got := strings.Join(lines[i], " "); !strings.HasPrefix(got, w) {
			t.Errorf("line %d: %q, want %q first", i, got, w)
		}
	}
}

func TestDemoSaysWhatItCannotTell(t *testing.T) {
	o := demoOutcome(suite.PostgreSQL, 1000, 3000)
	r := o.Results[0]
	r.Cases[1].Samples[1].Ops = 100
	r.Evaluate()
	for _, c := range r.Cases {
		for j := range c.Samples {
			c.Samples[j].Disturbed = []string{"other processes used 90 % of the processors"}
		}
	}
	var b bytes.Buffer
	printDemo(&b, []*Outcome{o})
	for _, want := range []string{"? 0.55 x", "cannot tell which side is ahead", "Caution: Other programs disturbed 4 of 4 rounds"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, b.String())
		}
	}
}

func TestDemoShowsWhatIsInstalled(t *testing.T) {
	for name, tc := range map[string]struct {
		missing []suite.Engine
		fails   bool
	}{
		"both":       {},
		"PostgreSQL": {missing: []suite.Engine{suite.MariaDB}},
		"MariaDB":    {missing: []suite.Engine{suite.PostgreSQL}},
		"neither":    {missing: demoEngines, fails: true},
	} {
		var b bytes.Buffer
		d := demo{out: t.TempDir(), stdout: &b, measure: func(_ context.Context, o Options) (*Outcome, error) {
			if slices.Contains(tc.missing, o.Engine) {
				return nil, &lab.NotInstalledError{Server: o.Engine.Title()}
			}
			return demoOutcome(o.Engine, 1000, 3000), os.MkdirAll(o.Out, 0o755)
		}}
		if err := d.run(t.Context()); (err != nil) != tc.fails || tc.fails && !lab.NotInstalled(err) {
			t.Errorf("%s: error %v", name, err)
		}
		for _, e := range demoEngines {
			missing := slices.Contains(tc.missing, e)
			if said := strings.Contains(b.String(), e.Title()+" is left out"); said != missing {
				t.Errorf("%s: left out %s: %v\n%s", name, e.Title(), said, b.String())
			}
			if shown := strings.Contains(b.String(), e.Title()+"  "); shown == missing {
				t.Errorf("%s: shown %s: %v\n%s", name, e.Title(), shown, b.String())
			}
		}
	}
}

func TestDemoShowsWhatItHasWhenItFails(t *testing.T) {
	lost := errors.New("a row was lost")
	for _, failing := range demoEngines {
		var b bytes.Buffer
		d := demo{out: t.TempDir(), stdout: &b, measure: func(_ context.Context, o Options) (*Outcome, error) {
			if o.Engine == failing {
				return nil, lost
			}
			return demoOutcome(o.Engine, 1000, 3000), os.MkdirAll(o.Out, 0o755)
		}}
		if err := d.run(t.Context()); !errors.Is(err, lost) || !strings.Contains(err.Error(), failing.Title()) {
			t.Errorf("error %v, want %v of %s", err, lost, failing.Title())
		}
		if shown := strings.Contains(b.String(), "rows acknowledged"); shown != (failing != demoEngines[0]) {
			t.Errorf("%s failed, and what came before is shown: %v\n%s", failing.Title(), shown, b.String())
		}
	}
}

func TestReportNamesTheWaysThatRan(t *testing.T) {
	o := demoOutcome(suite.PostgreSQL, 1000, 3000)
	if got := o.Report().Subtitle; strings.Contains(got, "PgBouncer") {
		t.Errorf("nothing ran through PgBouncer: %s", got)
	}
	r := o.Results[0]
	r.Cases = append(r.Cases, &bench.Case{Name: "pgbouncer", Samples: r.Cases[0].Samples})
	if got := o.Report().Subtitle; !strings.Contains(got, "through PgBouncer and through weir") {
		t.Errorf("it ran through PgBouncer, too: %s", got)
	}
}
