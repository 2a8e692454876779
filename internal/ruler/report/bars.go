package report

import (
	"fmt"
	"strings"
)

// verticalBarsFit reports whether the names of the categories fit below vertical bars, in at most two
// lines.
func verticalBarsFit(c *Chart) bool {
	slot := (chartWidth - 70 - c.barMargin()) / float64(len(c.Categories))
	if slot*0.74/float64(len(c.Series)) < 7 {
		return false
	}
	for _, name := range c.Categories {
		if _, ok := twoLines(name, slot-6); !ok {
			return false
		}
	}
	return true
}

// barMargin is the room to the right of vertical bars for the labels of marks.
func (c *Chart) barMargin() float64 {
	m := marginRight
	for _, k := range c.Marks {
		m = max(m, min(textWidth(k.Label)+10, 170))
	}
	return m
}

// twoLines breaks a name at a space into two lines of similar length, unless it fits in one. It
// returns false if two lines are not enough.
func twoLines(name string, room float64) ([]string, bool) {
	if textWidth(name) <= room {
		return []string{name}, true
	}
	var best []string
	for i, r := range name {
		if r != ' ' || i == 0 {
			continue
		}
		lines := []string{name[:i], strings.TrimSpace(name[i:])}
		if best == nil || widest(lines) < widest(best) {
			best = lines
		}
	}
	return best, best != nil && widest(best) <= room
}

// valueRange returns the lowest and the highest value of all points and their ranges, and false
// if nothing was measured.
func (c *Chart) valueRange() (lo, hi float64, ok bool) {
	for _, s := range c.Series {
		for _, p := range s.Points {
			if p.None {
				continue
			}
			from, to := p.Y, p.Y
			if p.hasRange() {
				to = max(to, p.Hi)
				if !c.LogY || p.Lo >= leastLog {
					from = min(from, p.Lo)
				}
			}
			if !ok {
				lo, hi, ok = from, to, true
			}
			lo, hi = min(lo, from), max(hi, to)
		}
	}
	return lo, hi, ok
}

// valueScale covers all values and the marks on their axis. It starts at 0, unless the axis is
// logarithmic or floating is set: a cut axis exaggerates.
func (c *Chart) valueScale(floating bool, from, to float64) *scale {
	lo, hi, ok := c.valueRange()
	if !ok {
		lo, hi = 0, 1
		if c.LogY {
			lo = 0.1
		}
	}
	for _, m := range c.Marks {
		if on := m.OnY || c.Kind == Bars || c.Kind == Intervals; on && (!c.LogY || m.At >= leastLog) {
			lo, hi = min(lo, m.At), max(hi, m.At, m.To)
		}
	}
	kind := linear
	switch {
	case c.LogY:
		kind = logarithmic
	case !floating:
		lo, hi = min(lo, 0), max(hi, 0)
	}
	s := newScale(kind, lo, hi, from, to)
	s.unit = c.Unit
	return s
}

func drawBars(b *canvas, c *Chart, top float64) float64 {
	top += 8 // room for the value above the highest bar
	y := c.valueScale(false, top+plotHeight, top)
	in := area{leftMargin(y.labels(), c.valueAxis()), chartWidth - c.barMargin(), top, top + plotHeight}
	verticalAxis(b, y, in, c.valueAxis())
	slot := in.width() / float64(len(c.Categories))
	n := float64(len(c.Series))
	width := min(slot*0.74/n, 56)
	foot := y.at(0)
	for i, name := range c.Categories {
		left := in.left + slot*(float64(i)+0.5) - width*n/2
		for j, s := range c.Series {
			p := s.Points[i]
			x := left + width*float64(j)
			if p.None {
				if width >= 10 {
					b.text("soft", "middle", x+width/2, foot-5, "–")
				}
				continue
			}
			end := y.at(p.Y)
			b.rect(c.fill(j), x+1, min(end, foot), max(width-2, 1), max(max(end, foot)-min(end, foot), 0.8), fmt.Sprintf("%s, %s: %s", name, s.Name, c.describe(p)))
			over, under := min(end, foot), max(end, foot)
			if p.hasRange() {
				mid, hi, lo := x+width/2, y.at(p.Hi), y.at(p.Lo)
				b.line("whisker", mid, hi, mid, lo)
				b.line("whisker", mid-4, hi, mid+4, hi)
				b.line("whisker", mid-4, lo, mid+4, lo)
				over, under = min(over, hi), max(under, lo)
			}
			if text := short(p.Y); textWidth(text) <= width+2 || n == 1 && textWidth(text) <= slot-4 {
				at := over - 5
				if p.Y < 0 {
					at = under + 14
				}
				b.text("halo", "middle", x+width/2, at, text)
			}
		}
	}
	valueMarks(b, c, y, in, true)
	b.line("axis", in.left, foot, in.right, foot)
	return categoryNames(b, c, slot, in)
}

// categoryNames writes the names below the bars.
func categoryNames(b *canvas, c *Chart, slot float64, in area) float64 {
	rows := 1
	for i, name := range c.Categories {
		lines, _ := twoLines(name, slot-6)
		rows = max(rows, len(lines))
		for j, line := range lines {
			b.text("", "middle", in.left+slot*(float64(i)+0.5), in.bottom+18+15*float64(j), line)
		}
	}
	height := in.bottom + 11 + 15*float64(rows)
	if c.XLabel != "" {
		b.label("soft", "middle", (in.left+in.right)/2, height+12, chartWidth-40, c.XLabel)
		height += 20
	}
	return height
}
