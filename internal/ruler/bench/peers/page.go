package peers

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/reference"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// pages is the one page.
func pages(m *reference.Measured, env *measure.Environment, plan string) map[string]*report.Doc {
	doc := &report.Doc{
		Title:    "weir compared with the tools in use today",
		Subtitle: fmt.Sprintf("weir bench peers --plan %s: every goal of the design with both sides, measured in turn on one machine.", plan),
		Env:      env,
	}
	count := make(map[string]int)
	var missed, missing, beyond []string
	var areas []string
	tables := make(map[string]*report.Table)
	for _, w := range Rows() {
		if tables[w.Area] == nil {
			areas = append(areas, w.Area)
			tables[w.Area] = &report.Table{
				Columns: report.Columns(":work", ":beside", "theirs", "weir", "ratio", "95 % interval", "rounds", ":goal", ":verdict", "floor", ":what limits it"),
			}
		}
		j := w.judge(m)
		tables[w.Area].Rows = append(tables[w.Area].Rows, j.cells())
		if j.Why != "" {
			missing = append(missing, w.Work+": "+j.Why)
			continue
		}
		count[j.Target.Verdict]++
		if j.Beyond > 0 {
			beyond = append(beyond, fmt.Sprintf("%s: the floor %s, weir %.0f %% of that, goal %s", w.Work, j.Floor, 100*j.Beyond, j.Target.Want))
		}
		if j.Target.Verdict == suite.NotMet {
			missed = append(missed, fmt.Sprintf("%s: %s %s instead of %s", w.Work, bench.Figure(j.Target.Got.Median), j.Target.Unit, j.Target.Want))
		}
	}
	all := count[suite.Met] + count[suite.NotMet] + count[suite.Undecided]
	doc.Findings = append(doc.Findings, report.Finding{
		First: true, See: areas[0],
		Claim:    fmt.Sprintf("Goals that were measured: %d. Met: %d, not met: %d, cannot tell: %d.", all, count[suite.Met], count[suite.NotMet], count[suite.Undecided]),
		Evidence: missed,
	})
	if len(beyond) > 0 {
		doc.Findings = append(doc.Findings, report.Finding{
			Claim:    fmt.Sprintf("Beyond the floor: %d of the goals that are not certainly met. For these, the smallest program for the same work misses the goal on this machine, too.", len(beyond)),
			Evidence: beyond,
		})
	}
	if len(missing) > 0 {
		doc.Findings = append(doc.Findings, report.Finding{Warn: true, Claim: fmt.Sprintf("Goals that were not measured: %d.", len(missing)), Evidence: missing})
	}
	var results []*bench.Result
	for _, p := range m.All {
		results = append(results, m.Results(p.Name)...)
	}
	doc.Findings = append(doc.Findings, bench.Cautions(results...)...)
	for i, area := range areas {
		t := tables[area]
		if i == 0 {
			t.Note = "Medians of rounds in which the sides took turns; the ratio is of pairs of rounds. A goal is met when the whole interval meets it, and not met when no part of the interval does. " +
				"The floor is the ratio that the smallest program for the same work reaches on this machine. " +
				"If weir is far above it, weir shares the server's work between clients, which that program does not, so it is no limit. " +
				"The named page of docs/results explains what limits a figure; speed-rows.md there has the reason for every row. "
		}
		if least := floorNotes[area]; least != "" {
			t.Note += "The floor: " + least + "."
		}
		doc.Sections = append(doc.Sections, report.Section{Title: area, Tables: []report.Table{*t}})
	}
	doc.Sections = append(doc.Sections, reference.PartsSection(m, m.All))
	return map[string]*report.Doc{"index": doc}
}

// cells are the cells of the row on the page.
func (j *judged) cells() []report.Cell {
	out := []report.Cell{{Text: j.Work}, {Text: cmp.Or(j.Name, "-")}, {Text: cmp.Or(j.Theirs, "-")}, {Text: cmp.Or(j.Ours, "-")}}
	if j.Why != "" {
		return append(out, report.Cells("-", "-", "-", j.want(), "not measured", "-", j.Limit)...)
	}
	got := j.Target.Got
	ratio := bench.Figure(got.Median) + "x"
	if j.Target.Unit != "x" {
		ratio = "-"
	}
	limited := "-"
	if j.Target.Verdict != suite.Met {
		limited = j.Limit
		if j.Beyond > 0 {
			limited = fmt.Sprintf("the floor misses the goal, too; weir reaches %.0f %% of it; %s", 100*j.Beyond, j.Limit)
		}
	}
	return append(out,
		report.Cell{Text: ratio, Strong: true},
		report.Cell{Text: bench.Figure(got.Lo) + " - " + bench.Figure(got.Hi)},
		report.Cell{Text: strconv.Itoa(got.N)},
		report.Cell{Text: j.Target.Want},
		report.Cell{Text: j.Target.Verdict, Strong: j.Target.Verdict != suite.Met},
		report.Cell{Text: cmp.Or(j.Floor, "-")},
		report.Cell{Text: limited},
	)
}
