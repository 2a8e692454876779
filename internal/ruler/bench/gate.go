package bench

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// GateOutcome is the outcome of a gate for one row of a Diff.
type GateOutcome string

// The outcomes of a gate. Undecided is not a pass.
const (
	GatePassed    GateOutcome = "passed"
	GateFellShort GateOutcome = "fell short"
	GateUndecided GateOutcome = "cannot tell"
)

// GateRow is one comparison and the loss that is allowed.
type GateRow struct {
	Comparison
	// Loss is how much worse the second result is: the share of throughput that was lost, or
	// the share by which a cost grew. Negative if it is better.
	Loss   float64 `json:"loss"`
	LossLo float64 `json:"loss_lo"` // lower end of its interval
	LossHi float64 `json:"loss_hi"` // upper end of its interval
	// Allowed is the largest loss that passes.
	Allowed float64     `json:"allowed"`
	Outcome GateOutcome `json:"outcome"` // passed, fell short or cannot tell
}

// Gate is a Diff judged by limits.
type Gate struct {
	*Diff
	Gated   []GateRow   `json:"gated"`   // each comparison, with what is allowed
	Outcome GateOutcome `json:"outcome"` // the worst of the rows
}

// Judge compares each row with the largest allowed loss, or with the noise floor of its metric
// if that is larger: variation of the machine itself is not held against a change.
//
// A row falls short if the second result is certainly worse, and by more than is allowed as far
// as can be told. It passes if its interval has no larger loss than allowed, or if it is
// certainly not worse. Everything else is undecided.
func (d *Diff) Judge(maxLoss float64, floors map[string]Floor) *Gate {
	g := &Gate{Diff: d, Outcome: GatePassed}
	raise := func(o GateOutcome) {
		if o == GateFellShort || o == GateUndecided && g.Outcome == GatePassed {
			g.Outcome = o
		}
	}
	for _, c := range d.Rows {
		m, ok := MetricByKey(c.Metric, d.subjects...)
		if !ok || m.Neutral {
			continue
		}
		row := GateRow{Comparison: c, Allowed: maxLoss}
		if f, ok := floors[c.Metric]; ok {
			row.Allowed = max(maxLoss, f.of(d.Paired))
		}
		row.Loss, row.LossLo, row.LossHi = c.Ratio.Median-1, c.Ratio.Lo-1, c.Ratio.Hi-1
		if m.Higher {
			row.Loss, row.LossLo, row.LossHi = 1-c.Ratio.Median, 1-c.Ratio.Hi, 1-c.Ratio.Lo
		}
		switch {
		case c.Verdict == Worse && row.Loss > row.Allowed:
			row.Outcome = GateFellShort
		case c.Verdict == Better, c.Verdict == NoDifference, row.LossHi <= row.Allowed:
			row.Outcome = GatePassed
		default:
			row.Outcome = GateUndecided
		}
		raise(row.Outcome)
		g.Gated = append(g.Gated, row)
	}
	if len(d.Failing) > 0 {
		raise(GateFellShort)
	}
	if len(d.OnlyA) > 0 || len(g.Gated) == 0 {
		raise(GateUndecided) // a case that is no longer measured has not passed
	}
	return g
}

// Floor is how much a metric varies without any change, as a share of its value.
type Floor struct {
	// Paired is the largest difference that rounds taken in turn leave open.
	Paired float64 `json:"paired"`
	// Apart is the largest difference between stretches of the run with Rounds rounds each: how
	// much two runs, one after the other, differ. A machine that also changes from day to day
	// differs by more.
	Apart  float64 `json:"apart"`
	Rounds int     `json:"rounds"` // per side
}

func (f Floor) of(paired bool) float64 {
	if paired {
		return f.Paired
	}
	return f.Apart
}

// NoiseFloor returns the floors of all metrics of a result whose first two cases are identical.
func NoiseFloor(r *Result) (map[string]Floor, error) {
	if len(r.Cases) != 2 || !maps.Equal(r.Cases[0].Factors, r.Cases[1].Factors) {
		return nil, fmt.Errorf("noise floor of %s: want two identical cases, as weir bench aa measures them", r.ID)
	}
	a, b := r.Cases[0], r.Cases[1]
	out := make(map[string]Floor)
	for _, m := range Metrics(r.Subjects()...) {
		c, err := Compare(a, b, m.Key)
		if err != nil || m.Neutral || c.Ratio.N < minUndisturbed || c.Ratio.Lo <= 0 {
			continue
		}
		f := Floor{Paired: loss(max(-math.Log(c.Ratio.Lo), math.Log(c.Ratio.Hi)))}
		f.Apart, f.Rounds = apart(a, b, m)
		out[m.Key] = f
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("noise floor of %s: too few rounds", r.ID)
	}
	return out, nil
}

// apart cuts all samples, in the order in which they were taken, into five stretches and
// returns the largest ratio between the medians of two of them.
func apart(a, b *Case, m Metric) (float64, int) {
	all := append(slices.Clone(a.Samples), b.Samples...)
	slices.SortStableFunc(all, func(x, y Sample) int { return x.Started.Compare(y.Started) })
	var logs []float64
	for i := range all {
		if v, ok := m.Of(&all[i]); ok && v > 0 {
			logs = append(logs, math.Log(v))
		}
	}
	length := max(len(logs)/5, 2)
	lo, hi := math.Inf(1), math.Inf(-1)
	for i := 0; i+length <= len(logs); i += length {
		v := Median(logs[i : i+length])
		lo, hi = min(lo, v), max(hi, v)
	}
	if hi < lo {
		return 0, 0
	}
	return loss(hi - lo), length
}

// loss converts a difference of logarithms to a share: how much is lost.
func loss(log float64) float64 { return 1 - math.Exp(-log) }
