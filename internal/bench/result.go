package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// Schema names the version of the result format. docs/schema.md documents it;
// within version 1 fields are only added.
const Schema = "weir.bench/1"

// Roles of the processes whose CPU time a sample tells apart.
const (
	RoleClient = "client"
	RoleProxy  = "proxy"
	RoleServer = "server"
)

// NotApplicable is the value of a factor that a case does not have, as the
// window of a direct connection. It is not counted as a difference.
const NotApplicable = "-"

// Result is all that one experiment yields.
type Result struct {
	Schema      string              `json:"schema"`
	ID          string              `json:"id"`
	Started     time.Time           `json:"started"`
	Finished    time.Time           `json:"finished"`
	Env         measure.Environment `json:"env"`
	Experiment  Description         `json:"experiment"`
	Cases       []Case              `json:"cases"`
	Comparisons []Comparison        `json:"comparisons,omitempty"`
	Findings    []Finding           `json:"findings,omitempty"`
	Warnings    []string            `json:"warnings,omitempty"`
}

// Description is what an experiment was set to do.
type Description struct {
	Name    string            `json:"name"`
	Title   string            `json:"title,omitempty"`
	Factors map[string]string `json:"factors,omitempty"` // the same for all cases
	Rounds  int               `json:"rounds"`
	Warmup  int               `json:"warmup"`
	// Loop is "closed" (each client sends when its answer has come) or "open"
	// (operations start by schedule; latency counts from the intended start).
	Loop string `json:"loop"`
	// Baseline is the case that others are compared with.
	Baseline string `json:"baseline"`
	// Sweep is the factor whose best level is looked for, "" for none; its
	// levels are numbers, and Adaptive is the one that chooses by itself.
	Sweep    string `json:"sweep,omitempty"`
	Adaptive string `json:"adaptive,omitempty"`
	// SweepUnit is that of the levels: "ms", "us".
	SweepUnit string `json:"sweep_unit,omitempty"`
}

// Case is one side of an experiment with its samples.
type Case struct {
	Name    string             `json:"name"`
	Factors map[string]string  `json:"factors,omitempty"`
	Samples []Sample           `json:"samples"`
	Summary map[string]Summary `json:"summary"` // by metric key; see Metrics
}

// Summary is a metric over the rounds of a case.
type Summary struct {
	Interval
	Unit string `json:"unit"`
}

// Sample is one round of one side.
type Sample struct {
	Round   int       `json:"round"`
	Started time.Time `json:"started"`
	// Seconds is the length of the measured window, without warm-up.
	Seconds float64 `json:"seconds"`
	// Ops counts operations answered as expected within the window, and Errors
	// the others by class: an SQLSTATE, or a word such as "connection lost".
	Ops    int64            `json:"ops"`
	Errors map[string]int64 `json:"errors,omitempty"`
	// InFlight is the number of operations under way at any time, which closed
	// loops keep constant; 0 when it is not constant.
	InFlight int           `json:"in_flight,omitempty"`
	Latency  *measure.Hist `json:"latency,omitempty"`
	// Processes holds what each role used within the window.
	Processes map[string]measure.Usage `json:"processes,omitempty"`
	Server    *ServerCounters          `json:"server,omitempty"`
	Groups    *Groups                  `json:"groups,omitempty"`
	Boundary  *Boundary                `json:"boundary,omitempty"`
	Pressure  measure.Pressure         `json:"pressure"`
	Warnings  []string                 `json:"warnings,omitempty"`
}

// ServerCounters is what a database server counted for a number of operations,
// which may be more than Sample.Ops when the warm-up is in it.
type ServerCounters struct {
	Ops        int64 `json:"ops"`
	Fsyncs     int64 `json:"fsyncs"`
	LogWrites  int64 `json:"log_writes"`
	LogBytes   int64 `json:"log_bytes"`
	LogRecords int64 `json:"log_records"`
	Commits    int64 `json:"commits"`
	Rollbacks  int64 `json:"rollbacks"`
}

// Groups tells how operations were gathered.
type Groups struct {
	Flushes int64 `json:"flushes"`
	Items   int64 `json:"items"`
	Largest int64 `json:"largest,omitempty"`
}

// Failed returns how many operations ended otherwise than expected.
func (s *Sample) Failed() int64 {
	var n int64
	for _, c := range s.Errors {
		n += c
	}
	return n
}

// Metric is a number that a sample yields.
type Metric struct {
	Key, Name, Unit string
	// Higher tells that more is better; Neutral, that it is neither.
	Higher, Neutral bool
	of              func(*Sample) (float64, bool)
}

