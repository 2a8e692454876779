package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/report"
)

// Report lays the outcome out as a document.
func (o *ProxyOutcome) Report() *report.Doc {
	d := &report.Doc{
		Title:    "weir proxy: what grouping is worth on PostgreSQL",
		Subtitle: "The same load direct, through PgBouncer and through weir, in turn; every answer checked, every row counted.",
	}
	if len(o.Results) > 0 {
		d.Env = &o.Results[0].Env
	}
	seen := make(map[string]bool)
	for _, r := range o.Results {
		for _, f := range r.Findings {
			claim := r.Experiment.Title + ": " + f.Claim
			if seen[claim] {
				continue
			}
			seen[claim] = true
			d.Findings = append(d.Findings, report.Finding{Warn: f.Severity == bench.Warn, Claim: claim, Evidence: f.Evidence, Advice: f.Advice})
		}
	}
	if t := Targets(o.Results); len(t) > 0 {
		d.Sections = append(d.Sections, targetSection(t))
	}
	if s, ok := scalingSection(o.Results); ok {
		d.Sections = append(d.Sections, s)
	}
	for _, r := range o.Results {
		d.Sections = append(d.Sections, resultSection(r))
	}
	if len(o.Profiles) > 0 {
		d.Sections = append(d.Sections, profileSection(o.Profiles))
	}
	return d
}

func targetSection(targets []Target) report.Section {
	t := report.Table{
		Columns: []report.Column{{Name: "target"}, {Name: "wanted"}, {Name: "measured", Numeric: true}, {Name: "95 % interval", Numeric: true}, {Name: "verdict"}},
		Note:    "A target is met when the whole interval is on its side, and not met when the whole interval is on the other.",
	}
	for _, g := range targets {
		t.Rows = append(t.Rows, []report.Cell{
			{Text: g.Claim},
			{Text: g.Want},
			{Text: fmt.Sprintf("%.3g %s", g.Got.Median, g.Unit)},
			{Text: fmt.Sprintf("%.3g - %.3g", g.Got.Lo, g.Got.Hi)},
			{Text: g.Verdict, Strong: g.Verdict != Met},
		})
	}
	return report.Section{Title: "Targets", Tables: []report.Table{t}}
}

// scalingSection draws throughput over the number of clients.
func scalingSection(results []*bench.Result) (report.Section, bool) {
	type point struct {
		clients float64
		sum     bench.Summary
	}
	lines := make(map[string][]point)
	var order []string
	for _, r := range results {
		if !strings.HasPrefix(r.Experiment.Name, "inserts-") || r.Experiment.Factors["fsync_latency"] != "0s" {
			continue
		}
		var n float64
		if _, err := fmt.Sscan(r.Experiment.Factors["clients"], &n); err != nil {
			continue
		}
		for _, c := range r.Cases {
			if lines[c.Name] == nil {
				order = append(order, c.Name)
			}
			lines[c.Name] = append(lines[c.Name], point{n, c.Summary["rate"]})
		}
	}
	if len(order) == 0 || len(lines[order[0]]) < 3 {
		return report.Section{}, false
	}
	ch := report.Chart{Title: "Inserts per second by number of clients", Kind: report.Lines, XLabel: "clients", YLabel: "inserts/s", LogX: true, LogY: true}
	for _, name := range order {
		pts := lines[name]
		slices.SortFunc(pts, func(a, b point) int { return cmp.Compare(a.clients, b.clients) })
		s := report.Series{Name: name}
		for _, p := range pts {
			s.Points = append(s.Points, report.Point{X: p.clients, Y: p.sum.Median, Lo: p.sum.Lo, Hi: p.sum.Hi})
		}
		ch.Series = append(ch.Series, s)
	}
	return report.Section{Title: "Scaling", Charts: []report.Chart{ch}}, true
}

