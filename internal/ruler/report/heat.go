package report

import (
	"fmt"
	"math"
	"strings"
)

// drawHeat draws a cell for each series and category.
func drawHeat(b *canvas, c *Chart) float64 {
	names := make([]string, len(c.Series))
	for i, s := range c.Series {
		names[i] = s.Name
	}
	colour := c.shadeOf()
	top := heatLegend(b, c)
	rows, columns := float64(len(c.Series)), float64(len(c.Categories))
	left := min(widest(append(names, c.SeriesLabel))+2, mostLabel) + 12
	if c.XLabel != "" {
		top += 16
	}
	width := min((chartWidth-left-6)/columns, 150)
	high := min(max(420/rows, 5), 32)
	top += heatNameLine * float64(heatNameRows(c, width))
	in := area{left, left + width*columns, top + 4, top + 4 + high*rows}
	if c.XLabel != "" {
		b.label("soft", "start", in.left, top-heatNameLine*float64(heatNameRows(c, width))-3, chartWidth-in.left, c.XLabel)
	}
	if c.SeriesLabel != "" {
		b.label("soft", "end", in.left-8, in.top-7, in.left-10, c.SeriesLabel)
	}
	heatNames(b, c, in, width)
	rowEvery := math.Ceil(14 / high)
	for i, s := range c.Series {
		y := in.top + high*float64(i)
		if math.Mod(float64(i), rowEvery) == 0 {
			b.label("", "end", in.left-8, y+high/2+4, in.left-10, s.Name)
		}
		for j, p := range s.Points {
			x := in.left + width*float64(j)
			title := fmt.Sprintf("%s, %s: %s", s.Name, c.Categories[j], c.describe(p))
			if p.None {
				if gap(width)+gap(high) < 2 {
					continue // frames around small cells would hide them
				}
				b.rect("void", x, y, max(width-gap(width), 0.5), high-gap(high), fmt.Sprintf("%s, %s: not measured", s.Name, c.Categories[j]))
				continue
			}
			shade := colour(p.Y)
			b.rect(fmt.Sprintf("h%d", shade), x, y, max(width-gap(width), 0.5), high-gap(high), title)
			if text := short(p.Y); high >= 15 && textWidth(text) <= width-4 {
				class := fmt.Sprintf("inside u%d", shade)
				b.text(class, "middle", x+width/2, y+high/2+4, text)
			}
		}
	}
	for i, s := range c.Series {
		for j, p := range s.Points {
			if p.Strong {
				b.box("chosen", in.left+width*float64(j)-0.5, in.top+high*float64(i)-0.5, width, high)
			}
		}
	}
	return in.bottom + 8
}

// gap is the space between cells: none if they are small.
func gap(size float64) float64 {
	if size < 10 {
		return 0
	}
	return 1
}

const heatNameLine = 15.0

// heatNameRows is how many lines the names of the columns take.
func heatNameRows(c *Chart, width float64) int {
	if heatEvery(c, width) > 1 {
		return 1
	}
	rows := 1
	for _, name := range c.Categories {
		if lines, _ := twoLines(name, width-4); len(lines) > 1 {
			rows = 2
		}
	}
	return rows
}

// heatEvery is n if every n-th column has a name: 1 if most of it fits.
func heatEvery(c *Chart, width float64) int {
	w := min(widest(c.Categories), 60)
	if w <= width-4 {
		return 1
	}
	return int(math.Ceil((w + 10) / width))
}

// heatNames writes the categories above their columns, as many as fit.
func heatNames(b *canvas, c *Chart, in area, width float64) {
	every := heatEvery(c, width)
	for j := 0; j < len(c.Categories); j += every {
		name := c.Categories[j]
		if every > 1 {
			x := in.left + width*float64(j)
			if room := min(width*float64(every), chartWidth-x) - 6; textWidth(name) <= room || j == 0 {
				b.label("soft", "start", x, in.top-7, room, name)
			}
			continue
		}
		lines, _ := twoLines(name, width-4)
		if lines == nil {
			lines = []string{name}
		}
		for i, line := range lines {
			b.label("soft", "middle", in.left+width*(float64(j)+0.5), in.top-7-heatNameLine*float64(len(lines)-1-i), width-4, line)
		}
	}
}

// shadeOf returns a function from a value to its shade. On a log scale, values up to 0 have the
// lowest shade.
func (c *Chart) shadeOf() func(float64) int {
	lo, hi := c.shadeRange()
	return func(v float64) int {
		share := 0.0
		switch {
		case hi <= lo:
		case c.LogY && v < leastLog:
		case c.LogY:
			share = (math.Log(v) - math.Log(lo)) / (math.Log(hi) - math.Log(lo))
		default:
			share = (v - lo) / (hi - lo)
		}
		return int(min(max(math.Floor(share*shades), 0), shades-1))
	}
}

// shadeRange is the range of the values; of the positive ones on a log scale.
func (c *Chart) shadeRange() (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for _, p := range s.Points {
			if p.None || c.LogY && p.Y < leastLog {
				continue
			}
			lo, hi = min(lo, p.Y), max(hi, p.Y)
		}
	}
	if lo > hi {
		return 0, 0
	}
	return lo, hi
}

// heatLegend draws the shades and their values.
func heatLegend(b *canvas, c *Chart) float64 {
	const w, h = 22.0, 11.0
	lo, hi := c.shadeRange()
	name := c.YLabel
	if lo == hi {
		b.label("soft", "start", 0, 14, chartWidth, strings.Trim(name+": "+c.value(lo), ": "))
		return 32
	}
	from, to := c.value(lo), c.value(hi)
	x := textWidth(from) + 6
	b.text("soft", "start", 0, 14, from)
	for i := range shades {
		b.box(fmt.Sprintf("h%d", i), x+w*float64(i), 4, w, h)
	}
	x += w*shades + 6
	b.text("soft", "start", x, 14, to)
	x += textWidth(to) + 18
	if c.LogY {
		name = strings.TrimPrefix(name+", each step a factor of "+digits(math.Exp((math.Log(hi)-math.Log(lo))/shades)), ", ")
	}
	b.label("soft", "start", x, 14, chartWidth-x, name)
	return 32
}
