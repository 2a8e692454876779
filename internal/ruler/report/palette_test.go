package report

import (
	"math"
	"testing"
)

// vision holds how colours look to a reader: the matrices of Machado, Oliveira
// and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
// Deficiency" (2009), at full severity, for linear light.
var vision = map[string][3]rgb{
	"full":         {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

func seen(c rgb, by [3]rgb) oklab {
	var out rgb
	for i, row := range by {
		out[i] = min(max(row[0]*c[0]+row[1]*c[1]+row[2]*c[2], 0), 1)
	}
	return out.oklab()
}

func distance(a, b oklab) float64 {
	return math.Sqrt((a[0]-b[0])*(a[0]-b[0]) + (a[1]-b[1])*(a[1]-b[1]) + (a[2]-b[2])*(a[2]-b[2]))
}

// themes are those that a reader meets.
var themes = map[string]theme{"light": light, "dark": dark, "paper": paper}

func TestSeriesCanBeToldApart(t *testing.T) {
	// 0.02 is a difference that can just be seen side by side. 0.07 can be found
	// again in a legend; twelve colours have to make do with a little less.
	const enough = 0.06
	for name, th := range themes {
		for who, matrix := range vision {
			for i := range th.series {
				for j := range i {
					a, b := parseColour(th.series[i]), parseColour(th.series[j])
					if d := distance(seen(a, matrix), seen(b, matrix)); d < enough {
						t.Errorf("%s, %s: series %d and %d (%s, %s) are %.3f apart", name, who, j, i, th.series[j], th.series[i], d)
					}
				}
			}
		}
	}
}

func TestColoursStandOutFromThePage(t *testing.T) {
	for name, th := range themes {
		page := parseColour(th.page)
		for i, s := range th.series {
			if c := contrast(parseColour(s), page); c < 3 {
				t.Errorf("%s: series %d has a contrast of %.2f to the page", name, i, c)
			}
			if c := contrast(parseColour(s), parseColour(readable(s))); c < 4.5 {
				t.Errorf("%s: text on series %d has a contrast of %.2f", name, i, c)
			}
		}
		for i := range th.series {
			if c := contrast(parseColour(th.ink), parseColour(th.wash(i))); c < 4.5 {
				t.Errorf("%s: text on thinned series %d has a contrast of %.2f", name, i, c)
			}
		}
		for what, colour := range map[string]string{"ink": th.ink, "soft": th.soft, "accent": th.accent, "warn": th.warn} {
			for ground, g := range map[string]string{"page": th.page, "panel": th.panel} {
				if c := contrast(parseColour(colour), parseColour(g)); c < 4.5 {
					t.Errorf("%s: %s on the %s has a contrast of %.2f", name, what, ground, c)
				}
			}
		}
	}
}

func TestShadesRiseEvenly(t *testing.T) {
	for name, th := range themes {
		last := 0.0
		for i := range shades {
			h := parseColour(th.shade(i))
			c := contrast(h, parseColour(th.page))
			if c <= last {
				t.Errorf("%s: shade %d does not stand out more than the one below", name, i)
			}
			last = c
			if r := contrast(h, parseColour(readable(th.shade(i)))); r < 4.5 {
				t.Errorf("%s: text on shade %d has a contrast of %.2f", name, i, r)
			}
		}
	}
}

func TestColourRoundTrip(t *testing.T) {
	for _, s := range append(light.series[:], "#000000", "#ffffff", "#0a0b0c") {
		if got := parseColour(s).String(); got != s {
			t.Errorf("%s came back as %s", s, got)
		}
		if got := parseColour(s).oklab().rgb().String(); got != s {
			t.Errorf("%s came back from Oklab as %s", s, got)
		}
	}
}
