package kvbench

import (
	"fmt"
	"slices"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Report lays the outcome out as a document: what the experiments say together,
// the targets, a section for each scenario, then every experiment by itself.
func (o *Outcome) Report() *report.Doc {
	d := bench.Document("weir kv: delays, protocols, distance, durability", o.Results...)
	d.Subtitle = "Every replica a process of its own; sides in turn; every read checked; the durability of each row said."
	if n := o.Results[0].Experiment.Factors["procs"]; n != "" {
		d.Subtitle += fmt.Sprintf(" The client and each replica may use %s of the processors at once (GOMAXPROCS).", n)
	}
	d.Findings = append(d.Findings, o.findings()...)
	for i, r := range o.Results {
		d.Sections[i].Tables[0] = caseTable([]*bench.Result{r}, columns)
	}
	d.Sections = append(o.sections(), d.Sections...)
	if len(o.Left) > 0 {
		d.Sections = append(d.Sections, report.Section{Title: "Left out", Text: o.Left})
	}
	return d
}

// Brief is the part of the report that fits a terminal: findings, targets, and the
// tables of the scenarios.
func (o *Outcome) Brief() *report.Doc {
	full := o.Report()
	d := &report.Doc{Title: full.Title, Subtitle: full.Subtitle, Env: full.Env, Findings: full.Findings}
	for _, s := range o.sections() {
		s.Charts = nil
		d.Sections = append(d.Sections, s)
	}
	if len(o.Left) > 0 {
		d.Sections = append(d.Sections, report.Section{Title: "Left out", Text: o.Left})
	}
	return d
}

// findings are those of all experiments together, and before them what makes
// rounds invalid.
func (o *Outcome) findings() []report.Finding {
	var out []report.Finding
	if broken := o.Invalid(); len(broken) > 0 {
		out = append(out, report.Finding{Warn: true, First: true, Claim: fmt.Sprintf("%d rounds are invalid: answers were wrong.", len(broken)), Evidence: broken})
	}
	for _, f := range bench.KVFindings(o.Results) {
		out = append(out, report.Finding{Warn: f.Severity == bench.Warn, Claim: f.Claim, Evidence: f.Evidence, Advice: f.Advice})
	}
	return append(out, o.referenceFindings()...)
}

// referenceFindings set cases beside figures that somebody else has published.
func (o *Outcome) referenceFindings() []report.Finding {
	var out []report.Finding
	for _, r := range o.Results {
		for _, g := range o.Reference.of(Scenario(r.Experiment.Factors["scenario"])) {
			c := r.Find(g.Case)
			if c == nil || g.Rate == 0 || c.Summary["rate"].Median == 0 {
				continue
			}
			out = append(out, report.Finding{
				Claim: fmt.Sprintf("%s, %s: %.2g times the %s ops/s of %s, whose figure is %s.",
					r.Experiment.Name, c.Name, c.Summary["rate"].Median/g.Rate, figure(g.Rate), g.System, notMeasured),
				Evidence: []string{
					fmt.Sprintf("here: %s ops/s, durability %s", figure(c.Summary["rate"].Median), factor(r, c, "durability")),
					fmt.Sprintf("there: durability %s; %s", o.Reference.Durability, o.Reference.Source),
				},
			})
		}
	}
	return out
}

// of returns the results of a scenario.
func (o *Outcome) of(s Scenario) []*bench.Result {
	return slices.DeleteFunc(slices.Clone(o.Results), func(r *bench.Result) bool { return r.Experiment.Factors["scenario"] != string(s) })
}

// sections are the targets and one for each scenario.
func (o *Outcome) sections() []report.Section {
	var out []report.Section
	if t := o.Targets(); len(t) > 0 {
		out = append(out, targetSection(t))
	}
	for _, s := range []struct {
		scenario    Scenario
		title, text string
		fill        func(*report.Section, []*bench.Result)
	}{
		{Delay, "Delay of batches", "The load of reference report 2. A fixed delay makes every round wait; auto sends one when disk and network are free.", o.fillDelay},
		{Validate, "Validation", "The best fixed delay of the sweep and none, round by round.", o.fillValidation},
		{Pendings, "Pending operations", "How many operations each session has under way.", fillSweep("pendings", "operations under way in each session")},
		{Threads, "Sessions", "How many sessions there are, each on a connection of its own.", fillSweep("streams", "sessions")},
		{Conflicts, "Conflicts and skew", "Half of the operations are writes. A conflict is an operation on the one key that all sessions use.", fillConflicts},
		{Length, "Long runs", "Ten times as many operations, each on a cluster that has just started.", fillLength},
		{Presets, "Presets", "The protocols at the load of reference report 2, on one machine.", fillPresets},
		{WAN, "Distance", "Messages between replicas take half a round trip longer. A session sits beside each replica, as where clients are served by the nearest one.", fillWAN},
		{Etcd, "Beside etcd", "Strong operations alone, half of them writes, one under way in each client; both connected to the leader.", fillEtcd},
		{Cells, "No delay against fixed ones", "By distance, clients and durability; strong operations, half of them writes.", fillCells},
		{Single, "One client", "One strong operation at a time.", fillSingle},
	} {
		results := o.of(s.scenario)
		if len(results) == 0 {
			continue
		}
		section := report.Section{Title: s.title, Text: []string{s.text}}
		s.fill(&section, results)
		if t, ok := referenceTable(o.Reference, s.scenario); ok && s.scenario != Delay && s.scenario != Validate {
			section.Tables = append(section.Tables, t)
		}
		out = append(out, section)
	}
	return out
}

func add(s *report.Section, ch report.Chart, ok bool) {
	if ok {
		s.Charts = append(s.Charts, ch)
	}
}

func (o *Outcome) fillDelay(s *report.Section, results []*bench.Result) {
	for _, r := range results {
		s.Tables = append(s.Tables, delayTable(r, o.Reference))
		ch, ok := delayChart(r)
		add(s, ch, ok)
	}
}

func (o *Outcome) fillValidation(s *report.Section, results []*bench.Result) {
	for _, r := range results {
		s.Tables = append(s.Tables, validationTable(r, o.Reference))
	}
}

func fillSweep(factor, label string) func(*report.Section, []*bench.Result) {
	return func(s *report.Section, results []*bench.Result) {
		s.Tables = append(s.Tables, caseTable(results, columns))
		for _, r := range results {
			s.Charts = append(s.Charts, sweepCharts(r, factor, label)...)
		}
	}
}

func fillConflicts(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, columns))
	for _, r := range results {
		for _, factor := range []string{"conflicts", "skew"} {
			s.Charts = append(s.Charts, sweepCharts(r, factor, map[string]string{"conflicts": "percent of operations on one key", "skew": "exponent of Zipf's law"}[factor])...)
		}
	}
}

