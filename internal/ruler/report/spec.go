package report

import (
	"errors"
	"fmt"
	"math"
)

// ChartKind is how a chart is drawn.
type ChartKind string

const (
	// Bars draws a group of bars for each category, one bar a series, whiskers
	// from Lo to Hi. They stand when the names fit below them, and lie otherwise.
	Bars ChartKind = "bars"
	// Intervals draws a row for each category, with a dot and its range for each
	// series. The axis need not begin at 0 and may be a log axis, so it is the
	// chart for ratios and for values of very different size.
	Intervals ChartKind = "intervals"
	// Lines draws a line for each series through its points, with a band from Lo
	// to Hi.
	Lines ChartKind = "lines"
	// TimeSeries draws lines over time: X is seconds since the start.
	TimeSeries ChartKind = "time"
	// Percentiles draws latency against the percentile, on an axis of nines: X
	// is the quantile in [0, 1).
	Percentiles ChartKind = "percentiles"
	// Stacked draws one horizontal bar for each category, cut into the shares of
	// the series. Shares are in [0, 1], and those of a category add up to no more
	// than 1.
	Stacked ChartKind = "stacked"
	// Segments draws one horizontal bar for each category, cut into the amounts
	// of the series. Its length is their sum.
	Segments ChartKind = "segments"
	// Heat draws a cell for each series and category, coloured by its value:
	// series are rows, categories are columns.
	Heat ChartKind = "heat"
	// Flame draws a tree of calls: a frame is as wide as its value, and what it
	// calls hangs below it.
	Flame ChartKind = "flame"
)

// Chart is a chart. It is data: every renderer draws or tabulates it by itself,
// and Figures gives what it shows as a table.
type Chart struct {
	Title string    `json:"title"` // head of the chart
	Kind  ChartKind `json:"kind"`  // how it is drawn
	// Categories names the points of Bars, Intervals, Stacked, Segments and Heat,
	// and gives the categories of Flame their order, which decides the colours.
	// Default for Flame: by value.
	Categories []string `json:"categories,omitempty"`
	XLabel     string   `json:"x_label,omitempty"` // name of the other axis
	YLabel     string   `json:"y_label,omitempty"` // name of the axis of values, in whichever direction it is drawn
	// SeriesLabel says what the series are, above the rows of Heat.
	SeriesLabel string `json:"series_label,omitempty"`
	// Unit is that of the values and is written behind them. Times (ns, us, ms, s)
	// and bytes (B, kB, MB, GB, TB) are written in the unit that suits their size.
	Unit string `json:"unit,omitempty"`
	LogX bool   `json:"log_x,omitempty"` // of Lines
	// LogY makes the axis of values logarithmic: of Intervals, Lines, TimeSeries,
	// Percentiles, and of the colours of Heat. Bars must begin at 0.
	LogY   bool     `json:"log_y,omitempty"`
	Series []Series `json:"series,omitempty"` // what is drawn
	// Marks are drawn over Lines, TimeSeries, Percentiles, Bars and Intervals.
	Marks []Mark `json:"marks,omitempty"`
	// Root is the tree of Flame.
	Root *Frame `json:"root,omitempty"`
	Note string `json:"note,omitempty"` // below the chart
	// Summary says in a sentence what is to be seen, for those who cannot see
	// it. Default: made from the figures.
	Summary string `json:"summary,omitempty"`
	// Tabled tells that the figures are in a table of the same section, so that
	// text and Markdown need not repeat them.
	Tabled bool `json:"tabled,omitempty"`
}

// Series is a named row of points. Where there are categories, the i-th point
// belongs to the i-th category, and X means nothing.
type Series struct {
	Name   string  `json:"name"`   // in the legend
	Points []Point `json:"points"` // in order
	// Rest tells that this is what is left over, such as "other" or "not
	// attributable". It is drawn without a colour of its own.
	Rest bool `json:"rest,omitempty"`
}

// Point is a value with its range. Lo and Hi both 0 mean that there is none.
type Point struct {
	X  float64 `json:"x,omitempty"`  // place on the axis of X
	Y  float64 `json:"y"`            // the value
	Lo float64 `json:"lo,omitempty"` // lower end of its interval
	Hi float64 `json:"hi,omitempty"` // upper end of its interval
	// None tells that nothing was measured here; a line is broken.
	None bool `json:"none,omitempty"`
	// Strong tells that this is the one to look at. Heat puts a frame around it.
	Strong bool `json:"strong,omitempty"`
}

func (p Point) hasRange() bool { return (p.Lo != 0 || p.Hi != 0) && !p.None }

// Mark points out a place on an axis: an event, a limit, the value of no change.
type Mark struct {
	At float64 `json:"at"` // place on the axis
	// To makes it a span, shaded from At to To. Default: a line at At.
	To    float64 `json:"to,omitempty"`
	Label string  `json:"label,omitempty"` // text beside it
	// OnY puts it on the axis of values. Bars and Intervals have no other.
	OnY bool `json:"on_y,omitempty"`
}

// Frame is a node of a call tree.
type Frame struct {
	Name string `json:"name"` // of the function
	// Value is what this frame took with all that it called, in Chart.Unit.
	Value float64 `json:"value"`
	// Category decides the colour: frames of one category look alike. "" is drawn
	// without one.
	Category string   `json:"category,omitempty"`
	Children []*Frame `json:"children,omitempty"` // what it called
}

// Self is what the frame took itself.
func (f *Frame) Self() float64 {
	self := f.Value
	for _, c := range f.Children {
		self -= c.Value
	}
	return max(self, 0)
}

// When is the chart alone, or none.
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
		return errors.New("bars have no foot on a log axis: use intervals")
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
		return fmt.Errorf("range from %v to %v is upside down", p.Lo, p.Hi)
	}
	return nil
}

// mostValue is beyond all that is measured, and within what can be drawn; so is
// leastLog on a log axis.
const (
	mostValue = 1e18
	leastLog  = 1e-18
)

func drawable(v float64) error {
	if math.IsNaN(v) || math.Abs(v) > mostValue {
		return fmt.Errorf("%v is not a number that can be drawn", v)
	}
	return nil
}

// validateMarks returns what mark is not on the axis that it is for.
func (c *Chart) validateMarks() error {
	for _, m := range c.Marks {
		onY := m.OnY || c.Kind == Bars || c.Kind == Intervals
		log := onY && c.LogY || !onY && c.LogX
		switch {
		case drawable(m.At) != nil || drawable(m.To) != nil:
			return fmt.Errorf("mark %q: %v is not a number that can be drawn", m.Label, m.At)
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
			return fmt.Errorf("frame %q calls one without a value", f.Name)
		}
		sum += c.Value
		if err := c.validate(); err != nil {
			return err
		}
	}
	if sum > f.Value*1.000001 {
		return fmt.Errorf("frame %q took %v, and what it calls %v", f.Name, f.Value, sum)
	}
	return nil
}
