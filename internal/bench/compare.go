package bench

import (
	"fmt"
	"slices"
)

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
