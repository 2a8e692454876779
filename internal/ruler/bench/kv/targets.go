package kvbench

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// A Target is a claim that the scenarios were made to test, and what the run says
// of it.
type Target struct {
	Claim   string         `json:"claim"`
	Want    string         `json:"want"`
	Got     bench.Interval `json:"got"`
	Unit    string         `json:"unit"`
	Verdict string         `json:"verdict"` // met, not met, cannot tell
}

// Verdicts of a Target.
const (
	Met       = "met"
	NotMet    = "not met"
	Undecided = "cannot tell"
)

// absolute is a target for a figure itself. One of min and max is not 0.
type absolute struct {
	experiment, side, metric string
	min, max                 float64
	claim                    string
}

// relative is one for the ratio of case b over case a.
type relative struct {
	experiment, a, b, metric string
	min, max                 float64
	claim                    string
}

// The reference implementation of report 2 does 11.4 thousand operations a second
// at its own load on a machine of two cores, in memory, and its own Raft 53.
const (
	referenceRate     = 11_400
	referenceRaftRate = 53_000
)

var absoluteTargets = []absolute{
	{"delay", auto, "rate", 11 * referenceRate, 0, "load of report 2, flushed: 11 times what its CURP-HO does in memory"},
	{"delay", auto, "rate", 2 * referenceRaftRate, 0, "load of report 2, flushed: twice what its Raft does in memory"},
	{"delay", auto, "weak_p50", 0, 0.3, "load of report 2: weak operations"},
	{"delay", auto, "strong_p50", 0, 0.5, "load of report 2: strong operations"},
	{"single-put", "weir, disk", "strong_write_p50", 0, 0.25, "one client, put"},
	{"wan-5-50ms", "curp-ht", "strong_write_p50", 0, 51, "5 replicas, 50 ms: strong writes by the fast path"},
}

var relativeTargets = []relative{
	{"etcd-60", "etcd", "weir", "rate", 6, 0, "60 clients, half writes, against etcd"},
	{"etcd-60", "etcd", "weir", "p99", 0, 1.0 / 3, "60 clients, p99 against etcd's"},
	{"etcd-256", "etcd", "weir", "rate", 6, 0, "256 clients, half writes, against etcd"},
	{"etcd-256", "etcd", "weir", "p99", 0, 1.0 / 3, "256 clients, p99 against etcd's"},
	{"presets", "raft", "raft-ht", "rate", 1, 0, "weak operations are worth something on one machine"},
	{"wan-3-10ms", "raft", "curp", "strong_write_p50", 0, 0.6, "3 replicas, 10 ms: strong writes by the fast path against those without"},
	{"wan-5-10ms", "raft", "curp", "strong_write_p50", 0, 0.6, "5 replicas, 10 ms: the same"},
	{"wan-3-50ms", "raft", "curp", "strong_write_p50", 0, 0.6, "3 replicas, 50 ms: the same"},
	{"wan-5-50ms", "raft", "curp", "strong_write_p50", 0, 0.6, "5 replicas, 50 ms: the same"},
}

// Targets judges what the run can decide, and leaves out the rest: what was not
// measured, and what has answered wrongly.
func (o *Outcome) Targets() []Target {
	var out []Target
	for _, t := range absoluteTargets {
		if r := o.find(t.experiment); r != nil {
			if got, ok := t.judge(r); ok {
				if !bench.Quotable(o.Results...) {
					got.Verdict = Undecided
				}
				out = append(out, got)
			}
		}
	}
	rules := relativeTargets
	for _, r := range o.Results {
		switch name := r.Experiment.Name; {
		case name == "length" && len(r.Cases) == 2:
			rules = append(rules, relative{name, r.Cases[0].Name, r.Cases[1].Name, "rate", 0.95, 0, "a run of ten times as many operations is as fast"})
		case strings.HasPrefix(name, "cell-") || name == "delay":
			if best := bestFixed(r); best != nil {
				rules = append(rules, relative{name, best.Name, auto, "rate", 0.97, 0, "no delay is as fast as the best fixed one, " + best.Name + ": " + r.Experiment.Title})
			}
		}
	}
	for _, t := range rules {
		if r := o.find(t.experiment); r != nil {
			if got, ok := t.judge(r); ok {
				out = append(out, got)
			}
		}
	}
	return out
}

func (o *Outcome) find(name string) *bench.Result {
	for _, r := range o.Results {
		if r.Experiment.Name == name {
			return r
		}
	}
	return nil
}

// bestFixed returns the case with a delay that has the highest rate.
func bestFixed(r *bench.Result) *bench.Case {
	var best *bench.Case
	for i := range r.Cases {
		c := &r.Cases[i]
		if d := c.Factors["delay"]; d == "" || d == auto || d == "0" || d == bench.NotApplicable {
			continue
		}
		if best == nil || c.Summary["rate"].Median > best.Summary["rate"].Median {
			best = c
		}
	}
	return best
}

func (t absolute) judge(r *bench.Result) (Target, bool) {
	c := r.Find(t.side)
	if c == nil || wrong(c) {
		return Target{}, false
	}
	s, ok := c.Summary[t.metric]
	if !ok {
		return Target{}, false
	}
	out := Target{Claim: t.claim, Got: s.Interval, Unit: s.Unit}
	out.Want, out.Verdict = decide(s.Interval, t.min, t.max, s.Unit)
	return out, true
}

func (t relative) judge(r *bench.Result) (Target, bool) {
	a, b := r.Find(t.a), r.Find(t.b)
	if a == nil || b == nil || wrong(a) || wrong(b) {
		return Target{}, false
	}
	c, err := bench.Compare(a, b, t.metric)
	if err != nil || c.Ratio.N == 0 || c.Ratio.Method == "none" {
		return Target{}, false
	}
	out := Target{Claim: t.claim, Got: c.Ratio, Unit: "x"}
	out.Want, out.Verdict = decide(c.Ratio, t.min, t.max, "x")
	return out, true
}

// decide says what is wanted, and whether the whole interval is on the right side.
func decide(got bench.Interval, low, high float64, unit string) (want, verdict string) {
	yes, no := got.Lo >= low, got.Hi < low
	want = ">= " + figure(low) + " " + unit
	if high > 0 {
		yes, no = got.Hi <= high, got.Lo > high
		want = "<= " + figure(high) + " " + unit
	}
	switch {
	case got.N < 2: // one round tells nothing apart
		return want, Undecided
	case yes:
		return want, Met
	case no:
		return want, NotMet
	}
	return want, Undecided
}

func targetSection(targets []Target) report.Section {
	t := report.Table{
		Columns: []report.Column{{Name: "target"}, {Name: "wanted"}, {Name: "measured", Numeric: true}, {Name: "95 % interval", Numeric: true}, {Name: "rounds", Numeric: true}, {Name: "verdict"}},
		Note:    "A target is met when the whole interval is on its side, and not met when the whole interval is on the other. Of fewer than six rounds the interval spans them all. One round cannot tell, and a figure itself cannot be told where something foreign was at work in most rounds.",
	}
	for _, g := range targets {
		t.Rows = append(t.Rows, []report.Cell{
			{Text: g.Claim},
			{Text: g.Want},
			{Text: figure(g.Got.Median) + " " + g.Unit},
			{Text: figure(g.Got.Lo) + " - " + figure(g.Got.Hi)},
			{Text: fmt.Sprint(g.Got.N)},
			{Text: g.Verdict, Strong: g.Verdict != Met},
		})
	}
	return report.Section{Title: "Targets", Tables: []report.Table{t}}
}
