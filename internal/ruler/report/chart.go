package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The dimensions of a chart, in the units of its viewBox, which are about CSS pixels at full
// width.
const (
	chartWidth  = 920.0
	plotHeight  = 270.0
	marginRight = 26.0
	legendRow   = 22.0
	mostLabel   = 300.0 // maximum width of the names on the left
)

// area is where the points of a chart are drawn.
type area struct{ left, right, top, bottom float64 }

func (a area) width() float64 { return a.right - a.left }

// drawChart returns a chart as an SVG element. id must be unique in the page.
func drawChart(c *Chart, id string) string {
	body, height := drawBody(c)
	return fmt.Sprintf("<svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-labelledby=\"%s-t %s-d\">\n<title id=\"%s-t\">%s</title>\n<desc id=\"%s-d\">%s</desc>\n%s</svg>",
		chartWidth, height, id, id, id, html.EscapeString(c.Title), id, html.EscapeString(c.summary()), body)
}

// drawBody returns the elements of a chart and their height.
func drawBody(c *Chart) (string, float64) {
	var b canvas
	var height float64
	switch c.Kind {
	case Bars:
		if verticalBarsFit(c) {
			height = drawBars(&b, c, legend(&b, c))
		} else {
			height = drawHorizontalBars(&b, c, legend(&b, c))
		}
	case Intervals:
		height = drawIntervals(&b, c, legend(&b, c))
	case Stacked, Segments:
		height = drawSegments(&b, c, legend(&b, c))
	case Heat:
		height = drawHeat(&b, c)
	case Flame:
		height = drawFlame(&b, c)
	default:
		height = drawLines(&b, c)
	}
	return b.String(), math.Ceil(height)
}

// legend draws the names of the series in as many rows as they need and returns where the plot
// may begin. A single series needs no legend: the title names it.
func legend(b *canvas, c *Chart) float64 {
	if len(c.Series) < 2 {
		return 10
	}
	names, classes := make([]string, len(c.Series)), make([]string, len(c.Series))
	for i, s := range c.Series {
		names[i], classes[i] = s.Name, c.fill(i)
	}
	if c.Kind == Intervals {
		classes = nil
	}
	return legendOf(b, names, classes)
}

// fill is the class of shapes filled with the colour of a series.
func (c *Chart) fill(series int) string {
	if c.Series[series].Rest {
		return "rest"
	}
	return fmt.Sprintf("f%d", series%colours)
}

// legendOf draws names with boxes of the given classes, or with the markers of lines if there
// are none.
func legendOf(b *canvas, names, classes []string) float64 {
	x, y := 0.0, 14.0
	for i, name := range names {
		room := min(textWidth(name), chartWidth-24)
		if x+17+room > chartWidth && x > 0 {
			x, y = 0, y+legendRow
		}
		if classes == nil {
			b.marker(i, x+6, y-4, "")
		} else {
			fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%.1f" width="11" height="11" rx="2"/>`+"\n", classes[i], x, y-10)
		}
		b.label("soft", "start", x+17, y, room, name)
		x += 17 + room + 20
	}
	return y + 18
}

// leftMargin is the room that the labels of a vertical axis need.
func leftMargin(ticks []string, name string) float64 {
	m := widest(ticks) + 14
	if name != "" {
		m += 22
	}
	return max(m, 36)
}

// verticalAxis draws the grid with its labels and the name of the axis.
func verticalAxis(b *canvas, s *scale, in area, name string) {
	for _, t := range s.ticks {
		y := s.at(t)
		b.line("grid", in.left, y, in.right, y)
		b.text("soft", "end", in.left-8, y+4, s.label(t))
	}
	if name != "" {
		fmt.Fprintf(b, `<text class="soft" text-anchor="middle" transform="translate(12 %.1f) rotate(-90)">%s</text>`+"\n",
			(s.from+s.to)/2, html.EscapeString(fit(name, math.Abs(s.to-s.from)+30)))
	}
}

// horizontalAxis draws ticks, as many labels as fit, and the name of the axis, and returns the
// height of the chart.
func horizontalAxis(b *canvas, s *scale, in area, name string) float64 {
	last := math.Inf(-1)
	for _, t := range s.ticks {
		at, text := s.at(t), s.label(t)
		half := textWidth(text) / 2
		b.line("grid", at, in.top, at, in.bottom)
		if at-half < last+6 {
			continue
		}
		last = at + half
		b.text("soft", "middle", min(at, chartWidth-half), in.bottom+18, text)
	}
	height := in.bottom + 26
	if name != "" {
		b.label("soft", "middle", (in.left+in.right)/2, in.bottom+37, chartWidth-40, name)
		height += 18
	}
	return height
}

// valueAxis is the name of the axis of values, with the unit unless the name or the labels
// include it.
func (c *Chart) valueAxis() string {
	_, replace := unitsFor(c.Unit)
	switch {
	case c.YLabel == c.Unit && replace:
		return ""
	case c.Unit == "" || replace || strings.Contains(c.YLabel, c.Unit):
		return c.YLabel
	case c.YLabel == "":
		return c.Unit
	}
	return c.YLabel + ", " + c.Unit
}

// value formats a value with its unit.
func (c *Chart) value(v float64) string {
	if c.Kind == Stacked {
		return percent(v) + " %"
	}
	return withUnit(v, c.Unit)
}

// describe is the tooltip of a point.
func (c *Chart) describe(p Point) string {
	if !p.hasRange() {
		return c.value(p.Y)
	}
	return withRange(p, c.Unit)
}

// valueMarks draws the marks on the axis of values; vertical is the direction of that axis.
func valueMarks(b *canvas, c *Chart, s *scale, in area, vertical bool) {
	for _, m := range c.Marks {
		if !m.OnY && (c.Kind == Lines || c.Kind == TimeSeries || c.Kind == Percentiles) {
			continue
		}
		at := s.at(m.At)
		if !vertical {
			spanOrLine(b, m, at, s.at(m.To), in)
			b.label("soft mark", anchorWithin(at, m.Label, in), at, in.top-5, in.width(), m.Label)
			continue
		}
		if m.To != 0 {
			to := s.at(m.To)
			b.box("span", in.left, min(at, to), in.width(), math.Abs(to-at))
		} else {
			b.line("event", in.left, at, in.right, at)
		}
		if c.Kind == Bars { // beside the plot, where there are no bars
			b.label("soft", "start", in.right+6, at+4, chartWidth-in.right-6, m.Label)
		} else {
			b.label("soft mark", "end", in.right-4, at-5, in.width()-8, m.Label)
		}
	}
}

func spanOrLine(b *canvas, m Mark, at, to float64, in area) {
	if m.To == 0 {
		b.line("event", at, in.top, at, in.bottom)
		return
	}
	b.box("span", min(at, to), in.top, math.Abs(to-at), in.bottom-in.top)
}

// anchorWithin keeps a centred label within the area.
func anchorWithin(x float64, label string, in area) string {
	half := textWidth(label) / 2
	switch {
	case x-half < in.left:
		return "start"
	case x+half > chartWidth:
		return "end"
	}
	return "middle"
}
