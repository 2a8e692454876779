package study

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Document makes a report of studies. The environment is that of the first.
func Document(title string, results ...*bench.Result) *report.Doc {
	d := &report.Doc{Title: title}
	for _, r := range results {
		if d.Env == nil {
			env := r.Env
			d.Env = &env
		} else {
			d.Env.Servers = append(slices.Clone(d.Env.Servers), r.Env.Servers...)
		}
		d.Sections = append(d.Sections, sections(r)...)
	}
	return d
}

// caseTotals is a case with its rounds merged.
type caseTotals struct {
	*bench.Case
	latency  *measure.Hist
	boundary *bench.Boundary
	cold     *bench.Boundary // the time before the windows; nil if it was not measured
	coldOps  int64
	coldSecs float64
	seconds  float64
	ops      int64
}

func totals(r *bench.Result) []caseTotals {
	var out []caseTotals
	for _, k := range r.Cases {
		c := caseTotals{Case: k, latency: k.Latency(), boundary: &bench.Boundary{ArrivalKnown: true}}
		for j := range c.Samples {
			s := &c.Samples[j]
			c.seconds += s.Seconds
			c.ops += s.Ops
			if s.Boundary != nil {
				c.boundary.Add(s.Boundary, s.Ops)
			}
			if s.Cold != nil && s.Cold.Boundary != nil {
				if c.cold == nil {
					c.cold = &bench.Boundary{ArrivalKnown: true}
				}
				c.cold.Add(s.Cold.Boundary, s.Cold.Ops)
				c.coldOps += s.Cold.Ops
				c.coldSecs += s.Cold.Seconds
			}
		}
		if len(c.boundary.Segments) > 0 {
			c.boundary.Divide(c.ops)
			out = append(out, c)
		}
	}
	return out
}

// sections makes the sections of one result: the findings first, then the figures behind them.
func sections(r *bench.Result) []report.Section {
	list := totals(r)
	title := cmp.Or(r.Experiment.Title, r.Experiment.Name)
	first := report.Section{Title: title, Text: []string{setting(r)}}
	for _, w := range r.Warnings {
		first.Text = append(first.Text, "Note: "+w+".")
	}
	if len(list) <= detailed {
		for _, c := range list {
			first.Text = append(first.Text, dominant(c))
		}
	}
	first.Text = append(first.Text, overheadText(r)...)
	first.Text = append(first.Text, limits(list)...)
	first.Tables = append(first.Tables, bench.CaseTable(r, "rate", "p50", "p95", "p99", "errors"))
	if len(list) > 0 {
		first.Tables = append(append(first.Tables, sidesTable(r)...), segmentTable(list))
		first.Charts = append(first.Charts, shareChart(list), lengthChart(list))
	}
	first.Findings = bench.ReportFindings(r.Findings)
	out := []report.Section{first}
	if t, c, ok := whatIf(r); ok {
		out = append(out, report.Section{Title: title + ": pools and workers", Tables: []report.Table{t}, Charts: []report.Chart{c}})
	}
	latency := report.Section{Title: title + ": latency"}
	if len(list) <= detailed {
		for _, c := range list {
			latency.Tables = append(latency.Tables, detailTable(c))
		}
	}
	latency.Charts = bench.LatencyChart(r)
	inside := report.Section{Title: title + ": server and processes"}
	inside.Tables = slices.Concat(insideTable(list), processTable(list), coldTable(list))
	against := report.Section{Title: title + ": throughput", Charts: []report.Chart{bench.RateChart(r)}}
	if len(r.Comparisons) > 0 {
		against.Tables = append(against.Tables, bench.ComparisonTable(r))
	}
	return append(out, latency, inside, against)
}

// detailed is the largest number of cases that each get a table of percentiles.
const detailed = 4

// setting describes what all cases have in common.
func setting(r *bench.Result) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(r.Experiment.Factors)) {
		parts = append(parts, k+" "+r.Experiment.Factors[k])
	}
	text := fmt.Sprintf("%s loop; %s. Each case ran in %s, in turn with the others.", r.Experiment.Loop, strings.Join(parts, ", "), bench.Rounds(r.Experiment.Rounds))
	if r.Partial {
		text += " The run was interrupted: the figures cover the part that ran."
	}
	return text
}

// means returns the mean time of an operation in each segment, in microseconds.
func (c caseTotals) means() []float64 {
	out := make([]float64, len(c.boundary.Segments))
	for i, s := range c.boundary.Segments {
		out[i] = s.Hist.Mean() / 1e3
	}
	return out
}

// about describes each segment.
var about = map[string]string{
	bench.SegmentSchedule: "the generator's own lateness, and waiting for a worker",
	bench.SegmentQueue:    "waiting for a connection of the pool",
	bench.SegmentConnect:  "opening connections",
	bench.SegmentCheck:    "checking connections of the pool",
	bench.SegmentEncode:   "the driver, before the write",
	bench.SegmentSend:     "the write",
	bench.SegmentServer:   "network and server",
	bench.SegmentWake:     "answers that have arrived and wait for this process to read them",
	bench.SegmentReceive:  "the rest of the answer",
	bench.SegmentDecode:   "the driver, after the read",
	bench.SegmentRelease:  "giving the connection back",
	bench.SegmentHarness:  "the load generator itself",
}

