package backupbench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Report makes a report of the outcome: targets first, then each experiment.
func (o *Outcome) Report() *report.Doc {
	d := &report.Doc{
		Title: "weir backup and other tools on " + o.server(),
		Subtitle: "Each tool in turn backs up and restores the same data. Every archive is read back, every restored row compared with its source; " +
			"time runs until the archive is on disk; CPU time is that of whole programs.",
		Findings: bench.Cautions(o.Results...),
	}
	d.Sections = suite.TargetSection(o.Targets())
	for _, r := range o.Results {
		if d.Env == nil || len(r.Env.Servers) > len(d.Env.Servers) {
			d.Env = &r.Env
		}
		d.Sections = append(d.Sections, section(r))
	}
	d.Sections = append(d.Sections, o.LeftOut()...)
	return d
}

// Brief is the part of the report that fits a terminal.
func (o *Outcome) Brief() *report.Doc {
	full := o.Report()
	d := suite.Shorten(full)
	for _, s := range full.Sections {
		if len(s.Tables) > 0 {
			s.Tables = s.Tables[:1]
		}
		s.Charts, s.Findings = nil, nil
		d.Sections = append(d.Sections, s)
	}
	return d
}

// server is the server's own name and version.
func (o *Outcome) server() string {
	for _, r := range o.Results {
		if len(r.Env.Servers) > 0 {
			return r.Env.Servers[0].Name + " " + r.Env.Servers[0].Version
		}
	}
	return o.Engine.Title()
}

// section is the section of one experiment.
func section(r *bench.Result) report.Section {
	s := report.Section{
		Title:  r.Experiment.Title,
		Text:   []string{introduction(r)},
		Tables: []report.Table{caseTable(r)},
		Charts: charts(r),
	}
	s.Tables = slices.Concat(s.Tables, insideTables(r), commandTable(r))
	s.Findings = append(bench.WarningFindings(r), bench.ReportFindings(r.Findings)...)
	return s
}

// introduction says how an experiment was run.
func introduction(r *bench.Result) string {
	rounds := "One round"
	if n := r.Experiment.Rounds; n > 1 {
		rounds = fmt.Sprintf("%d rounds, sides in alternating order; medians", n)
	}
	if aboutMemory(r) {
		return rounds + "."
	}
	return fmt.Sprintf("%s, and ratios to %s with 95 %% intervals.", rounds, r.Experiment.Baseline)
}

// column is a figure of a case.
type column struct {
	head report.Column
	cell func(r *bench.Result, c *bench.Case) string
}

// columns lists all possible columns. Those that no case has are left out.
func columns() []column {
	metric := func(key, name string) column {
		m, _ := bench.MetricByKey(key, moves.Subject)
		if name == "" {
			name = m.Name
		}
		return column{report.Column{Name: name, Unit: m.Unit, Numeric: true}, func(_ *bench.Result, c *bench.Case) string {
			s, ok := c.Summary[key]
			if !ok {
				return ""
			}
			return bench.Figure(s.Median)
		}}
	}
	against := func(key, name string) column {
		return column{report.Column{Name: name, Numeric: true}, func(r *bench.Result, c *bench.Case) string {
			for _, k := range r.Comparisons {
				if k.B == c.Name && k.Metric == key {
					return ratioText(k.Ratio)
				}
			}
			return ""
		}}
	}
	each := column{report.Column{Name: "a buffer", Unit: "ns", Numeric: true}, func(r *bench.Result, c *bench.Case) string {
		s, ok := c.Summary["rate"]
		if !ok || !strings.HasPrefix(r.Experiment.Name, "buffers-") || s.Median == 0 {
			return ""
		}
		return bench.Figure(1e9 / s.Median / bufferCycles)
	}}
	allocated := column{report.Column{Name: "allocated", Unit: "B", Numeric: true}, func(r *bench.Result, c *bench.Case) string {
		s, ok := c.Summary["allocated"]
		if !ok || !strings.HasPrefix(r.Experiment.Name, "buffers-") {
			return ""
		}
		return bench.Figure(s.Median / bufferCycles)
	}}
	return []column{
		each, metric("wall", ""), metric("plain_rate", ""), against("rate", "speed against"),
		metric("client_s", ""), metric("server_s", ""), metric("peak", ""),
		metric("stored", ""), metric("squeeze", ""), against("stored", "size against"), allocated,
	}
}

