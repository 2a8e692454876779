package report

import (
	"fmt"
	"math"
)

// rgb is a colour in linear light, each component in [0, 1].
type rgb [3]float64

// parseColour reads #rrggbb. The colours are constants of this package.
func parseColour(s string) rgb {
	var r, g, b uint8
	if _, err := fmt.Sscanf(s, "#%02x%02x%02x", &r, &g, &b); err != nil {
		panic("report: colour " + s + ": " + err.Error())
	}
	return rgb{toLinear(r), toLinear(g), toLinear(b)}
}

func toLinear(v uint8) float64 {
	c := float64(v) / 255
	if c <= 0.04045 {
		return c / 12.92
	}
	return math.Pow((c+0.055)/1.055, 2.4)
}

func (c rgb) String() string {
	var out [3]uint8
	for i, v := range c {
		v = min(max(v, 0), 1)
		if v <= 0.0031308 {
			v *= 12.92
		} else {
			v = 1.055*math.Pow(v, 1/2.4) - 0.055
		}
		out[i] = uint8(math.Round(255 * v))
	}
	return fmt.Sprintf("#%02x%02x%02x", out[0], out[1], out[2])
}

// contrast is the contrast ratio of WCAG 2.1: 1 for equal luminance, 21 for black on white.
func contrast(a, b rgb) float64 {
	x, y := a.luminance()+0.05, b.luminance()+0.05
	return max(x, y) / min(x, y)
}

func (c rgb) luminance() float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] }

// readable returns the darker or the lighter ink, whichever has more contrast to the ground.
// One of them always has a contrast of at least 4.5.
func readable(ground string) string {
	const inkOnLight, inkOnDark = "#000000", "#ffffff"
	g := parseColour(ground)
	if contrast(parseColour(inkOnLight), g) > contrast(parseColour(inkOnDark), g) {
		return inkOnLight
	}
	return inkOnDark
}

// oklab is a colour in Björn Ottosson's Oklab, in which equal distances look
// about equally large. https://bottosson.github.io/posts/oklab/
type oklab [3]float64

func (c rgb) oklab() oklab {
	l := math.Cbrt(0.4122214708*c[0] + 0.5363325363*c[1] + 0.0514459929*c[2])
	m := math.Cbrt(0.2119034982*c[0] + 0.6806995451*c[1] + 0.1073969566*c[2])
	s := math.Cbrt(0.0883024619*c[0] + 0.2817188376*c[1] + 0.6299787005*c[2])
	return oklab{
		0.2104542553*l + 0.7936177850*m - 0.0040720468*s,
		1.9779984951*l - 2.4285922050*m + 0.4505937099*s,
		0.0259040371*l + 0.7827717662*m - 0.8086757660*s,
	}
}

func (o oklab) rgb() rgb {
	cube := func(v float64) float64 { return v * v * v }
	l := cube(o[0] + 0.3963377774*o[1] + 0.2158037573*o[2])
	m := cube(o[0] - 0.1055613458*o[1] - 0.0638541728*o[2])
	s := cube(o[0] - 0.0894841775*o[1] - 1.2914855480*o[2])
	return rgb{
		4.0767416621*l - 3.3077115913*m + 0.2309699292*s,
		-1.2684380046*l + 2.6097574011*m - 0.3413193965*s,
		-0.0041960863*l - 0.7034186147*m + 1.7076147010*s,
	}
}

// mix returns the colour at a share of the way from one colour to another, in perceptually even
// steps.
func mix(from, to string, share float64) string {
	a, b := parseColour(from).oklab(), parseColour(to).oklab()
	var o oklab
	for i := range o {
		o[i] = a[i] + share*(b[i]-a[i])
	}
	return o.rgb().String()
}
