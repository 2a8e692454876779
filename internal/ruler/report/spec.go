package report

import (
	"errors"
	"fmt"
	"math"
)

// ChartKind is how a chart is drawn.
type ChartKind string

const (
	// Bars draws a group of bars for each category, one bar per series, with whiskers from Lo
	// to Hi. Bars are vertical if the names fit below them, else horizontal.
	Bars ChartKind = "bars"
	// Intervals draws a row for each category, with a dot and its range for each series. The
	// axis need not start at 0 and may be logarithmic, so it suits ratios and values of very
	// different sizes.
	Intervals ChartKind = "intervals"
	// Lines draws a line for each series through its points, with a band from Lo to Hi.
	Lines ChartKind = "lines"
	// TimeSeries draws lines over time: X is seconds since the start.
	TimeSeries ChartKind = "time"
	// Percentiles draws latency against the percentile, on an axis of nines: X is the quantile
	// in [0, 1).
	Percentiles ChartKind = "percentiles"
	// Stacked draws one horizontal bar for each category, divided into the shares of the
	// series. Shares are in [0, 1], and those of a category add up to at most 1.
	Stacked ChartKind = "stacked"
	// Segments draws one horizontal bar for each category, divided into the amounts of the
	// series. Its length is their sum.
	Segments ChartKind = "segments"
	// Heat draws a cell for each series and category, coloured by its value:
	// series are rows, categories are columns.
	Heat ChartKind = "heat"
	// Flame draws a tree of calls: a frame is as wide as its value, and its callees are below
	// it.
	Flame ChartKind = "flame"
)

// Chart is a chart as data: each renderer draws it or makes a table of it, and Figures returns
// that table.
type Chart struct {
	Title string    `json:"title"` // head of the chart
	Kind  ChartKind `json:"kind"`  // how it is drawn
	// Categories names the points of Bars, Intervals, Stacked, Segments and Heat. For Flame it
	// is the order of the categories, which decides the colours. Default for Flame: by value.
	Categories []string `json:"categories,omitempty"`
	XLabel     string   `json:"x_label,omitempty"` // name of the other axis
	YLabel     string   `json:"y_label,omitempty"` // name of the axis of values, whether horizontal or vertical
	// SeriesLabel says what the series are; it is shown above the rows of Heat.
	SeriesLabel string `json:"series_label,omitempty"`
	// Unit is the unit of the values. Times (ns, us, ms, s) and bytes (B, kB, MB, GB, TB) are
	// shown in a suitable unit of their kind.
	Unit string `json:"unit,omitempty"`
	LogX bool   `json:"log_x,omitempty"` // of Lines
	// LogY makes the axis of values logarithmic: of Intervals, Lines, TimeSeries, Percentiles,
	// and of the colours of Heat. Bars must start at 0.
	LogY   bool     `json:"log_y,omitempty"`
	Series []Series `json:"series,omitempty"` // what is drawn
	// Marks are drawn over Lines, TimeSeries, Percentiles, Bars and Intervals.
	Marks []Mark `json:"marks,omitempty"`
	// Root is the tree of Flame.
	Root *Frame `json:"root,omitempty"`
	Note string `json:"note,omitempty"` // below the chart
	// Summary describes the chart in a sentence, for readers who cannot see it. Default: made
	// from the figures.
	Summary string `json:"summary,omitempty"`
	// Tabled is set if a table of the same section has the figures, so that text and Markdown
	// need not repeat them.
	Tabled bool `json:"tabled,omitempty"`
}

// Series is a named row of points. With categories, the i-th point belongs to the i-th
// category, and X is ignored.
type Series struct {
	Name   string  `json:"name"`   // in the legend
	Points []Point `json:"points"` // in order
	// Rest is set for a remainder, such as "other" or "not attributable". It is drawn without a
	// colour of its own.
	Rest bool `json:"rest,omitempty"`
}

// Point is a value with its range. Lo and Hi are both 0 if there is no range.
type Point struct {
	X  float64 `json:"x,omitempty"`  // place on the axis of X
	Y  float64 `json:"y"`            // the value
	Lo float64 `json:"lo,omitempty"` // lower end of its interval
	Hi float64 `json:"hi,omitempty"` // upper end of its interval
	// None is set if nothing was measured here; a line is interrupted.
	None bool `json:"none,omitempty"`
	// Strong emphasises the point. Heat puts a frame around it.
	Strong bool `json:"strong,omitempty"`
}

func (p Point) hasRange() bool { return (p.Lo != 0 || p.Hi != 0) && !p.None }

// Mark is a place on an axis: an event, a limit, the value that means no change.
type Mark struct {
	At float64 `json:"at"` // place on the axis
	// To makes it a span, shaded from At to To. Default: a line at At.
	To    float64 `json:"to,omitempty"`
	Label string  `json:"label,omitempty"` // text beside it
	// OnY puts it on the axis of values. Bars and Intervals have no other axis.
	OnY bool `json:"on_y,omitempty"`
}

// Frame is a node of a call tree.
type Frame struct {
	Name string `json:"name"` // of the function
	// Value is the value of this frame and its callees, in Chart.Unit.
	Value float64 `json:"value"`
	// Category decides the colour: frames of one category look alike. A frame without one has
	// no colour.
	Category string   `json:"category,omitempty"`
	Children []*Frame `json:"children,omitempty"` // its callees
}

