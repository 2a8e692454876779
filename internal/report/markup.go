package report

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"strings"
)

// writeMarkdown writes tables as GitHub shows them. Charts are left out.
func writeMarkdown(w io.Writer, d *Doc) error {
	var b strings.Builder
	b.WriteString("# " + mdText(d.Title) + "\n")
	if d.Subtitle != "" {
		b.WriteString("\n" + mdText(d.Subtitle) + "\n")
	}
	if len(d.Findings) > 0 {
		b.WriteString("\n## Findings\n\n")
		mdFindings(&b, d.Findings)
	}
	for _, s := range d.Sections {
		if len(s.Text)+len(s.Tables)+len(s.Findings) == 0 {
			continue // only charts
		}
		b.WriteString("\n## " + mdText(s.Title) + "\n")
		for _, p := range s.Text {
			b.WriteString("\n" + mdText(p) + "\n")
		}
		for _, t := range s.Tables {
			mdTable(&b, t)
		}
		if len(s.Findings) > 0 {
			b.WriteString("\n")
			mdFindings(&b, s.Findings)
		}
	}
	b.WriteString("\n## Environment\n\n| | |\n| --- | --- |\n")
	for _, r := range environmentRows(d.Env) {
		b.WriteString("| " + mdText(r[0]) + " | " + mdText(r[1]) + " |\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func mdFindings(b *strings.Builder, findings []Finding) {
	for _, f := range findings {
		b.WriteString("- ")
		if f.Warn {
			b.WriteString("**Caution:** ")
		}
		b.WriteString(mdText(f.Claim))
		if f.Advice != "" {
			b.WriteString(" " + mdText(f.Advice))
		}
		b.WriteString("\n")
		for _, e := range f.Evidence {
			b.WriteString("  - " + mdText(e) + "\n")
		}
	}
}

func mdTable(b *strings.Builder, t Table) {
	if t.Title != "" {
		b.WriteString("\n**" + mdText(t.Title) + "**\n")
	}
	b.WriteString("\n|")
	for _, c := range t.Columns {
		name := c.Name
		if c.Unit != "" {
			name += " (" + c.Unit + ")"
		}
		b.WriteString(" " + mdText(name) + " |")
	}
	b.WriteString("\n|")
	for _, c := range t.Columns {
		if c.Numeric {
			b.WriteString(" ---: |")
		} else {
			b.WriteString(" --- |")
		}
	}
	b.WriteString("\n")
	for _, row := range t.Rows {
		b.WriteString("|")
		for _, c := range row {
			if c.Strong {
				b.WriteString(" **" + mdText(c.Text) + "** |")
			} else {
				b.WriteString(" " + mdText(c.Text) + " |")
			}
		}
		b.WriteString("\n")
	}
	if t.Note != "" {
		b.WriteString("\n" + mdText(t.Note) + "\n")
	}
}

// mdText keeps text from being read as markup.
func mdText(s string) string {
	return strings.NewReplacer("\\", "\\\\", "|", "\\|", "*", "\\*", "_", "\\_", "`", "\\`", "<", "&lt;", "[", "\\[", "\n", " ").Replace(s)
}

// writeCSV writes all tables in long form, a line for each cell, so that tables
// of different shape share one file.
func writeCSV(w io.Writer, d *Doc) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"section", "table", "row", "column", "unit", "value"}}
	for _, s := range d.Sections {
		for _, t := range s.Tables {
			for i, row := range t.Rows {
				for j, cell := range row {
					rows = append(rows, []string{s.Title, t.Title, strconv.Itoa(i + 1), t.Columns[j].Name, t.Columns[j].Unit, cell.Text})
				}
			}
		}
	}
	return c.WriteAll(rows)
}

func writeJSON(w io.Writer, d *Doc) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}
