package bench

import (
	"fmt"
	"slices"
)

// Comparison compares case B with case A in one metric.
type Comparison struct {
	A       string   `json:"a"`       // name of the case that is compared against
	B       string   `json:"b"`       // name of the case that is compared
	Metric  string   `json:"metric"`  // what was measured
	Ratio   Interval `json:"ratio"`   // B over A
	Verdict Verdict  `json:"verdict"` // better, worse, no difference or cannot tell
	// Needed is how many rounds would probably decide, if the verdict is CannotTell and that
	// can be estimated.
	Needed int `json:"needed,omitempty"`
	// LeftOut counts pairs that were skipped because one of their two rounds was disturbed.
	LeftOut int `json:"left_out,omitempty"`
	// Differs lists the factors in which the two cases differ.
	Differs []string `json:"differs,omitempty"`
}

// comparisonMargin is the smallest difference worth a claim.
const comparisonMargin = 0.03

// comparedMetrics are the keys of the metrics in which cases are compared.
func comparedMetrics(subjects []*Subject) []string {
	keys := []string{"rate", "p50", "p99", "cpu", "cpu_server"}
	for _, s := range subjects {
		keys = append(keys, s.Compared...)
	}
	return keys
}

// Compare compares b with a, round by round, in one metric.
func Compare(a, b *Case, metric string) (Comparison, error) {
	m, ok := MetricByKey(metric, subjectsOf(a, b)...)
	if !ok {
		return Comparison{}, fmt.Errorf("compare %s with %s: neither has a metric %q", b.Name, a.Name, metric)
	}
	xs, ys, leftOut := pairs(a, b, m)
	c := Comparison{A: a.Name, B: b.Name, Metric: metric, Differs: differing(a.Factors, b.Factors)}
	c.LeftOut = leftOut
	c.Ratio = PairedRatio(xs, ys, defaultConfidence)
	c.Verdict = Judge(c.Ratio, m.Higher, comparisonMargin)
	if m.Neutral || len(c.Differs) > 1 {
		c.Verdict = CannotTell // a neutral metric has no better side; several changed factors leave no single cause
	}
	if c.Verdict == CannotTell && len(c.Differs) < 2 {
		c.Needed = RoundsNeeded(c.Ratio, comparisonMargin)
	}
	return c, nil
}

// minUndisturbed is how many pairs must remain if disturbed ones are left out.
const minUndisturbed = 5

// pairs returns a metric of the rounds that both cases have. Pairs with a disturbed round are
// left out if enough others, and at least half of all, remain. Otherwise disturbance is normal
// on this machine, and all pairs count.
func pairs(a, b *Case, m Metric) (xs, ys []float64, leftOut int) {
	inA := make(map[int]*Sample)
	for i := range a.Samples {
		inA[a.Samples[i].Round] = &a.Samples[i]
	}
	var calmX, calmY []float64
	for i := range b.Samples {
		t := &b.Samples[i]
		s := inA[t.Round]
		if s == nil {
			continue
		}
		x, okX := m.Of(s)
		y, okY := m.Of(t)
		if !okX || !okY {
			continue
		}
		xs, ys = append(xs, x), append(ys, y)
		if len(s.Disturbed) == 0 && len(t.Disturbed) == 0 {
			calmX, calmY = append(calmX, x), append(calmY, y)
		}
	}
	if n := len(calmX); n >= minUndisturbed && 2*n >= len(xs) {
		return calmX, calmY, len(xs) - n
	}
	return xs, ys, 0
}

// differing returns the factors in which two cases differ, sorted.
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
