package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// textWidth is where paragraphs are broken on a terminal.
const textWidth = 96

// writeText lays the report out for a terminal, without colours, so that it can
// be piped and pasted.
func writeText(w io.Writer, d *Doc) error {
	var b strings.Builder
	b.WriteString(d.Title + "\n" + strings.Repeat("=", utf8.RuneCountInString(d.Title)) + "\n")
	if d.Subtitle != "" {
		b.WriteString(wrap(d.Subtitle, "") + "\n")
	}
	if len(d.Findings) > 0 {
		b.WriteString("\nFindings\n")
		textFindings(&b, d.Findings)
	}
	for _, s := range d.Sections {
		if len(s.Text)+len(s.Tables)+len(s.Findings) == 0 {
			continue // only charts
		}
		b.WriteString("\n" + s.Title + "\n" + strings.Repeat("-", utf8.RuneCountInString(s.Title)) + "\n")
		for _, p := range s.Text {
			b.WriteString(wrap(p, "") + "\n")
		}
		for _, t := range s.Tables {
			b.WriteString("\n")
			textTable(&b, t)
		}
		if len(s.Findings) > 0 {
			b.WriteString("\n")
			textFindings(&b, s.Findings)
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
	for _, f := range findings {
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
	}
}

// textTable aligns a table; a strong cell carries an asterisk.
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
		case at+1+n > textWidth:
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
