package study

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// grid holds the cases of a result by pool and concurrency.
type grid struct {
	pools, concurrency []int
	cells              map[[2]int]*bench.Case
}

// gridOf returns the grid of a result in which both pool and concurrency vary, and nothing else
// except the start, of which the warm one counts.
func gridOf(r *bench.Result) (grid, bool) {
	g := grid{cells: make(map[[2]int]*bench.Case)}
	for _, c := range r.Cases {
		if c.Factors[FactorStart] == StartCold {
			continue
		}
		for _, f := range []string{FactorDriver, FactorTransport, FactorMode} {
			if c.Factors[f] != "" {
				return g, false
			}
		}
		pool, err1 := strconv.Atoi(c.Factors[FactorPool])
		workers, err2 := strconv.Atoi(c.Factors[FactorConcurrency])
		if err1 != nil || err2 != nil {
			return g, false
		}
		g.cells[[2]int{pool, workers}] = c
		g.pools, g.concurrency = append(g.pools, pool), append(g.concurrency, workers)
	}
	for _, list := range []*[]int{&g.pools, &g.concurrency} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return g, len(g.pools) > 1 && len(g.concurrency) > 1
}

// whatIf shows what another pool would do for the same load: throughput and p99 for each pool
// at each concurrency. The best throughput of a concurrency is emphasised, and so are smaller
// pools that cannot be told from it.
func whatIf(r *bench.Result) (report.Table, report.Chart, bool) {
	g, ok := gridOf(r)
	if !ok {
		return report.Table{}, report.Chart{}, false
	}
	t := report.Table{
		Title:   "What another pool size would do",
		Columns: []report.Column{{Name: "pool"}},
		Note:    "Throughput, and p99 in parentheses. In bold: the best throughput for that many workers, and those that its interval cannot tell from it. Of equal pools, use the smallest.",
	}
	chart := report.Chart{Title: "Throughput by pool and workers", Kind: report.Heat, XLabel: "workers", YLabel: "pool", Unit: "ops/s", Tabled: true}
	for _, w := range g.concurrency {
		t.Columns = append(t.Columns, report.Column{Name: plural(strconv.Itoa(w), "worker"), Unit: "ops/s", Numeric: true})
		chart.Categories = append(chart.Categories, strconv.Itoa(w))
	}
	for _, p := range g.pools {
		row := report.Cells(strconv.Itoa(p))
		series := report.Series{Name: strconv.Itoa(p)}
		for _, w := range g.concurrency {
			c := g.cells[[2]int{p, w}]
			if c == nil {
				row = append(row, report.Cell{Text: "-"})
				series.Points = append(series.Points, report.Point{None: true})
				continue
			}
			rate := c.Summary["rate"]
			strong := rate.Overlaps(g.best(w).Interval)
			row = append(row, report.Cell{
				Text:   fmt.Sprintf("%s (%s)", number(rate.Median), micros(1e3*c.Summary["p99"].Median)),
				Strong: strong,
			})
			series.Points = append(series.Points, report.Point{Y: rate.Median, Lo: rate.Lo, Hi: rate.Hi, Strong: rate.Median == g.best(w).Median})
		}
		t.Rows = append(t.Rows, row)
		chart.Series = append(chart.Series, series)
	}
	return t, chart, true
}

// best is the best throughput of any pool for a number of workers.
func (g grid) best(workers int) bench.Summary {
	var best bench.Summary
	for _, p := range g.pools {
		if c := g.cells[[2]int{p, workers}]; c != nil && c.Summary["rate"].Median > best.Median {
			best = c.Summary["rate"]
		}
	}
	return best
}
