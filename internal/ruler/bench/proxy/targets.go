package proxybench

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// A Target is a claim that the scenario was made to test, and what the run says
// of it.
type Target struct {
	Claim    string         `json:"claim"`
	Want     string         `json:"want"`
	Got      bench.Interval `json:"got"`
	Unit     string         `json:"unit"`
	Verdict  string         `json:"verdict"` // met, not met, cannot tell
	Evidence string         `json:"evidence"`
}

// Verdicts of a Target.
const (
	Met       = "met"
	NotMet    = "not met"
	Undecided = "cannot tell"
)

// targetRule compares case b with case a of one experiment in one metric. The
// ratio b/a must be at least Min, or at most Max.
type targetRule struct {
	experiment, a, b, metric string
	min, max                 float64
	claim                    string
}

// ratioRules are those of DESIGN section 5 for an engine that one run of the
// scenario can decide.
func ratioRules(e Engine) []targetRule {
	rules := []targetRule{
		{"inserts-16", "direct", "weir auto", "rate", 0.95, 0, "hinted inserts are never slower than direct, 16 clients"},
		{"inserts-64", "direct", "weir auto", "rate", 2.5, 0, "hinted inserts, 64 clients, against direct"},
		{"inserts-256", "direct", "weir auto", "rate", 5, 0, "hinted inserts, 256 clients, against direct"},
	}
	if e == PostgreSQL {
		rules = append(rules, targetRule{"inserts-1000", "direct", "weir auto", "rate", 10, 0, "hinted inserts, 1000 clients, against direct"})
	}
	rules = append(rules,
		targetRule{"inserts-64-fsync2ms", "direct", "weir auto", "rate", 2.5, 0, "the same at 2 ms per flush, 64 clients"},
		targetRule{"inserts-256-fsync2ms", "direct", "weir auto", "rate", 5, 0, "the same at 2 ms per flush, 256 clients"},
	)
	for _, n := range []string{"64", "256", "1000"} {
		rules = append(rules, targetRule{"inserts-" + n, "direct", "weir auto", "p50", 0, 1, "their p50 is lower than direct, " + n + " clients"})
	}
	if e == PostgreSQL {
		rules = append(rules, postgresReadTargets()...)
	} else {
		rules = append(rules, mysqlReadTargets()...)
	}
	return append(rules,
		targetRule{"failing-64", "none fail", "1 % fail", "rate", 0.5, 0, "rate with 1 % of grouped inserts failing, 64 clients"},
		targetRule{"failing-256", "none fail", "1 % fail", "rate", 0.5, 0, "rate with 1 % of grouped inserts failing, 256 clients"},
	)
}

func postgresReadTargets() []targetRule {
	return []targetRule{
		{"reads-prepared-64", "direct", "weir", "rate", 1, 0, "prepared key lookups are no slower than direct, 64 clients"},
		{"reads-prepared-256", "direct", "weir", "rate", 1.4, 0, "prepared key lookups, 256 clients, against direct"},
		{"reads-prepared-64", "pgbouncer", "weir", "rate", 1.6, 0, "prepared key lookups, 64 clients, against PgBouncer"},
		{"reads-prepared-256", "pgbouncer", "weir", "rate", 1.6, 0, "prepared key lookups, 256 clients, against PgBouncer"},
		{"reads-prepared-64", "pgbouncer", "weir", "cpu_proxy", 0, 0.8, "the proxy's CPU time per lookup against PgBouncer's, 64 clients"},
		{"reads-simple-64", "pgbouncer", "weir", "rate", 1.1, 0, "simple-protocol lookups, 64 clients, against PgBouncer"},
		{"reads-simple-256", "pgbouncer", "weir", "rate", 1.1, 0, "simple-protocol lookups, 256 clients, against PgBouncer"},
	}
}

// mysqlReadTargets are what the survey of other proxies set as the goal for
// MySQL's point selects: DESIGN names none.
func mysqlReadTargets() []targetRule {
	return []targetRule{
		{"reads-prepared-64", "direct", "weir", "rate", 0.9, 0, "prepared key lookups, 64 clients, against direct"},
		{"reads-text-64", "direct", "weir", "rate", 0.9, 0, "key lookups as text, 64 clients, against direct"},
	}
}

// Targets judges what the run can decide, and leaves out the rest.
func (o *Outcome) Targets() []Target {
	out := ratioTargets(o.Engine, o.Results)
	if o.Idle != nil {
		out = append(out, o.Idle.target())
	}
	return out
}

