package report

import (
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// extremes are values that break scales which were made with sensible ones in
// mind.
var extremes = []float64{0, 1, -1, 0.1, 1e18, -1e18, 1e18 - 512, 1e-300, -1e-300, 5e-324, 1 + 1e-15, 1 - 1e-16, 0.9999999, 3.7e9, 1e-9, 60, 3600}

// Whatever passes validation can be drawn: scales end, and every coordinate is a
// number.
func TestChartsOfExtremeValues(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	value := func() float64 { return extremes[r.IntN(len(extremes))] }
	kinds := []ChartKind{Bars, Intervals, Lines, TimeSeries, Percentiles, Stacked, Segments, Heat}
	drawn := make(map[ChartKind]int)
	for range 4_000 {
		c := Chart{Title: "t", Kind: kinds[r.IntN(len(kinds))], LogX: r.IntN(2) == 0, LogY: r.IntN(3) == 0, Unit: []string{"", "us", "B", "%"}[r.IntN(4)]}
		n := 1 + r.IntN(4)
		for range n {
			c.Categories = append(c.Categories, "c")
		}
		for range 1 + r.IntN(3) {
			s := Series{Name: "s"}
			for range n {
				p := Point{X: value(), Y: value(), None: r.IntN(6) == 0}
				if r.IntN(3) == 0 {
					p.Lo, p.Hi = value(), value()
				}
				s.Points = append(s.Points, p)
			}
			c.Series = append(c.Series, s)
		}
		if r.IntN(4) == 0 {
			c.Marks = []Mark{{At: value(), To: value(), OnY: r.IntN(2) == 0, Label: "m"}}
		}
		if c.validate() != nil {
			continue
		}
		drawn[c.Kind]++
		if svg := drawChart(&c, "c"); strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Fatalf("a coordinate is not a number: %+v\n%s", c, svg)
		}
		d := &Doc{Title: "t", Env: sample().Env, Sections: []Section{{Charts: []Chart{c}}}}
		if err := d.Write(io.Discard, FormatMarkdown); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range kinds {
		if drawn[k] < 15 {
			t.Errorf("only %d valid charts of kind %s: the test says little of it", drawn[k], k)
		}
	}
}
