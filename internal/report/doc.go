// Package report turns a finished measurement into something to read: a table on
// the terminal, Markdown, CSV, JSON, or one HTML file that needs nothing else.
//
// A Doc is the model that all of them are made from. The package knows how to
// lay it out; what goes into it, and every number, comes from the caller. It
// refuses a Doc that shows figures without the environment they were taken in.
package report

import (
	"errors"
	"fmt"
	"io"

	"github.com/weirdb/weir/internal/measure"
)

// Doc is a report.
type Doc struct {
	Title    string               `json:"title"`
	Subtitle string               `json:"subtitle,omitempty"`
	Env      *measure.Environment `json:"env"`
	Findings []Finding            `json:"findings,omitempty"`
	Sections []Section            `json:"sections"`
}

// Section is a part of a report: paragraphs, then tables, then charts, then what
// they show.
type Section struct {
	Title    string    `json:"title"`
	Text     []string  `json:"text,omitempty"`
	Tables   []Table   `json:"tables,omitempty"`
	Charts   []Chart   `json:"charts,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
}

// Finding is a statement computed from the figures, with what supports it.
type Finding struct {
	Warn     bool     `json:"warn,omitempty"` // a figure must be taken with care
	Claim    string   `json:"claim"`
	Evidence []string `json:"evidence,omitempty"`
	Advice   string   `json:"advice,omitempty"`
}

// Table is a table. Each row has as many cells as there are columns.
type Table struct {
	Title   string   `json:"title,omitempty"`
	Columns []Column `json:"columns"`
	Rows    [][]Cell `json:"rows"`
	Note    string   `json:"note,omitempty"`
}

// Column heads a column. Numbers are set flush right.
type Column struct {
	Name    string `json:"name"`
	Unit    string `json:"unit,omitempty"`
	Numeric bool   `json:"numeric,omitempty"`
}

// Cell is a cell; a strong one is the row or column to look at.
type Cell struct {
	Text   string `json:"text"`
	Strong bool   `json:"strong,omitempty"`
}

// Cells makes plain cells of strings.
func Cells(text ...string) []Cell {
	out := make([]Cell, len(text))
	for i, t := range text {
		out[i].Text = t
	}
	return out
}

// ChartKind is how a chart is drawn.
type ChartKind string

const (
	// Bars draws a group of bars for each category, one bar a series, whiskers
	// from Lo to Hi.
	Bars ChartKind = "bars"
	// Lines draws a line for each series through its points, with a band from Lo
	// to Hi.
	Lines ChartKind = "lines"
	// Stacked draws one horizontal bar for each category, cut into the shares of
	// the series. Shares are in [0, 1].
	Stacked ChartKind = "stacked"
	// Percentiles draws latency against the percentile, on an axis of nines: X
	// is the quantile in [0, 1).
	Percentiles ChartKind = "percentiles"
)

// Chart is a chart. Everything in it is also in a table, since text and Markdown
// have no charts.
type Chart struct {
	Title      string    `json:"title"`
	Kind       ChartKind `json:"kind"`
	Categories []string  `json:"categories,omitempty"` // of Bars and Stacked
	XLabel     string    `json:"x_label,omitempty"`
	YLabel     string    `json:"y_label,omitempty"`
	LogX       bool      `json:"log_x,omitempty"` // of Lines
	LogY       bool      `json:"log_y,omitempty"` // of Lines and Percentiles
	Series     []Series  `json:"series"`
	Note       string    `json:"note,omitempty"`
}

// Series is a named row of points. In Bars and Stacked the i-th point belongs to
// the i-th category, and X means nothing.
type Series struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point is a value with its range. Lo and Hi both 0 mean that there is none.
type Point struct {
	X  float64 `json:"x,omitempty"`
	Y  float64 `json:"y"`
	Lo float64 `json:"lo,omitempty"`
	Hi float64 `json:"hi,omitempty"`
}

func (p Point) hasRange() bool { return p.Lo != 0 || p.Hi != 0 }

// Validate returns why the report must not be rendered.
func (d *Doc) Validate() error {
	if d.Title == "" {
		return errors.New("report has no title")
	}
	if err := d.Env.Validate(); err != nil {
		return fmt.Errorf("report %q shows figures without their environment: %w", d.Title, err)
	}
	for _, s := range d.Sections {
		for _, t := range s.Tables {
			for i, row := range t.Rows {
				if len(row) != len(t.Columns) {
					return fmt.Errorf("section %q, table %q: row %d has %d cells for %d columns", s.Title, t.Title, i, len(row), len(t.Columns))
				}
			}
		}
		for _, c := range s.Charts {
			if err := c.validate(); err != nil {
				return fmt.Errorf("section %q, chart %q: %w", s.Title, c.Title, err)
			}
		}
	}
	return nil
}

func (c *Chart) validate() error {
	if len(c.Series) == 0 {
		return errors.New("no series")
	}
	for _, s := range c.Series {
		switch c.Kind {
		case Bars, Stacked:
			if len(s.Points) != len(c.Categories) {
				return fmt.Errorf("series %q has %d points for %d categories", s.Name, len(s.Points), len(c.Categories))
			}
		case Lines, Percentiles:
			if len(s.Points) == 0 {
				return fmt.Errorf("series %q has no points", s.Name)
			}
		default:
			return fmt.Errorf("unknown kind %q", c.Kind)
		}
		for _, p := range s.Points {
			switch {
			case c.LogX && p.X <= 0, c.LogY && p.Y <= 0:
				return fmt.Errorf("series %q: nothing at or below 0 fits on a log axis", s.Name)
			case c.Kind == Percentiles && (p.X < 0 || p.X >= 1):
				return fmt.Errorf("series %q: quantile %v is not in [0, 1)", s.Name, p.X)
			}
		}
	}
	return nil
}

// Format names a renderer.
type Format string

// The formats of Write.
const (
	FormatText     Format = "text"
	FormatMarkdown Format = "md"
	FormatCSV      Format = "csv"
	FormatHTML     Format = "html"
	FormatJSON     Format = "json"
)

// Write renders the report in a format, after validating it.
func (d *Doc) Write(w io.Writer, f Format) error {
	if err := d.Validate(); err != nil {
		return err
	}
	var err error
	switch f {
	case FormatText:
		err = writeText(w, d)
	case FormatMarkdown:
		err = writeMarkdown(w, d)
	case FormatCSV:
		err = writeCSV(w, d)
	case FormatHTML:
		err = writeHTML(w, d)
	case FormatJSON:
		err = writeJSON(w, d)
	default:
		return fmt.Errorf("no report format %q: want text, md, csv, html or json", f)
	}
	if err != nil {
		return fmt.Errorf("write report as %s: %w", f, err)
	}
	return nil
}