func ratioTargets(e Engine, results []*bench.Result) []Target {
	var out []Target
	for _, rule := range ratioRules(e) {
		r := resultNamed(results, rule.experiment)
		if r == nil {
			continue
		}
		if t, ok := rule.judge(r); ok {
			out = append(out, t)
		}
	}
	for _, r := range results {
		if strings.HasPrefix(r.Experiment.Name, "inserts-") {
			out = append(out, adaptiveTargets(r)...)
		}
	}
	if r := resultNamed(results, "inserts-1"); r != nil {
		if t, ok := overheadTarget(r); ok {
			out = append(out, t)
		}
	}
	for _, r := range results {
		if strings.HasPrefix(r.Experiment.Name, "crowd-") {
			if t, ok := crowdTarget(r); ok {
				out = append(out, t)
			}
		}
	}
	return out
}

func resultNamed(results []*bench.Result, name string) *bench.Result {
	for _, r := range results {
		if r.Experiment.Name == name {
			return r
		}
	}
	return nil
}

func (rule targetRule) judge(r *bench.Result) (Target, bool) {
	a, b := r.Find(rule.a), r.Find(rule.b)
	if a == nil || b == nil {
		return Target{}, false
	}
	c, err := bench.Compare(a, b, rule.metric)
	if err != nil || c.Ratio.N == 0 || c.Ratio.Method == "none" {
		return Target{}, false
	}
	t := Target{Claim: rule.claim, Got: c.Ratio, Unit: "x", Evidence: fmt.Sprintf("%s: %s of %s over %s, %d rounds", rule.experiment, rule.metric, rule.b, rule.a, c.Ratio.N)}
	if rule.min > 0 {
		t.Want = fmt.Sprintf(">= %.3g x", rule.min)
		t.Verdict = decide(c.Ratio.Lo >= rule.min, c.Ratio.Hi < rule.min)
	} else {
		t.Want = fmt.Sprintf("<= %.3g x", rule.max)
		t.Verdict = decide(c.Ratio.Hi <= rule.max, c.Ratio.Lo > rule.max)
	}
	if c.Ratio.N < 2 { // one round tells nothing apart
		t.Verdict = Undecided
	}
	return t, true
}

func decide(yes, no bool) string {
	switch {
	case yes:
		return Met
	case no:
		return NotMet
	}
	return Undecided
}

// adaptiveTargets compares the adaptive lane with the fixed window that had the
// highest median rate.
func adaptiveTargets(r *bench.Result) []Target {
	auto := r.Find("weir auto")
	var best *bench.Case
	for i := range r.Cases {
		c := &r.Cases[i]
		if w := c.Factors["window"]; w == "" || w == bench.NotApplicable || w == "0" || w == "auto" {
			continue
		}
		if best == nil || c.Summary["rate"].Median > best.Summary["rate"].Median {
			best = c
		}
	}
	if auto == nil || best == nil {
		return nil
	}
	where := r.Experiment.Factors["clients"] + " clients"
	if slow := r.Experiment.Factors["fsync_latency"]; slow != "" && slow != "0s" {
		where += ", " + slow + " per flush"
	}
	var out []Target
	for _, rule := range []targetRule{
		{r.Experiment.Name, best.Name, "weir auto", "rate", 1, 0, "no window is at least as fast as the best fixed one, " + where},
		{r.Experiment.Name, best.Name, "weir auto", "p50", 0, 0.5, "at no more than half of its p50, " + where},
	} {
		if t, ok := rule.judge(r); ok {
			out = append(out, t)
		}
	}
	return out
}

// overheadTarget is what weir adds to one client that asks for nothing.
func overheadTarget(r *bench.Result) (Target, bool) {
	a, b := r.Find("direct"), r.Find("weir 0")
	if a == nil || b == nil {
		return Target{}, false
	}
	m, _ := bench.MetricByKey("p50")
	var diffs []float64
	for i := range min(len(a.Samples), len(b.Samples)) {
		x, ok1 := m.Of(&a.Samples[i])
		y, ok2 := m.Of(&b.Samples[i])
		if ok1 && ok2 {
			diffs = append(diffs, (y-x)*1000)
		}
	}
	if len(diffs) == 0 {
		return Target{}, false
	}
	got := bench.MedianInterval(diffs, 0.95)
	return Target{
		Claim: "added p50 of an insert without a hint, 1 client", Want: "<= 60 us", Got: got, Unit: "us",
		Verdict:  decide(got.Hi <= 60, got.Lo > 60),
		Evidence: fmt.Sprintf("inserts-1: p50 of weir 0 less that of direct, %d rounds", len(diffs)),
	}, true
}
