package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// mostRows is the largest number of rows of a chart's table before it becomes a digest of the
// series.
const mostRows = 200

// Figures returns the chart as a table: every point if there are few enough, otherwise the
// lowest, the median and the highest of each series. The CSV always has every point.
func (c *Chart) Figures() Table { return c.figures(mostRows) }

func (c *Chart) figures(most int) Table {
	t := Table{Title: c.Title}
	switch c.Kind {
	case Flame:
		return c.frameTable(15)
	case Bars, Intervals, Stacked, Segments:
		c.byCategory(&t)
	case Heat:
		if len(c.Categories) > most || len(c.Categories) > 16 {
			c.digest(&t)
		} else {
			c.heatTable(&t)
		}
	case Percentiles:
		c.byQuantile(&t)
	default:
		if xs := c.allX(); len(xs) > most {
			c.digest(&t)
		} else {
			c.byX(&t, xs)
		}
	}
	return t
}

// cell formats a point for a table.
func (c *Chart) cell(p Point) Cell {
	switch {
	case p.None:
		return Cell{Text: "–"}
	case c.Kind == Stacked:
		return Cell{Text: c.value(p.Y)}
	case p.hasRange():
		return Cell{Text: figureRange(p), Strong: p.Strong}
	}
	return Cell{Text: figure(p.Y), Strong: p.Strong}
}

// head starts a table with a column for the name of the row and one per series.
func (c *Chart) head(t *Table, first string) {
	t.Columns = append(t.Columns, Column{Name: first, Numeric: c.Kind == Lines || c.Kind == TimeSeries})
	for _, s := range c.Series {
		t.Columns = append(t.Columns, Column{Name: s.Name, Unit: c.figureUnit(), Numeric: true})
	}
}

// figureUnit is the unit below the names of the columns.
func (c *Chart) figureUnit() string {
	if c.Unit == "" && c.Kind != Stacked {
		return c.YLabel
	}
	return c.Unit
}

// byCategory has a row for each category, or for each series if there are more of these: long
// tables are easier to read than wide ones.
func (c *Chart) byCategory(t *Table) {
	if len(c.Series) > len(c.Categories) {
		c.bySeries(t)
		return
	}
	c.head(t, "")
	if c.Kind == Segments {
		t.Columns = append(t.Columns, Column{Name: "sum", Unit: c.figureUnit(), Numeric: true})
	}
	for i, name := range c.Categories {
		row := []Cell{{Text: name}}
		for _, s := range c.Series {
			row = append(row, c.cell(s.Points[i]))
		}
		if c.Kind == Segments {
			row = append(row, Cell{Text: figure(c.sums()[i])})
		}
		t.Rows = append(t.Rows, row)
	}
}

func (c *Chart) bySeries(t *Table) {
	t.Columns = append(t.Columns, Column{})
	for _, name := range c.Categories {
		t.Columns = append(t.Columns, Column{Name: name, Unit: c.figureUnit(), Numeric: true})
	}
	c.seriesRows(t)
	if c.Kind == Segments {
		row := []Cell{{Text: "sum"}}
		for _, v := range c.sums() {
			row = append(row, Cell{Text: figure(v)})
		}
		t.Rows = append(t.Rows, row)
	}
}

func (c *Chart) seriesRows(t *Table) {
	for _, s := range c.Series {
		row := []Cell{{Text: s.Name}}
		for _, p := range s.Points {
			row = append(row, c.cell(p))
		}
		t.Rows = append(t.Rows, row)
	}
}

// sums adds up the series of each category.
func (c *Chart) sums() []float64 {
	out := make([]float64, len(c.Categories))
	for _, s := range c.Series {
		for i, p := range s.Points {
			if !p.None {
				out[i] += p.Y
			}
		}
	}
	return out
}

// heatTable has the rows and columns of the drawing.
func (c *Chart) heatTable(t *Table) {
	t.Columns = append(t.Columns, Column{Name: c.SeriesLabel})
	for _, name := range c.Categories {
		t.Columns = append(t.Columns, Column{Name: name, Numeric: true})
	}
	c.seriesRows(t)
	t.Note = strings.Join(slices.DeleteFunc([]string{c.valueAxis(), c.XLabel}, func(s string) bool { return s == "" }), "; columns: ")
}

// allX lists all positions in order.
func (c *Chart) allX() []float64 {
	var xs []float64
	for _, s := range c.Series {
		for _, p := range s.Points {
			xs = append(xs, p.X)
		}
	}
	slices.Sort(xs)
	return slices.Compact(xs)
}

func (c *Chart) byX(t *Table, xs []float64) {
	name := c.XLabel
	if c.Kind == TimeSeries {
		name = strings.TrimPrefix(name+", s", ", ")
	}
	c.head(t, name)
	for _, x := range xs {
		row := []Cell{{Text: figure(x)}}
		for _, s := range c.Series {
			i := slices.IndexFunc(s.Points, func(p Point) bool { return p.X == x })
			if i < 0 {
				row = append(row, Cell{Text: "–"})
				continue
			}
			row = append(row, c.cell(s.Points[i]))
		}
		t.Rows = append(t.Rows, row)
	}
}

