package peers

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/benchtest"
	"github.com/weirdb/weir/internal/ruler/bench/reference"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// TestEveryRowIsMeasured holds the rows to the plans: a part that runs the experiment,
// patterns that can fit, and one limit.
func TestEveryRowIsMeasured(t *testing.T) {
	for _, plan := range []string{"mini", "full"} {
		parts, err := Parts(plan, Programs{})
		if err != nil {
			t.Fatal(err)
		}
		asked := make(map[string][]string)
		for _, p := range parts {
			i := slices.Index(p.Args, "--experiments")
			asked[p.Name] = strings.Split(p.Args[i+1], ",")
		}
		used := make(map[string]bool)
		for _, w := range Rows() {
			at := w.Part + "/" + w.Goal.Experiment
			used[at] = true
			if !slices.Contains(asked[w.Part], w.Goal.Experiment) {
				t.Errorf("plan %s does not run %s, of %q", plan, at, w.Work)
			}
			for _, pattern := range []string{w.Goal.Side, w.Goal.Against, w.Floor} {
				if _, err := path.Match(pattern, ""); err != nil {
					t.Errorf("%q: %v", pattern, err)
				}
			}
			if (w.Goal.Min > 0) == (w.Goal.Max > 0) {
				t.Errorf("%s: want one limit", w.Work)
			}
		}
		for part, experiments := range asked {
			for _, e := range experiments {
				// screen finds the combination that focus measures.
				if !used[part+"/"+e] && e != "screen" {
					t.Errorf("plan %s runs %s/%s, of which no row is made", plan, part, e)
				}
			}
		}
	}
	if _, err := Parts("huge", Programs{}); err == nil {
		t.Error("a plan that is not there was taken")
	}
}

// Every goal stands on the page of reasons, with a reason unless it is met, and the page
// counts its verdicts right.
func TestEveryRowHasAReason(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/results/speed-rows.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]string // work, goal, figures, verdict, reason
	verdicts := make(map[string]int)
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 7 || cells[1] == " row " || strings.HasPrefix(cells[1], " ---") {
			continue
		}
		cells = cells[1 : len(cells)-1]
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		lines = append(lines, cells)
		verdict := strings.Trim(cells[len(cells)-2], "*")
		verdicts[verdict]++
		if reason := cells[len(cells)-1]; reason == "" && verdict != suite.Met {
			t.Errorf("%s is %s, without a reason", cells[0], verdict)
		}
	}
	for _, w := range Rows() {
		want, _ := suite.Decide(bench.Interval{}, w.Goal.Min, w.Goal.Max, "")
		if !slices.ContainsFunc(lines, func(cells []string) bool {
			work, _, _ := strings.Cut(cells[0], " (")
			return work == w.Work && strings.HasPrefix(cells[1], want)
		}) {
			t.Errorf("the page has no row %q with the goal %s", w.Work, want)
		}
	}
	want := fmt.Sprintf("Of the %d goals below %d are met, %d are not, %d cannot be told, and %d are met in part.",
		len(lines), verdicts[suite.Met], verdicts[suite.NotMet], verdicts[suite.Undecided], verdicts["met in part"])
	if !strings.Contains(string(page), want) {
		t.Errorf("the page does not say: %s", want)
	}
}

func row(t *testing.T, work string) Row {
	t.Helper()
	i := slices.IndexFunc(Rows(), func(w Row) bool { return w.Work == work })
	if i < 0 {
		t.Fatalf("no row %q", work)
	}
	return Rows()[i]
}

// result is a result of an experiment.
func result(experiment string, cases ...*bench.Case) *bench.Result {
	r := benchtest.Result("", cases...)
	r.Experiment.Name = experiment
	return r
}

func TestJudge(t *testing.T) {
	const hinted = "hinted INSERTs, prepared, 256 clients"
	enqueued := func(rate float64) func(*bench.Sample) {
		return func(s *bench.Sample) { s.Rates = map[string]float64{"enqueue": rate, "consume": 1} }
	}
	for name, tc := range map[string]struct {
		row     Row
		result  *bench.Result
		verdict string // "" for none
		beside  string
		median  float64
	}{
		"met": {
			row(t, hinted), result("inserts-256", benchtest.Case("direct", "", 1000, 256), benchtest.Case("weir auto", "", 8000, 256)),
			suite.Met, "direct", 8,
		},
		"not met": {
			row(t, hinted), result("inserts-256", benchtest.Case("direct", "", 1000, 256), benchtest.Case("weir auto", "", 5000, 256)),
			suite.NotMet, "direct", 5,
		},
		"one side is missing": {row(t, hinted), result("inserts-256", benchtest.Case("direct", "", 1000, 256)), "", "direct", 0},
		"a broken promise": {
			row(t, hinted), result("inserts-256", benchtest.Case("direct", "", 1000, 256), benchtest.Case("weir auto", "", 8000, 256, func(s *bench.Sample) { s.Invalid = []string{"a row is missing"} })),
			"", "direct", 0,
		},
		"not run": {row(t, hinted), result("inserts-64", benchtest.Case("direct", "", 1, 1)), "", "direct", 0},
		"the faster of two peers": {
			row(t, "backup of a shop"),
			result("dump-shop", benchtest.Case("pg_dump 15, gzip", "", 5000, 1), benchtest.Case("pg_dump 16, zstd:1", "", 100, 1), benchtest.Case("pg_dump 17, none", "", 900, 1), benchtest.Case("pg_dump 17, zstd:1", "", 400, 1), benchtest.Case("weir", "", 200, 1)),
			suite.NotMet, "pg_dump 17, zstd:1", 0.5,
		},
		"the best window": {
			row(t, "no window against the best one, 2 ms for a flush, 256 clients"),
			result("inserts-256-fsync2ms", benchtest.Case("direct", "window="+bench.NotApplicable, 9000, 1), benchtest.Case("weir 0", "window=0", 9000, 1),
				benchtest.Case("weir 1", "window=1", 1000, 1), benchtest.Case("weir 10", "window=10", 2000, 1), benchtest.Case("weir auto", "window=auto", 4000, 1)),
			suite.Met, "weir 10", 2,
		},
		"a kind of work": {
			row(t, "what 8 producers keep of their rate beside a relay, closed loop"),
			result("mixed-8", benchtest.Case("no relay", "", 100, 1, enqueued(1000)), benchtest.Case("log", "", 100, 1, enqueued(500))),
			suite.NotMet, "no relay", 0.5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := reference.NewMeasured(nil, map[string][]*bench.Result{tc.row.Part: {tc.result}})
			j := tc.row.judge(m)
			if (j.Why == "") != (tc.verdict != "") || j.Target.Verdict != tc.verdict && j.Why == "" || j.Name != tc.beside && j.Why == "" {
				t.Fatalf("%q beside %q, why %q", j.Target.Verdict, j.Name, j.Why)
			}
			if got := j.Target.Got.Median; j.Why == "" && (got < tc.median*0.99 || got > tc.median*1.01) {
				t.Errorf("median %g, want %g", got, tc.median)
			}
		})
	}
}

