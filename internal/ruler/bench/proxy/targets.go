package proxybench

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// goals are the design's goals for an engine, as far as one run can decide them.
func goals(e suite.Engine) []suite.Goal {
	all := []suite.Goal{
		suite.AtLeast("inserts-16", "direct", "weir auto", "rate", 0.95, "hinted inserts are never slower than direct, 16 clients"),
		suite.AtLeast("inserts-64", "direct", "weir auto", "rate", 2.5, "hinted inserts, 64 clients, against direct"),
		suite.AtLeast("inserts-256", "direct", "weir auto", "rate", 5, "hinted inserts, 256 clients, against direct"),
	}
	if e == suite.PostgreSQL {
		all = append(all, suite.AtLeast("inserts-1000", "direct", "weir auto", "rate", 10, "hinted inserts, 1000 clients, against direct"))
	}
	all = append(all,
		suite.AtLeast("inserts-64-fsync2ms", "direct", "weir auto", "rate", 2.5, "the same at 2 ms per flush, 64 clients"),
		suite.AtLeast("inserts-256-fsync2ms", "direct", "weir auto", "rate", 5, "the same at 2 ms per flush, 256 clients"),
	)
	for _, n := range []string{"64", "256", "1000"} {
		all = append(all, suite.AtMost("inserts-"+n, "direct", "weir auto", "p50", 1, "their p50 is lower than direct, "+n+" clients"))
	}
	if e == suite.PostgreSQL {
		all = append(all, postgresReadTargets()...)
	} else {
		all = append(all, mysqlReadTargets()...)
	}
	return append(all,
		suite.AtLeast("failing-64", "none fail", "1 % fail", "rate", 0.5, "rate with 1 % of grouped inserts failing, 64 clients"),
		suite.AtLeast("failing-256", "none fail", "1 % fail", "rate", 0.5, "rate with 1 % of grouped inserts failing, 256 clients"),
	)
}

func postgresReadTargets() (all []suite.Goal) {
	for _, m := range loginMethods {
		all = append(all, suite.AtLeast("logins-"+m.name+"-10", "pgbouncer", "weir", "rate", 1, "logins by "+m.name+" are no slower than PgBouncer's, 10 clients"))
	}
	return append(all, []suite.Goal{
		suite.AtLeast("reads-prepared-64", "direct", "weir", "rate", 1, "prepared key lookups are no slower than direct, 64 clients"),
		suite.AtLeast("reads-prepared-256", "direct", "weir", "rate", 1.4, "prepared key lookups, 256 clients, against direct"),
		suite.AtLeast("reads-prepared-64", "pgbouncer", "weir", "rate", 1.6, "prepared key lookups, 64 clients, against PgBouncer"),
		suite.AtLeast("reads-prepared-256", "pgbouncer", "weir", "rate", 1.6, "prepared key lookups, 256 clients, against PgBouncer"),
		suite.AtMost("reads-prepared-64", "pgbouncer", "weir", "cpu_proxy", 0.8, "the proxy's CPU time per lookup against PgBouncer's, 64 clients"),
		suite.AtLeast("reads-simple-64", "pgbouncer", "weir", "rate", 1.1, "simple-protocol lookups, 64 clients, against PgBouncer"),
		suite.AtLeast("reads-simple-256", "pgbouncer", "weir", "rate", 1.1, "simple-protocol lookups, 256 clients, against PgBouncer"),
	}...)
}

// mysqlReadTargets are goals for MySQL's point selects, from a survey of other proxies.
func mysqlReadTargets() []suite.Goal {
	return []suite.Goal{
		suite.AtLeast("reads-prepared-64", "direct", "weir", "rate", 0.9, "prepared key lookups, 64 clients, against direct"),
		suite.AtLeast("reads-text-64", "direct", "weir", "rate", 0.9, "key lookups as text, 64 clients, against direct"),
	}
}

// Targets judges the goals that the run can decide, and leaves out the others.
func (o *Outcome) Targets() []suite.Target {
	var out []suite.Target
	add := func(t suite.Target, ok bool) {
		if ok {
			out = append(out, t)
		}
	}
	for _, g := range goals(o.Engine) {
		if r := o.Find(g.Experiment); r != nil {
			add(g.Judge(r))
		}
	}
	for _, r := range o.Results {
		if strings.HasPrefix(r.Experiment.Name, "inserts-") {
			for _, g := range adaptiveGoals(r) {
				add(g.Judge(r))
			}
		}
	}
	if r := o.Find("inserts-1"); r != nil {
		add(overheadTarget(r))
	}
	for _, r := range o.Results {
		if strings.HasPrefix(r.Experiment.Name, "crowd-") {
			add(crowdTarget(r))
		}
	}
	if o.Idle != nil {
		out = append(out, o.Idle.target())
	}
	return out
}

// adaptiveGoals compare the adaptive lane with the fixed window that has the highest median
// rate.
func adaptiveGoals(r *bench.Result) []suite.Goal {
	best := r.BestWindow()
	if best == nil || r.Find("weir auto") == nil {
		return nil
	}
	where := r.Experiment.Factors["clients"] + " clients"
	if slow := r.Experiment.Factors["fsync_latency"]; slow != "" && slow != "0s" {
		where += ", " + slow + " per flush"
	}
	return []suite.Goal{
		suite.AtLeast(r.Experiment.Name, best.Name, "weir auto", "rate", 1, "no window is at least as fast as the best fixed one, "+where),
		suite.AtMost(r.Experiment.Name, best.Name, "weir auto", "p50", 0.5, "at no more than half of its p50, "+where),
	}
}

// overheadTarget is the latency that weir adds for a single client without hints.
func overheadTarget(r *bench.Result) (suite.Target, bool) {
	a, b := r.Find("direct"), r.Find("weir 0")
	if a == nil || b == nil {
		return suite.Target{}, false
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
		return suite.Target{}, false
	}
	t := suite.Target{
		Claim: "added p50 of an insert without a hint, 1 client", Got: bench.MedianInterval(diffs, 0.95), Unit: "us",
		Evidence: fmt.Sprintf("inserts-1: p50 of weir 0 less that of direct, %d rounds", len(diffs)),
	}
	t.Want, t.Verdict = suite.Decide(t.Got, 0, 60, t.Unit)
	return t, true
}
