package bench

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
)

// result makes an evaluated result of six rounds. Each case has a rate that
// moves by 1 % from round to round.
func result(cases ...*Case) *Result {
	r := &Result{
		Schema: Schema, ID: "x",
		Env:        measure.Environment{Time: time.Unix(1, 0), CPU: "c", Cores: 2, Kernel: "6", Command: []string{"weir"}},
		Experiment: Description{Name: "x", Loop: "closed", Sweep: "window", SweepUnit: "ms", Adaptive: "adaptive"},
		Cases:      cases,
	}
	r.Experiment.Baseline = cases[0].Name
	r.Evaluate()
	return r
}

func testCase(name, window string, rate int64, clients int, change ...func(*Sample)) *Case {
	c := &Case{Name: name, Factors: map[string]string{"window": window}}
	for round := range 6 {
		s := fixed(rate+rate*int64(round%3)/100, clients)
		s.Round = round
		for _, f := range change {
			f(&s)
		}
		c.Samples = append(c.Samples, s)
	}
	return c
}

func claims(r *Result, id string) string {
	var out []string
	for _, f := range r.Findings {
		if f.ID == id {
			out = append(out, f.Claim+" | "+strings.Join(f.Evidence, "; "))
		}
	}
	return strings.Join(out, "\n")
}

func TestFindingsForAndAgainst(t *testing.T) {
	with := func(f func(*Sample)) func(*Sample) { return f }
	cpu := func(client, server float64) func(*Sample) {
		return func(s *Sample) {
			s.Processes = map[string]measure.Usage{RoleClient: {UserSeconds: client}, RoleServer: {UserSeconds: server}}
		}
	}
	for _, tc := range []struct {
		id   string
		name string
		in   *Result
		want string // part of the claim; "" for none
	}{
		{"sweet-spot", "one clear best", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8), testCase("w10", "10", 700, 8)), "1 ms of window is best: 3,030 ops/s"},
		{"sweet-spot", "two levels alike", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8), testCase("w5", "5", 3010, 8)), "the smallest of them is 1 ms"},
		{"sweet-spot", "all alike", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 1001, 8)), ""},
		{"plateau", "all alike", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 1001, 8)), "cannot be told apart"},
		{"plateau", "one clear best", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8)), ""},
		{"degradation", "past the best", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8), testCase("w10", "10", 1500, 8)), "10 ms of window is beyond the best: 0.50x [0.50, 0.50] of the throughput of 1 ms"},
		{"degradation", "best is last", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8)), ""},
		{"adaptive", "beats fixed", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8), testCase("ad", "adaptive", 6000, 8)), "ad reaches 2.00x [2.00, 2.00] of the throughput of the best fixed level, w1, at 0.50x"},
		{"adaptive", "none there", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8)), ""},
		{"ratio", "better", result(testCase("direct", "-", 1000, 8), testCase("weir", "0", 2000, 8)), "weir is better than direct: 2.00x"},
		{"ratio", "same", result(testCase("direct", "-", 1000, 8), testCase("weir", "0", 1002, 8)), "no difference"},
		{"saturated", "full", result(testCase("a", "0", 1000, 8, cpu(0.3, 1.6))), "client 15 %, server 80 % of 2 cores"},
		{"saturated", "idle", result(testCase("a", "0", 1000, 8, cpu(0.1, 0.2))), ""},
		{"client-bound", "client dominates", result(testCase("a", "0", 1000, 8, cpu(0.9, 0.4))), "partly its own limit"},
		{"client-bound", "alone, and nearly idle", result(testCase("a", "0", 1000, 8, cpu(0.1, 0))), ""},
		{"client-bound", "server dominates", result(testCase("a", "0", 1000, 8, cpu(0.4, 0.9))), ""},
		{"grouping", "both known", result(testCase("a", "0", 1000, 8, with(func(s *Sample) {
			s.Groups = &Groups{Flushes: 100, Items: 1600}
			s.Server = &ServerCounters{Ops: 1000, Fsyncs: 25}
		}))), "25 fsyncs per 1000 operations, 16 operations a group"},
		{"grouping", "neither known", result(testCase("a", "0", 1000, 8)), ""},
		{"window-cap", "at the cap", result(testCase("w0", "0", 9000, 64), testCase("w100", "100", 620, 64)), "w100 is limited by its own window: 64 clients that wait 100 ms cannot exceed 640 ops/s"},
		{"window-cap", "far below", result(testCase("w0", "0", 9000, 64), testCase("w1", "1", 9000, 64)), ""},
		{"littles-law", "holds", result(testCase("a", "0", 1000, 8)), ""},
		{"littles-law", "broken", result(testCase("a", "0", 1000, 8, with(func(s *Sample) { s.InFlight = 16 }))), "8.0 in flight by rate and latency, 16 clients"},
		{"littles-law", "less than there are clients", result(testCase("a", "0", 1000, 8, with(func(s *Sample) { s.InFlight = 16 }))), "where it is less, part of the time"},
		{"littles-law", "more than there are clients", result(testCase("a", "0", 1000, 8, with(func(s *Sample) { s.InFlight = 4 }))), "where it is more, operations that are counted began before"},
		{"confounded", "one factor", result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 1000, 8)), ""},
		{"confounded", "clients change with the window", result(testCase("w0", "0", 1000, 8), testCase("w10", "10", 2000, 80)), "80 instead of 8 in flight"},
		{"errors", "some", result(testCase("a", "0", 1000, 8, with(func(s *Sample) { s.Errors = map[string]int64{"40001": 2} }))), "a: 12 x 40001"},
		{"errors", "none", result(testCase("a", "0", 1000, 8)), ""},
		{"noise", "calm", result(testCase("a", "0", 1000, 8)), ""},
		{"noise", "wild", result(testCase("a", "0", 1000, 8, with(func(s *Sample) { s.Ops += int64(s.Round) * 100 }))), "varied by more than 25 %"},
	} {
		got := claims(tc.in, tc.id)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s, %s: got %q, want %q", tc.id, tc.name, got, tc.want)
		}
	}
}

