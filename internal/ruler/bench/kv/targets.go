package kvbench

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// The reference implementation of report 2 does 11.4 thousand operations per second under its
// own load on a machine with two cores, in memory, and its own Raft 53.
const (
	referenceRate     = 11_400
	referenceRaftRate = 53_000
)

// goals are the targets of the design for the experiments of any run.
func goals() []suite.Goal {
	return []suite.Goal{
		suite.AtLeast("delay", "", auto, "rate", 11*referenceRate, "load of report 2, flushed: 11 times what its CURP-HO does in memory"),
		suite.AtLeast("delay", "", auto, "rate", 2*referenceRaftRate, "load of report 2, flushed: twice what its Raft does in memory"),
		suite.AtMost("delay", "", auto, "weak_p50", 0.3, "load of report 2: weak operations"),
		suite.AtMost("delay", "", auto, "strong_p50", 0.5, "load of report 2: strong operations"),
		suite.AtMost("single-put", "", "weir, disk", "strong_write_p50", 0.25, "one client, put"),
		suite.AtMost("wan-5-50ms", "", "curp-ht", "strong_write_p50", 51, "5 replicas, 50 ms: strong writes by the fast path"),
		suite.AtLeast("etcd-60", "etcd", "weir", "rate", 6, "60 clients, half writes, against etcd"),
		suite.AtMost("etcd-60", "etcd", "weir", "p99", 1.0/3, "60 clients, p99 against etcd's"),
		suite.AtLeast("etcd-256", "etcd", "weir", "rate", 6, "256 clients, half writes, against etcd"),
		suite.AtMost("etcd-256", "etcd", "weir", "p99", 1.0/3, "256 clients, p99 against etcd's"),
		suite.AtLeast("presets", "raft", "raft-ht", "rate", 1, "weak operations are faster on one machine"),
		suite.AtMost("wan-3-10ms", "raft", "curp", "strong_write_p50", 0.6, "3 replicas, 10 ms: strong writes by the fast path against those without"),
		suite.AtMost("wan-5-10ms", "raft", "curp", "strong_write_p50", 0.6, "5 replicas, 10 ms: the same"),
		suite.AtMost("wan-3-50ms", "raft", "curp", "strong_write_p50", 0.6, "3 replicas, 50 ms: the same"),
		suite.AtMost("wan-5-50ms", "raft", "curp", "strong_write_p50", 0.6, "5 replicas, 50 ms: the same"),
	}
}

// Targets judges the goals that the run can decide, and leaves out those that were not measured
// and those with wrong answers.
func (o *Outcome) Targets() []suite.Target {
	all := goals()
	for _, r := range o.Results {
		switch name := r.Experiment.Name; {
		case name == "length" && len(r.Cases) == 2:
			all = append(all, suite.AtLeast(name, r.Cases[0].Name, r.Cases[1].Name, "rate", 0.95, "a run of ten times as many operations is as fast"))
		case strings.HasPrefix(name, "cell-") || name == "delay":
			if best := bestFixed(r); best != nil {
				all = append(all, suite.AtLeast(name, best.Name, auto, "rate", 0.97, "no delay is as fast as the best fixed one, "+best.Name+": "+r.Experiment.Title))
			}
		}
	}
	var out []suite.Target
	for _, g := range all {
		if r := o.Find(g.Experiment); r != nil {
			if t, ok := g.Judge(r); ok {
				if g.Against == "" && !bench.Quotable(o.Results...) {
					t.Verdict = suite.Undecided
				}
				out = append(out, t)
			}
		}
	}
	return out
}

// bestFixed returns the case with a delay that has the highest rate.
func bestFixed(r *bench.Result) *bench.Case {
	return r.Best(func(c *bench.Case) bool {
		return !slices.Contains([]string{"", auto, "0", bench.NotApplicable}, c.Factors["delay"])
	})
}
