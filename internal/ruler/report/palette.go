package report

import (
	"fmt"
	"strings"
)

// colours is how many series colour alone can distinguish; further series repeat the colours.
const colours = 12

// shades is the number of colours of a heat map.
const shades = 9

// A theme is the colours of a page on one background.
//
// The series colours come from a search: each has at least 3:1 contrast to the page, and any
// two can be told apart, also by readers with any of the three kinds of colour blindness.
// palette_test.go has the model and checks that.
type theme struct {
	page, panel, ink, soft, line, grid, accent, warn string
	series                                           [colours]string
	// heatLow and heatHigh are the ends of the colours of heat maps: from nearly the page's to
	// the strongest contrast with it.
	heatLow, heatHigh string
}

var light = theme{
	page: "#ffffff", panel: "#f6f7f9", ink: "#1c2430", soft: "#5a6472", line: "#d3d9e0", grid: "#e6eaef", accent: "#1f5fae", warn: "#a34a00",
	series:  [colours]string{"#1f5fae", "#d55e00", "#128a66", "#8d3f86", "#35a199", "#809c5d", "#540f00", "#3f0962", "#554e02", "#0d4468", "#612b47", "#1d2530"},
	heatLow: "#dbe8f4", heatHigh: "#0b2c5e",
}

var dark = theme{
	page: "#12161c", panel: "#1a2029", ink: "#e4e8ee", soft: "#9fa9b8", line: "#333c48", grid: "#262d37", accent: "#7db4f0", warn: "#f0a94a",
	series:  [colours]string{"#4f94ea", "#f59b45", "#63d0a2", "#b065ae", "#aafdff", "#bde16a", "#f2686a", "#7055c4", "#7a6b2c", "#80e3fd", "#a44a7d", "#95a1b0"},
	heatLow: "#22303f", heatHigh: "#cfe6ff",
}

// paper is the light theme with black ink.
var paper = func() theme {
	t := light
	t.panel, t.ink, t.soft, t.line, t.grid = "#ffffff", "#000000", "#3f4751", "#b5bcc5", "#d9dde2"
	return t
}()

// variables returns the theme as CSS custom properties: --s0 is the first series, --t0 the text
// on it, --w0 its lightened colour, --h0 the lowest shade, --u0 the text on that.
func (t theme) variables() string {
	var b strings.Builder
	for _, v := range []struct{ name, value string }{
		{"page", t.page}, {"panel", t.panel}, {"ink", t.ink}, {"soft", t.soft}, {"line", t.line}, {"grid", t.grid}, {"accent", t.accent}, {"warn", t.warn},
	} {
		fmt.Fprintf(&b, "--%s: %s; ", v.name, v.value)
	}
	for i, s := range t.series {
		fmt.Fprintf(&b, "--s%d: %s; --t%d: %s; --w%d: %s; ", i, s, i, readable(s), i, t.wash(i))
	}
	for i := range shades {
		h := t.shade(i)
		fmt.Fprintf(&b, "--h%d: %s; --u%d: %s; ", i, h, i, readable(h))
	}
	return strings.TrimSpace(b.String())
}

// wash returns the colour of a series, blended with the page's.
func (t theme) wash(series int) string { return mix(t.page, t.series[series], 0.42) }

// shade returns the i-th colour of heat maps, 0 the lowest.
func (t theme) shade(i int) string {
	return mix(t.heatLow, t.heatHigh, float64(i)/(shades-1))
}

// chartCSS is the style of charts, in terms of the variables.
func chartCSS() string {
	var b strings.Builder
	for i := range colours {
		fmt.Fprintf(&b, ".f%d { fill: var(--s%d); } .k%d { stroke: var(--s%d); } .w%d { fill: var(--w%d); } .chart .t%d { fill: var(--t%d); }\n", i, i, i, i, i, i, i, i)
	}
	for i := range shades {
		fmt.Fprintf(&b, ".h%d { fill: var(--h%d); } .chart .u%d { fill: var(--u%d); }\n", i, i, i, i)
	}
	return b.String()
}