// Self is the value of the frame without its callees.
func (f *Frame) Self() float64 {
	self := f.Value
	for _, c := range f.Children {
		self -= c.Value
	}
	return max(self, 0)
}

// When returns the chart if ok, else no chart.
func (c Chart) When(ok bool) []Chart {
	if !ok {
		return nil
	}
	return []Chart{c}
}

// validate returns why the chart cannot be drawn.
func (c *Chart) validate() error {
	if c.Kind == Flame {
		if c.Root == nil || !(c.Root.Value > 0) || drawable(c.Root.Value) != nil {
			return errors.New("no frames")
		}
		return c.Root.validate()
	}
	if len(c.Series) == 0 {
		return errors.New("no series")
	}
	categories := false
	switch c.Kind {
	case Bars, Intervals, Stacked, Segments, Heat:
		categories = true
		if len(c.Categories) == 0 {
			return errors.New("no categories")
		}
	case Lines, TimeSeries, Percentiles:
	default:
		return fmt.Errorf("unknown kind %q", c.Kind)
	}
	if c.Kind == Bars && c.LogY {
		return errors.New("bars need an axis that starts at 0, not a log axis: use intervals")
	}
	for _, s := range c.Series {
		switch {
		case categories && len(s.Points) != len(c.Categories):
			return fmt.Errorf("series %q has %d points for %d categories", s.Name, len(s.Points), len(c.Categories))
		case len(s.Points) == 0:
			return fmt.Errorf("series %q has no points", s.Name)
		}
		for _, p := range s.Points {
			if err := c.validatePoint(p); err != nil {
				return fmt.Errorf("series %q: %w", s.Name, err)
			}
		}
	}
	if c.Kind == Stacked {
		if err := c.validateShares(); err != nil {
			return err
		}
	}
	return c.validateMarks()
}

func (c *Chart) validatePoint(p Point) error {
	for _, v := range []float64{p.X, p.Y, p.Lo, p.Hi} {
		if err := drawable(v); err != nil {
			return err
		}
	}
	switch {
	case c.Kind == Percentiles && (p.X < 0 || p.X >= 1):
		return fmt.Errorf("quantile %v is not in [0, 1)", p.X)
	case c.Kind == Lines && c.LogX && p.X < leastLog:
		return errors.New("nothing at or below 0 fits on a log axis")
	case p.None:
		return nil
	case c.LogY && c.Kind != Heat && p.Y < leastLog:
		return errors.New("nothing at or below 0 fits on a log axis")
	case c.Kind == Stacked && (p.Y < 0 || p.Y > 1):
		return fmt.Errorf("share %v is not in [0, 1]", p.Y)
	case c.Kind == Segments && p.Y < 0:
		return fmt.Errorf("a segment cannot be %v long", p.Y)
	case p.hasRange() && p.Lo > p.Hi:
		return fmt.Errorf("range from %v to %v: the ends are in the wrong order", p.Lo, p.Hi)
	}
	return nil
}

// mostValue is larger than anything measured, and can still be drawn; leastLog is the smallest
// value of a log axis.
const (
	mostValue = 1e18
	leastLog  = 1e-18
)

func drawable(v float64) error {
	if math.IsNaN(v) || math.Abs(v) > mostValue {
		return fmt.Errorf("%v cannot be drawn", v)
	}
	return nil
}

// validateMarks returns an error for a mark that its axis does not have.
func (c *Chart) validateMarks() error {
	for _, m := range c.Marks {
		onY := m.OnY || c.Kind == Bars || c.Kind == Intervals
		log := onY && c.LogY || !onY && c.LogX
		switch {
		case drawable(m.At) != nil || drawable(m.To) != nil:
			return fmt.Errorf("mark %q: %v cannot be drawn", m.Label, m.At)
		case m.To != 0 && m.To < m.At:
			return fmt.Errorf("mark %q ends at %v, before it begins at %v", m.Label, m.To, m.At)
		case log && m.At < leastLog:
			return fmt.Errorf("mark %q: nothing at or below 0 fits on a log axis", m.Label)
		case c.Kind == Percentiles && !onY && (m.At < 0 || m.At >= 1 || m.To >= 1):
			return fmt.Errorf("mark %q: quantile %v is not in [0, 1)", m.Label, m.At)
		}
	}
	return nil
}

func (c *Chart) validateShares() error {
	for i, sum := range c.sums() {
		if sum > 1.001 {
			return fmt.Errorf("shares of %q add up to %.1f %%", c.Categories[i], 100*sum)
		}
	}
	return nil
}

func (f *Frame) validate() error {
	sum := 0.0
	for _, c := range f.Children {
		if c == nil || c.Value < 0 || math.IsNaN(c.Value) || math.IsInf(c.Value, 0) {
			return fmt.Errorf("frame %q has a callee without a value", f.Name)
		}
		sum += c.Value
		if err := c.validate(); err != nil {
			return err
		}
	}
	if sum > f.Value*1.000001 {
		return fmt.Errorf("frame %q has the value %v, less than its callees' %v", f.Name, f.Value, sum)
	}
	return nil
}
