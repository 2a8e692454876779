package report

import (
	_ "embed"
	"errors"
	"fmt"
	"html"
	"io"
	"regexp"
	"strings"
)

//go:embed chart.css
var chartStyle string

// The dimensions of an SVG file of charts.
const (
	picturePad   = 20.0
	titleHeight  = 30.0
	noteLine     = 17.0
	pictureGap   = 26.0
	pictureWidth = chartWidth + 2*picturePad
)

// writeSVG draws all charts of the report below each other in one picture, with the machine at
// the bottom, since a picture may be passed on alone.
func writeSVG(w io.Writer, d *Doc) error {
	var b canvas
	y := picturePad
	drawn := 0
	for i, s := range d.Sections {
		for j := range s.Charts {
			c := &s.Charts[j]
			if drawn > 0 {
				y += pictureGap
			}
			drawn++
			y = drawInto(&b, c, chartID(i, j), y)
		}
	}
	if drawn == 0 {
		return errors.New("the report has no charts")
	}
	y += 10
	for _, line := range lines(provenance(d.Env), chartWidth) {
		y += noteLine
		b.text("soft", "start", picturePad, y, line)
	}
	y += picturePad
	_, err := fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" aria-label=\"%s\">\n<style>\n%s</style>\n<rect class=\"ground\" width=\"100%%\" height=\"100%%\"/>\n%s</svg>\n",
		pictureWidth, y, pictureWidth, y, html.EscapeString(d.Title), pictureStyle(), b.String())
	return err
}

// drawInto draws a chart with its title above and its note below, and returns the position of
// its end.
func drawInto(b *canvas, c *Chart, id string, y float64) float64 {
	b.label("title", "start", picturePad, y+15, chartWidth*0.8, c.Title)
	y += titleHeight
	body, height := drawBody(c)
	fmt.Fprintf(b, "<svg x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" overflow=\"visible\" role=\"img\" aria-labelledby=\"%s-d\">\n<desc id=\"%s-d\">%s</desc>\n%s</svg>\n",
		picturePad, y, chartWidth, height, chartWidth, height, id, id, html.EscapeString(c.summary()), body)
	y += height
	if c.Note != "" {
		for _, line := range lines(c.Note, chartWidth) {
			y += noteLine
			b.text("soft", "start", picturePad, y, line)
		}
	}
	return y
}

// lines breaks a paragraph into lines for the canvas.
func lines(s string, width float64) []string {
	var out []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		if line != "" && textWidth(line+" "+word) > width {
			out = append(out, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(out, line)
}

// pictureStyle is the style of charts with plain colours in place of variables, which not every
// SVG viewer supports.
func pictureStyle() string {
	rules := chartStyle + chartCSS()
	return resolve(rules, light) + "@media (prefers-color-scheme: dark) {\n" + resolve(colourRules(rules), dark) + "}\n"
}

// resolve replaces variables by the colours of a theme.
func resolve(css string, t theme) string {
	var pairs []string
	for v := range strings.SplitSeq(t.variables(), ";") {
		if name, value, ok := strings.Cut(v, ":"); ok {
			pairs = append(pairs, "var("+strings.TrimSpace(name)+")", strings.TrimSpace(value))
		}
	}
	return strings.NewReplacer(pairs...).Replace(css)
}

var ruleWithVariable = regexp.MustCompile(`(?m)^[^{}\n]*\{[^{}]*var\([^{}]*\}.*$`)

// colourRules keeps the lines of a style that name a variable.
func colourRules(css string) string {
	return strings.Join(ruleWithVariable.FindAllString(css, -1), "\n") + "\n"
}
