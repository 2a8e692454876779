package report

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"strings"
)

// writeMarkdown writes the report as Markdown: where and when it was measured, the findings,
// the warnings, the figures, how to repeat it. Charts are replaced by their figures.
func writeMarkdown(w io.Writer, d *Doc) error {
	b := mdWriter{places: placesOf(d)}
	b.WriteString("# " + mdText(d.Title) + "\n")
	if d.Subtitle != "" {
		b.WriteString("\n" + mdText(d.Subtitle) + "\n")
	}
	b.WriteString("\n" + mdText(provenance(d.Env)) + "\n")
	if len(d.Findings) > 0 {
		b.WriteString("\n## Findings\n\n")
		b.findings(d.Findings)
	}
	for _, s := range d.Sections {
		if s.empty() {
			continue
		}
		b.WriteString("\n## " + mdText(s.Title) + "\n")
		for _, p := range s.Text {
			b.WriteString("\n" + mdText(p) + "\n")
		}
		if len(s.Findings) > 0 {
			b.WriteString("\n")
			b.findings(s.Findings)
		}
		for _, t := range s.Tables {
			b.table(t.transposed())
		}
		for _, c := range s.Charts {
			if !c.Tabled {
				b.chart(c)
			}
		}
	}
	b.WriteString("\n## Environment\n\n| | |\n| --- | --- |\n")
	for _, r := range environmentRows(d.Env) {
		b.WriteString("| " + mdText(r[0]) + " | " + mdText(r[1]) + " |\n")
	}
	b.WriteString("\nTo repeat it:\n\n```\n" + commandLine(d.Env.Command) + "\n```\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// mdWriter collects Markdown.
type mdWriter struct {
	strings.Builder
	places map[string]place
}

// chart writes the figures of a chart: bars as text bars, the rest as a table.
func (b *mdWriter) chart(c Chart) {
	if c.Kind != Bars {
		t := c.figures(textRows)
		if c.Note != "" {
			t.Note = strings.TrimSpace(t.Note + " " + c.Note)
		}
		b.table(t)
		return
	}
	b.WriteString("\n**" + mdText(c.barsTitle()) + "**\n\n```\n" + strings.Join(textBars(&c), "\n") + "\n```\n")
	if c.Note != "" {
		b.WriteString("\n" + mdText(c.Note) + "\n")
	}
}

func (b *mdWriter) findings(findings []Finding) {
	for _, f := range sortFindings(findings) {
		b.WriteString("- ")
		if f.Warn {
			b.WriteString("**Caution:** ")
		}
		b.WriteString(mdText(f.Claim))
		if f.Advice != "" {
			b.WriteString(" " + mdText(f.Advice))
		}
		if p, ok := b.places[f.See]; ok {
			b.WriteString(" See [" + mdText(f.See) + "](#" + p.Section + ").")
		}
		b.WriteString("\n")
		for _, e := range f.Evidence {
			b.WriteString("  - " + mdText(e) + "\n")
		}
	}
}

func (b *mdWriter) table(t Table) {
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
			if c.Link != "" {
				b.WriteString(" [" + mdText(c.Text) + "](" + strings.TrimSuffix(c.Link, ".html") + ".md) |")
			} else if c.Strong {
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

// mdText escapes text.
func mdText(s string) string {
	return strings.NewReplacer("\\", "\\\\", "|", "\\|", "*", "\\*", "_", "\\_", "`", "\\`", "<", "&lt;", "[", "\\[", "\n", " ").Replace(s)
}

// writeCSV writes all tables and the points of all charts in long form, a line for each cell,
// so that tables of different shape share one file. Numbers of charts have full precision; a
// point is a row with its series, category or x, value and range.
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
		for _, c := range s.Charts {
			for _, r := range c.cells() {
				rows = append(rows, append([]string{s.Title, c.Title}, r...))
			}
		}
	}
	return c.WriteAll(rows)
}

// cells lists row, column, unit and value of all points of the chart.
func (c *Chart) cells() [][]string {
	var out [][]string
	add := func(row int, column, unit string, v float64) {
		out = append(out, []string{strconv.Itoa(row), column, unit, strconv.FormatFloat(v, 'g', -1, 64)})
	}
	if c.Kind == Flame {
		row := 0
		c.Root.walk(func(f *Frame) {
			row++
			out = append(out, []string{strconv.Itoa(row), "function", "", f.Name})
			add(row, "itself", c.Unit, f.Self())
			add(row, "with its callees", c.Unit, f.Value)
		})
		return out
	}
	row := 0
	for _, s := range c.Series {
		for i, p := range s.Points {
			if p.None {
				continue
			}
			row++
			out = append(out, []string{strconv.Itoa(row), "series", "", s.Name})
			if len(c.Categories) > 0 {
				out = append(out, []string{strconv.Itoa(row), "category", "", c.Categories[i]})
			} else {
				add(row, "x", c.XLabel, p.X)
			}
			add(row, "value", c.figureUnit(), p.Y)
			if p.hasRange() {
				add(row, "from", c.figureUnit(), p.Lo)
				add(row, "to", c.figureUnit(), p.Hi)
			}
		}
	}
	return out
}

func writeJSON(w io.Writer, d *Doc) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	out := *d
	out.Schema = Schema
	return e.Encode(out)
}
