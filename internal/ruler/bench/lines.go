package bench

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/ruler/report"
)

// Lines collects points by the name of their line, and keeps the lines in the order of their
// first points.
type Lines struct{ all []report.Series }

// Add adds a point to a line.
func (l *Lines) Add(name string, p report.Point) {
	at := slices.IndexFunc(l.all, func(s report.Series) bool { return s.Name == name })
	if at < 0 {
		at = len(l.all)
		l.all = append(l.all, report.Series{Name: name})
	}
	l.all[at].Points = append(l.all[at].Points, p)
}

// Series returns the lines, each sorted by X.
func (l *Lines) Series() []report.Series {
	for _, s := range l.all {
		slices.SortStableFunc(s.Points, func(a, b report.Point) int { return cmp.Compare(a.X, b.X) })
	}
	return l.all
}

// Point is a metric of a case at x, and false if it was not measured.
func (c *Case) Point(metric string, x float64) (report.Point, bool) {
	s, ok := c.Summary[metric]
	return report.Point{X: x, Y: s.Median, Lo: s.Lo, Hi: s.Hi}, ok
}

// LinesOver draws a metric over a factor of the experiments, a number or a duration (shown in
// ms), with a line for each case.
func LinesOver(results []*Result, metric, factor string) []report.Series {
	var lines Lines
	for _, r := range results {
		x, err := strconv.ParseFloat(r.Experiment.Factors[factor], 64)
		if err != nil {
			d, err := time.ParseDuration(r.Experiment.Factors[factor])
			if err != nil {
				continue
			}
			x = float64(d) / 1e6
		}
		for _, c := range r.Cases {
			if p, ok := c.Point(metric, x); ok {
				lines.Add(c.Name, p)
			}
		}
	}
	return lines.Series()
}
