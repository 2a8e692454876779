package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// drawLines draws Lines, TimeSeries and Percentiles.
func drawLines(b *canvas, c *Chart) float64 {
	direct := namesAtEnds(c)
	top := 12.0
	if !direct {
		names := make([]string, len(c.Series))
		for i, s := range c.Series {
			names[i] = s.Name
		}
		if len(names) > 1 {
			top = legendOf(b, names, nil)
		}
	}
	top += markRows(c)
	right := marginRight
	if direct {
		for _, s := range c.Series {
			right = max(right, textWidth(s.Name)+32)
		}
	}
	y := c.valueScale(false, top+plotHeight, top)
	in := area{leftMargin(y.labels(), c.valueAxis()), chartWidth - right, top, top + plotHeight}
	x := c.positions(in.left, in.right)
	verticalAxis(b, y, in, c.valueAxis())
	height := horizontalAxis(b, x, in, c.XLabel)
	positionMarks(b, c, x, in)
	valueMarks(b, c, y, in, true)
	b.line("axis", in.left, in.bottom, in.right, in.bottom)
	for i, s := range c.Series {
		drawBand(b, s, x, y, i)
	}
	for i, s := range c.Series {
		drawLine(b, c, s, x, y, i)
	}
	if direct {
		nameEnds(b, c, x, y, in)
	}
	return height
}

// namesAtEnds reports whether the names of the lines go at their right ends instead of into a
// legend.
func namesAtEnds(c *Chart) bool {
	if len(c.Series) < 2 || len(c.Series) > 8 {
		return false
	}
	for _, s := range c.Series {
		if textWidth(s.Name) > 190 {
			return false
		}
		if slices.IndexFunc(s.Points, func(p Point) bool { return !p.None }) < 0 {
			return false
		}
	}
	return true
}

// positions is the horizontal scale.
func (c *Chart) positions(from, to float64) *scale {
	lo, hi := math.Inf(1), math.Inf(-1)
	var levels []float64
	for _, s := range c.Series {
		for _, p := range s.Points {
			lo, hi = min(lo, p.X), max(hi, p.X)
			levels = append(levels, p.X)
		}
	}
	switch c.Kind {
	case Percentiles:
		return newScale(nines, 0, hi, from, to)
	case TimeSeries:
		return newScale(seconds, min(lo, 0), hi, from, to)
	}
	if lo == hi && !c.LogX { // a single level goes to the middle
		s := newScale(linear, lo-1, hi+1, from, to)
		return s.atLevels([]float64{lo})
	}
	s := newScale(linear, lo, hi, from, to)
	if c.LogX {
		s = newScale(logarithmic, lo, hi, from, to)
	}
	slices.Sort(levels)
	return s.atLevels(slices.Compact(levels))
}

// drawLine draws a line and its points. If there are many points, only some get a marker, so
// that the line stays visible.
func drawLine(b *canvas, c *Chart, s Series, x, y *scale, series int) {
	var d strings.Builder
	verb := "M"
	for _, p := range s.Points {
		if p.None {
			verb = "M"
			continue
		}
		fmt.Fprintf(&d, "%s%.1f %.1f", verb, x.at(p.X), y.at(p.Y))
		verb = "L"
	}
	b.path(fmt.Sprintf("line k%d", series%colours), d.String(), s.Name)
	for i, p := range s.Points {
		title := fmt.Sprintf("%s at %s: %s", s.Name, x.label(p.X), c.describe(p))
		alone := !p.None && (i == 0 || s.Points[i-1].None) && (i == len(s.Points)-1 || s.Points[i+1].None)
		switch {
		case p.None:
		case c.Kind == Lines && len(s.Points) <= 40 || alone:
			b.marker(series, x.at(p.X), y.at(p.Y), title)
		case len(s.Points) <= 400: // invisible, but has a tooltip
			fmt.Fprintf(b, `<circle class="hit" cx="%.1f" cy="%.1f" r="5">%s</circle>`+"\n", x.at(p.X), y.at(p.Y), tooltip(title))
		}
	}
}

// drawBand shades from Lo to Hi, one shape for each run of points with a range.
func drawBand(b *canvas, s Series, x, y *scale, series int) {
	for rest := s.Points; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(p Point) bool { return !p.hasRange() })
		if n < 0 {
			n = len(rest)
		}
		if n > 1 {
			var d strings.Builder
			for i, p := range rest[:n] {
				verb := "L"
				if i == 0 {
					verb = "M"
				}
				fmt.Fprintf(&d, "%s%.1f %.1f", verb, x.at(p.X), y.at(p.Hi))
			}
			for _, p := range slices.Backward(rest[:n]) {
				fmt.Fprintf(&d, "L%.1f %.1f", x.at(p.X), y.at(p.Lo))
			}
			b.path(fmt.Sprintf("band f%d", series%colours), d.String()+"Z", "")
		}
		rest = rest[min(n+1, len(rest)):]
	}
}