// byQuantile lists the usual quantiles, each with the nearest point, as far as the series go.
func (c *Chart) byQuantile(t *Table) {
	c.head(t, "percentile")
	for _, q := range []float64{0, .5, .75, .9, .95, .99, .999, .9999, .99999} {
		row, any := []Cell{{Text: quantileName(q)}}, false
		for _, s := range c.Series {
			cell := Cell{Text: "–"}
			for _, p := range s.Points {
				// There is a point per tenth of a nine, so the nearest one is at most half of
				// that away.
				if !p.None && math.Abs(nine(p.X)-nine(q)) < 0.05 && (q > 0 || p.X == 0) {
					cell, any = c.cell(p), true
					break
				}
			}
			row = append(row, cell)
		}
		if any {
			t.Rows = append(t.Rows, row)
		}
	}
}

// digest summarises each series.
func (c *Chart) digest(t *Table) {
	unit := c.figureUnit()
	t.Columns = []Column{
		{Name: "series"},
		{Name: "points", Numeric: true},
		{Name: "first", Unit: unit, Numeric: true},
		{Name: "lowest", Unit: unit, Numeric: true},
		{Name: "at", Numeric: true},
		{Name: "median", Unit: unit, Numeric: true},
		{Name: "highest", Unit: unit, Numeric: true},
		{Name: "at", Numeric: true},
		{Name: "last", Unit: unit, Numeric: true},
	}
	for _, s := range c.Series {
		type place struct {
			at string
			y  float64
		}
		var all []place
		for i, p := range s.Points {
			if p.None {
				continue
			}
			at := figure(p.X)
			if c.Kind == Heat {
				at = c.Categories[i]
			}
			all = append(all, place{at, p.Y})
		}
		if len(all) == 0 {
			t.Rows = append(t.Rows, Cells(s.Name, "0", "–", "–", "–", "–", "–", "–", "–"))
			continue
		}
		first, last := all[0], all[len(all)-1]
		slices.SortStableFunc(all, func(a, b place) int { return cmp.Compare(a.y, b.y) })
		lowest, highest := all[0], all[len(all)-1]
		t.Rows = append(t.Rows, Cells(s.Name, strconv.Itoa(len(all)), figure(first.y), figure(lowest.y), lowest.at,
			figure(all[len(all)/2].y), figure(highest.y), highest.at, figure(last.y)))
	}
}

// frameTable lists the functions with the largest values of their own, over all callers.
func (c *Chart) frameTable(most int) Table {
	type site struct {
		name        string
		self, total float64
	}
	sites := make(map[string]*site)
	var walk func(f *Frame, above []string)
	walk = func(f *Frame, above []string) {
		s := sites[f.Name]
		if s == nil {
			s = &site{name: f.Name}
			sites[f.Name] = s
		}
		s.self += f.Self()
		if !slices.Contains(above, f.Name) { // count a recursive function once
			s.total += f.Value
		}
		for _, child := range f.Children {
			walk(child, append(above, f.Name))
		}
	}
	walk(c.Root, nil)
	var all []*site
	for _, s := range sites {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *site) int {
		if d := cmp.Compare(b.self, a.self); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
	t := Table{Title: c.Title, Columns: []Column{
		{Name: "function"}, {Name: "itself", Unit: c.Unit, Numeric: true}, {Name: "itself", Unit: "%", Numeric: true}, {Name: "with its callees", Unit: "%", Numeric: true},
	}}
	for _, s := range all[:min(most, len(all))] {
		if s.self <= 0 {
			break
		}
		t.Rows = append(t.Rows, Cells(s.name, figure(s.self), percent(s.self/c.Root.Value), percent(s.total/c.Root.Value)))
	}
	if len(all) > len(t.Rows) {
		t.Note = fmt.Sprintf("The first %d of %s, by their own values.", len(t.Rows), Plural(len(all), "function", "functions"))
	}
	return t
}

// summary describes the chart in a sentence or two.
func (c *Chart) summary() string {
	if c.Summary != "" {
		return c.Summary
	}
	if c.Kind == Flame {
		t := c.frameTable(3)
		var top []string
		for _, r := range t.Rows {
			top = append(top, r[0].Text+" ("+r[2].Text+" %)")
		}
		return fmt.Sprintf("Flame graph of %s. The largest part is in %s.", c.value(c.Root.Value), strings.Join(top, ", "))
	}
	what := map[ChartKind]string{
		Bars: "Bars", Intervals: "Values with intervals", Lines: "Lines", TimeSeries: "Lines over time", Percentiles: "Latency by percentile",
		Stacked: "Shares", Segments: "Segments", Heat: "Heat map",
	}[c.Kind]
	text := what + " of " + Plural(len(c.Series), "series", "series")
	if len(c.Categories) > 0 {
		text += " in " + Plural(len(c.Categories), "category", "categories")
	}
	lo, hi, ok := c.valueRange()
	if !ok {
		return text + ". Nothing was measured."
	}
	text += fmt.Sprintf(", from %s to %s", c.value(lo), c.value(hi))
	if c.YLabel != "" && c.YLabel != c.Unit {
		text += " (" + c.YLabel + ")"
	}
	return text + ". The figures are in the table."
}
