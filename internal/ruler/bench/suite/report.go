package suite

import (
	"fmt"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// ServerName is the server's own name for itself, or the engine's name.
func (o *Outcome) ServerName() string {
	for _, r := range o.Results {
		if len(r.Env.Servers) > 0 {
			return r.Env.Servers[0].Name
		}
	}
	return o.Engine.Title()
}

// Layout makes a document: findings about the whole run, sections before the experiments, the
// experiments, and what was left out.
func (o *Outcome) Layout(title, subtitle string, findings []bench.Finding, first ...report.Section) *report.Doc {
	d := bench.Document(title, o.Results...)
	d.Subtitle = subtitle
	if broken := o.Invalid(); len(broken) > 0 {
		d.Findings = append(d.Findings, report.Finding{Warn: true, First: true, Claim: fmt.Sprintf("%d rounds are invalid.", len(broken)), Evidence: broken})
	}
	d.Findings = append(d.Findings, bench.ReportFindings(findings)...)
	d.Sections = append(append(first, d.Sections...), o.LeftOut()...)
	return d
}

// LeftOut is a section about what was left out; nil if nothing was.
func (o *Outcome) LeftOut() []report.Section {
	if len(o.Left) == 0 {
		return nil
	}
	return []report.Section{{Title: "Left out", Text: o.Left}}
}

// Shorten returns a document with the head of full and other sections.
func Shorten(full *report.Doc, sections ...[]report.Section) *report.Doc {
	d := &report.Doc{Title: full.Title, Subtitle: full.Subtitle, Env: full.Env, Findings: full.Findings}
	for _, s := range sections {
		d.Sections = append(d.Sections, s...)
	}
	return d
}

// Tables is a section for each experiment, with the metrics of the given keys.
func (o *Outcome) Tables(metrics ...string) []report.Section {
	var out []report.Section
	for _, r := range o.Results {
		out = append(out, report.Section{Title: r.Experiment.Title, Tables: []report.Table{bench.CaseTable(r, metrics...)}})
	}
	return out
}