// nameEnds writes the names of the lines next to their last points, moved apart where they
// would overlap.
func nameEnds(b *canvas, c *Chart, x, y *scale, in area) {
	type end struct {
		series       int
		x, y, labelY float64
	}
	var ends []end
	for i, s := range c.Series {
		for _, p := range slices.Backward(s.Points) {
			if !p.None {
				ends = append(ends, end{i, x.at(p.X), y.at(p.Y), y.at(p.Y)})
				break
			}
		}
	}
	slices.SortStableFunc(ends, func(p, q end) int { return cmp.Compare(p.y, q.y) })
	at := make([]float64, len(ends))
	for i, e := range ends {
		at[i] = e.y
	}
	for i, v := range spread(at, 15, in.top, in.bottom) {
		ends[i].labelY = v
	}
	left := in.right + 12
	for _, e := range ends {
		if math.Abs(e.labelY-e.y) > 2 || e.x < in.right-1 {
			fmt.Fprintf(b, `<line class="leader k%d" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", e.series%colours, e.x, e.y, left, e.labelY)
		}
		b.marker(e.series, left+3, e.labelY, "")
		b.text("", "start", left+12, e.labelY+4, c.Series[e.series].Name)
	}
}

// spread moves sorted positions apart, as little as possible, until neighbours are at least gap
// apart, and keeps them between lo and hi if they all fit.
func spread(at []float64, gap, lo, hi float64) []float64 {
	// Neighbours that overlap form a block, placed at the mean of its members' positions;
	// overlapping blocks are merged.
	type block struct {
		n     int
		start float64
	}
	var blocks []block
	for _, v := range at {
		blocks = append(blocks, block{1, v})
		for k := len(blocks) - 1; k > 0 && blocks[k-1].start+float64(blocks[k-1].n)*gap > blocks[k].start; k = len(blocks) - 1 {
			p, q := blocks[k-1], blocks[k]
			// Members of q would start where p's first member starts, minus their rank.
			start := (p.start*float64(p.n) + (q.start-float64(p.n)*gap)*float64(q.n)) / float64(p.n+q.n)
			blocks = append(blocks[:k-1], block{p.n + q.n, start})
		}
	}
	var out []float64
	for _, k := range blocks {
		for i := range k.n {
			out = append(out, k.start+float64(i)*gap)
		}
	}
	for i := len(out) - 1; i >= 0; i-- {
		limit := hi - float64(len(out)-1-i)*gap
		out[i] = min(out[i], limit)
	}
	for i := range out {
		out[i] = max(out[i], lo+float64(i)*gap)
	}
	return out
}

const markRow = 15.0

// markRows is the number of rows for the labels of marks above the plot.
func markRows(c *Chart) float64 {
	rows := 0
	for _, m := range placeMarks(c) {
		rows = max(rows, m.row+1)
	}
	return markRow * float64(rows)
}

// placedMark is a mark and the row of its label.
type placedMark struct {
	Mark
	row int
}

// placeMarks gives each mark on the horizontal axis the lowest row in which its label fits.
// Positions are not known yet, so a label takes the share of the width that it would take in a
// plot of 700.
func placeMarks(c *Chart) []placedMark {
	var out []placedMark
	x := c.positions(0, 700)
	var ends []float64
	for _, m := range c.Marks {
		if m.OnY {
			continue
		}
		half := textWidth(m.Label)/2 + 5
		middle := (x.at(m.At) + x.at(max(m.To, m.At))) / 2
		row := 0
		for row < len(ends) && ends[row] > middle-half {
			row++
		}
		if row == len(ends) {
			ends = append(ends, 0)
		}
		ends[row] = middle + half
		out = append(out, placedMark{m, row})
	}
	return out
}

// positionMarks draws the marks on the horizontal axis, with their labels above.
func positionMarks(b *canvas, c *Chart, x *scale, in area) {
	laid := placeMarks(c)
	up := func(m placedMark) float64 { return in.top - 5 - markRow*float64(m.row) }
	for _, m := range laid {
		at := x.at(m.At)
		spanOrLine(b, m.Mark, at, x.at(max(m.To, m.At)), in)
		if m.row > 0 && m.To == 0 {
			b.line("event", at, up(m)+3, at, in.top)
		}
	}
	for _, m := range laid { // over the lines, which may cross them
		middle := (x.at(m.At) + x.at(max(m.To, m.At))) / 2
		anchor := anchorWithin(middle, m.Label, in)
		b.label("soft mark", anchor, middle, up(m), chartWidth-in.left, m.Label)
	}
}
