package kvbench

import (
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/report"
)

// delayChart draws throughput over the fixed delays, and without a delay.
func delayChart(r *bench.Result) []report.Chart {
	fixed, none := report.Series{Name: "fixed delay"}, report.Series{Name: "auto, no delay"}
	most := 0.0
	var self *bench.Case
	for _, c := range r.Cases {
		us, err := strconv.ParseFloat(c.Factors["delay"], 64)
		if err != nil {
			self = c
			continue
		}
		most = max(most, us)
		fixed.Points = append(fixed.Points, point(c, "rate", us))
	}
	if len(fixed.Points) < 2 {
		return nil
	}
	slices.SortFunc(fixed.Points, func(a, b report.Point) int { return int(a.X - b.X) })
	ch := report.Chart{Title: "Throughput by delay of batches", Kind: report.Lines, XLabel: "delay in microseconds", YLabel: "operations per second", Series: []report.Series{fixed}}
	if self != nil {
		none.Points = []report.Point{point(self, "rate", 0), point(self, "rate", most)}
		ch.Series = append(ch.Series, none)
	}
	return []report.Chart{ch}
}

func point(c *bench.Case, metric string, x float64) report.Point {
	p, _ := c.Point(metric, x)
	return p
}

// sweepCharts draw throughput and latencies over a numeric factor.
func sweepCharts(factor, label string) func(*bench.Result) []report.Chart {
	return func(r *bench.Result) []report.Chart {
		rate := report.Chart{Title: r.Experiment.Title + ": throughput", Kind: report.Lines, XLabel: label, YLabel: "operations per second", Series: []report.Series{{Name: "throughput"}}}
		lat := report.Chart{Title: r.Experiment.Title + ": latency", Kind: report.Lines, XLabel: label, YLabel: "ms"}
		keys := []struct{ key, name string }{{"strong_p50", "strong median"}, {"strong_p99", "strong p99"}, {"weak_p50", "weak median"}, {"weak_p99", "weak p99"}}
		series := make([]report.Series, len(keys))
		for _, c := range r.Cases {
			x, err := strconv.ParseFloat(c.Factors[factor], 64)
			if err != nil {
				continue
			}
			rate.Series[0].Points = append(rate.Series[0].Points, point(c, "rate", x))
			for k, m := range keys {
				if _, ok := c.Summary[m.key]; ok {
					series[k].Name = m.name
					series[k].Points = append(series[k].Points, point(c, m.key, x))
				}
			}
		}
		for _, s := range series {
			if len(s.Points) > 0 {
				lat.Series = append(lat.Series, s)
			}
		}
		if len(rate.Series[0].Points) < 2 || len(lat.Series) == 0 {
			return nil
		}
		return []report.Chart{rate, lat}
	}
}

// bars draws metrics of the cases of a result.
func bars(title, label string, metrics ...string) func(*bench.Result) []report.Chart {
	return func(r *bench.Result) []report.Chart {
		ch := report.Chart{Title: title, Kind: report.Bars, YLabel: label}
		for _, key := range metrics {
			m, _ := bench.MetricByKey(key, kvs.Subject)
			s := report.Series{Name: m.Name}
			for _, c := range r.Cases {
				s.Points = append(s.Points, point(c, key, 0))
			}
			ch.Series = append(ch.Series, s)
		}
		for _, c := range r.Cases {
			ch.Categories = append(ch.Categories, c.Name)
		}
		return ch.When(len(ch.Categories) > 0)
	}
}

// overResults draws a metric over a factor of the experiments, with a line for each case.
func overResults(results []*bench.Result, title, xLabel, yLabel, metric, factor string, logX bool) []report.Chart {
	ch := report.Chart{Title: title, Kind: report.Lines, XLabel: xLabel, YLabel: yLabel, LogX: logX, LogY: true, Series: bench.LinesOver(results, metric, factor)}
	return ch.When(len(ch.Series) > 0 && len(ch.Series[0].Points) > 1)
}

// cellChart draws, for each distance and number of clients, the rate without a delay as a share
// of that with the best fixed one.
func cellChart(results []*bench.Result) []report.Chart {
	ch := report.Chart{
		Title: "Throughput without a delay, in percent of that with the best fixed one", Kind: report.Heat,
		XLabel: "clients", SeriesLabel: "durability and round trip", YLabel: "percent", Unit: "%",
	}
	type key struct{ row, column string }
	cells := make(map[key]float64)
	for _, r := range results {
		row := r.Experiment.Factors["durability"] + ", " + r.Experiment.Factors["rtt"]
		column := r.Experiment.Factors["streams"]
		best, self := bestFixed(r), r.Find(auto)
		if best == nil || self == nil || best.Summary["rate"].Median == 0 {
			continue
		}
		cells[key{row, column}] = 100 * self.Summary["rate"].Median / best.Summary["rate"].Median
		if !slices.Contains(ch.Categories, column) {
			ch.Categories = append(ch.Categories, column)
		}
		if !slices.ContainsFunc(ch.Series, func(s report.Series) bool { return s.Name == row }) {
			ch.Series = append(ch.Series, report.Series{Name: row})
		}
	}
	for i := range ch.Series {
		for _, column := range ch.Categories {
			v, ok := cells[key{ch.Series[i].Name, column}]
			ch.Series[i].Points = append(ch.Series[i].Points, report.Point{Y: v, None: !ok})
		}
	}
	return ch.When(len(cells) > 1)
}

// gridChart shows throughput over operations in flight and delays.
func gridChart(r *bench.Result) []report.Chart {
	ch := report.Chart{
		Title: "Throughput by operations in flight and delay", Kind: report.Heat, XLabel: "delay in microseconds", SeriesLabel: "operations in flight in each session",
		YLabel: "operations per second", Unit: "ops/s",
	}
	best := bench.Fastest(r)
	for _, c := range r.Cases {
		delay, pendings := c.Factors["delay"], c.Factors["pendings"]
		if delay == "" || pendings == "" {
			return nil
		}
		if !slices.Contains(ch.Categories, delay) {
			ch.Categories = append(ch.Categories, delay)
		}
		at := slices.IndexFunc(ch.Series, func(s report.Series) bool { return s.Name == pendings })
		if at < 0 {
			at = len(ch.Series)
			ch.Series = append(ch.Series, report.Series{Name: pendings})
		}
		p := point(c, "rate", 0)
		p.Strong = c == best
		ch.Series[at].Points = append(ch.Series[at].Points, p)
	}
	whole := !slices.ContainsFunc(ch.Series, func(s report.Series) bool { return len(s.Points) != len(ch.Categories) })
	return ch.When(whole && len(ch.Series) > 1 && len(ch.Categories) > 1)
}
