package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// terminalWidth is the line width on a terminal.
const terminalWidth = 96

// writeText formats the report for a terminal, without colours, so that it can be piped and
// pasted.
func writeText(w io.Writer, d *Doc) error {
	var b strings.Builder
	b.WriteString(d.Title + "\n" + strings.Repeat("=", utf8.RuneCountInString(d.Title)) + "\n")
	if d.Subtitle != "" {
		b.WriteString(wrap(d.Subtitle, "") + "\n")
	}
	b.WriteString(wrap(provenance(d.Env), "") + "\n")
	if len(d.Findings) > 0 {
		b.WriteString("\nFindings\n")
		textFindings(&b, d.Findings)
	}
	for _, s := range d.Sections {
		if s.empty() {
			continue
		}
		b.WriteString("\n" + s.Title + "\n" + strings.Repeat("-", utf8.RuneCountInString(s.Title)) + "\n")
		for _, p := range s.Text {
			b.WriteString(wrap(p, "") + "\n")
		}
		if len(s.Findings) > 0 {
			b.WriteString("\n")
			textFindings(&b, s.Findings)
		}
		for _, t := range s.Tables {
			b.WriteString("\n")
			textTable(&b, t.transposed())
		}
		for _, c := range s.Charts {
			if !c.Tabled {
				b.WriteString("\n")
				textChart(&b, c)
			}
		}
	}
	b.WriteString("\nEnvironment\n")
	rows := environmentRows(d.Env)
	width := 0
	for _, r := range rows {
		width = max(width, len(r[0]))
	}
	for _, r := range rows {
		indent := strings.Repeat(" ", width+4)
		fmt.Fprintf(&b, "  %-*s  %s\n", width, r[0], strings.TrimLeft(wrap(r[1], indent), " "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func textFindings(b *strings.Builder, findings []Finding) {
	for _, f := range sortFindings(findings) {
		mark := "  - "
		if f.Warn {
			mark = "  ! "
		}
		b.WriteString(mark + strings.TrimPrefix(wrap(f.Claim, "    "), "    ") + "\n")
		for _, e := range f.Evidence {
			b.WriteString(wrap(e, "      ") + "\n")
		}
		if f.Advice != "" {
			b.WriteString(wrap(f.Advice, "    ") + "\n")
		}
		if f.See != "" {
			b.WriteString(wrap("See "+f.See+".", "    ") + "\n")
		}
	}
}

// empty reports whether the section is empty without its drawings.
func (s *Section) empty() bool {
	for _, c := range s.Charts {
		if !c.Tabled {
			return false
		}
	}
	return len(s.Text)+len(s.Tables)+len(s.Findings) == 0
}

// textRows is the largest number of rows of a chart's figures in text.
const textRows = 24

// textChart writes the figures of a chart: bars as text bars, the rest as a table.
func textChart(b *strings.Builder, c Chart) {
	if c.Kind == Bars {
		b.WriteString("  " + c.barsTitle() + "\n")
		for _, line := range textBars(&c) {
			b.WriteString("  " + line + "\n")
		}
	} else {
		textTable(b, c.figures(textRows))
	}
	if c.Note != "" {
		b.WriteString(wrap(c.Note, "  ") + "\n")
	}
}

// barsTitle is the title and the unit of the bars.
func (c *Chart) barsTitle() string {
	if u := c.figureUnit(); u != "" {
		return c.Title + ": " + u
	}
	return c.Title
}

// textBars draws bars with block characters, one line each. Negative values have no bar.
func textBars(c *Chart) []string {
	const most = 32
	_, hi, _ := c.valueRange()
	names := barNames(c)
	width := 0
	for _, n := range names {
		width = max(width, utf8.RuneCountInString(n))
	}
	out := make([]string, 0, len(names))
	for i := range c.Categories {
		for _, s := range c.Series {
			name, p := names[len(out)], s.Points[i]
			bar := ""
			if !p.None && hi > 0 {
				bar = blocks(p.Y / hi * most)
			}
			out = append(out, name+strings.Repeat(" ", width-utf8.RuneCountInString(name))+"  "+bar+
				strings.Repeat(" ", most-utf8.RuneCountInString(bar))+"  "+c.cell(p).Text)
		}
	}
	return out
}

// barNames names each bar: its category, and its series if there are several.
func barNames(c *Chart) []string {
	var out []string
	for _, category := range c.Categories {
		for _, s := range c.Series {
			if len(c.Series) == 1 {
				out = append(out, category)
			} else {
				out = append(out, category+", "+s.Name)
			}
		}
	}
	return out
}

// blocks is a bar of the given length in characters, to an eighth.
func blocks(length float64) string {
	eighths := int(max(length, 0)*8 + 0.5)
	s := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		s += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return s
}

// textTable aligns a table; a strong cell has an asterisk.
func textTable(b *strings.Builder, t Table) {
	if t.Title != "" {
		b.WriteString("  " + t.Title + "\n")
	}
	lines := make([][]string, 0, len(t.Rows)+2)
	names, units := make([]string, len(t.Columns)), make([]string, len(t.Columns))
	anyUnit := false
	for i, c := range t.Columns {
		names[i], units[i] = c.Name, c.Unit
		anyUnit = anyUnit || c.Unit != ""
	}
	lines = append(lines, names)
	if anyUnit {
		lines = append(lines, units)
	}
	head := len(lines)
	for _, row := range t.Rows {
		line := make([]string, len(row))
		for i, c := range row {
			line[i] = c.Text
			if c.Strong {
				line[i] = "*" + c.Text
			}
		}
		lines = append(lines, line)
	}
	widths := make([]int, len(t.Columns))
	for _, line := range lines {
		for i, s := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(s))
		}
	}
	for n, line := range lines {
		if n == head {
			b.WriteString("  ")
			for i, w := range widths {
				if i > 0 {
					b.WriteString("  ")
				}
				b.WriteString(strings.Repeat("-", w))
			}
			b.WriteString("\n")
		}
		var out strings.Builder
		for i, s := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(s))
			out.WriteString("  ")
			if t.Columns[i].Numeric {
				out.WriteString(pad + s)
			} else {
				out.WriteString(s + pad)
			}
		}
		b.WriteString(strings.TrimRight(out.String(), " ") + "\n")
	}
	if t.Note != "" {
		b.WriteString(wrap(t.Note, "  ") + "\n")
	}
}

// wrap breaks a paragraph into lines that each begin with indent.
func wrap(s, indent string) string {
	var b strings.Builder
	at := 0
	for word := range strings.FieldsSeq(s) {
		n := utf8.RuneCountInString(word)
		switch {
		case at == 0:
			b.WriteString(indent)
			at = len(indent)
		case at+1+n > terminalWidth:
			b.WriteString("\n" + indent)
			at = len(indent)
		default:
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}
