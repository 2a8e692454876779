package report

import (
	"fmt"
	"html"
	"strings"
	"unicode"
)

// canvas collects the elements of an SVG. Coordinates have one decimal: more would be invisible
// and make the file larger. Styles are classes, so that light, dark and paper share one
// drawing.
type canvas struct{ strings.Builder }

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// text writes a line of text. anchor is start, middle or end.
func (c *canvas) text(class, anchor string, x, y float64, s string) {
	fmt.Fprintf(c, `<text%s%s x="%.1f" y="%.1f">%s</text>`+"\n", attribute("class", class), anchored(anchor), x, y, html.EscapeString(s))
}

// label writes a line of text no wider than room. A longer text is shortened, with the whole
// text as a tooltip.
func (c *canvas) label(class, anchor string, x, y, room float64, s string) {
	short := fit(s, room)
	if short == s {
		c.text(class, anchor, x, y, s)
		return
	}
	fmt.Fprintf(c, `<text%s%s x="%.1f" y="%.1f">%s<title>%s</title></text>`+"\n", attribute("class", class), anchored(anchor), x, y, html.EscapeString(short), html.EscapeString(s))
}

func attribute(name, value string) string {
	if value == "" {
		return ""
	}
	return fmt.Sprintf(` %s="%s"`, name, value)
}

func anchored(anchor string) string {
	if anchor == "start" {
		return "" // the default of SVG
	}
	return attribute("text-anchor", anchor)
}

// rect draws a box; title is its tooltip.
func (c *canvas) rect(class string, x, y, w, h float64, title string) {
	fmt.Fprintf(c, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f">%s</rect>`+"\n", class, x, y, w, h, tooltip(title))
}

// box draws a box without a tooltip.
func (c *canvas) box(class string, x, y, w, h float64) {
	fmt.Fprintf(c, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`+"\n", class, x, y, w, h)
}

func (c *canvas) path(class, d, title string) {
	fmt.Fprintf(c, `<path class="%s" d="%s">%s</path>`+"\n", class, d, tooltip(title))
}

func tooltip(s string) string {
	if s == "" {
		return ""
	}
	return "<title>" + html.EscapeString(s) + "</title>"
}

// marker draws the symbol of a series, so that colour alone does not distinguish series:
// circle, square, triangle, diamond, inverted triangle.
func (c *canvas) marker(series int, x, y float64, title string) {
	const r = 4.0
	class := fmt.Sprintf("dot f%d", series%colours)
	switch series % 5 {
	case 0:
		fmt.Fprintf(c, `<circle class="%s" cx="%.1f" cy="%.1f" r="%.1f">%s</circle>`+"\n", class, x, y, r, tooltip(title))
	case 1:
		c.path(class, fmt.Sprintf("M%.1f %.1fh%.1fv%.1fh%.1fZ", x-r*0.9, y-r*0.9, 1.8*r, 1.8*r, -1.8*r), title)
	case 2:
		c.path(class, fmt.Sprintf("M%.1f %.1fl%.1f %.1fh%.1fZ", x, y-r*1.15, r*1.15, 2*r, -2.3*r), title)
	case 3:
		c.path(class, fmt.Sprintf("M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fZ", x, y-r*1.25, r*1.25, r*1.25, -r*1.25, r*1.25, -r*1.25, -r*1.25), title)
	default:
		c.path(class, fmt.Sprintf("M%.1f %.1fl%.1f %.1fh%.1fZ", x, y+r*1.15, r*1.15, -2*r, -2.3*r), title)
	}
}

// textWidth is the approximate width of a text, in the units of the canvas. Text cannot be
// measured here and the reader's font is unknown, so this is the width in 12 px DejaVu Sans,
// which is wider than the other fonts in use.
func textWidth(s string) float64 {
	w := 0.0
	for _, r := range s {
		w += runeWidth(r)
	}
	return w
}

func runeWidth(r rune) float64 {
	switch {
	case strings.ContainsRune("ijl'|", r):
		return 3.7
	case strings.ContainsRune(" .,:;ftIJ()[]-/\\!\"", r):
		return 4.6
	case strings.ContainsRune("r*", r):
		return 5.6
	case strings.ContainsRune("mwMW%@…—", r):
		return 11.8
	case r >= '0' && r <= '9':
		return 7.7
	case unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Cf, r):
		return 0 // combining mark, drawn over the letter before
	case r >= 0x2e80:
		return 13 // ideographs and emoji
	case unicode.IsUpper(r) || strings.ContainsRune("<>=+~#", r):
		return 9.3
	default:
		return 7.5
	}
}

// fit shortens a text to a width by removing its middle: long names mostly differ at their
// ends.
func fit(s string, room float64) string {
	if textWidth(s) <= room {
		return s
	}
	room -= runeWidth('…')
	runes := []rune(s)
	head, tail := 0, len(runes)
	for left := true; head < tail; left = !left {
		r := runes[tail-1]
		if left {
			r = runes[head]
		}
		if room -= runeWidth(r); room < 0 {
			break
		}
		if left {
			head++
		} else {
			tail--
		}
	}
	return strings.TrimRight(string(runes[:head]), " ") + "…" + strings.TrimLeft(string(runes[tail:]), " ")
}

// widest returns the width of the widest text.
func widest(texts []string) float64 {
	w := 0.0
	for _, s := range texts {
		w = max(w, textWidth(s))
	}
	return w
}
