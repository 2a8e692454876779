package report

import (
	"fmt"
	"html"
	"math"
	"strings"
	"unicode/utf8"
)

// The measures of a chart, in the units of its viewBox, which at full width are
// about CSS pixels.
const (
	chartWidth  = 920.0
	plotHeight  = 270.0
	marginLeft  = 64.0
	marginRight = 26.0
	legendRow   = 22.0
	glyphWidth  = 6.9 // of 12 px sans serif, on average; text is never measured
	colours     = 12
)

// canvas gathers the elements of an SVG. Coordinates are written with one
// decimal: finer ones are not seen and make the file larger.
type canvas struct{ strings.Builder }

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

func (c *canvas) text(class, anchor string, x, y float64, s string) {
	fmt.Fprintf(c, `<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`+"\n", class, anchor, x, y, html.EscapeString(s))
}

func (c *canvas) rect(series int, x, y, w, h float64, title string) {
	fmt.Fprintf(c, `<rect fill="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`+"\n", colour(series), x, y, w, h, html.EscapeString(title))
}

func colour(series int) string { return fmt.Sprintf("var(--s%d)", series%colours) }

// drawChart returns a chart as an SVG element. Colours are CSS variables of the
// page, so light, dark and paper need no second drawing.
func drawChart(c *Chart) string {
	var body canvas
	top := legend(&body, c)
	var height float64
	switch c.Kind {
	case Bars:
		height = drawBars(&body, c, top)
	case Stacked:
		height = drawStacked(&body, c, top)
	default:
		height = drawLines(&body, c, top)
	}
	return fmt.Sprintf("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">\n%s</svg>", chartWidth, math.Ceil(height), html.EscapeString(c.Title), body.String())
}

// legend draws the names of the series in as many rows as they need and returns
// where the plot may begin. One series needs no legend: the title names it.
func legend(b *canvas, c *Chart) float64 {
	if len(c.Series) < 2 {
		return 10
	}
	x, y := 0.0, 12.0
	for i, s := range c.Series {
		w := 18 + glyphWidth*float64(utf8.RuneCountInString(s.Name)) + 18
		if x+w > chartWidth && x > 0 {
			x, y = 0, y+legendRow
		}
		fmt.Fprintf(b, `<rect fill="%s" x="%.1f" y="%.1f" width="11" height="11" rx="2"/>`+"\n", colour(i), x, y-10)
		b.text("soft", "start", x+17, y, s.Name)
		x += w
	}
	return y + 20
}

// verticalAxis draws the grid with its labels and the name of the axis.
func verticalAxis(b *canvas, s *scale, name string) {
	for _, t := range s.ticks {
		y := s.at(t)
		b.line("grid", marginLeft, y, chartWidth-marginRight, y)
		b.text("soft", "end", marginLeft-8, y+4, s.label(t))
	}
	if name != "" {
		fmt.Fprintf(b, `<text class="soft" text-anchor="middle" transform="translate(12 %.1f) rotate(-90)">%s</text>`+"\n", (s.from+s.to)/2, html.EscapeString(name))
	}
}

func drawBars(b *canvas, c *Chart, top float64) float64 {
	top += 8 // room for the value above the highest bar
	bottom := top + plotHeight
	highest := 0.0
	for _, s := range c.Series {
		for _, p := range s.Points {
			highest = max(highest, p.Y, p.Hi)
		}
	}
	y := newScale(linear, 0, highest, bottom, top)
	verticalAxis(b, y, c.YLabel)
	slot := (chartWidth - marginLeft - marginRight) / float64(len(c.Categories))
	n := float64(len(c.Series))
	width := min(slot*0.74/n, 56)
	for i, name := range c.Categories {
		left := marginLeft + slot*(float64(i)+0.5) - width*n/2
		for j, s := range c.Series {
			p := s.Points[i]
			x, h := left+width*float64(j), y.at(p.Y)
			b.rect(j, x+1, h, width-2, bottom-h, fmt.Sprintf("%s, %s: %s", name, s.Name, describe(p)))
			labelY := h
			if p.hasRange() {
				mid := x + width/2
				hi, lo := y.at(p.Hi), y.at(p.Lo)
				b.line("whisker", mid, hi, mid, lo)
				b.line("whisker", mid-4, hi, mid+4, hi)
				b.line("whisker", mid-4, lo, mid+4, lo)
				labelY = min(labelY, hi)
			}
			if text := short(p.Y); glyphWidth*float64(len(text)) <= width+2 {
				b.text("", "middle", x+width/2, labelY-5, text)
			}
		}
	}
	b.line("axis", marginLeft, bottom, chartWidth-marginRight, bottom)
	return categoryNames(b, c, slot, bottom)
}

// categoryNames writes the names below the bars, slanted when they would touch.
func categoryNames(b *canvas, c *Chart, slot, bottom float64) float64 {
	longest := 0
	for _, name := range c.Categories {
		longest = max(longest, utf8.RuneCountInString(name))
	}
	height := bottom + 24
	slanted := glyphWidth*float64(longest) > slot-6
	for i, name := range c.Categories {
		x := marginLeft + slot*(float64(i)+0.5)
		if slanted {
			fmt.Fprintf(b, `<text text-anchor="end" transform="translate(%.1f %.1f) rotate(-28)">%s</text>`+"\n", x+6, bottom+16, html.EscapeString(name))
			continue
		}
		b.text("", "middle", x, bottom+18, name)
	}
	if slanted {
		height = bottom + 24 + glyphWidth*float64(longest)*math.Sin(28*math.Pi/180)
	}
	if c.XLabel != "" {
		b.text("soft", "middle", (marginLeft+chartWidth-marginRight)/2, height+12, c.XLabel)
		height += 20
	}
	return height
}

func drawLines(b *canvas, c *Chart, top float64) float64 {
	bottom := top + plotHeight
	x, y := axes(c, top, bottom)
	verticalAxis(b, y, c.YLabel)
	for _, t := range x.ticks {
		at := x.at(t)
		b.line("grid", at, top, at, bottom)
		b.text("soft", "middle", at, bottom+18, x.label(t))
	}
	b.line("axis", marginLeft, bottom, chartWidth-marginRight, bottom)
	for i, s := range c.Series {
		drawBand(b, s, x, y, i)
	}
	for i, s := range c.Series {
		var path strings.Builder
		for j, p := range s.Points {
			verb := "L"
			if j == 0 {
				verb = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", verb, x.at(p.X), y.at(p.Y))
		}
		fmt.Fprintf(b, `<path class="line" stroke="%s" d="%s"><title>%s</title></path>`+"\n", colour(i), path.String(), html.EscapeString(s.Name))
		if c.Kind == Percentiles {
			continue // dozens of points: dots would hide the line
		}
		for _, p := range s.Points {
			fmt.Fprintf(b, `<circle class="dot" fill="%s" cx="%.1f" cy="%.1f" r="4"><title>%s</title></circle>`+"\n",
				colour(i), x.at(p.X), y.at(p.Y), html.EscapeString(fmt.Sprintf("%s at %s: %s", s.Name, x.label(p.X), describe(p))))
		}
	}
	height := bottom + 24
	if c.XLabel != "" {
		b.text("soft", "middle", (marginLeft+chartWidth-marginRight)/2, bottom+38, c.XLabel)
		height += 20
	}
	return height
}

// axes fits both axes to the points and their ranges.
func axes(c *Chart, top, bottom float64) (x, y *scale) {
	xlo, xhi := math.Inf(1), math.Inf(-1)
	ylo, yhi := math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for _, p := range s.Points {
			xlo, xhi = min(xlo, p.X), max(xhi, p.X)
			ylo, yhi = min(ylo, p.Y), max(yhi, p.Y, p.Hi)
			if p.hasRange() && (!c.LogY || p.Lo > 0) {
				ylo = min(ylo, p.Lo)
			}
		}
	}
	xkind, ykind := linear, linear
	switch {
	case c.Kind == Percentiles:
		xkind, xlo = nines, 0
	case c.LogX:
		xkind = logarithmic
	}
	if c.LogY {
		ykind = logarithmic
	} else {
		ylo = min(ylo, 0) // a cut axis exaggerates
	}
	return newScale(xkind, xlo, xhi, marginLeft, chartWidth-marginRight), newScale(ykind, ylo, yhi, bottom, top)
}

// drawBand shades from Lo to Hi.
func drawBand(b *canvas, s Series, x, y *scale, series int) {
	var there, back strings.Builder
	n := 0
	for i, p := range s.Points {
		if !p.hasRange() {
			continue
		}
		verb := "L"
		if n == 0 {
			verb = "M"
		}
		fmt.Fprintf(&there, "%s%.1f %.1f", verb, x.at(p.X), y.at(p.Hi))
		if q := s.Points[len(s.Points)-1-i]; q.hasRange() {
			fmt.Fprintf(&back, "L%.1f %.1f", x.at(q.X), y.at(q.Lo))
		}
		n++
	}
	if n > 1 {
		fmt.Fprintf(b, `<path class="band" fill="%s" d="%s%sZ"/>`+"\n", colour(series), there.String(), back.String())
	}
}

func drawStacked(b *canvas, c *Chart, top float64) float64 {
	const barHeight, step = 24.0, 36.0
	longest := 0
	for _, name := range c.Categories {
		longest = max(longest, utf8.RuneCountInString(name))
	}
	left := min(glyphWidth*float64(longest)+14, 260)
	width := chartWidth - left - marginRight
	for i, name := range c.Categories {
		y := top + step*float64(i)
		b.text("", "end", left-10, y+barHeight/2+4, name)
		x := left
		for j, s := range c.Series {
			share := s.Points[i].Y
			w := width * share
			if w < 0.05 {
				continue
			}
			label := fmt.Sprintf("%.1f %%", 100*share)
			b.rect(j, x, y, max(w-1, 0.5), barHeight, fmt.Sprintf("%s, %s: %s", name, s.Name, label))
			if w > 44 {
				b.text("inside", "middle", x+w/2, y+barHeight/2+4, label)
			}
			x += w
		}
	}
	bottom := top + step*float64(len(c.Categories)) - (step - barHeight) + 6
	for t := 0; t <= 100; t += 25 {
		x := left + width*float64(t)/100
		b.line("axis", x, bottom, x, bottom+4)
		b.text("soft", "middle", x, bottom+18, fmt.Sprintf("%d %%", t))
	}
	b.line("axis", left, bottom, left+width, bottom)
	return bottom + 24
}

// describe is the text shown when the pointer rests on a value.
func describe(p Point) string {
	if !p.hasRange() {
		return short(p.Y)
	}
	return fmt.Sprintf("%s [%s, %s]", short(p.Y), short(p.Lo), short(p.Hi))
}
