package report

import "slices"

// mostColumns is the number of columns that fit on a page, a terminal or a sheet of paper.
const mostColumns = 10

// transposed returns the table with rows and columns exchanged if it has too many columns and fewer
// rows than columns: a long table can be read, a cut one cannot. Formats for programs never use
// it.
func (t Table) transposed() Table {
	if len(t.Columns) <= mostColumns || len(t.Rows)+2 >= len(t.Columns) || t.Columns[0].Numeric {
		return t
	}
	out := Table{Title: t.Title, Note: t.Note, Columns: []Column{{Name: t.Columns[0].Name}}}
	units := slices.ContainsFunc(t.Columns, func(c Column) bool { return c.Unit != "" })
	if units {
		out.Columns = append(out.Columns, Column{Name: "unit"})
	}
	numeric := !slices.ContainsFunc(t.Columns[1:], func(c Column) bool { return !c.Numeric })
	for _, row := range t.Rows {
		out.Columns = append(out.Columns, Column{Name: row[0].Text, Numeric: numeric})
	}
	for i, c := range t.Columns[1:] {
		row := []Cell{{Text: c.Name}}
		if units {
			row = append(row, Cell{Text: c.Unit})
		}
		for _, r := range t.Rows {
			row = append(row, r[i+1])
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}