func resultSection(r *bench.Result) report.Section {
	base := r.Find(r.Experiment.Baseline)
	t := report.Table{
		Columns: []report.Column{
			{Name: "case"},
			{Name: "throughput", Unit: "ops/s", Numeric: true},
			{Name: "against " + r.Experiment.Baseline, Numeric: true},
			{Name: "p50", Unit: "ms", Numeric: true},
			{Name: "p99", Unit: "ms", Numeric: true},
			{Name: "CPU client", Unit: "us/op", Numeric: true},
			{Name: "proxy", Unit: "us/op", Numeric: true},
			{Name: "server", Unit: "us/op", Numeric: true},
			{Name: "fsyncs", Unit: "/s", Numeric: true},
			{Name: "group", Unit: "ops", Numeric: true},
			{Name: "proxy memory", Unit: "MB", Numeric: true},
		},
		Note: fmt.Sprintf("Medians of %d rounds of %s each; the ratio is the median of the rounds' ratios with its 95 %% bootstrap interval.",
			r.Experiment.Rounds, r.Experiment.Factors["seconds"]),
	}
	bars := report.Chart{Title: "Throughput", Kind: report.Bars, YLabel: "ops/s"}
	rates := report.Series{Name: "ops/s"}
	tail := report.Chart{Title: "Latency", Kind: report.Percentiles, YLabel: "ms", LogY: true}
	for i := range r.Cases {
		c := &r.Cases[i]
		against := ""
		if base != nil && c.Name != base.Name {
			if cmp, err := bench.Compare(base, c, "rate"); err == nil {
				against = fmt.Sprintf("%.2f x [%.2f, %.2f]", cmp.Ratio.Median, cmp.Ratio.Lo, cmp.Ratio.Hi)
			}
		}
		num := func(key, format string) string {
			s, ok := c.Summary[key]
			if !ok {
				return ""
			}
			return fmt.Sprintf(format, s.Median)
		}
		t.Rows = append(t.Rows, report.Cells(c.Name, num("rate", "%.0f"), against, num("p50", "%.3f"), num("p99", "%.3f"),
			num("cpu_client", "%.1f"), num("cpu_proxy", "%.1f"), num("cpu_server", "%.1f"), fsyncRate(c), num("group", "%.1f"), num("rss_proxy", "%.0f")))
		rate := c.Summary["rate"]
		bars.Categories = append(bars.Categories, c.Name)
		rates.Points = append(rates.Points, report.Point{Y: rate.Median, Lo: rate.Lo, Hi: rate.Hi})
		tail.Series = append(tail.Series, percentileSeries(c))
	}
	bars.Series = []report.Series{rates}
	return report.Section{Title: r.Experiment.Title, Tables: []report.Table{t}, Charts: []report.Chart{bars, tail}}
}

// fsyncRate is the server's flushes per second over the measured windows.
func fsyncRate(c *bench.Case) string {
	var xs []float64
	for i := range c.Samples {
		s := &c.Samples[i]
		if s.Server != nil && s.Server.Ops > 0 && s.Seconds > 0 {
			xs = append(xs, float64(s.Server.Fsyncs)/float64(s.Server.Ops)*float64(s.Ops)/s.Seconds)
		}
	}
	if len(xs) == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", bench.Median(xs))
}

func percentileSeries(c *bench.Case) report.Series {
	h := c.Latency()
	s := report.Series{Name: c.Name}
	for _, q := range []float64{0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999} {
		s.Points = append(s.Points, report.Point{X: q, Y: max(float64(h.Quantile(q))/1e6, 1e-4)})
	}
	return s
}

func profileSection(profiles []CPUProfile) report.Section {
	var cats []string
	for _, p := range profiles {
		for _, c := range p.Breakdown.Categories {
			if !slices.Contains(cats, c.Name) {
				cats = append(cats, c.Name)
			}
		}
	}
	t := report.Table{
		Columns: []report.Column{{Name: "category"}},
		Note:    "Exclusive shares, which add up to 100 %; in brackets the share of samples that have the category anywhere on their stack.",
	}
	ch := report.Chart{Title: "CPU time by category", Kind: report.Stacked, XLabel: "share of the process's CPU time"}
	for _, p := range profiles {
		name := p.Case + ", " + p.Role
		t.Columns = append(t.Columns, report.Column{Name: name, Numeric: true})
		ch.Categories = append(ch.Categories, name)
	}
	for _, cat := range cats {
		row := []report.Cell{{Text: cat}}
		s := report.Series{Name: cat}
		for _, p := range profiles {
			i := slices.IndexFunc(p.Breakdown.Categories, func(c measure.Category) bool { return c.Name == cat })
			if i < 0 {
				row = append(row, report.Cell{Text: ""})
				s.Points = append(s.Points, report.Point{})
				continue
			}
			c := p.Breakdown.Categories[i]
			row = append(row, report.Cell{Text: fmt.Sprintf("%.1f %% (%.0f %%)", 100*c.Exclusive, 100*c.Cumulative)})
			s.Points = append(s.Points, report.Point{Y: c.Exclusive})
		}
		t.Rows = append(t.Rows, row)
		ch.Series = append(ch.Series, s)
	}
	return report.Section{Title: "Where the CPU time goes", Tables: []report.Table{t}, Charts: []report.Chart{ch}}
}
