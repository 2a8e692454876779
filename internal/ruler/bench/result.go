package bench

import (
	"cmp"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// Schema names the version of the result format. docs/schema.md documents it;
// within version 1 fields are only added.
const Schema = "weir.bench/1"

// Roles of the processes whose CPU time a sample records separately.
const (
	RoleClient  = measure.ClientRole
	RoleProxy   = "proxy"
	RoleServer  = "server"
	RoleReplica = "replicas" // in profiles: all replicas of a key-value store together
)

// NotApplicable is the value of a factor that a case does not have, such as the window of a
// direct connection. It does not count as a difference.
const NotApplicable = "-"

// Result is the outcome of one experiment.
type Result struct {
	Schema      string              `json:"schema"`
	ID          string              `json:"id"`
	Started     time.Time           `json:"started"`
	Finished    time.Time           `json:"finished"`
	Env         measure.Environment `json:"env"`
	Experiment  Description         `json:"experiment"`
	Cases       []*Case             `json:"cases"`
	Comparisons []Comparison        `json:"comparisons,omitempty"`
	Findings    []Finding           `json:"findings,omitempty"`
	Warnings    []string            `json:"warnings,omitempty"`
	// Overhead is the cost of measuring, if that was measured: one value for each number of
	// operations in flight.
	Overhead []Overhead `json:"overhead,omitempty"`
	// Partial is set if the run was interrupted: cases may have fewer samples than
	// Experiment.Rounds, and the last round may lack some of them.
	Partial bool `json:"partial,omitempty"`
}

// Description is what an experiment was told to do.
type Description struct {
	Name    string            `json:"name"`
	Title   string            `json:"title,omitempty"`
	Factors map[string]string `json:"factors,omitempty"` // the same for all cases
	Rounds  int               `json:"rounds"`
	Warmup  int               `json:"warmup"`
	// Loop is "closed" (each client sends its next operation when its answer has come) or
	// "open" (operations start by a schedule; latency counts from the intended start).
	Loop string `json:"loop"`
	// Baseline is the case that the others are compared with.
	Baseline string `json:"baseline"`
	// Sweep is the factor whose best level is searched for, "" for none. Its levels are
	// numbers, and Adaptive is the level that tunes itself.
	Sweep    string `json:"sweep,omitempty"`
	Adaptive string `json:"adaptive,omitempty"`
	// SweepUnit is the unit of the levels: "ms", "us".
	SweepUnit string `json:"sweep_unit,omitempty"`
	// Shuffle is set if the order of the sides was random in each round.
	Shuffle bool `json:"shuffle,omitempty"`
	// Constraints must hold for a case to be recommended.
	Constraints []Constraint `json:"constraints,omitempty"`
}

// Constraint is a limit that a case must keep, such as a p99 of 2 ms.
type Constraint struct {
	Metric string `json:"metric"` // a key of Metrics
	// Max and Min are in the metric's unit. At least one is not nil.
	Max *float64 `json:"max,omitempty"`
	Min *float64 `json:"min,omitempty"`
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
	for _, m := range Metrics(c.subjects()...) {
		if xs := c.Values(m); len(xs) > 0 {
			c.Summary[m.Key] = Summary{MedianInterval(xs, defaultConfidence), m.Unit}
		}
	}
}

// Values returns a metric of each round that has it. A misspelled key is found where the metric
// is looked up.
func (c *Case) Values(m Metric) []float64 {
	var out []float64
	for i := range c.Samples {
		if v, ok := m.Of(&c.Samples[i]); ok {
			out = append(out, v)
		}
	}
	return out
}

// caseNames are the names of all cases.
func (r *Result) caseNames() []string {
	var names []string
	for _, c := range r.Cases {
		names = append(names, c.Name)
	}
	return names
}

// Rounds yields all samples, case by case.
func (r *Result) Rounds() iter.Seq2[*Case, *Sample] {
	return func(yield func(*Case, *Sample) bool) {
		for _, c := range r.Cases {
			for i := range c.Samples {
				if !yield(c, &c.Samples[i]) {
					return
				}
			}
		}
	}
}

// Best returns the case with the highest throughput among those for which want is true; nil if
// there is none.
func (r *Result) Best(want func(*Case) bool) *Case {
	var best *Case
	for _, c := range r.Cases {
		if want(c) && (best == nil || c.Summary["rate"].Median > best.Summary["rate"].Median) {
			best = c
		}
	}
	return best
}

// Match returns the best case whose name matches a pattern of [path.Match].
func (r *Result) Match(pattern string) *Case {
	return r.Best(func(c *Case) bool {
		fits, err := path.Match(pattern, c.Name)
		return err == nil && fits
	})
}

// BestWindow returns the best case with a fixed window.
func (r *Result) BestWindow() *Case {
	return r.Best(func(c *Case) bool {
		return !slices.Contains([]string{"", NotApplicable, "0", "auto"}, c.Factors["window"])
	})
}

// Find returns the case of a name, or nil.
func (r *Result) Find(name string) *Case {
	for _, c := range r.Cases {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Evaluate computes summaries, comparisons and findings from the samples, at the end of a run
// and after reading a result. It replaces earlier ones.
func (r *Result) Evaluate() {
	r.Comparisons, r.Findings = nil, nil
	markDisturbed(r)
	for _, c := range r.Cases {
		c.summarise()
	}
	// Nothing is compared with a side that does not do its work.
	if base := r.Find(r.Experiment.Baseline); base != nil && !base.Invalid() {
		for _, k := range r.Cases {
			if k.Name == base.Name || k.Invalid() {
				continue
			}
			for _, m := range comparedMetrics(r.Subjects()) {
				c, err := Compare(base, k, m)
				if err == nil && c.Ratio.N > 0 && c.Ratio.Method != "none" {
					r.Comparisons = append(r.Comparisons, c)
				}
			}
		}
	}
	r.Findings = Findings(r)
}

// Validate returns why the result must not be reported: an unknown schema, no environment, no
// samples.
func (r *Result) Validate() error {
	if r.Schema != Schema {
		return fmt.Errorf("result has schema %q, want %q", r.Schema, Schema)
	}
	if err := r.Env.Validate(); err != nil {
		return fmt.Errorf("result %s: %w", r.ID, err)
	}
	if slices.Contains(r.Cases, nil) {
		return fmt.Errorf("result %s: a case is null", r.ID)
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

// Invalid reports whether a round of the case broke a promise. Its figures are then not
// compared with anything.
func (c *Case) Invalid() bool {
	return slices.ContainsFunc(c.Samples, func(s Sample) bool { return len(s.Invalid) > 0 })
}

// Rate is the median of the case's throughput.
func (c *Case) Rate() float64 { return c.Summary["rate"].Median }

// PerSecond formats the case's rate in a unit, with its interval if it has one.
func (c *Case) PerSecond(unit string) string {
	s := c.Summary["rate"]
	return fmt.Sprintf("%s: %s %s %s", c.Name, Count(s.Median), unit, s.rounds(Count))
}

// Ahead reports whether a is faster than b, by the rounds that both have.
func Ahead(a, b *Case) bool {
	c, err := Compare(b, a, "rate")
	return err == nil && c.Verdict == Better
}

// Factor returns the value of a factor of a case or of its experiment, NotApplicable if neither
// has it.
func (r *Result) Factor(c *Case, name string) string {
	return cmp.Or(c.Factors[name], r.Experiment.Factors[name], NotApplicable)
}

// Where returns the results whose experiment has the value for the factor.
func Where(results []*Result, factor, value string) []*Result {
	return slices.DeleteFunc(slices.Clone(results), func(r *Result) bool { return r.Experiment.Factors[factor] != value })
}
