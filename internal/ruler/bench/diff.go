package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// DiffSchema names the version of a Diff's JSON.
const DiffSchema = "weir.diff/1"

// Diff compares two results, case by case.
type Diff struct {
	Schema     string  `json:"schema"`     // name and version of this format
	Experiment string  `json:"experiment"` // name of the experiment
	A          DiffEnd `json:"a"`          // the result that is compared against
	B          DiffEnd `json:"b"`          // the result that is compared
	// Paired is set if rounds of the same number were compared as pairs.
	Paired bool `json:"paired"`
	// Rows compare the same case of both results; Comparison.A and B are both its name.
	Rows []Comparison `json:"rows"`
	// Failing lists the cases in which operations fail more often than before. No better figure
	// makes up for that: operations that fail are often fast.
	Failing []Failing `json:"failing,omitempty"`
	OnlyA   []string  `json:"only_a,omitempty"` // cases that the second result lacks
	OnlyB   []string  `json:"only_b,omitempty"` // cases that the first result lacks
	// Warnings list other differences and problems.
	Warnings []string `json:"warnings,omitempty"`

	subjects []*Subject // those of both results
}

// DiffEnd identifies one of the two results.
type DiffEnd struct {
	ID      string    `json:"id"`               // of the result
	Started time.Time `json:"started"`          // when its run began
	Commit  string    `json:"commit,omitempty"` // of the source that weir was built from
}

// Failing is how many of 1000 operations of a case fail.
type Failing struct {
	Case string  `json:"case"`       // name of the case
	A    float64 `json:"a_per_1000"` // failures in 1000 operations, in the first result
	B    float64 `json:"b_per_1000"` // failures in 1000 operations, in the second result
}

// DiffOptions is how results are compared.
type DiffOptions struct {
	// Paired compares rounds of the same number as pairs. It is right only if the two runs took
	// turns; two runs one after the other have no rounds in common. Default: false.
	Paired bool
	// Metrics are the keys to compare. Default: those in which the cases of a result are compared.
	Metrics []string
	// Subjects are subjects whose metrics may be asked for even if no sample has them.
	Subjects []*Subject
	// Cases to compare. Default: all.
	Cases []string
	// Margin is the smallest difference worth a claim. Default: 3 %.
	Margin float64
	// Anyway compares results that are not comparable; the reasons become warnings.
	Anyway bool
}

// NotComparableError lists why two results must not be compared.
type NotComparableError struct{ Reasons []string }

func (e *NotComparableError) Error() string {
	return "the two results are not comparable: " + strings.Join(e.Reasons, "; ")
}

// CompareResults compares b with a. The error is a *NotComparableError if they measured
// different things, or on different machines, unless o.Anyway is set.
func CompareResults(a, b *Result, o DiffOptions) (*Diff, error) {
	if o.Margin == 0 {
		o.Margin = comparisonMargin
	}
	subjects := a.Subjects()
	for _, s := range slices.Concat(b.Subjects(), o.Subjects) {
		subjects = withSubject(subjects, s)
	}
	if len(o.Metrics) == 0 {
		o.Metrics = comparedMetrics(subjects)
	}
	for _, key := range o.Metrics {
		if _, ok := MetricByKey(key, subjects...); !ok {
			return nil, fmt.Errorf("compare results: no metric %q; there are %s", key, strings.Join(metricKeys(subjects), ", "))
		}
	}
	d := &Diff{
		Schema: DiffSchema, Experiment: b.Experiment.Name, Paired: o.Paired,
		A: DiffEnd{a.ID, a.Started, a.Env.Commit}, B: DiffEnd{b.ID, b.Started, b.Env.Commit},
		subjects: subjects,
	}
	reasons := incomparable(a, b)
	common := d.match(a, b, o.Cases)
	if len(common) == 0 {
		none := "they have no case in common"
		if len(o.Cases) > 0 {
			none = fmt.Sprintf("none of the cases %q is in both; the first has %s", o.Cases, strings.Join(a.caseNames(), "; "))
		}
		return nil, &NotComparableError{append(reasons, none)}
	}
	for _, name := range common {
		if differs := differing(a.Find(name).Factors, b.Find(name).Factors); len(differs) > 0 {
			reasons = append(reasons, fmt.Sprintf("case %s differs in %s", name, strings.Join(differs, ", ")))
		}
	}
	if len(reasons) > 0 && !o.Anyway {
		return nil, &NotComparableError{reasons}
	}
	d.Warnings = append(reasons, cautions(a, b)...)
	var short []string
	for _, name := range common {
		if x, y := a.Find(name), b.Find(name); !d.rows(x, y, o) && min(len(x.Samples), len(y.Samples)) == 1 {
			short = append(short, name)
		}
	}
	if len(short) > 0 {
		d.Warnings = append(d.Warnings, "one round has no interval, so these cases were not compared: "+strings.Join(short, "; "))
	}
	return d, nil
}

// match fills OnlyA and OnlyB and returns the wanted cases that both results have.
func (d *Diff) match(a, b *Result, wanted []string) (common []string) {
	skip := func(name string) bool { return len(wanted) > 0 && !slices.Contains(wanted, name) }
	for _, c := range a.Cases {
		switch {
		case skip(c.Name):
		case b.Find(c.Name) == nil:
			d.OnlyA = append(d.OnlyA, c.Name)
		default:
			common = append(common, c.Name)
		}
	}
	for _, c := range b.Cases {
		if !skip(c.Name) && a.Find(c.Name) == nil {
			d.OnlyB = append(d.OnlyB, c.Name)
		}
	}
	return common
}

