package report

import (
	"cmp"
	"fmt"
	"html"
	"slices"
)

// The dimensions of a flame graph. It is drawn downwards, callers above callees, so that the
// page can be read from the top.
const (
	frameHeight = 18.0
	// leastFrame is the width below which a frame is not drawn, about what is visible. The text
	// below the chart says how much was left out.
	leastFrame = 0.9
	// mostDepth limits the height; deeper frames are part of their caller's value.
	mostDepth = 80
)

// flameDrawing is the state of drawing one flame graph.
type flameDrawing struct {
	*canvas
	c          *Chart
	categories []string
	top        float64
	deepest    int
	hidden     int
}

func drawFlame(b *canvas, c *Chart) float64 {
	d := flameDrawing{canvas: b, c: c, categories: c.Categories}
	if len(d.categories) == 0 {
		d.categories = c.Root.categories()
	}
	d.top = 8
	if len(d.categories) > 0 {
		classes := make([]string, len(d.categories))
		for i := range classes {
			classes[i] = washed(i)
		}
		d.top = legendOf(b, d.categories, classes) - 2
	}
	b.WriteString("<g class=\"flame\">\n")
	d.draw(c.Root, 0, chartWidth, 0)
	b.WriteString("</g>\n")
	height := d.top + frameHeight*float64(d.deepest+1) + 4
	if d.hidden > 0 {
		b.text("soft", "start", 0, height+14, fmt.Sprintf("%s narrower than %.1f %% of the whole are not drawn.", Plural(d.hidden, "frame", "frames"), 100*leastFrame/chartWidth))
		height += 20
	}
	return height
}

func (d *flameDrawing) draw(f *Frame, x, width float64, depth int) {
	if width < leastFrame || depth > mostDepth {
		d.hidden++
		return
	}
	d.deepest = max(d.deepest, depth)
	y := d.top + frameHeight*float64(depth)
	class := "plain"
	if i := slices.Index(d.categories, f.Category); i >= 0 {
		class = washed(i)
	}
	share := f.Value / d.c.Root.Value
	title := fmt.Sprintf("%s: %s, %.1f %%; itself %s", f.Name, d.c.value(f.Value), 100*share, d.c.value(f.Self()))
	if f.Category != "" {
		title += "; " + f.Category
	}
	fmt.Fprintf(d, `<g><title>%s</title><rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, html.EscapeString(title), class, x, y, max(width-0.6, 0.4), frameHeight-1)
	if name := frameName(f.Name, width-8); name != "" {
		fmt.Fprintf(d, `<text class="frame" x="%.1f" y="%.1f">%s</text>`, x+4, y+frameHeight-5.5, html.EscapeString(name))
	}
	d.WriteString("</g>\n")
	for _, child := range f.Children {
		w := chartWidth * child.Value / d.c.Root.Value
		d.draw(child, x, w, depth+1)
		x += w
	}
}

// washed is the class of shapes filled with a lightened series colour, on which text is
// readable.
func washed(series int) string { return fmt.Sprintf("w%d", series%colours) }

// frameName shortens the name of a function to a width: it drops first the package's path, then
// the end. "" means that there is no room for a useful name.
func frameName(name string, room float64) string {
	if textWidth(name) <= room {
		return name
	}
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '/' {
			name = name[i+1:]
			break
		}
	}
	if textWidth(name) <= room {
		return name
	}
	runes := []rune(name)
	width := runeWidth('…')
	for i, r := range runes {
		if width += runeWidth(r); width > room {
			if i < 3 {
				return ""
			}
			return string(runes[:i]) + "…"
		}
	}
	return name
}

// categories lists the categories of the tree by the frames' own values, largest first.
func (f *Frame) categories() []string {
	self := make(map[string]float64)
	f.walk(func(g *Frame) {
		if g.Category != "" {
			self[g.Category] += g.Self()
		}
	})
	var out []string
	for name := range self {
		out = append(out, name)
	}
	slices.SortFunc(out, func(a, b string) int {
		if c := cmp.Compare(self[b], self[a]); c != 0 {
			return c
		}
		if a < b {
			return -1
		}
		return 1
	})
	return out
}

// walk visits the frame and all frames below it.
func (f *Frame) walk(visit func(*Frame)) {
	visit(f)
	for _, c := range f.Children {
		c.walk(visit)
	}
}
