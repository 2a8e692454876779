package outboxscenario

import (
	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/report"
)

// Report lays the outcome out as a document.
func (o *Outcome) Report() *report.Doc {
	return bench.Document("weir outbox on "+o.Engine.Title(), o.Results...)
}

// Brief is the part of the report that fits a terminal.
func (o *Outcome) Brief() *report.Doc {
	full := o.Report()
	d := &report.Doc{Title: full.Title, Subtitle: full.Subtitle, Env: full.Env, Findings: full.Findings}
	for _, r := range o.Results {
		d.Sections = append(d.Sections, report.Section{
			Title:  r.Experiment.Title,
			Tables: []report.Table{bench.CaseTable(r, "rate", "acked_rate", "p50", "p95", "deliver_p50", "deliver_p95", "cpu_client", "cpu_server", "fsync_rate", "max_lag")},
		})
	}
	return d
}
