// Package report renders a finished measurement: as tables for the terminal, Markdown, CSV,
// SVG, JSON, or one self-contained HTML file.
//
// A Doc is the model that all of them are made from. The package knows how to lay it out; the
// content, and every number, comes from the caller. It refuses a Doc that shows figures without
// the environment they were measured in.
//
// Charts are data as well (see Chart): HTML and SVG draw them, text and Markdown print their
// figures, CSV has every point. Everything drawn can also be read: every chart has a table.
package report

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/measure"
)

// Schema names the version of the JSON form of a Doc. Within version 1 fields are
// only added.
const Schema = "weir.report/1"

// Doc is a report.
type Doc struct {
	// Schema is set when JSON is written and checked by ReadDoc.
	Schema   string               `json:"schema,omitempty"`
	Title    string               `json:"title"`              // head of the report
	Subtitle string               `json:"subtitle,omitempty"` // below the title
	Env      *measure.Environment `json:"env"`                // the machine and the command
	Findings []Finding            `json:"findings,omitempty"` // of the whole report
	Sections []Section            `json:"sections"`           // in order
}

// Section is a part of a report. Pages show its paragraphs, its findings, its charts, and then
// the tables behind them.
type Section struct {
	Title    string    `json:"title"`              // head of the section
	Text     []string  `json:"text,omitempty"`     // paragraphs before the tables
	Tables   []Table   `json:"tables,omitempty"`   // in order
	Charts   []Chart   `json:"charts,omitempty"`   // in order
	Findings []Finding `json:"findings,omitempty"` // of the section
}

// Finding is a statement computed from the figures, with its evidence.
type Finding struct {
	Warn     bool     `json:"warn,omitempty"`     // a figure must be read with care
	First    bool     `json:"first,omitempty"`    // to be read before any figure
	Claim    string   `json:"claim"`              // the finding, in a sentence
	Evidence []string `json:"evidence,omitempty"` // the figures that show it
	Advice   string   `json:"advice,omitempty"`   // what to do about it
	// See is the title of the section, table or chart that shows it; pages link to it.
	See string `json:"see,omitempty"`
}

// Table is a table. Each row has as many cells as there are columns.
type Table struct {
	Title   string   `json:"title,omitempty"` // head of the table
	Columns []Column `json:"columns"`         // heads of the columns
	Rows    [][]Cell `json:"rows"`            // a list of cells each
	Note    string   `json:"note,omitempty"`  // below the table
}

// When returns the table if ok, else no table.
func (t Table) When(ok bool) []Table {
	if !ok {
		return nil
	}
	return []Table{t}
}

// Column is the head of a column.
type Column struct {
	Name    string `json:"name"`              // head of the column
	Unit    string `json:"unit,omitempty"`    // of the figures in it
	Numeric bool   `json:"numeric,omitempty"` // aligned to the right
}

// Columns makes columns of figures from their names, each with its unit after a bar:
// "latency|ms". A name that begins with a colon is that of a text column.
func Columns(names ...string) []Column {
	out := make([]Column, len(names))
	for i, n := range names {
		name, text := strings.CutPrefix(n, ":")
		out[i].Name, out[i].Unit, _ = strings.Cut(name, "|")
		out[i].Numeric = !text
	}
	return out
}

// Cell is a cell; a strong one is emphasised.
type Cell struct {
	Text   string `json:"text"`             // as shown
	Strong bool   `json:"strong,omitempty"` // shown in bold
	// Link is a page next to this one that the text links to.
	Link string `json:"link,omitempty"`
}

// Cells makes plain cells from strings.
func Cells(text ...string) []Cell {
	out := make([]Cell, len(text))
	for i, t := range text {
		out[i].Text = t
	}
	return out
}

// Validate returns why the report must not be rendered.
func (d *Doc) Validate() error {
	if d.Title == "" {
		return errors.New("report has no title")
	}
	if err := d.Env.Validate(); err != nil {
		return fmt.Errorf("report %q shows figures without their environment: %w", d.Title, err)
	}
	places := placesOf(d)
	for _, f := range d.allFindings() {
		if _, ok := places[f.See]; f.See != "" && !ok {
			return fmt.Errorf("finding %q refers to %q, which does not exist", f.Claim, f.See)
		}
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

// allFindings lists the findings of the report and of its sections.
func (d *Doc) allFindings() []Finding {
	out := slices.Clone(d.Findings)
	for _, s := range d.Sections {
		out = append(out, s.Findings...)
	}
	return out
}

// Format names a renderer.
type Format string

// The formats of Write.
const (
	FormatText     Format = "text"
	FormatMarkdown Format = "md"
	FormatCSV      Format = "csv"
	FormatSVG      Format = "svg"
	FormatHTML     Format = "html"
	FormatJSON     Format = "json"
)

// Formats lists them all.
func Formats() []Format {
	return []Format{FormatText, FormatMarkdown, FormatCSV, FormatSVG, FormatHTML, FormatJSON}
}

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
	case FormatSVG:
		err = writeSVG(w, d)
	case FormatHTML:
		err = writeHTML(w, d)
	case FormatJSON:
		err = writeJSON(w, d)
	default:
		return fmt.Errorf("no report format %q: want text, md, csv, svg, html or json", f)
	}
	if err != nil {
		return fmt.Errorf("write report as %s: %w", f, err)
	}
	return nil
}
