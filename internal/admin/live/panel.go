package live

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
)

// Page describes the page; it does not change while the process runs.
type Page struct {
	Title  string   `json:"title"` // the verb: weir proxy
	Series []Series `json:"series"`
	Tiles  []Tile   `json:"tiles"`
	Charts []Chart  `json:"charts"`
	// Actions are the buttons of the page. The product handles them, with Acts.
	Actions []Action `json:"actions,omitempty"`
	// Links are further paths of the same server, besides metrics, healthz and pprof.
	Links []string `json:"links"`
}

// Series is one recorded value.
type Series struct {
	Key string `json:"key"`
	// Peak keeps the largest value of ten seconds instead of the mean.
	Peak bool `json:"peak,omitempty"`
}

// Keys returns series: peaks keep the largest value of ten seconds, means the mean.
func Keys(peaks []string, means ...string) []Series {
	var all []Series
	for _, key := range peaks {
		all = append(all, Series{Key: key, Peak: true})
	}
	for _, key := range means {
		all = append(all, Series{Key: key})
	}
	return all
}

// Format says how a value is displayed.
type Format string

// The formats.
const (
	Count   Format = "count"
	Exact   Format = "exact" // all digits, for positions and process numbers
	Seconds Format = "seconds"
	Bytes   Format = "bytes"
	Percent Format = "percent" // of a value from 0 to 1
	Share   Format = "share"   // in a tile: relative to the value of the tile
)

// Action is a button: it sends a POST request to its path.
type Action struct {
	Label string `json:"label"`
	Path  string `json:"path"`
}

// Tile shows one current value.
type Tile struct {
	Label  string `json:"label"`
	Key    string `json:"key"`
	Format Format `json:"format"`
	Per    string `json:"per,omitempty"` // suffix of the value: "/s"
	// Parts are shown below the value.
	Parts []Part `json:"parts,omitempty"`
	Note  string `json:"note,omitempty"` // shown if there are no parts
	// Alarm turns the tile red while the value is above it. Default: never.
	Alarm float64 `json:"alarm,omitempty"`
}

// Part is a value in the lower part of a tile.
type Part struct {
	Key    string `json:"key"`
	Format Format `json:"format"`
	Label  string `json:"label"`
}

// Chart shows values over time.
type Chart struct {
	Title  string `json:"title"`
	Unit   string `json:"unit,omitempty"` // after the title, in words
	Format Format `json:"format"`
	// Decades selects a logarithmic axis, so that one spike does not flatten the rest.
	Decades bool   `json:"decades,omitempty"`
	Lines   []Line `json:"lines"`
}

// Line is one value in a chart.
type Line struct {
	Key   string `json:"key"`
	Label string `json:"label"`
	Color int    `json:"color"` // 1 to 5: blue, orange, green, purple, grey
}

// Draw returns a line of a chart.
func Draw(key, label string, color int) Line { return Line{Key: key, Label: label, Color: color} }

// check returns an error if the page names a value that it does not have.
func (p *Page) check() error {
	known := make(map[string]bool, len(p.Series))
	for _, s := range p.Series {
		if known[s.Key] {
			return fmt.Errorf("page %s: two values are named %s", p.Title, s.Key)
		}
		known[s.Key] = true
	}
	want := func(where, key string) error {
		if !known[key] {
			return fmt.Errorf("page %s: %s shows %q, which is not recorded", p.Title, where, key)
		}
		return nil
	}
	for _, t := range p.Tiles {
		if err := want("tile "+t.Label, t.Key); err != nil {
			return err
		}
		for _, part := range t.Parts {
			if err := want("tile "+t.Label, part.Key); err != nil {
				return err
			}
		}
	}
	for _, c := range p.Charts {
		for _, l := range c.Lines {
			if err := want("chart "+c.Title, l.Key); err != nil {
				return err
			}
			if l.Color < 1 || l.Color > 5 {
				return fmt.Errorf("page %s: chart %s: color %d of %s", p.Title, c.Title, l.Color, l.Label)
			}
		}
	}
	return nil
}

