package bench

import (
	"fmt"
	"math"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
)

// DiffDocument makes a report of comparisons. The environment is that of the second results.
func DiffDocument(env *measure.Environment, diffs ...*Diff) *report.Doc {
	d := &report.Doc{Title: "Two runs compared", Env: env}
	for _, x := range diffs {
		s := x.section()
		t := report.Table{Columns: diffColumns("verdict"), Note: x.note()}
		for _, c := range x.Rows {
			t.Rows = append(t.Rows, append(x.comparisonCells(c), report.Cell{Text: verdictText(c), Strong: c.Verdict == Better || c.Verdict == Worse}))
		}
		s.Tables = append(s.Tables, t)
		d.Sections = append(d.Sections, s)
	}
	return d
}

// GateDocument makes a report of gates.
func GateDocument(env *measure.Environment, gates ...*Gate) *report.Doc {
	d := &report.Doc{Title: "Gate", Env: env}
	for _, g := range gates {
		s := g.section()
		s.Title += ": " + string(g.Outcome)
		t := report.Table{
			Columns: append(diffColumns("loss"), report.Column{Name: "allowed", Numeric: true}, report.Column{Name: "outcome"}),
			Note:    g.note(),
		}
		t.Columns[4].Numeric = true
		for _, r := range g.Gated {
			outcome := string(r.Outcome)
			if r.Outcome == GateUndecided && r.Needed > 0 {
				outcome += fmt.Sprintf(" (about %d rounds would)", r.Needed)
			}
			t.Rows = append(t.Rows, append(g.comparisonCells(r.Comparison),
				report.Cell{Text: lossText(r)},
				report.Cell{Text: fmt.Sprintf("%.1f %%", 100*r.Allowed)},
				report.Cell{Text: outcome, Strong: r.Outcome != GatePassed}))
		}
		s.Tables = append(s.Tables, t)
		d.Sections = append(d.Sections, s)
	}
	return d
}

// NoiseTable shows how much each metric varies without any change.
func NoiseTable(r *Result, floors map[string]Floor) report.Table {
	t := report.Table{
		Title:   "How much each metric varies without a change",
		Columns: report.Columns(":metric", "median", "in turn", "apart"),
		Note:    "In turn: the largest difference that two sides measured in turn leave open. Apart: the largest difference between two stretches of the run. A gate with --noise ignores smaller losses.",
	}
	for _, m := range Metrics(r.Subjects()...) {
		if f, ok := floors[m.Key]; ok && !m.Detail {
			t.Rows = append(t.Rows, report.Cells(m.Name, Figure(r.Cases[0].Summary[m.Key].Median)+" "+m.Unit,
				fmt.Sprintf("%.1f %%", 100*f.Paired), fmt.Sprintf("%.1f %%", 100*f.Apart)))
		}
	}
	return t
}

// lossText formats a loss with its interval, if it has one.
func lossText(g GateRow) string {
	loss := fmt.Sprintf("%+.1f %%", 100*g.Loss)
	if g.Ratio.N < 2 {
		return loss
	}
	return fmt.Sprintf("%s [%s, %s]", loss, percent(g.LossLo), percent(g.LossHi))
}

func diffColumns(fifth string) []report.Column {
	return []report.Column{
		{Name: "case"},
		{Name: "metric"},
		{Name: "ratio", Numeric: true},
		{Name: "95 % interval", Numeric: true},
		{Name: fifth},
	}
}

func (d *Diff) comparisonCells(c Comparison) []report.Cell {
	m, _ := MetricByKey(c.Metric, d.subjects...)
	return report.Cells(c.B, m.Name, multiple(c.Ratio.Median)+"x", c.Ratio.Range(multiple))
}

// multiple formats a ratio with enough digits to show differences of a percent.
func multiple(v float64) string {
	if v >= 10 {
		return Figure(v)
	}
	return fmt.Sprintf("%.3f", v)
}

func verdictText(c Comparison) string {
	if c.Verdict == CannotTell && c.Needed > 0 {
		return fmt.Sprintf("%s (about %d rounds would)", c.Verdict, c.Needed)
	}
	return string(c.Verdict)
}

// section is the section of the diff without its table.
func (d *Diff) section() report.Section {
	s := report.Section{Title: d.Experiment}
	s.Text = append(s.Text, fmt.Sprintf("First: %s. Second: %s. Ratios are second over first.", d.A, d.B))
	for _, f := range d.Failing {
		s.Findings = append(s.Findings, report.Finding{Warn: true, Claim: fmt.Sprintf("In %s, %s of 1000 operations fail; before, it was %s.", f.Case, Figure(f.B), Figure(f.A))})
	}
	for _, w := range d.Warnings {
		s.Findings = append(s.Findings, report.Finding{Warn: true, Claim: strings.ToUpper(w[:1]) + w[1:] + "."})
	}
	for _, only := range []struct {
		which string
		cases []string
	}{{"first", d.OnlyA}, {"second", d.OnlyB}} {
		if len(only.cases) > 0 {
			s.Findings = append(s.Findings, report.Finding{Warn: true, Claim: fmt.Sprintf("Only the %s has %s.", only.which, strings.Join(only.cases, ", "))})
		}
	}
	return s
}

// String names a result: "inserts-64-20260102-030405 (commit 1a2b3c4)".
func (e DiffEnd) String() string {
	if len(e.Commit) < 7 {
		return e.ID
	}
	short := e.Commit[:7]
	if strings.HasSuffix(e.Commit, "+dirty") {
		short += "+dirty"
	}
	return fmt.Sprintf("%s (commit %s)", e.ID, short)
}

func (d *Diff) note() string {
	how := "Rounds were not taken in turn: intervals do not know how much the machine changed between the two runs."
	if d.Paired {
		how = "Rounds of the same number were compared as pairs."
	}
	leftOut := 0
	for _, c := range d.Rows {
		leftOut = max(leftOut, c.LeftOut)
	}
	if leftOut > 0 {
		how += fmt.Sprintf(" Up to %d disturbed rounds were left out.", leftOut)
	}
	return how
}

// percent formats a share as a percentage, and a very large one as "more than".
func percent(v float64) string {
	if math.Abs(v) > 10 {
		return "> 1000 %"
	}
	return fmt.Sprintf("%+.1f %%", 100*v)
}