// dominant names the boundary where most of the time went.
func dominant(c caseTotals) string {
	best := slices.MaxFunc(c.boundary.Segments, func(a, b bench.Segment) int { return cmp.Compare(a.Hist.Sum(), b.Hist.Sum()) })
	text := fmt.Sprintf("%s: %.0f %% of the mean latency of %s is %s (%s).", c.Name, 100*c.boundary.Share(best.Name),
		micros(c.latency.Mean()/1e3), best.Name, about[best.Name])
	if known := c.boundary.RoundTrips; known > 0 && float64(c.boundary.Overtaken) > 0.1*float64(known) {
		text += fmt.Sprintf(" In %.0f %% of the round trips the answer arrived before the write had returned; their time in the server is part of send.",
			100*float64(c.boundary.Overtaken)/float64(known))
	}
	return text
}

// passed returns the segments in which any of the cases spent time.
func passed(list []caseTotals) []int {
	var out []int
	for i := range list[0].boundary.Segments {
		if slices.ContainsFunc(list, func(c caseTotals) bool { return c.boundary.Segments[i].Hist.Sum() > 0 }) {
			out = append(out, i)
		}
	}
	return out
}

// segmentTable shows the mean of each segment.
func segmentTable(list []caseTotals) report.Table {
	t := report.Table{Title: "Where the time of an operation goes", Columns: []report.Column{{Name: "case"}}}
	shown := passed(list)
	for _, i := range shown {
		t.Columns = append(t.Columns, report.Column{Name: list[0].boundary.Segments[i].Name, Unit: "us", Numeric: true})
	}
	t.Columns = append(t.Columns, report.Column{Name: "latency", Unit: "us", Numeric: true})
	worst := 1.0 // ratio of the sum of the segments to the latency, the one furthest from 1
	for _, c := range list {
		row := report.Cells(c.Name)
		means := c.means()
		for _, i := range shown {
			row = append(row, report.Cell{Text: number(means[i]), Strong: means[i] == slices.Max(means)})
		}
		sum := 0.0
		for _, m := range means {
			sum += m
		}
		if ratio := sum / max(c.latency.Mean()/1e3, 1e-9); math.Abs(ratio-1) > math.Abs(worst-1) {
			worst = ratio
		}
		t.Rows = append(t.Rows, append(row, report.Cell{Text: number(c.latency.Mean() / 1e3)}))
	}
	t.Note = fmt.Sprintf("Means. The segments exclude each other and add up to %.2f %% of the latency. The largest is in bold.", 100*worst)
	return t
}

func shareChart(list []caseTotals) report.Chart {
	c := segmentsChart(list, func(c caseTotals, i int) float64 { return c.boundary.Share(c.boundary.Segments[i].Name) })
	c.Title, c.Kind, c.Tabled = "Share of each segment in the mean latency", report.Stacked, true
	return c
}

func lengthChart(list []caseTotals) report.Chart {
	c := segmentsChart(list, func(c caseTotals, i int) float64 { return c.boundary.Segments[i].Hist.Mean() / 1e3 })
	c.Title, c.Kind, c.Unit, c.Tabled = "Mean latency by segment", report.Segments, "us", true
	return c
}

func segmentsChart(list []caseTotals, of func(c caseTotals, i int) float64) report.Chart {
	var c report.Chart
	for _, k := range list {
		c.Categories = append(c.Categories, k.Name)
	}
	for _, i := range passed(list) {
		name := list[0].boundary.Segments[i].Name
		s := report.Series{Name: name, Rest: name == bench.SegmentHarness}
		for _, k := range list {
			s.Points = append(s.Points, report.Point{Y: of(k, i)})
		}
		c.Series = append(c.Series, s)
	}
	return c
}

func overheadText(r *bench.Result) []string {
	var out []string
	percent := func(i bench.Interval) string {
		return fmt.Sprintf("%+.1f %% [%+.1f, %+.1f]", 100*(i.Median-1), 100*(i.Lo-1), 100*(i.Hi-1))
	}
	for _, o := range r.Overhead {
		out = append(out, fmt.Sprintf("Tracing costs, at %d in flight: throughput %s, client CPU per operation %s (%d pairs of slices of %.0f ms, with tracing over without; 95 %% intervals).",
			o.Concurrency, percent(o.Rate), percent(o.CPU), o.Rate.N, 1000*o.SliceSeconds))
	}
	return out
}

// limits lists what could not be measured.
func limits(list []caseTotals) []string {
	var seen []string
	for _, c := range list {
		for _, u := range c.boundary.Unavailable {
			if !slices.Contains(seen, u) {
				seen = append(seen, u)
			}
		}
	}
	if len(seen) == 0 {
		return nil
	}
	return []string{"Not looked at: " + strings.Join(seen, "; ") + "."}
}

// number formats a number with three significant digits, or as a whole number from 100 on.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0 || math.IsNaN(v):
		return "0"
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a < 0.0005:
		return "0"
	default:
		return strconv.FormatFloat(v, 'f', min(max(0, 2-int(math.Floor(math.Log10(a)))), 3), 64)
	}
}

// micros formats microseconds in a suitable unit.
func micros(us float64) string {
	switch {
	case us >= 1e6:
		return number(us/1e6) + " s"
	case us >= 1e3:
		return number(us/1e3) + " ms"
	default:
		return number(us) + " us"
	}
}
