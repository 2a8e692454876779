package study

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// ErrNotComparable says that two results have nothing in common to compare.
var ErrNotComparable = errors.New("the results are not comparable")

// diffMargin is the smallest difference worth a claim.
const diffMargin = 0.03

// Diff compares the cases of b with those of the same name in a: throughput and latency, and
// how much longer or shorter each segment became. The two were measured at different times, so
// a machine that was busier during one of them shows as a difference; the environments tell
// only part of that.
func Diff(a, b *bench.Result) (*report.Doc, error) {
	if err := checkComparable(a, b); err != nil {
		return nil, err
	}
	d := &report.Doc{Title: "weir profile diff", Subtitle: a.ID + " against " + b.ID, Env: &b.Env}
	for _, after := range b.Cases {
		before := a.Find(after.Name)
		if before == nil {
			continue
		}
		d.Sections = append(d.Sections, report.Section{Title: after.Name, Tables: []report.Table{diffTable(before, after)}, Charts: diffChart(before, after)})
	}
	if notes := differences(a, b); len(notes) > 0 {
		d.Sections[0].Text = append(d.Sections[0].Text, "The environments differ: "+strings.Join(notes, "; ")+".")
	}
	return d, nil
}

// checkComparable returns why two results cannot be compared.
func checkComparable(a, b *bench.Result) error {
	for _, f := range []string{"engine", "workload", "rows", "script"} {
		if x, y := a.Experiment.Factors[f], b.Experiment.Factors[f]; x != y {
			return fmt.Errorf("%w: %s is %q in one and %q in the other", ErrNotComparable, f, x, y)
		}
	}
	if a.Experiment.Loop != b.Experiment.Loop {
		return fmt.Errorf("%w: a closed loop and an open one", ErrNotComparable)
	}
	var names []string
	for _, c := range b.Cases {
		if a.Find(c.Name) != nil {
			return nil
		}
		names = append(names, c.Name)
	}
	return fmt.Errorf("%w: no case of one (%s) is in the other", ErrNotComparable, strings.Join(names, "; "))
}

// differences lists what differs in the circumstances of two results.
func differences(a, b *bench.Result) []string {
	var out []string
	note := func(what, x, y string) {
		if x != y {
			out = append(out, fmt.Sprintf("%s %s and %s", what, x, y))
		}
	}
	note("processor", a.Env.CPU, b.Env.CPU)
	note("cores", fmt.Sprint(a.Env.Cores), fmt.Sprint(b.Env.Cores))
	note("kernel", a.Env.Kernel, b.Env.Kernel)
	note("durability", a.Env.Durability, b.Env.Durability)
	for _, x := range a.Env.Servers {
		i := slices.IndexFunc(b.Env.Servers, func(y measure.Server) bool { return y.Name == x.Name })
		if i < 0 {
			continue
		}
		y := b.Env.Servers[i]
		note(x.Name, x.Version, y.Version)
		for name, value := range x.Settings {
			note(x.Name+"'s "+name, value, y.Settings[name])
		}
	}
	slices.Sort(out)
	return out
}

func diffTable(before, after *bench.Case) report.Table {
	t := report.Table{
		Columns: report.Columns(":metric", ":unit", "before", "after", "ratio", "interval", ":verdict"),
		Note:    "Medians over the rounds; ratios with 95 % intervals. Differences below 3 % count as none.",
	}
	for _, m := range bench.Metrics() {
		x, y := before.Values(m), after.Values(m)
		if len(x) == 0 || len(y) == 0 || bench.Median(x) == 0 && bench.Median(y) == 0 {
			continue
		}
		row := report.Cells(m.Name, m.Unit, number(bench.Median(x)), number(bench.Median(y)))
		ratio := bench.UnpairedRatio(x, y, 0.95)
		if ratio.Method == "none" || ratio.N < 2 {
			row = append(row, report.Cells("-", "-", string(bench.CannotTell))...)
		} else {
			verdict := string(bench.Judge(ratio, m.Higher, diffMargin))
			if m.Neutral {
				verdict = "-"
			}
			row = append(row, report.Cells(fmt.Sprintf("%.2fx", ratio.Median), fmt.Sprintf("[%.2f, %.2f]", ratio.Lo, ratio.Hi), verdict)...)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// diffChart shows the segments of both.
func diffChart(before, after *bench.Case) []report.Chart {
	x, y := *before, *after
	x.Name, y.Name = "before", "after"
	list := totals(&bench.Result{Cases: []*bench.Case{&x, &y}})
	if len(list) != 2 {
		return nil
	}
	return []report.Chart{lengthChart(list)}
}
