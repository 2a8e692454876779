package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Severity is how much a finding matters.
type Severity string

// Info states a result. Warn says that a figure must not be taken at face value, or that
// something went wrong.
const (
	Info Severity = "info"
	Warn Severity = "warn"
)

// Finding is a statement that a rule computed from the numbers.
type Finding struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Claim    string   `json:"claim"`
	Evidence []string `json:"evidence,omitempty"`
	Advice   string   `json:"advice,omitempty"`
}

// Found is a finding with its evidence, if there is any.
func Found(evidence []string, f Finding) []Finding {
	if len(evidence) == 0 {
		return nil
	}
	f.Evidence = evidence
	return []Finding{f}
}

// Rule is a pure function that returns nothing if the numbers do not support its claim.
type Rule func(*Result) []Finding

// Rules are the rules that apply to a result, in the order of their findings.
type Rules struct {
	Figures  []Rule // about the figures
	Limits   []Rule // about what they are bound by
	Promises []Rule // about what cases are said to do, and do not
	Trust    []Rule // about how far the figures can be trusted
}

// coreRules are the rules for results of any subject.
func coreRules() Rules {
	return Rules{
		Figures:  []Rule{sweetSpot, adaptive, BaselineRatio, constraints, cliff, mixed},
		Limits:   []Rule{dominantSegment, coldPool, poolSize, insideServer, saturation, serverCPU, commitBound, grouping, windowCap},
		Promises: []Rule{windows, tooShort, invalid},
		Trust:    []Rule{Partial, Disturbed, generator, unsettled, stalls, littlesLaw, Confounded, Failures, Noise},
	}
}

// Findings applies the rules of the core and of the result's subjects to an evaluated result.
func Findings(r *Result) []Finding {
	rules := coreRules()
	for _, s := range r.Subjects() {
		if s.Rules != nil {
			s.Rules(r, &rules)
		}
	}
	var out []Finding
	for _, rule := range slices.Concat(rules.Figures, rules.Limits, rules.Promises, rules.Trust) {
		out = append(out, rule(r)...)
	}
	return out
}

// BaselineRatio states the throughput of each case relative to the baseline. It leaves out
// cases that differ in more than one factor: their ratio has no single cause (see confounded).
func BaselineRatio(r *Result) []Finding {
	var out []Finding
	for _, c := range r.Comparisons {
		if c.Metric != "rate" || len(c.Differs) > 1 {
			continue
		}
		f := Finding{ID: "ratio", Severity: Info, Evidence: []string{
			fmt.Sprintf("%d pairs of rounds, %s, %.0f %% confidence", c.Ratio.N, c.Ratio.Method, 100*c.Ratio.Confidence),
		}}
		switch c.Verdict {
		case CannotTell:
			f.Claim = fmt.Sprintf("%s against %s: cannot tell, %s of the throughput.", c.B, c.A, RatioText(c.Ratio))
			if c.Needed > 0 {
				f.Advice = fmt.Sprintf("About %d rounds would decide.", c.Needed)
			}
		case NoDifference:
			f.Claim = fmt.Sprintf("%s against %s: no difference, %s of the throughput.", c.B, c.A, RatioText(c.Ratio))
		default:
			f.Claim = fmt.Sprintf("%s is %s than %s: %s of the throughput.", c.B, c.Verdict, c.A, RatioText(c.Ratio))
		}
		out = append(out, f)
	}
	return out
}

func formatLevel(v float64, unit string) string {
	return strings.TrimSpace(strconv.FormatFloat(v, 'g', -1, 64) + " " + unit)
}

// widestRatio is the ratio of an interval's end to the median above which the end is not worth
// printing.
const widestRatio = 20

// RatioText formats a ratio with its interval: "1.52x [1.48, 1.57]".
func RatioText(i Interval) string {
	if i.N < 2 || i.Hi >= math.MaxFloat64 {
		return fmt.Sprintf("%.2fx (one pair: cannot tell)", i.Median)
	}
	if i.Hi > widestRatio*i.Median { // so wide that its upper end means nothing
		return fmt.Sprintf("%.2fx (rounds too far apart: cannot tell)", i.Median)
	}
	return fmt.Sprintf("%.2fx [%.2f, %.2f]", i.Median, i.Lo, i.Hi)
}

// Count formats a number with thousands separators.
func Count(v float64) string {
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