// Of returns the metric of a sample, and false when the sample does not have it.
func (m Metric) Of(s *Sample) (float64, bool) {
	v, ok := m.of(s)
	return v, ok && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// Metrics lists all metrics in the order of reports.
func Metrics() []Metric {
	quantile := func(q float64) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			if s.Latency == nil || s.Latency.Count() == 0 {
				return 0, false
			}
			return float64(s.Latency.Quantile(q)) / 1e6, true
		}
	}
	cpu := func(roles ...string) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			sum, found := 0.0, false
			for _, r := range roles {
				if u, ok := s.Processes[r]; ok {
					sum, found = sum+u.CPUSeconds(), true
				}
			}
			return sum / float64(s.Ops) * 1e6, found && s.Ops > 0
		}
	}
	perOp := func(f func(*ServerCounters) int64, scale float64) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			if s.Server == nil || s.Server.Ops == 0 {
				return 0, false
			}
			return float64(f(s.Server)) / float64(s.Server.Ops) * scale, true
		}
	}
	return []Metric{
		{Key: "rate", Name: "throughput", Unit: "ops/s", Higher: true, of: func(s *Sample) (float64, bool) {
			return float64(s.Ops) / s.Seconds, s.Seconds > 0
		}},
		{Key: "mean", Name: "mean latency", Unit: "ms", of: func(s *Sample) (float64, bool) {
			if s.Latency == nil || s.Latency.Count() == 0 {
				return 0, false
			}
			return s.Latency.Mean() / 1e6, true
		}},
		{Key: "p50", Name: "p50", Unit: "ms", of: quantile(.50)},
		{Key: "p95", Name: "p95", Unit: "ms", of: quantile(.95)},
		{Key: "p99", Name: "p99", Unit: "ms", of: quantile(.99)},
		{Key: "cpu", Name: "CPU, all", Unit: "us/op", of: cpu(RoleClient, RoleProxy, RoleServer)},
		{Key: "cpu_client", Name: "CPU, client", Unit: "us/op", of: cpu(RoleClient)},
		{Key: "cpu_proxy", Name: "CPU, proxy", Unit: "us/op", of: cpu(RoleProxy)},
		{Key: "cpu_server", Name: "CPU, server", Unit: "us/op", of: cpu(RoleServer)},
		{Key: "fsyncs", Name: "fsyncs", Unit: "/1000 ops", of: perOp(func(c *ServerCounters) int64 { return c.Fsyncs }, 1000)},
		{Key: "fsync_rate", Name: "fsyncs", Unit: "/s", Neutral: true, of: func(s *Sample) (float64, bool) {
			if s.Server == nil || s.Server.Ops == 0 || s.Seconds == 0 {
				return 0, false
			}
			return float64(s.Server.Fsyncs) / float64(s.Server.Ops) * float64(s.Ops) / s.Seconds, true
		}},
		{Key: "log_bytes", Name: "log written", Unit: "B/op", of: perOp(func(c *ServerCounters) int64 { return c.LogBytes }, 1)},
		{Key: "group", Name: "group size", Unit: "ops", Neutral: true, of: func(s *Sample) (float64, bool) {
			if s.Groups == nil || s.Groups.Flushes == 0 {
				return 0, false
			}
			return float64(s.Groups.Items) / float64(s.Groups.Flushes), true
		}},
		{Key: "rss_proxy", Name: "memory, proxy", Unit: "MB", of: func(s *Sample) (float64, bool) {
			u, ok := s.Processes[RoleProxy]
			return float64(u.RSSBytes) / 1e6, ok
		}},
		{Key: "errors", Name: "errors", Unit: "/1000 ops", of: func(s *Sample) (float64, bool) {
			n := s.Ops + s.Failed()
			return float64(s.Failed()) / float64(n) * 1000, n > 0
		}},
	}
}

// MetricByKey returns the metric of a key.
func MetricByKey(key string) (Metric, bool) {
	all := Metrics()
	i := slices.IndexFunc(all, func(m Metric) bool { return m.Key == key })
	if i < 0 {
		return Metric{}, false
	}
	return all[i], true
}

// Latency returns the latencies of all rounds of the case, merged.
func (c *Case) Latency() *measure.Hist {
	h := &measure.Hist{}
	for i := range c.Samples {
		h.Merge(c.Samples[i].Latency)
	}
	return h
}

