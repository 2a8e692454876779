package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Rounds is a number of rounds in words.
func Rounds(n int) string { return report.Plural(n, "round", "rounds") }

// Document makes a report of results: for each experiment a table of its cases, the comparisons
// with the baseline, charts of throughput and latency, and its findings. All results must come
// from one environment, that of the first.
func Document(title string, results ...*Result) *report.Doc {
	d := &report.Doc{Title: title, Findings: Cautions(results...)}
	for _, r := range results {
		if d.Env == nil {
			d.Env = &r.Env
		}
		name := cmp.Or(r.Experiment.Title, r.Experiment.Name)
		s := report.Section{Title: name, Tables: []report.Table{CaseTable(r)}}
		s.Text = append(s.Text, fmt.Sprintf("%s loop, %s after %d warm-up rounds, sides in alternating order. Medians over the rounds.",
			r.Experiment.Loop, Rounds(r.Experiment.Rounds), r.Experiment.Warmup))
		if r.Experiment.Loop == "open" {
			s.Text = append(s.Text, "Latency counts from the intended start of each operation, service time from its actual one.")
		}
		s.Tables = append(s.Tables, ColdTable(r)...)
		if len(r.Comparisons) > 0 {
			s.Tables = append(s.Tables, ComparisonTable(r))
		}
		s.Charts = slices.Concat([]report.Chart{RateChart(r)}, LatencyChart(r), SeriesChart(r))
		s.Findings = append(s.Findings, WarningFindings(r)...)
		s.Findings = append(s.Findings, ReportFindings(r.Findings)...)
		d.Sections = append(d.Sections, s)
	}
	return d
}

