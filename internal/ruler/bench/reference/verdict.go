package reference

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// limit judges a figure by the range that it must be in; least or most may be infinite. The
// whole interval must be on one side; one round decides nothing.
func limit(of Measure, least, most float64, what string) func(*Measured) Judgement {
	return func(m *Measured) Judgement {
		got, why := of(m)
		if why != "" {
			return Judgement{Verdict: CannotTell, Evidence: sentence(why)}
		}
		j := Judgement{Verdict: within(got.Interval, least, most), Got: got}
		j.Evidence = fmt.Sprintf("%s: %s", what, got.text())
		if got.N < 2 {
			j.Evidence += "; one round cannot tell"
		}
		if got.Flaw != "" {
			j.Evidence += "; " + got.Flaw
		}
		if got.Disturbed && j.Verdict != CannotTell {
			j.Verdict = CannotTell
			j.Evidence += ": a figure by itself cannot be told"
		}
		return j
	}
}

// within says on which side of a range an interval lies.
func within(i bench.Interval, least, most float64) Verdict {
	switch {
	case i.N < 2 || math.IsNaN(i.Median):
		return CannotTell
	case i.Lo >= least && i.Hi <= most:
		return Holds
	case i.Hi < least || i.Lo > most:
		return DoesNotHold
	}
	return CannotTell
}

// atLeast and atMost are one-sided limits.
func atLeast(of Measure, least float64, what string) func(*Measured) Judgement {
	return limit(of, least, math.Inf(1), what)
}

func atMost(of Measure, most float64, what string) func(*Measured) Judgement {
	return limit(of, math.Inf(-1), most, what)
}

// alike is a limit on how far a ratio may be from 1, in either direction.
func alike(of Measure, by float64, what string) func(*Measured) Judgement {
	return limit(of, 1/(1+by), 1+by, what)
}

// every holds if all others do, and does not hold if one does not.
func every(judges ...func(*Measured) Judgement) func(*Measured) Judgement {
	return func(m *Measured) Judgement {
		out := Judgement{Verdict: Holds}
		var evidence []string
		for _, judge := range judges {
			j := judge(m)
			if text := strings.TrimSuffix(j.Evidence, "."); !slices.Contains(evidence, text) {
				evidence = append(evidence, text)
			}
			switch {
			case j.Verdict == DoesNotHold, j.Verdict == CannotTell && out.Verdict == Holds:
				out.Verdict, out.Got = j.Verdict, j.Got
			case out.Got.N == 0:
				out.Got = j.Got
			}
		}
		out.Evidence = sentence(strings.Join(evidence, "; "))
		return out
	}
}

// fastest holds if a case is certainly faster than every other one of a list, and does not hold
// if one of them is certainly faster.
func fastest(at At, others ...string) func(*Measured) Judgement {
	return func(m *Measured) Judgement {
		out := Judgement{Verdict: Holds}
		var evidence []string
		for _, name := range others {
			got, why := at.over(at.with(name), "rate")(m)
			if why != "" {
				return Judgement{Verdict: CannotTell, Evidence: sentence(why)}
			}
			evidence = append(evidence, fmt.Sprintf("%s over %s: %s", at.Case, name, got.text()))
			switch bench.Judge(got.Interval, true, 0) {
			case bench.Better:
			case bench.Worse:
				out.Verdict = DoesNotHold
			default:
				if out.Verdict == Holds {
					out.Verdict = CannotTell
				}
			}
		}
		out.Evidence = strings.Join(evidence, "; ")
		return out
	}
}

// sentence adds a capital letter and a full stop to a reason.
func sentence(why string) string {
	if why == "" {
		return why
	}
	return strings.ToUpper(why[:1]) + strings.TrimSuffix(why[1:], ".") + "."
}

// text formats a figure with its interval.
func (g Figure) text() string {
	if g.Text != "" {
		return g.Text
	}
	unit := ""
	if g.Unit != "" {
		unit = " " + g.Unit
	}
	switch {
	case g.N < 2:
		return bench.Figure(g.Median) + unit + " (one round)"
	case g.Hi >= math.MaxFloat64 || g.Hi > 20*g.Median && g.Lo < g.Median/20:
		return bench.Figure(g.Median) + unit + " (rounds too far apart)"
	}
	return fmt.Sprintf("%s%s [%s, %s]", bench.Figure(g.Median), unit, bench.Figure(g.Lo), bench.Figure(g.Hi))
}

// cell formats a figure for a table whose column has the unit.
func (g Figure) cell() string {
	if g.Text != "" {
		return g.Text
	}
	g.Unit = ""
	text := strings.TrimSuffix(g.text(), " (one round)")
	return cmp.Or(text, "-")
}

// shareMargin is by how much the difference of two shares of a profile may be off by chance, in
// 19 of 20 profiles.
func shareMargin(samples int64) float64 { return 1.96 / math.Sqrt(float64(max(samples, 1))) }
