package outboxbench

import (
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Report makes a report of the outcome: the conclusions from all experiments, a section with
// the charts of each group, then every experiment by itself.
func (o *Outcome) Report() *report.Doc {
	var first []report.Section
	for _, s := range []report.Section{
		o.section(Screen, "Workers and batches", "The backlog is complete when the relay starts.", o.screenCharts),
		o.section(Payload, "Payloads", "The same backlog with larger payloads.", o.payloadCharts),
		o.section(Enqueue, "Enqueuing", "Producers alone, each enqueuing again after its commit.", o.enqueueCharts),
		o.section(Mixed, "Producers and relay at once", "In a closed loop a producer waits for its commit. At a fixed rate, latency counts from the moment at which a message was due.", o.mixedCharts),
		o.section(Grid, "Workers and batches with producers", "The customary design with each combination, while producers enqueue in a closed loop.", o.gridCharts),
		o.section(OutOfBand, "Payloads out of band", "The outbox has references, and the payloads are in a separate table, which consumers read and empty.", o.outOfBandCharts),
		o.section(Partition, "Window and partitions", "Months of backlog, of which the rows of the last day are within the window.", o.partitionCharts),
		o.section(Peers, "Other outboxes", "The same server, payloads and durability; each other outbox in a separate process.", o.peerCharts),
	} {
		if len(s.Charts) > 0 {
			first = append(first, s)
		}
	}
	if charts := o.resourceChart(); len(charts) > 0 {
		first = append(first, report.Section{Title: "Resources", Charts: charts})
	}
	return o.Layout("weir outbox on "+o.ServerName(), "Claim modes compared in turn on one server; a ledger of every message in every round.", findings(o.Results), first...)
}

func (o *Outcome) section(group, title, text string, charts func([]*bench.Result) []report.Chart) report.Section {
	s := report.Section{Title: title, Text: []string{text}}
	if of := o.Of(FactorPhase, group); len(of) > 0 {
		s.Charts = charts(of)
	}
	return s
}

// briefMetrics are the metrics of tables on a terminal.
var briefMetrics = []string{"rate", "acked_rate", "p50", "p95", "deliver_p50", "deliver_p95", "cpu_client", "cpu_server", "fsync_rate", "max_lag"}

// Brief is the part of the report that fits a terminal: the findings, and the most important
// figures of each experiment.
func (o *Outcome) Brief() *report.Doc {
	return suite.Shorten(o.Report(), o.Tables(briefMetrics...), o.LeftOut())
}

// bars draws a metric of all cases of a result.
func bars(r *bench.Result, title, label, metric string) []report.Chart {
	c := report.Chart{Title: title, Kind: report.Bars, YLabel: label, Series: []report.Series{{Name: label}}}
	for _, k := range r.Cases {
		if p, ok := k.Point(metric, 0); ok {
			c.Categories = append(c.Categories, k.Name)
			c.Series[0].Points = append(c.Series[0].Points, p)
		}
	}
	return c.When(len(c.Categories) > 0)
}
