package kvbench

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Columns of the tables of cases: metrics by their keys. classColumns separate reads and
// writes.
var (
	columns       = []string{"rate", "strong_p50", "strong_p99", "weak_p50", "weak_p99", "group", "cpu_server", "cpu_client", "rss_replica", "gc_pause", "errors"}
	writerColumns = []string{"rate", "strong_p50", "weak_p50", "peer_messages_per_write", "messages_per_write", "writes_rate", "calls_rate", "fsync_rate", "group", "cpu_server", "errors"}
	classColumns  = []string{"rate", "strong_write_p50", "strong_read_p50", "weak_write_p50", "weak_read_p50", "fast_share", "group", "cpu_server", "cpu_client", "errors"}
)

// caseTable lists the cases of related results, each with its durability and its status.
func caseTable(results []*bench.Result, columns []string) report.Table {
	t := report.Table{Columns: report.Columns(":case", ":durability", "in flight")}
	var shown []bench.Metric
	for _, key := range columns {
		if m, ok := bench.MetricByKey(key, kvs.Subject); ok && slices.ContainsFunc(results, func(r *bench.Result) bool { return hasMetric(r, m) }) {
			shown = append(shown, m)
			t.Columns = append(t.Columns, report.Column{Name: m.Name, Unit: m.Unit, Numeric: true})
		}
	}
	t.Columns = append(t.Columns, report.Column{Name: "status"})
	for _, r := range results {
		best := bench.Fastest(r)
		for _, c := range r.Cases {
			name := c.Name
			if len(results) > 1 {
				name = r.Experiment.Name + ": " + name
			}
			row := report.Cells(name, r.Factor(c, "durability"), strconv.Itoa(c.Samples[0].InFlight))
			for _, m := range shown {
				s, ok := c.Summary[m.Key]
				cell := report.Cell{Text: "-"}
				if ok {
					cell = report.Cell{Text: bench.Figure(s.Median), Strong: m.Key == "rate" && c == best}
				}
				row = append(row, cell)
			}
			t.Rows = append(t.Rows, append(row, status(r, c)))
		}
	}
	return t
}

func hasMetric(r *bench.Result, m bench.Metric) bool {
	return slices.ContainsFunc(r.Cases, func(c *bench.Case) bool {
		s, ok := c.Summary[m.Key]
		return ok && (m.Key != "errors" || s.Hi > 0)
	})
}

// status says why a case must not be recommended, or "valid".
func status(r *bench.Result, c *bench.Case) report.Cell {
	if c.Invalid() {
		return report.Cell{Text: "WRONG ANSWERS", Strong: true}
	}
	for _, k := range r.Experiment.Constraints {
		if s, ok := c.Summary[k.Metric]; ok && k.Max != nil && s.Median > *k.Max {
			m, _ := bench.MetricByKey(k.Metric, kvs.Subject)
			return report.Cell{Text: fmt.Sprintf("%s over %g %s", m.Name, *k.Max, m.Unit), Strong: true}
		}
	}
	return report.Cell{Text: "valid"}
}

// delayTable is the table of reference report 2: average throughput, weak and strong median,
// status, and in addition the durability and how much the rounds differ.
func delayTable(r *bench.Result) report.Table {
	t := report.Table{
		Title: "Averages of " + bench.Rounds(r.Experiment.Rounds),
		Columns: report.Columns(":delay", ":durability", "average throughput|ops/s", "slowest - fastest round|ops/s", "weak median|ms", "strong median|ms",
			":status"),
		Note: "In weir kv a delay of 0 is the same as auto: the difference between these two is due to the machine.",
	}
	best := bestByMean(r)
	for _, c := range r.Cases {
		rates := c.Values(bench.MustMetric("rate"))
		t.Rows = append(t.Rows, []report.Cell{
			{Text: c.Name, Strong: c == best},
			{Text: r.Factor(c, "durability")},
			{Text: bench.Figure(mean(rates)), Strong: c == best},
			{Text: bench.Figure(slices.Min(rates)) + " - " + bench.Figure(slices.Max(rates))},
			{Text: median(c, "weak_p50")},
			{Text: median(c, "strong_p50")},
			status(r, c),
		})
	}
	return t
}

func bestByMean(r *bench.Result) *bench.Case {
	var best *bench.Case
	rate := bench.MustMetric("rate")
	for _, c := range r.Cases {
		if status(r, c).Text == "valid" && (best == nil || mean(c.Values(rate)) > mean(best.Values(rate))) {
			best = c
		}
	}
	return best
}

// validationTable lists every round of a result, and their average, minimum, maximum, range and
// variance.
func validationTable(r *bench.Result) report.Table {
	t := report.Table{
		Title:   "Round by round",
		Columns: []report.Column{{Name: "round"}},
		Note:    "The range is the difference between the fastest and the slowest round, the deviation that of the rounds from their average. Durability: " + r.Env.Durability + ".",
	}
	var rates, weak [][]float64
	rounds := 0
	for _, c := range r.Cases {
		t.Columns = append(t.Columns, report.Column{Name: c.Name, Unit: "ops/s", Numeric: true}, report.Column{Name: "weak median", Unit: "ms", Numeric: true})
		rates, weak = append(rates, c.Values(bench.MustMetric("rate"))), append(weak, c.Values(bench.MustMetric("weak_p50", kvs.Subject)))
		rounds = max(rounds, len(c.Samples))
	}
	at := func(xs []float64, i int) string {
		if i >= len(xs) {
			return "-"
		}
		return bench.Figure(xs[i])
	}
	for round := range rounds {
		row := report.Cells(strconv.Itoa(round + 1))
		for k := range rates {
			row = append(row, report.Cells(at(rates[k], round), at(weak[k], round))...)
		}
		t.Rows = append(t.Rows, row)
	}
	for _, sum := range []struct {
		name string
		of   func([]float64) string
	}{
		{"average", func(xs []float64) string { return bench.Figure(mean(xs)) }},
		{"smallest", func(xs []float64) string { return bench.Figure(slices.Min(xs)) }},
		{"largest", func(xs []float64) string { return bench.Figure(slices.Max(xs)) }},
		{"range", func(xs []float64) string {
			d := slices.Max(xs) - slices.Min(xs)
			return fmt.Sprintf("%s (%.0f %%)", bench.Figure(d), 100*d/mean(xs))
		}},
		{"deviation", func(xs []float64) string {
			return fmt.Sprintf("%s (%.1f %%)", bench.Figure(math.Sqrt(variance(xs))), 100*math.Sqrt(variance(xs))/mean(xs))
		}},
		{"variance", func(xs []float64) string { return strconv.FormatFloat(variance(xs), 'g', 3, 64) }},
	} {
		row := []report.Cell{{Text: sum.name, Strong: true}}
		for k := range rates {
			for _, xs := range [][]float64{rates[k], weak[k]} {
				text := "-"
				if len(xs) > 0 {
					text = sum.of(xs)
				}
				row = append(row, report.Cell{Text: text})
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// median formats the median of a metric.
func median(c *bench.Case, key string) string {
	if s, ok := c.Summary[key]; ok {
		return bench.Figure(s.Median)
	}
	return "-"
}

func mean(xs []float64) float64 { return sum(xs) / float64(len(xs)) }

// variance is the sample variance, 0 for a single value.
func variance(xs []float64) float64 {
	if len(xs) < 2 {
		return 0
	}
	m, sum := mean(xs), 0.0
	for _, x := range xs {
		sum += (x - m) * (x - m)
	}
	return sum / float64(len(xs)-1)
}