func TestConfoundedNamesTheFactors(t *testing.T) {
	a, b := testCase("a", "0", 1000, 8), testCase("b", "5", 1000, 8)
	a.Factors = map[string]string{"path": "direct", "window": "-", "pool": "50"}
	b.Factors = map[string]string{"path": "weir", "window": "5", "pool": "50"}
	if got := claims(result(a, b), "confounded"); got != "" {
		t.Errorf("a factor that does not apply was counted: %s", got)
	}
	b.Factors = maps.Clone(b.Factors)
	b.Factors["pool"] = "200"
	if got := claims(result(a, b), "confounded"); !strings.Contains(got, "b against a: path, pool") {
		t.Errorf("claims = %q", got)
	}
}

func TestResultIsRefused(t *testing.T) {
	for want, change := range map[string]func(*Result){
		"schema":      func(r *Result) { r.Schema = "weir.bench/9" },
		"environment": func(r *Result) { r.Env = measure.Environment{} },
		"no samples":  func(r *Result) { r.Cases = nil },
		"of b":        func(r *Result) { r.Cases = append(slices.Clone(r.Cases), &Case{Name: "b"}) },
	} {
		r := result(testCase("a", "0", 1000, 8))
		change(r)
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %q", err, want)
		}
	}
}

func TestDocumentShowsEveryCase(t *testing.T) {
	r := result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8), testCase("ad", "adaptive", 6000, 8))
	d := Document("Windows", r)
	for _, f := range []string{"text", "md", "csv", "html", "json"} {
		var b strings.Builder
		if err := d.Write(&b, report.Format(f)); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		for _, want := range []string{"w0", "ad", "6,060"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s lacks %q", f, want)
			}
		}
	}
}

func TestDocumentShowsWhatWasBeforeAndOverTime(t *testing.T) {
	warming := func(s *Sample) {
		s.Cold = &Cold{Seconds: 2.5, Ops: 1, Steady: true, Latency: &measure.Hist{}}
		s.Cold.Latency.Record(90e6)
		s.Series = &measure.Series{IntervalSeconds: 1}
		for i := range int64(8) {
			s.Series.Intervals = append(s.Series.Intervals, measure.Interval{Ops: 900 + 10*i + int64(s.Round)})
		}
	}
	r := result(testCase("a", "0", 1000, 8, warming), testCase("b", "1", 1000, 8))
	r.Warnings = []string{"the lights went out"}
	d := Document("Over time", r)
	var b strings.Builder
	if err := d.Write(&b, report.FormatText); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Before the measured window", "2.50", "90.0", "The lights went out."} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
	c := SeriesChart(r)
	if len(c) != 1 || len(c[0].Series) != 1 || len(c[0].Series[0].Points) != 7 || c[0].Series[0].Points[2] != (report.Point{X: 2.5, Y: 922.5, Lo: 920, Hi: 925}) {
		t.Errorf("charts %+v", c)
	}
	if c := SeriesChart(result(testCase("a", "0", 1000, 8))); len(c) > 0 {
		t.Error("a chart of nothing")
	}
	if t1 := ColdTable(result(testCase("a", "0", 1000, 8))); len(t1) > 0 {
		t.Error("a table of nothing")
	}
}
