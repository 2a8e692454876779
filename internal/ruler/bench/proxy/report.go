package proxybench

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Report lays the outcome out as a document: the targets, then the experiments,
// then where the CPU time went.
func (o *Outcome) Report() *report.Doc {
	d := bench.Document("weir proxy: what grouping is worth on "+o.serverName(), o.Results...)
	d.Subtitle = "The same load direct, through PgBouncer and through weir, in turn; every answer checked, every row counted."
	if o.Engine != PostgreSQL {
		d.Subtitle = "The same load direct and through weir, in turn; every answer checked, every row counted, every insert id compared."
	}
	var first []report.Section
	if t := o.Targets(); len(t) > 0 {
		first = append(first, targetSection(t))
	}
	if s, ok := scalingSection(o.Results); ok {
		first = append(first, s)
	}
	d.Sections = append(first, d.Sections...)
	if len(o.Profiles) > 0 {
		d.Sections = append(d.Sections, profileSection(o.Profiles))
	}
	if len(o.Left) > 0 {
		d.Sections = append(d.Sections, report.Section{Title: "Left out", Text: o.Left})
	}
	return d
}

// serverName is what the server called itself.
func (o *Outcome) serverName() string {
	for _, r := range o.Results {
		if len(r.Env.Servers) > 0 {
			return r.Env.Servers[0].Name
		}
	}
	return o.Engine.Title()
}

// Brief is the part of the report that fits a terminal: targets, and of each
// experiment the figures to look at first.
func (o *Outcome) Brief() *report.Doc {
	full := o.Report()
	d := &report.Doc{Title: full.Title, Subtitle: full.Subtitle, Env: full.Env, Findings: full.Findings}
	if t := o.Targets(); len(t) > 0 {
		d.Sections = append(d.Sections, targetSection(t))
	}
	for _, r := range o.Results {
		d.Sections = append(d.Sections, report.Section{
			Title:  r.Experiment.Title,
			Tables: []report.Table{bench.CaseTable(r, "rate", "p50", "p99", "cpu_proxy", "cpu_server", "fsync_rate", "group")},
		})
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

// minSamples is how many samples of a CPU profile its shares are told of: with 100 of
// them, a share of half is right within ten percentage points 19 times in 20.
const minSamples = 100

func profileSection(profiles []CPUProfile) report.Section {
	var cats, few []string
	var told []CPUProfile
	for _, p := range profiles {
		if n := p.Breakdown.Samples; n < minSamples {
			few = append(few, fmt.Sprintf("%s, %s: %d samples (%.2f s of CPU time) tell no shares; %d would.", p.Case, p.Role, n, p.Breakdown.Seconds, minSamples))
		} else {
			told = append(told, p)
		}
	}
	out := report.Section{Title: "Where the CPU time goes", Text: few}
	if len(told) == 0 {
		return out
	}
	for _, p := range told {
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
	samples := []report.Cell{{Text: "samples"}}
	for _, p := range told {
		name := p.Case + ", " + p.Role
		samples = append(samples, report.Cell{Text: strconv.FormatInt(p.Breakdown.Samples, 10)})
		t.Columns = append(t.Columns, report.Column{Name: name, Numeric: true})
		ch.Categories = append(ch.Categories, name)
	}
	for _, cat := range cats {
		row := []report.Cell{{Text: cat}}
		s := report.Series{Name: cat}
		for _, p := range told {
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
	t.Rows = append(t.Rows, samples)
	out.Tables, out.Charts = []report.Table{t}, []report.Chart{ch}
	return out
}
