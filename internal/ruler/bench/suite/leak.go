package suite

import (
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Leak is how the proxy's heap grows under a long load.
type Leak struct {
	Case    string  `json:"case"`
	Clients int     `json:"clients"`
	Seconds float64 `json:"seconds"`
	// Points are readings during the load, each after two garbage collections.
	Points []LeakPoint `json:"points"`
	// Growth is the slope of the heap over the number of statements, in bytes per statement,
	// without the first fifth of the load, in which pools and caches fill.
	Growth bench.Interval `json:"growth"`
}

// LeakPoint is a reading of the heap.
type LeakPoint struct {
	Seconds    float64 `json:"seconds"` // since the load began
	Statements int64   `json:"statements"`
	Heap       float64 `json:"heap"` // bytes in use after a collection
	RSS        int64   `json:"rss"`  // bytes of the process
}

// SmallestObject is the smallest amount of memory that a 64-bit Go program can keep for each
// statement, in bytes: a heap that grows by less keeps no object per statement.
const SmallestObject = 8

// Judge computes the growth.
func (l *Leak) Judge() {
	var xs, ys []float64
	for _, p := range l.Points {
		if p.Seconds >= l.Seconds/5 {
			xs, ys = append(xs, float64(p.Statements)), append(ys, p.Heap)
		}
	}
	l.Growth = bench.Interval{N: len(xs)}
	if s := bench.Slope(xs, ys, 0.95); s.Method != "none" { // JSON has no infinity
		l.Growth = s
	}
}

// Verdict describes the growth.
func (l *Leak) Verdict() string {
	switch g := l.Growth; {
	case g.N < leastReadings:
		return fmt.Sprintf("%d readings are too few for a slope; %d would do", g.N, leastReadings)
	case l.Grows():
		return fmt.Sprintf("the heap grows by %s B per statement [%s, %s]: something is kept for each", bench.Figure(g.Median), bench.Figure(g.Lo), bench.Figure(g.Hi))
	case l.Flat():
		return fmt.Sprintf("the heap grows by less than an object per statement: %s B [%s, %s]", bench.Figure(g.Median), bench.Figure(g.Lo), bench.Figure(g.Hi))
	default:
		return fmt.Sprintf("cannot tell: %s B per statement [%s, %s]; an object is %d B", bench.Figure(g.Median), bench.Figure(g.Lo), bench.Figure(g.Hi), SmallestObject)
	}
}

// Grows reports whether something is kept for each statement: the whole interval is at or above
// the size of an object.
func (l *Leak) Grows() bool { return l.Growth.N >= leastReadings && l.Growth.Lo >= SmallestObject }

// Flat reports whether no object is kept for each statement: the whole interval is below the
// size of one.
func (l *Leak) Flat() bool { return l.Growth.N >= leastReadings && l.Growth.Hi < SmallestObject }

// leastReadings is how many readings a slope needs.
const leastReadings = 8

// Section shows the heap over time.
func (l *Leak) Section() report.Section {
	s := report.Section{
		Title: "Memory over a long load",
		Text: []string{fmt.Sprintf("%s, %s for %.0f s; %s. The heap is read after two collections, which slow the load down: its rate is not quoted.",
			l.Case, report.Plural(l.Clients, "client", "clients"), l.Seconds, l.Verdict())},
	}
	if len(l.Points) == 0 {
		return s
	}
	first, last := l.Points[0], l.Points[len(l.Points)-1]
	s.Tables = []report.Table{{
		Title:   "Heap and memory of the proxy",
		Columns: report.Columns(":reading", "after|s", "statements", "heap in use|kB", "memory of the process|MB"),
		Rows:    [][]report.Cell{pointRow("first", first), pointRow("middle", l.Points[len(l.Points)/2]), pointRow("last", last)},
		Note:    fmt.Sprintf("%d readings. Slope by least squares without the first fifth of the time: %s B per statement, 95 %% interval [%s, %s].", len(l.Points), bench.Figure(l.Growth.Median), bench.Figure(l.Growth.Lo), bench.Figure(l.Growth.Hi)),
	}}
	heap := report.Chart{
		Title: "Heap in use after a collection, over time", Kind: report.TimeSeries, XLabel: "seconds", YLabel: "bytes", Unit: "B", Tabled: true,
		Series: []report.Series{{Name: "heap in use"}},
	}
	rate := report.Chart{
		Title: "Statements answered, over time", Kind: report.TimeSeries, XLabel: "seconds", YLabel: "statements per second", Tabled: true,
		Series: []report.Series{{Name: "statements per second"}},
	}
	for i, p := range l.Points {
		heap.Series[0].Points = append(heap.Series[0].Points, report.Point{X: p.Seconds, Y: p.Heap})
		if i > 0 && p.Seconds > l.Points[i-1].Seconds {
			before := l.Points[i-1]
			rate.Series[0].Points = append(rate.Series[0].Points, report.Point{X: p.Seconds, Y: float64(p.Statements-before.Statements) / (p.Seconds - before.Seconds)})
		}
	}
	if len(l.Points) > 2 {
		s.Charts = []report.Chart{heap, rate}
	}
	return s
}

func pointRow(name string, p LeakPoint) []report.Cell {
	return report.Cells(name, fmt.Sprintf("%.1f", p.Seconds), strconv.FormatInt(p.Statements, 10), fmt.Sprintf("%.0f", p.Heap/1e3), fmt.Sprintf("%.1f", float64(p.RSS)/1e6))
}