// Detail is shown for the current moment only.
type Detail struct {
	// Facts are shown below the title: addresses, version, age.
	Facts []string `json:"facts"`
	// Problems are shown at the top: why the process does not do its work.
	Problems []string `json:"problems,omitempty"`
	Tables   []Table  `json:"tables"`
}

// Table is one table.
type Table struct {
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    [][]Cell `json:"rows"`
	Empty   string   `json:"empty,omitempty"` // text if there are no rows
	Wide    bool     `json:"wide,omitempty"`  // as wide as the page
}

// Column is the heading of a column.
type Column struct {
	Name string `json:"name"`
	Text bool   `json:"text,omitempty"` // left-aligned
	Help string `json:"help,omitempty"`
}

// Columns returns columns by name; a name that begins with a colon is that of a text column.
func Columns(names ...string) []Column {
	out := make([]Column, len(names))
	for i, n := range names {
		if out[i].Name = n; n != "" && n[0] == ':' {
			out[i] = Column{Name: n[1:], Text: true}
		}
	}
	return out
}

// Cell is a value in a table.
type Cell struct {
	Text   string
	Value  float64
	Format Format // of Value; "": Text is shown
	Code   bool   // Text is a statement
	Bar    bool   // Value, 0 to 1, is shown as a bar
	Bad    bool   // shown in red
	Link   bool   // Text is the URL of a page
}

// MarshalJSON omits empty fields.
func (c Cell) MarshalJSON() ([]byte, error) {
	out := struct {
		Text   string   `json:"s,omitempty"`
		Value  *float64 `json:"v,omitempty"`
		Format Format   `json:"f,omitempty"`
		Code   bool     `json:"code,omitempty"`
		Bar    bool     `json:"bar,omitempty"`
		Bad    bool     `json:"bad,omitempty"`
		Link   bool     `json:"link,omitempty"`
	}{Text: c.Text, Format: c.Format, Code: c.Code, Bar: c.Bar, Bad: c.Bad, Link: c.Link && strings.HasPrefix(c.Text, "http://")}
	if (c.Format != "" || c.Bar) && !math.IsNaN(c.Value) && !math.IsInf(c.Value, 0) {
		out.Value = &c.Value
	}
	return json.Marshal(out)
}

// Text returns a cell with text.
func Text(s string) Cell { return Cell{Text: s} }

// Code returns a cell with a statement.
func Code(s string) Cell { return Cell{Text: s, Code: true} }

// Link returns a cell with the URL of a page.
func Link(url string) Cell { return Cell{Text: url, Link: true} }

// Bar returns a cell with a bar, 0 to 1.
func Bar(v float64) Cell { return Cell{Value: v, Bar: true} }

// Number returns a cell with a count or a rate.
func Number[N ~int | ~int64 | ~uint64 | ~float64](v N) Cell {
	return Cell{Value: float64(v), Format: Count}
}

// Whole returns a cell with a number that is shown with all digits: a position, a process
// number.
func Whole[N ~int | ~int64 | ~uint64](v N) Cell { return Cell{Value: float64(v), Format: Exact} }

// Duration returns a cell with a duration; it is empty if d is 0.
func Duration(d time.Duration) Cell {
	if d == 0 {
		return Cell{}
	}
	return Cell{Value: d.Seconds(), Format: Seconds}
}

// Size returns a cell with a number of bytes.
func Size[N ~int | ~int64 | ~uint64](v N) Cell { return Cell{Value: float64(v), Format: Bytes} }

// Percentage returns a cell with part/of in percent; it is empty if of is 0.
func Percentage(part, of float64) Cell {
	if of <= 0 {
		return Cell{}
	}
	return Cell{Value: part / of, Format: Percent}
}

// Alarm returns the cell, in red if bad is true.
func (c Cell) Alarm(bad bool) Cell {
	c.Bad = bad
	return c
}

// Age formats a duration in days, hours, minutes or seconds.
func Age(d time.Duration) string {
	days, hours, minutes := int(d.Hours())/24, int(d.Hours())%24, int(d.Minutes())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%d d %d h", days, hours)
	case hours > 0:
		return fmt.Sprintf("%d h %d min", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%d min", minutes)
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}