// rows compares two cases, and reports whether they could be compared in any metric.
func (d *Diff) rows(a, b *Case, o DiffOptions) bool {
	before := len(d.Rows)
	for _, key := range o.Metrics {
		m := MustMetric(key, d.subjects...)
		c := Comparison{A: a.Name, B: b.Name, Metric: key}
		if o.Paired {
			xs, ys, leftOut := pairs(a, b, m)
			c.Ratio, c.LeftOut = PairedRatio(xs, ys, defaultConfidence), leftOut
		} else {
			xs, hurtA := undisturbed(a, m)
			ys, hurtB := undisturbed(b, m)
			c.Ratio, c.LeftOut = UnpairedRatio(xs, ys, defaultConfidence), hurtA+hurtB
		}
		if c.Ratio.Method == "none" {
			continue // one result lacks the metric, or has it for one round only
		}
		c.Verdict = Judge(c.Ratio, m.Higher, o.Margin)
		if m.Neutral {
			c.Verdict = CannotTell
		}
		if c.Verdict == CannotTell {
			c.Needed = RoundsNeeded(c.Ratio, o.Margin)
		}
		d.Rows = append(d.Rows, c)
	}
	x, y := failShare(a), failShare(b)
	if y > x+1 { // one more in a thousand
		d.Failing = append(d.Failing, Failing{a.Name, x, y})
	}
	return len(d.Rows) > before
}

// undisturbed returns a metric of the rounds that were not disturbed, or of all rounds if too few are
// left.
func undisturbed(c *Case, m Metric) (xs []float64, leftOut int) {
	var all []float64
	for i := range c.Samples {
		v, ok := m.Of(&c.Samples[i])
		if !ok {
			continue
		}
		all = append(all, v)
		if len(c.Samples[i].Disturbed) == 0 {
			xs = append(xs, v)
		}
	}
	if n := len(xs); n < minUndisturbed || 2*n < len(all) {
		return all, 0
	}
	return xs, len(all) - len(xs)
}

// failShare is how many of 1000 operations of a case fail, over all rounds.
func failShare(c *Case) float64 {
	var ops, failed int64
	for i := range c.Samples {
		ops += c.Samples[i].Ops
		failed += c.Samples[i].Failed()
	}
	if ops+failed == 0 {
		return 0
	}
	return float64(failed) / float64(ops+failed) * 1000
}

// incomparable returns what makes a comparison of the two results pointless: they measured
// different things, or on different machines.
func incomparable(a, b *Result) []string {
	var out []string
	differ := func(what, x, y string) {
		if x != y {
			out = append(out, fmt.Sprintf("%s is %s in one and %s in the other", what, orNone(x), orNone(y)))
		}
	}
	differ("the experiment", a.Experiment.Name, b.Experiment.Name)
	differ("the loop", a.Experiment.Loop, b.Experiment.Loop)
	differ("durability", a.Env.Durability, b.Env.Durability)
	differ("the processor", a.Env.CPU, b.Env.CPU)
	differ("the number of cores", fmt.Sprint(a.Env.Cores), fmt.Sprint(b.Env.Cores))
	for _, k := range unionOfKeys(a.Experiment.Factors, b.Experiment.Factors) {
		differ("factor "+k, a.Experiment.Factors[k], b.Experiment.Factors[k])
	}
	return out
}

// cautions returns what to know when reading the comparison.
func cautions(a, b *Result) []string {
	var out []string
	differ := func(what, x, y string) {
		if x != y {
			out = append(out, fmt.Sprintf("%s: %s in one, %s in the other", what, orNone(x), orNone(y)))
		}
	}
	differ("kernel", a.Env.Kernel, b.Env.Kernel)
	differ("Go", a.Env.GoVersion, b.Env.GoVersion)
	servers := func(r *Result) string {
		var s []string
		for _, v := range r.Env.Servers {
			s = append(s, v.Name+" "+v.Version)
		}
		return strings.Join(s, ", ")
	}
	differ("servers", servers(a), servers(b))
	for i, r := range []*Result{a, b} {
		which := [...]string{"the first", "the second"}[i]
		if r.Partial {
			out = append(out, which+" is of an interrupted run")
		}
		hurt, all := 0, 0
		for _, s := range r.Rounds() {
			all++
			hurt += min(len(s.Disturbed), 1)
		}
		if hurt > 0 {
			out = append(out, fmt.Sprintf("%s was disturbed in %d of %d rounds", which, hurt, all))
		}
	}
	x, y := runFlushCost(a), runFlushCost(b)
	if x > 0 && y > 0 && (x > flushLimit*y || y > flushLimit*x) {
		out = append(out, fmt.Sprintf("a flush cost %s around one run and %s around the other: cases that are bound by the disk cannot be compared", Micros(x), Micros(y)))
	}
	return out
}

// runFlushCost is the median cost of a flush around a run, or 0 if it was not measured.
func runFlushCost(r *Result) float64 {
	if v := usualFlush(r); v > 0 {
		return v
	}
	v, _ := FlushCost(r, &Sample{})
	return v
}

func unionOfKeys(a, b map[string]string) []string {
	all := maps.Clone(a)
	if all == nil {
		all = make(map[string]string)
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func metricKeys(subjects []*Subject) []string {
	var keys []string
	for _, m := range Metrics(subjects...) {
		keys = append(keys, m.Key)
	}
	return keys
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Changes counts the rows by verdict.
func (d *Diff) Changes() map[Verdict]int {
	out := make(map[Verdict]int)
	for _, c := range d.Rows {
		out[c.Verdict]++
	}
	return out
}