// summarise fills Summary from the samples.
func (c *Case) summarise() {
	c.Summary = make(map[string]Summary)
	for _, m := range Metrics() {
		var xs []float64
		for i := range c.Samples {
			if v, ok := m.Of(&c.Samples[i]); ok {
				xs = append(xs, v)
			}
		}
		if len(xs) > 0 {
			c.Summary[m.Key] = Summary{MedianInterval(xs, defaultConfidence), m.Unit}
		}
	}
}

// Comparison sets a case B against a case A in one metric.
type Comparison struct {
	A       string   `json:"a"`
	B       string   `json:"b"`
	Metric  string   `json:"metric"`
	Ratio   Interval `json:"ratio"` // B over A
	Verdict Verdict  `json:"verdict"`
	// Needed is the number of rounds that would probably decide, when the
	// verdict is CannotTell and that can be estimated.
	Needed int `json:"needed,omitempty"`
	// Differs lists the factors in which the two cases are not the same.
	Differs []string `json:"differs,omitempty"`
}

// comparisonMargin is the smallest difference worth a claim.
const comparisonMargin = 0.03

// comparedMetrics are those that cases are compared in.
var comparedMetrics = []string{"rate", "p50", "p99", "cpu", "cpu_server"}

// Compare sets b against a, round by round, in one metric.
func Compare(a, b *Case, metric string) (Comparison, error) {
	m, ok := MetricByKey(metric)
	if !ok {
		return Comparison{}, fmt.Errorf("compare: no metric %q", metric)
	}
	inA := make(map[int]float64)
	for i := range a.Samples {
		if v, ok := m.Of(&a.Samples[i]); ok {
			inA[a.Samples[i].Round] = v
		}
	}
	var xs, ys []float64
	for i := range b.Samples {
		s := &b.Samples[i]
		v, ok := m.Of(s)
		if w, paired := inA[s.Round]; ok && paired {
			xs, ys = append(xs, w), append(ys, v)
		}
	}
	c := Comparison{A: a.Name, B: b.Name, Metric: metric, Differs: differing(a.Factors, b.Factors)}
	c.Ratio = PairedRatio(xs, ys, defaultConfidence)
	c.Verdict = Judge(c.Ratio, m.Higher, comparisonMargin)
	if m.Neutral {
		c.Verdict = CannotTell
	}
	if c.Verdict == CannotTell {
		c.Needed = RoundsNeeded(c.Ratio, comparisonMargin)
	}
	return c, nil
}

// differing returns the factors in which two cases are not the same, sorted.
func differing(a, b map[string]string) []string {
	var out []string
	for k, v := range a {
		if w, ok := b[k]; ok && v != w && v != NotApplicable && w != NotApplicable {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// Find returns the case of a name, and nil when there is none.
func (r *Result) Find(name string) *Case {
	for i := range r.Cases {
		if r.Cases[i].Name == name {
			return &r.Cases[i]
		}
	}
	return nil
}

// Evaluate computes summaries, comparisons and findings from the samples, as at
// the end of a run or after reading a result back. It replaces earlier ones.
func (r *Result) Evaluate() {
	r.Comparisons, r.Findings = nil, nil
	for i := range r.Cases {
		r.Cases[i].summarise()
	}
	if base := r.Find(r.Experiment.Baseline); base != nil {
		for i := range r.Cases {
			if r.Cases[i].Name == base.Name {
				continue
			}
			for _, m := range comparedMetrics {
				c, err := Compare(base, &r.Cases[i], m)
				if err == nil && c.Ratio.N > 0 && c.Ratio.Method != "none" {
					r.Comparisons = append(r.Comparisons, c)
				}
			}
		}
	}
	r.Findings = Findings(r)
}

// Validate returns why the result must not be reported: an unknown schema, no
// environment, no samples.
func (r *Result) Validate() error {
	if r.Schema != Schema {
		return fmt.Errorf("result has schema %q, want %q", r.Schema, Schema)
	}
	if err := r.Env.Validate(); err != nil {
		return fmt.Errorf("result %s: %w", r.ID, err)
	}
	var empty []string
	for _, c := range r.Cases {
		if len(c.Samples) == 0 {
			empty = append(empty, c.Name)
		}
	}
	if len(r.Cases) == 0 || len(empty) == len(r.Cases) {
		return fmt.Errorf("result %s holds no samples", r.ID)
	}
	if len(empty) > 0 {
		return fmt.Errorf("result %s holds no samples of %s", r.ID, strings.Join(empty, ", "))
	}
	return nil
}