func fillLength(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, columns))
	for _, r := range results {
		ch, ok := bench.SeriesChart(r)
		add(s, ch, ok)
	}
}

func fillPresets(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, columns))
	for _, r := range results {
		ch, ok := bars(r, "Throughput by preset", "operations per second", "rate")
		add(s, ch, ok)
		ch, ok = bars(r, "Median latency by preset", "ms", "strong_p50", "weak_p50")
		add(s, ch, ok)
	}
}

func fillWAN(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, classColumns))
	bySize := make(map[string][]*bench.Result)
	var sizes []string
	for _, r := range results {
		n := r.Experiment.Factors["replicas"]
		if bySize[n] == nil {
			sizes = append(sizes, n)
		}
		bySize[n] = append(bySize[n], r)
	}
	for _, n := range sizes {
		for _, m := range []struct{ key, name string }{{"strong_write_p50", "median strong write"}, {"weak_write_p50", "median weak write"}} {
			ch, ok := overResults(bySize[n], fmt.Sprintf("%s replicas: %s by distance", n, m.name), "round trip in ms", "ms", m.key, numberOf("rtt"), false)
			add(s, ch, ok)
		}
	}
}

func fillEtcd(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, columns))
	ch, ok := overResults(results, "Throughput by clients", "clients", "operations per second", "rate", numberOf("streams"), true)
	add(s, ch, ok)
	ch, ok = overResults(results, "p99 by clients", "clients", "ms", "strong_p99", numberOf("streams"), true)
	add(s, ch, ok)
}

func fillCells(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, columns))
	ch, ok := cellChart(results)
	add(s, ch, ok)
}

func fillSingle(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, columns))
}
