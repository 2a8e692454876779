package suite

import (
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// A Target is a claim that a suite tests, and the verdict of the run.
type Target struct {
	Claim    string         `json:"claim"`
	Want     string         `json:"want"`
	Got      bench.Interval `json:"got"`
	Unit     string         `json:"unit"`
	Verdict  string         `json:"verdict"` // met, not met, cannot tell
	Evidence string         `json:"evidence,omitempty"`
}

// Verdicts of a Target.
const (
	Met       = "met"
	NotMet    = "not met"
	Undecided = "cannot tell"
)

// Goal is a target, by the names of its experiment, cases and metric.
type Goal struct {
	Experiment string
	// Against and Side are cases: the ratio of Side to Against is judged or, without Against,
	// the figure of Side.
	Against, Side, Metric string
	Min, Max              float64 // exactly one is not 0
	Claim                 string
}

// Judge judges a goal by a result. It returns false if the cases or the metric are missing, or
// if a round of a case broke a promise.
func (g *Goal) Judge(r *bench.Result) (Target, bool) {
	var against *bench.Case
	if g.Against != "" {
		if against = r.Find(g.Against); against == nil {
			return Target{}, false
		}
	}
	return g.JudgeCases(against, r.Find(g.Side))
}

// JudgeCases is Judge with the cases themselves. against is nil to judge the figure of side.
func (g *Goal) JudgeCases(against, side *bench.Case) (Target, bool) {
	if side == nil || side.Invalid() || against != nil && against.Invalid() {
		return Target{}, false
	}
	if against == nil {
		s, ok := side.Summary[g.Metric]
		if !ok {
			return Target{}, false
		}
		return g.target(s.Interval, s.Unit, fmt.Sprintf("%s of %s", g.Metric, side.Name)), true
	}
	c, err := bench.Compare(against, side, g.Metric)
	if err != nil || c.Ratio.N == 0 || c.Ratio.Method == "none" {
		return Target{}, false
	}
	return g.target(c.Ratio, "x", fmt.Sprintf("%s of %s over %s", g.Metric, side.Name, against.Name)), true
}

func (g *Goal) target(got bench.Interval, unit, evidence string) Target {
	t := Target{Claim: g.Claim, Got: got, Unit: unit, Evidence: fmt.Sprintf("%s: %s, %s", g.Experiment, evidence, bench.Rounds(got.N))}
	t.Want, t.Verdict = Decide(got, g.Min, g.Max, unit)
	return t
}

// Decide formats the requirement and reports whether the whole interval meets it. Exactly one
// of least and most is not 0.
func Decide(got bench.Interval, least, most float64, unit string) (want, verdict string) {
	yes, no := got.Lo >= least, got.Hi < least
	want = ">= " + limit(least) + " " + unit
	if most > 0 {
		yes, no = got.Hi <= most, got.Lo > most
		want = "<= " + limit(most) + " " + unit
	}
	switch {
	case got.N < 2: // one round has no interval
		return want, Undecided
	case yes:
		return want, Met
	case no:
		return want, NotMet
	}
	return want, Undecided
}

// limit formats a limit with up to three digits.
func limit(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return bench.Figure(v)
}

// TargetSection lists targets; nil if there are none.
func TargetSection(targets []Target) []report.Section {
	if len(targets) == 0 {
		return nil
	}
	t := report.Table{
		Columns: report.Columns(":target", ":wanted", "measured", "95 % interval", "rounds", ":verdict"),
		Note:    "A target is met when the whole interval meets it, and not met when no part of the interval does. With fewer than six rounds the interval spans all of them. One round cannot tell.",
	}
	for _, g := range targets {
		t.Rows = append(t.Rows, []report.Cell{
			{Text: g.Claim},
			{Text: g.Want},
			{Text: bench.Figure(g.Got.Median) + " " + g.Unit},
			{Text: bench.Figure(g.Got.Lo) + " - " + bench.Figure(g.Got.Hi)},
			{Text: strconv.Itoa(g.Got.N)},
			{Text: g.Verdict, Strong: g.Verdict != Met},
		})
	}
	return []report.Section{{Title: "Targets", Tables: []report.Table{t}}}
}

// AtLeast is a goal for the smallest ratio of side to against or, if against is "", for the
// smallest figure of side.
func AtLeast(experiment, against, side, metric string, least float64, claim string) Goal {
	return Goal{Experiment: experiment, Against: against, Side: side, Metric: metric, Min: least, Claim: claim}
}

// AtMost is a goal for the largest ratio or figure.
func AtMost(experiment, against, side, metric string, most float64, claim string) Goal {
	return Goal{Experiment: experiment, Against: against, Side: side, Metric: metric, Max: most, Claim: claim}
}
