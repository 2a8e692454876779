package proxybench

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Report makes a report of the outcome: the targets, the experiments, and where the CPU time
// went.
func (o *Outcome) Report() *report.Doc {
	ways, checks := "direct and through weir", "every answer checked, every row counted"
	if o.ran("pgbouncer") {
		ways = "direct, through PgBouncer and through weir"
	}
	if o.Engine != suite.PostgreSQL {
		checks += ", every insert id compared"
	}
	subtitle := "The same load " + ways + ", in turn; " + checks + "."
	first := suite.TargetSection(o.Targets())
	if s, ok := scalingSection(o.Results); ok {
		first = append(first, s)
	}
	d := o.Layout("weir proxy: the effect of grouping on "+o.ServerName(), subtitle, nil, first...)
	if len(o.Profiles) > 0 {
		d.Sections = append(d.Sections, suite.ProfileSection(o.Profiles))
	}
	if s, ok := suite.ServerSection(o.Servers); ok {
		d.Sections = append(d.Sections, s)
	}
	if len(o.Heaps) > 0 {
		d.Sections = append(d.Sections, suite.HeapSection(o.Heaps))
	}
	if o.Leak != nil {
		d.Sections = append(d.Sections, o.Leak.Section())
	}
	return d
}

// ran reports whether an experiment had a case of that name.
func (o *Outcome) ran(name string) bool {
	return slices.ContainsFunc(o.Results, func(r *bench.Result) bool {
		return slices.ContainsFunc(r.Cases, func(c *bench.Case) bool { return c.Name == name })
	})
}

// Brief is the part of the report that fits a terminal: targets, and the most important figures
// of each experiment.
func (o *Outcome) Brief() *report.Doc {
	return suite.Shorten(o.Report(), suite.TargetSection(o.Targets()),
		o.Tables("rate", "p50", "p99", "cpu_proxy", "cpu_server", "fsync_rate", "group"), o.LeftOut())
}

// scalingSection draws throughput over the number of clients.
func scalingSection(results []*bench.Result) (report.Section, bool) {
	inserts := slices.DeleteFunc(slices.Clone(results), func(r *bench.Result) bool {
		return !strings.HasPrefix(r.Experiment.Name, "inserts-") || r.Experiment.Factors["fsync_latency"] != "0s"
	})
	ch := report.Chart{Title: "Inserts per second by number of clients", Kind: report.Lines, XLabel: "clients", YLabel: "inserts/s", LogX: true, LogY: true, Series: bench.LinesOver(inserts, "rate", "clients")}
	return report.Section{Title: "Scaling", Charts: []report.Chart{ch}}, len(ch.Series) > 0 && len(ch.Series[0].Points) >= 3
}
