package kvbench

import (
	"fmt"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Report makes a report of the outcome: the conclusions from all experiments, the targets, a
// section for each group, then every experiment by itself.
func (o *Outcome) Report() *report.Doc {
	subtitle := "Each replica is a separate process; the sides take turns; every read is checked; each row states its durability."
	if n := o.Results[0].Experiment.Factors["procs"]; n != "" {
		subtitle += fmt.Sprintf(" The client and each replica may use %s of the processors at once (GOMAXPROCS).", n)
	}
	sections := o.sections()
	d := o.Layout("weir kv: delays, protocols, distance, durability", subtitle, findings(o.Results), sections...)
	for i, r := range o.Results {
		d.Sections[len(sections)+i].Tables[0] = caseTable([]*bench.Result{r}, columns)
	}
	return d
}

// Brief is the part of the report that fits a terminal: findings, targets, and the
// tables of the groups.
func (o *Outcome) Brief() *report.Doc {
	sections := o.sections()
	for i := range sections {
		sections[i].Charts = nil
	}
	return suite.Shorten(o.Report(), sections, o.LeftOut())
}

// sections are the targets and one section for each group.
func (o *Outcome) sections() []report.Section {
	out := suite.TargetSection(o.Targets())
	for i := range out {
		out[i].Tables[0].Note += " An absolute figure cannot be judged if other programs disturbed most rounds."
	}
	for _, s := range []struct {
		group       string
		title, text string
		fill        fill
	}{
		{Delay, "Delay of batches", "The load of reference report 2. A fixed delay makes every round wait; auto sends one when disk and network are free.", o.fillDelay},
		{Validate, "Validation", "The best fixed delay of the sweep and none, round by round.", o.fillValidation},
		{Tunings, "Tunings", "The settings that reference report 2 recommends, and its steps to them: operations in flight per session, and the delay of batches.", cases(columns, bars("Throughput by setting", "operations per second", "rate"))},
		{Grid, "Operations in flight by delay", "Every number of operations in flight with every delay of batches, in turn.", cases(columns, gridChart)},
		{Writer, "Delay at the writers between replicas", "Messages to other replicas are collected for that long before they are written; consensus rounds are formed as usual. The delay was changed on the running cluster, through its admin server.", cases(writerColumns,
			bars("Messages in a write to a replica, by delay", "messages", "peer_messages_per_write"),
			bars("Throughput by delay at the writers", "operations per second", "rate"))},
		{CPU, "CPU time of the replicas", "Profiles of all replicas together, taken while the round was measured; a profile interrupts a replica a hundred times per second of its CPU time.", o.fillCPU},
		{Pendings, "Pending operations", "How many operations each session has in flight.", cases(columns, sweepCharts("pendings", "operations in flight in each session"))},
		{Threads, "Sessions", "How many sessions there are, each on its own connection.", cases(columns, sweepCharts("streams", "sessions"))},
		{Length, "Long runs", "Ten times as many operations, each on a new cluster.", cases(columns, bench.SeriesChart)},
		{Presets, "Presets", "The protocols at the load of reference report 2, on one machine.", cases(columns,
			bars("Throughput by preset", "operations per second", "rate"), bars("Median latency by preset", "ms", "strong_p50", "weak_p50"))},
		{WAN, "Distance", "Messages between replicas take half a round trip longer. There is a session close to each replica, as when clients are served by the nearest one.", fillWAN},
		{Etcd, "Beside etcd", "Only strong operations, half of them writes, one in flight per client; both connected to the leader.", fillEtcd},
		{Cells, "No delay against fixed ones", "By distance, clients and durability; strong operations, half of them writes.", fillCells},
		{Single, "One client", "One strong operation at a time.", cases(columns)},
	} {
		results := o.Of("scenario", s.group)
		if len(results) == 0 {
			continue
		}
		section := report.Section{Title: s.title, Text: []string{s.text}}
		s.fill(&section, results)
		out = append(out, section)
	}
	return out
}

// fill adds the results of a group to a section.
type fill func(*report.Section, []*bench.Result)

// cases shows the cases of all results in a table with the given columns, and charts of each.
func cases(columns []string, charts ...func(*bench.Result) []report.Chart) fill {
	return func(s *report.Section, results []*bench.Result) {
		s.Tables = append(s.Tables, caseTable(results, columns))
		for _, r := range results {
			for _, chart := range charts {
				s.Charts = append(s.Charts, chart(r)...)
			}
		}
	}
}

func (o *Outcome) fillDelay(s *report.Section, results []*bench.Result) {
	for _, r := range results {
		s.Tables = append(s.Tables, delayTable(r))
		s.Charts = append(s.Charts, delayChart(r)...)
	}
}

func (o *Outcome) fillValidation(s *report.Section, results []*bench.Result) {
	for _, r := range results {
		s.Tables = append(s.Tables, validationTable(r))
	}
}

func (o *Outcome) fillCPU(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, writerColumns))
	if len(o.Profiles) > 0 {
		of := suite.ProfileSection(o.Profiles)
		s.Text = append(s.Text, of.Text...)
		s.Tables, s.Charts = append(s.Tables, of.Tables...), append(s.Charts, of.Charts...)
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
			s.Charts = append(s.Charts, overResults(bySize[n], fmt.Sprintf("%s replicas: %s by distance", n, m.name), "round trip in ms", "ms", m.key, "rtt", false)...)
		}
	}
}

func fillEtcd(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, columns))
	s.Charts = append(s.Charts, overResults(results, "Throughput by clients", "clients", "operations per second", "rate", "streams", true)...)
	s.Charts = append(s.Charts, overResults(results, "p99 by clients", "clients", "ms", "strong_p99", "streams", true)...)
}

func fillCells(s *report.Section, results []*bench.Result) {
	s.Tables = append(s.Tables, caseTable(results, columns))
	s.Charts = append(s.Charts, cellChart(results)...)
}
