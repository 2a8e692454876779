package report

import (
	"fmt"
	"math"
	"slices"
)

// rowNames are the names of the categories to the left of their rows, broken into lines if they
// are long.
type rowNames struct {
	lines [][]string
	room  float64 // including the gap to the plot
	rows  int     // largest number of lines of a name
}

const nameLine = 14.0

func layRowNames(names []string) rowNames {
	out := rowNames{rows: 1}
	for _, name := range names {
		lines := []string{name}
		if textWidth(name) > mostLabel {
			lines = breakName(name, mostLabel)
		}
		out.lines = append(out.lines, lines)
		out.rows = max(out.rows, len(lines))
		out.room = max(out.room, min(widest(lines)+2, mostLabel))
	}
	out.room += 12
	return out
}

// breakName breaks a name at spaces into two lines, and shortens what still does not fit.
func breakName(name string, room float64) []string {
	if two, ok := twoLines(name, room); ok || two != nil {
		return two
	}
	return []string{name}
}

// height is the height that the names need in a row.
func (r rowNames) height() float64 { return nameLine*float64(r.rows) + 2 }

// draw writes the name of a row, centred at y.
func (r rowNames) draw(b *canvas, i int, y float64) {
	y += 4 - nameLine*float64(len(r.lines[i])-1)/2
	for j, line := range r.lines[i] {
		b.label("", "end", r.room-10, y+nameLine*float64(j), r.room-12, line)
	}
}

// drawHorizontalBars draws horizontal bars, a group for each category. It suits long names and many
// cases.
func drawHorizontalBars(b *canvas, c *Chart, top float64) float64 {
	if len(c.Marks) > 0 {
		top += 14 // room for their labels
	}
	n := float64(len(c.Series))
	bar := math.Floor(min(max(900/(float64(len(c.Categories))*(n+0.6)), 8), 18))
	names := layRowNames(c.Categories)
	step := max(bar*n+max(bar*0.55, 6), names.height())
	room := 12.0
	for _, s := range c.Series {
		for _, p := range s.Points {
			room = max(room, textWidth(short(p.Y))+10)
		}
	}
	in := area{names.room, chartWidth - room, top, top + step*float64(len(c.Categories)) + 4}
	x := c.valueScale(false, in.left, in.right)
	height := horizontalAxis(b, x, in, c.valueAxis())
	foot := x.at(0)
	for i, name := range c.Categories {
		y := top + 4 + step*float64(i)
		names.draw(b, i, y+bar*n/2)
		for j, s := range c.Series {
			p, at := s.Points[i], y+bar*float64(j)
			if p.None {
				b.text("soft", "start", foot+6, at+bar/2+4, "–")
				continue
			}
			end := x.at(p.Y)
			b.rect(c.fill(j), min(foot, end), at+0.5, max(math.Abs(end-foot), 0.8), bar-1, fmt.Sprintf("%s, %s: %s", name, s.Name, c.describe(p)))
			after := max(end, foot)
			if p.hasRange() {
				after = max(after, horizontalWhisker(b, x, p, at+bar/2, min(bar/2-1, 4)))
			}
			if bar >= 11 || len(c.Series) == 1 {
				b.text("halo", "start", after+5, at+bar/2+4, short(p.Y))
			}
		}
	}
	valueMarks(b, c, x, in, false)
	b.line("axis", foot, in.top, foot, in.bottom)
	return height
}

// horizontalWhisker draws a range and returns its end.
func horizontalWhisker(b *canvas, x *scale, p Point, y, half float64) float64 {
	lo, hi := x.at(p.Lo), x.at(p.Hi)
	b.line("whisker", lo, y, hi, y)
	b.line("whisker", lo, y-half, lo, y+half)
	b.line("whisker", hi, y-half, hi, y+half)
	return hi
}

func drawIntervals(b *canvas, c *Chart, top float64) float64 {
	if len(c.Marks) > 0 {
		top += 14
	}
	n := float64(len(c.Series))
	const dot = 16.0
	names := layRowNames(c.Categories)
	step := max(dot*n+8, names.height())
	var values []string
	for _, s := range c.Series {
		for _, p := range s.Points {
			values = append(values, c.describe(p))
		}
	}
	in := area{names.room, chartWidth - widest(values) - 16, top, top + step*float64(len(c.Categories)) + 2}
	x := c.valueScale(true, in.left+10, in.right-10)
	height := horizontalAxis(b, x, in, c.valueAxis())
	valueMarks(b, c, x, in, false)
	for i, name := range c.Categories {
		y := top + 4 + step*float64(i)
		if i > 0 {
			b.line("grid", in.left, y-3, chartWidth, y-3)
		}
		names.draw(b, i, y+dot*n/2)
		for j, s := range c.Series {
			p, at := s.Points[i], y+dot*(float64(j)+0.5)
			if p.None {
				b.text("soft", "start", in.right+10, at+4, "–")
				continue
			}
			if p.hasRange() {
				fmt.Fprintf(b, `<line class="range k%d" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", j%colours, x.at(p.Lo), at, x.at(p.Hi), at)
			}
			b.marker(j, x.at(p.Y), at, fmt.Sprintf("%s, %s: %s", name, s.Name, c.describe(p)))
			b.text("", "start", in.right+10, at+4, c.describe(p))
		}
	}
	b.line("axis", in.left, in.bottom, in.right, in.bottom)
	return height
}

// drawSegments draws Stacked and Segments.
func drawSegments(b *canvas, c *Chart, top float64) float64 {
	sums := c.sums()
	names := layRowNames(c.Categories)
	step := max(min(max(1000/float64(len(c.Categories)), 18), 36), names.height())
	bar := math.Round(step * 0.68)
	in := area{left: names.room, right: chartWidth - marginRight, top: top, bottom: top + step*float64(len(c.Categories)) - (step - bar) + 6}
	x := newScale(linear, 0, 1, in.left, in.right)
	x.percent = true
	if c.Kind == Segments {
		var totals []string
		for _, v := range sums {
			totals = append(totals, c.value(v))
		}
		in.right = chartWidth - widest(totals) - 12
		x = newScale(linear, 0, slices.Max(sums), in.left, in.right)
		x.unit = c.Unit
	}
	height := horizontalAxis(b, x, in, c.valueAxis())
	for i, name := range c.Categories {
		y, sum := top+step*float64(i), 0.0
		names.draw(b, i, y+bar/2)
		for j, s := range c.Series {
			p := s.Points[i]
			if p.None {
				continue
			}
			from, to := x.at(sum), x.at(sum+p.Y)
			sum += p.Y
			if to-from < 0.05 {
				continue
			}
			share := ""
			if c.Kind == Segments {
				share = fmt.Sprintf(" (%.1f %%)", 100*p.Y/sums[i])
			}
			b.rect(c.fill(j), from, y, max(to-from-1, 0.5), bar, fmt.Sprintf("%s, %s: %s%s", name, s.Name, c.value(p.Y), share))
			if text := c.inside(p.Y); textWidth(text)+6 <= to-from && bar >= 14 {
				class := fmt.Sprintf("inside t%d", j%colours)
				if s.Rest {
					class = "inside"
				}
				b.text(class, "middle", (from+to)/2, y+bar/2+4, text)
			}
		}
		if c.Kind == Segments {
			b.text("strong", "start", x.at(sum)+6, y+bar/2+4, c.value(sum))
		}
	}
	b.line("axis", in.left, in.bottom, in.right, in.bottom)
	return height
}

// inside is the text within a segment.
func (c *Chart) inside(v float64) string {
	if c.Kind == Stacked {
		return c.value(v)
	}
	return withUnit(v, c.Unit)
}