// caseTable is the table of an experiment. The fastest case is emphasised.
func caseTable(r *bench.Result) report.Table {
	t := report.Table{Columns: []report.Column{{Name: "case"}}}
	var shown []column
	for _, col := range columns() {
		if aboutMemory(r) && strings.HasSuffix(col.head.Name, " against") {
			continue // moving less data ends sooner
		}
		if micro(r) && (col.head.Name == "CPU, client" || col.head.Name == "time") {
			continue // with many moves; for a single one it equals the wall time
		}
		for _, c := range r.Cases {
			if col.cell(r, c) != "" {
				shown = append(shown, col)
				t.Columns = append(t.Columns, col.head)
				break
			}
		}
	}
	best := bench.Fastest(r)
	if aboutMemory(r) {
		best = nil
	}
	for _, c := range r.Cases {
		row := []report.Cell{{Text: c.Name, Strong: c == best}}
		for _, col := range shown {
			text := col.cell(r, c)
			if text == "" {
				text = "-"
			}
			row = append(row, report.Cell{Text: text})
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// aboutMemory reports whether an experiment runs one tool at several sizes.
func aboutMemory(r *bench.Result) bool { return strings.HasPrefix(r.Experiment.Name, "memory-") }

// micro reports whether an experiment runs within this process.
func micro(r *bench.Result) bool {
	_, whole := r.Experiment.Factors["engine"]
	return !whole
}

// commandTable lists the commands of experiments with whole programs.
func commandTable(r *bench.Result) []report.Table {
	t := report.Table{Title: "What was run", Columns: report.Columns(":case", ":command")}
	for _, c := range r.Cases {
		if way := c.Factors["way"]; strings.Contains(way, "DSN") || strings.Contains(way, "DIR") {
			t.Rows = append(t.Rows, report.Cells(c.Name, way))
		}
	}
	return t.When(len(t.Rows) > 0)
}

// charts draws speeds against the baseline, and size against time.
func charts(r *bench.Result) []report.Chart {
	if aboutMemory(r) {
		return []report.Chart{memoryChart(r)}
	}
	var out []report.Chart
	speed := report.Chart{
		Title: "Speed against " + r.Experiment.Baseline, Kind: report.Intervals, LogY: true, YLabel: "times as fast", Tabled: true,
		Series: []report.Series{{Name: "speed"}}, Marks: []report.Mark{{At: 1, Label: "the same"}},
	}
	for _, k := range r.Comparisons {
		if k.Metric != "rate" || !(k.Ratio.Median > 0) || k.Ratio.Hi > 1e6 || k.Ratio.Lo < 1e-6 {
			continue
		}
		speed.Categories = append(speed.Categories, k.B)
		speed.Series[0].Points = append(speed.Series[0].Points, report.Point{Y: k.Ratio.Median, Lo: k.Ratio.Lo, Hi: k.Ratio.Hi})
	}
	if len(speed.Categories) > 0 {
		out = append(out, speed)
	}
	trade := report.Chart{Title: "Time and size", Kind: report.Bars, YLabel: "against the largest", Tabled: true, Series: []report.Series{{Name: "time"}, {Name: "size"}}}
	var wall, stored float64
	for _, c := range r.Cases {
		wall, stored = max(wall, c.Summary["wall"].Median), max(stored, c.Summary["stored"].Median)
	}
	if wall == 0 || stored == 0 || strings.HasPrefix(r.Experiment.Name, "decompress-") {
		return out
	}
	for _, c := range r.Cases {
		trade.Categories = append(trade.Categories, c.Name)
		trade.Series[0].Points = append(trade.Series[0].Points, report.Point{Y: c.Summary["wall"].Median / wall})
		trade.Series[1].Points = append(trade.Series[1].Points, report.Point{Y: c.Summary["stored"].Median / stored})
	}
	return append(out, trade)
}

// memoryChart shows the peak memory of each case.
func memoryChart(r *bench.Result) report.Chart {
	c := report.Chart{Title: "Peak memory", Kind: report.Bars, YLabel: "MB", Tabled: true, Series: []report.Series{{Name: "peak"}}}
	for _, k := range r.Cases {
		s := k.Summary["peak"]
		c.Categories = append(c.Categories, k.Name)
		c.Series[0].Points = append(c.Series[0].Points, report.Point{Y: s.Median, Lo: s.Lo, Hi: s.Hi})
	}
	return c
}

// ratioText formats a ratio with its interval.
func ratioText(i bench.Interval) string {
	if i.N < 2 || i.Hi > 1e6 {
		return fmt.Sprintf("%.2fx", i.Median)
	}
	return fmt.Sprintf("%.2fx [%.2f, %.2f]", i.Median, i.Lo, i.Hi)
}