// CaseTable lists the cases with the metrics of the given keys, or, without keys, with all
// metrics except details. Metrics that no case has are left out. The highest throughput is
// emphasised.
func CaseTable(r *Result, keys ...string) report.Table {
	t := report.Table{Columns: report.Columns(":case", "in flight")}
	var shown []Metric
	for _, m := range Metrics(r.Subjects()...) {
		if len(keys) > 0 && !slices.Contains(keys, m.Key) || len(keys) == 0 && m.Detail {
			continue
		}
		for _, c := range r.Cases {
			if s, ok := c.Summary[m.Key]; ok && (m.Key != "errors" || s.Hi > 0) {
				shown = append(shown, m)
				t.Columns = append(t.Columns, report.Column{Name: m.Name, Unit: m.Unit, Numeric: true})
				if m.Key == "rate" {
					t.Columns = append(t.Columns, report.Column{Name: "against " + r.Experiment.Baseline, Numeric: true})
				}
				break
			}
		}
	}
	best := Fastest(r)
	for _, c := range r.Cases {
		row := report.Cells(c.Name, inFlight(c))
		for _, m := range shown {
			s, ok := c.Summary[m.Key]
			cell := report.Cell{Text: "-"}
			if ok {
				cell = report.Cell{Text: Figure(s.Median), Strong: m.Key == "rate" && c == best}
			}
			row = append(row, cell)
			if m.Key == "rate" {
				row = append(row, report.Cell{Text: against(r, c)})
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// MetricTable lists the metrics of the given keys that at least one case has, and the cases
// that have at least one of them. It returns nil if there are none.
func MetricTable(r *Result, title string, keys ...string) []report.Table {
	t := report.Table{Title: title, Columns: []report.Column{{Name: "case"}}}
	keys = slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		return !slices.ContainsFunc(r.Cases, func(c *Case) bool { _, ok := c.Summary[key]; return ok })
	})
	for _, key := range keys {
		m := MustMetric(key, r.Subjects()...)
		t.Columns = append(t.Columns, report.Column{Name: strings.TrimPrefix(m.Name, "readers "), Unit: m.Unit, Numeric: true})
	}
	for _, c := range r.Cases {
		row, some := report.Cells(c.Name), false
		for _, key := range keys {
			text := "-"
			if s, ok := c.Summary[key]; ok {
				text, some = Figure(s.Median), true
			}
			row = append(row, report.Cell{Text: text})
		}
		if some {
			t.Rows = append(t.Rows, row)
		}
	}
	return t.When(len(keys) > 0)
}

// against is a case's throughput as a multiple of the baseline's.
func against(r *Result, c *Case) string {
	for _, k := range r.Comparisons {
		if k.B == c.Name && k.Metric == "rate" {
			return RatioText(k.Ratio)
		}
	}
	return "-"
}

func inFlight(c *Case) string {
	if len(c.Samples) == 0 || c.Samples[0].InFlight == 0 {
		return "-"
	}
	return strconv.Itoa(c.Samples[0].InFlight)
}

// ComparisonTable lists the ratios to the baseline and their verdicts.
func ComparisonTable(r *Result) report.Table {
	t := report.Table{
		Title:   "Against " + r.Experiment.Baseline,
		Columns: report.Columns(":case", ":metric", "ratio", "interval", "pairs", ":verdict"),
		Note:    "Medians of paired log ratios with 95 % intervals. Differences below 3 % count as none; better and worse are said only when chance alone would do it in less than 1 of 100 runs.",
	}
	for _, c := range r.Comparisons {
		m, _ := MetricByKey(c.Metric, r.Subjects()...)
		verdict := string(c.Verdict)
		if c.Needed > 0 {
			verdict += fmt.Sprintf(" (about %d rounds would)", c.Needed)
		}
		t.Rows = append(t.Rows, report.Cells(c.B, m.Name, fmt.Sprintf("%.2fx", c.Ratio.Median),
			c.Ratio.Range(twoPlaces), strconv.Itoa(c.Ratio.N), verdict))
	}
	return t
}

// RateChart shows the throughput of all cases with its intervals.
func RateChart(r *Result) report.Chart {
	c := report.Chart{Title: "Throughput", Kind: report.Bars, YLabel: "operations per second", Series: []report.Series{{Name: "throughput"}}}
	for _, k := range r.Cases {
		s := k.Summary["rate"]
		c.Categories = append(c.Categories, k.Name)
		c.Series[0].Points = append(c.Series[0].Points, report.Point{Y: s.Median, Lo: s.Lo, Hi: s.Hi})
	}
	return c
}

// LatencyChart shows the latency distribution of all cases, each merged over its rounds; nil if
// no case has one.
func LatencyChart(r *Result) []report.Chart {
	c := report.Chart{Title: "Latency by percentile", Kind: report.Percentiles, LogY: true, XLabel: "percentile of operations", YLabel: "ms"}
	for _, k := range r.Cases {
		h := k.Latency()
		if h.Count() == 0 {
			continue
		}
		s := report.Series{Name: k.Name}
		// Ten points for each nine of the quantile, as long as at least ten values lie beyond
		// it.
		for n := 0; ; n++ {
			q := 1 - math.Pow(10, -float64(n)/10)
			if q > 0.99999 || (1-q)*float64(h.Count()) < 10 && n > 0 {
				break
			}
			s.Points = append(s.Points, report.Point{X: q, Y: max(float64(h.Quantile(q)), 1) / 1e6})
		}
		c.Series = append(c.Series, s)
	}
	return c.When(len(c.Series) > 0)
}

// ReportFindings converts findings to those of a report.
func ReportFindings(findings []Finding) []report.Finding {
	var out []report.Finding
	for _, f := range findings {
		out = append(out, report.Finding{Warn: f.Severity == Warn, Claim: f.Claim, Evidence: f.Evidence, Advice: f.Advice})
	}
	return out
}

// WarningFindings returns a result's warnings as findings of a report.
func WarningFindings(r *Result) []report.Finding {
	var out []report.Finding
	for _, w := range r.Warnings {
		out = append(out, report.Finding{Warn: true, Claim: strings.ToUpper(w[:min(1, len(w))]) + w[min(1, len(w)):] + "."})
	}
	return out
}

// Figure formats a number with three significant digits, or, from 100 on, as a whole number
// with thousands separators.
func Figure(v float64) string {
	switch {
	case v == 0 || math.IsNaN(v):
		return strconv.FormatFloat(v, 'f', -1, 64)
	case math.Abs(v) >= 100:
		return Count(v)
	default:
		return strconv.FormatFloat(v, 'f', max(0, 2-int(math.Floor(math.Log10(math.Abs(v))))), 64)
	}
}

// ColdTable compares the time before the measured windows with the windows; nil if no case was
// measured cold.
func ColdTable(r *Result) []report.Table {
	t := report.Table{
		Title:   "Before the measured window",
		Columns: report.Columns(":case", "settled after|s", "cold p50|ms", "cold p99|ms", "warm p50|ms", "warm p99|ms"),
		Note:    "Cold is the time in which connections are opened and caches filled. No other figure includes it.",
	}
	for _, c := range r.Cases {
		cold := &measure.Hist{}
		var seconds []float64
		for j := range c.Samples {
			if k := c.Samples[j].Cold; k != nil {
				cold.Merge(k.Latency)
				seconds = append(seconds, k.Seconds)
			}
		}
		if cold.Count() == 0 {
			continue
		}
		warm := c.Latency()
		row := []string{c.Name, Figure(Median(seconds))}
		for _, h := range []*measure.Hist{cold, warm} {
			row = append(row, Figure(float64(h.Quantile(.5))/1e6), Figure(float64(h.Quantile(.99))/1e6))
		}
		t.Rows = append(t.Rows, report.Cells(row...))
	}
	return t.When(len(t.Rows) > 0)
}

// minSeries is how many intervals a series needs to be worth a chart.
const minSeries = 5

// SeriesChart shows throughput over the time of a round: the median over the rounds, with a
// band from the slowest to the fastest. Nil if the rounds are too short.
func SeriesChart(r *Result) []report.Chart {
	c := report.Chart{Title: "Throughput over time", Kind: report.TimeSeries, XLabel: "since the window opened", YLabel: "operations per second"}
	for _, k := range r.Cases {
		s := report.Series{Name: k.Name}
		for at := 0; ; at++ {
			var rates []float64
			width := 0.0
			for j := range k.Samples {
				// The last interval may be incomplete.
				if v := k.Samples[j].Series; v != nil && at < len(v.Intervals)-1 && (width == 0 || width == v.IntervalSeconds) {
					width = v.IntervalSeconds
					rates = append(rates, float64(v.Intervals[at].Ops)/width)
				}
			}
			if len(rates) == 0 {
				break
			}
			s.Points = append(s.Points, report.Point{X: (float64(at) + 0.5) * width, Y: Median(rates), Lo: slices.Min(rates), Hi: slices.Max(rates)})
		}
		if len(s.Points) >= minSeries {
			c.Series = append(c.Series, s)
		}
	}
	return c.When(len(c.Series) > 0)
}