// A floor bounds a row only where it misses the goal and weir does nothing that it does not.
func TestBeyondTheFloor(t *testing.T) {
	for _, tc := range []struct {
		work        string
		ours, floor float64
		want        float64
	}{
		{"pgbench -N, prepared, 16 clients", 0.73, 0.80, 0.9125},                     // goal 0.9
		{"pgbench -N, prepared, 16 clients", 0.73, 0.95, 0},                          // the floor meets it
		{"pgbench -N, prepared, 256 clients", 0.9, 0.62, 0},                          // weir is better
		{"weir's CPU time for a hinted INSERT, 64 clients", 6.8, 5.1, 0.75},          // goal 4, less is better
		{"weir's CPU time for a hinted INSERT, 64 clients", 6.8, 3.9, 0},             // the floor meets it
		{"one client, p50 of a put", 0.3, 0.6, 0},                                    // weir is better
		{"report 2's mix, durable, the default preset", 80_000, 250_000, 0},          // the floor meets it
		{"what 8 producers keep of their rate beside a relay, closed loop", 0, 0, 0}, // nothing is known
	} {
		if got := row(t, tc.work).beyond(tc.ours, tc.floor); got < tc.want-0.001 || got > tc.want+0.001 {
			t.Errorf("%s, %g with a floor of %g: %g, want %g", tc.work, tc.ours, tc.floor, got, tc.want)
		}
	}
	r := result("transactions-16", benchtest.Case("direct", "", 1000, 16), benchtest.Case("copy", "", 800, 16), benchtest.Case("weir", "", 720, 16))
	m := reference.NewMeasured(nil, map[string][]*bench.Result{"proxy-postgres": {r}})
	var b bytes.Buffer
	if err := pages(m, &r.Env, "mini")["index"].Write(&b, report.FormatMarkdown); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Goals that were measured: 1. Met: 0, not met: 1, cannot tell: 0.", "Beyond the floor: 1 of the goals that are not certainly met.", "the floor misses the goal, too; weir reaches 90 % of it; hop.md"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestPage(t *testing.T) {
	parts, err := Parts("mini", Programs{PgBouncer: "/opt/pgbouncer", Tools: []string{"/a", "/b"}})
	if err != nil {
		t.Fatal(err)
	}
	r := result("inserts-256", benchtest.Case("direct", "", 1000, 256), benchtest.Case("group", "", 600, 256), benchtest.Case("weir auto", "", 8000, 256))
	enqueued := func(rate float64) func(*bench.Sample) {
		return func(s *bench.Sample) { s.Rates = map[string]float64{"enqueue": rate, "consume": 1} }
	}
	mix := result("presets", benchtest.Case("raft-ht", "", 130_000, 60), benchtest.Case("floor, three logs", "", 200_000, 60))
	m := reference.NewMeasured(parts, map[string][]*bench.Result{
		"proxy-postgres": {r},
		"kv":             {mix},
		"outbox-mariadb": {result("mixed-8", benchtest.Case("no relay", "", 9, 1, enqueued(1000)), benchtest.Case("log", "", 9, 1, enqueued(990)), benchtest.Case("log, floor", "", 9, 1, enqueued(950)))},
	})
	doc := pages(m, &r.Env, "mini")["index"]
	var b bytes.Buffer
	if err := doc.Write(&b, report.FormatMarkdown); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Goals that were measured: 3. Met: 3, not met: 0, cannot tell: 0.", fmt.Sprintf("Goals that were not measured: %d.", len(Rows())-3),
		"| >= 0.95 x | not measured |", "| &lt;= 4 us/op | not measured |", "| &lt;= 0.25 ms |", "| >= 0.97 x | not measured |",
		"| hinted INSERTs, prepared, 256 clients | direct |", "| met | 0.600x | - |", bench.Figure(mix.Find("floor, three logs").Summary["rate"].Median) + " ops/s", "0.950x", "The floor: a relay that follows the log and records no deliveries", "speed-backup.md", "experiment inserts-64 was not run", "weir bench proxy --engine postgres", "--pgbouncer /opt/pgbouncer", "--tools /a,/b",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
