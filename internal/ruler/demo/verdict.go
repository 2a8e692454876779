package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Verdict is the outcome of the demo.
type Verdict struct {
	Promises []Promise `json:"promises"`
	Events   []Event   `json:"events"`
	Orders   int       `json:"orders"`  // acknowledged
	Seconds  float64   `json:"seconds"` // from the first start
	Longest  float64   `json:"longest"` // longest time without an acknowledged order
	Profiles []string  `json:"profiles"`

	before measure.Pressure // the machine before the demo
}

// Event is something that happened.
type Event struct {
	At   float64 `json:"at"` // seconds
	What string  `json:"what"`
}

// Held reports whether every promise was kept.
func (v *Verdict) Held() bool {
	for _, p := range v.Promises {
		if !p.Held {
			return false
		}
	}
	return len(v.Promises) > 0
}

// page is the path of the report.
func page(out string) string { return filepath.Join(out, "report.html") }

// save writes the report.
func (v *Verdict) save(out string) (err error) {
	env := measure.ReadEnvironment()
	env.PressureBefore, env.PressureAfter = v.before, env.PressureBefore
	doc := &report.Doc{Title: "weir demo --stack", Subtitle: fmt.Sprintf("%d orders in %.0f s, while processes were killed", v.Orders, v.Seconds), Env: &env}
	promises := report.Table{Columns: report.Columns(":Promise", ":Held", ":Found", ":Judged by")}
	for _, p := range v.Promises {
		held := "yes"
		if !p.Held {
			held = "NO"
			doc.Findings = append(doc.Findings, report.Finding{Warn: true, First: true, Claim: "Broken: " + p.What, Evidence: []string{p.Figure}})
		}
		promises.Rows = append(promises.Rows, []report.Cell{{Text: p.What}, {Text: held, Strong: !p.Held}, {Text: p.Figure}, {Text: p.How}})
	}
	if v.Held() {
		doc.Findings = append(doc.Findings, report.Finding{Claim: fmt.Sprintf("All %d promises were kept.", len(v.Promises))})
	}
	doc.Findings = append(doc.Findings, report.Finding{Claim: fmt.Sprintf("The longest time without an acknowledged order was %.1f s.", v.Longest)})
	events := report.Table{Columns: report.Columns("At|s", ":What")}
	for _, e := range v.Events {
		events.Rows = append(events.Rows, report.Cells(fmt.Sprintf("%.1f", e.At), e.What))
	}
	doc.Sections = []report.Section{
		{Title: "Promises", Tables: []report.Table{promises}},
		{Title: "What happened", Tables: []report.Table{events}},
	}
	if len(v.Profiles) > 0 {
		profiles := report.Section{Title: "Profiles", Text: []string{"CPU profiles of each process under load, for go tool pprof:"}}
		table := report.Table{Columns: []report.Column{{Name: "File"}}}
		for _, p := range v.Profiles {
			rel, err := filepath.Rel(out, p)
			if err != nil {
				return err
			}
			table.Rows = append(table.Rows, []report.Cell{{Text: rel, Link: rel}})
		}
		profiles.Tables = []report.Table{table}
		doc.Sections = append(doc.Sections, profiles)
	}
	f, err := os.Create(page(out))
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return doc.Write(f, report.FormatHTML)
}

// print writes the summary for the terminal.
func (v *Verdict) print(w io.Writer, out string) {
	fmt.Fprintf(w, "\n%d orders acknowledged in %.0f s; the longest time without one was %.1f s\n\n", v.Orders, v.Seconds, v.Longest)
	for _, p := range v.Promises {
		word := "held  "
		if !p.Held {
			word = "BROKEN"
		}
		fmt.Fprintf(w, "  %s  %-38s %s\n", word, p.What, p.Figure)
	}
	fmt.Fprintf(w, "\nreport  %s\n", page(out))
}
