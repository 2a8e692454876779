package bench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/ruler/report"
)

// littleTolerance is how far throughput times mean latency may be from the number in flight
// before the harness itself is suspect.
const littleTolerance = 0.05

// littlesLaw checks that the number in flight is the rate times the mean latency (J. Little,
// Operations Research 9(3), 1961): the number of clients of a closed loop, the counted number
// of an open one. Failed operations take time, too: if their latency was not recorded, a sample
// with more than 1 % of them is skipped.
func littlesLaw(r *Result) []Finding {
	var off []string
	more, fewer := false, false
	for c, s := range r.Rounds() {
		want := float64(s.InFlight)
		if want == 0 {
			want = s.MeanInFlight
		}
		if want == 0 || s.Latency == nil || s.Ops == 0 || s.Seconds == 0 {
			continue
		}
		busy := s.Latency.Mean() * float64(s.Ops)
		if s.FailedLatency != nil {
			busy += s.FailedLatency.Mean() * float64(s.Failed())
		} else if s.Failed()*100 > s.Ops {
			continue
		}
		if s.open() && (s.Generator.Dropped > 0 || s.Generator.Unfinished > 0) {
			continue // the law is about a steady state
		}
		// Operations that the window's start or end cuts: each at most once.
		slack := littleTolerance*want + 2*want/float64(s.Ops)*want
		if found := busy / s.Seconds / 1e9; math.Abs(found-want) > slack {
			more, fewer = more || found > want, fewer || found < want
			off = append(off, fmt.Sprintf("%s, round %d: %.1f in flight by rate and latency, %.4g %s", c.Name, s.Round, found, want, clients(s)))
		}
	}
	if len(off) == 0 {
		return nil
	}
	var why []string
	if fewer {
		why = append(why, "where it is less, part of the time is not measured, or clients were idle")
	}
	if more {
		why = append(why, "where it is more, operations that are counted began before the window, or stalled past its end")
	}
	return []Finding{{
		ID: "littles-law", Severity: Warn, Evidence: off,
		Claim:  "Throughput times mean latency is not the number of operations in flight: " + strings.Join(why, "; ") + ".",
		Advice: "Do not compare latencies of these cases.",
	}}
}

// clients says where the number in flight comes from.
func clients(s *Sample) string {
	if s.InFlight > 0 {
		return "clients"
	}
	return "counted"
}

// Confounded finds comparisons of cases that differ in two or more factors, so that the
// difference has no single cause.
func Confounded(r *Result) []Finding {
	var evidence []string
	for _, c := range r.Comparisons {
		if c.Metric == "rate" && len(c.Differs) > 1 {
			evidence = append(evidence, fmt.Sprintf("%s against %s: %s", c.B, c.A, strings.Join(c.Differs, ", ")))
		}
	}
	// In a sweep the number of clients is not always a factor of the case.
	_, groups := Sweeps(r)
	for _, c := range r.Cases {
		for _, g := range groups {
			if g[0].Case != c {
				continue
			}
			for _, l := range g[1:] {
				if inFlightVaries(r, []Level{g[0], l}) == "" {
					continue
				}
				x, _ := opsInFlight(g[0].Case)
				y, guessed := opsInFlight(l.Case)
				text := fmt.Sprintf("%s against %s: %s, and %s instead of %s in flight", l.Name, g[0].Name, r.Experiment.Sweep, Count(y), Count(x))
				if guessed {
					text += ", by rate times latency"
				}
				evidence = append(evidence, text)
			}
		}
	}
	return Found(evidence, Finding{
		ID: "confounded", Severity: Warn,
		Claim:  "Some cases differ in more than one factor; their difference has no single cause.",
		Advice: "Change one factor at a time.",
	})
}

// Failures reports operations that did not end as expected.
func Failures(r *Result) []Finding {
	var evidence []string
	for _, c := range r.Cases {
		by := make(map[string]int64)
		for j := range c.Samples {
			for class, n := range c.Samples[j].Errors {
				by[class] += n
			}
		}
		for _, class := range slices.Sorted(maps.Keys(by)) {
			if by[class] > 0 {
				evidence = append(evidence, fmt.Sprintf("%s: %d x %s", c.Name, by[class], class))
			}
		}
	}
	return Found(evidence, Finding{ID: "errors", Severity: Warn, Claim: "Some operations did not end as expected."})
}

// noiseLimit is the relative width of a throughput interval above which a figure must not be
// quoted without its range.
const noiseLimit = 0.25

// Noise warns of cases whose rounds differ a lot.
func Noise(r *Result) []Finding {
	var evidence []string
	for _, c := range r.Cases {
		s, ok := c.Summary["rate"]
		if ok && s.N > 1 && (s.Hi-s.Lo)/s.Median > noiseLimit {
			evidence = append(evidence, fmt.Sprintf("%s: %s [%s, %s] ops/s over %d rounds", c.Name, Count(s.Median), Count(s.Lo), Count(s.Hi), s.N))
		}
	}
	return Found(evidence, Finding{
		ID: "noise", Severity: Warn,
		Claim: fmt.Sprintf("Throughput varied by more than %.0f %% between rounds; trust the paired ratios, not the absolute figures.", 100*noiseLimit),
	})
}

// Disturbed names the rounds in which something outside the experiment interfered.
func Disturbed(r *Result) []Finding {
	var evidence []string
	rounds, leftOut, all := 0, 0, 0
	for c, s := range r.Rounds() {
		all++
		if len(s.Disturbed) > 0 {
			rounds++
			evidence = append(evidence, fmt.Sprintf("%s, round %d: %s", c.Name, s.Round, strings.Join(s.Disturbed, "; ")))
		}
	}
	if rounds == 0 {
		return nil
	}
	for _, c := range r.Comparisons {
		leftOut = max(leftOut, c.LeftOut)
	}
	f := Finding{
		ID: "disturbed", Severity: Warn, Evidence: evidence,
		Claim: fmt.Sprintf("Other programs disturbed %d of %d rounds.", rounds, all),
	}
	if leftOut > 0 {
		f.Claim += fmt.Sprintf(" Comparisons leave out up to %d pairs for this; the medians of the cases include all rounds.", leftOut)
	} else {
		f.Advice = "Measure again on an idle machine, or take more rounds: too many are disturbed, or too few are left, to leave them out."
	}
	return []Finding{f}
}

func disturbedRounds(results []*Result) (rounds, hurt int) {
	for _, r := range results {
		for _, s := range r.Rounds() {
			rounds++
			if len(s.Disturbed) > 0 {
				hurt++
			}
		}
	}
	return rounds, hurt
}

// Quotable reports whether absolute figures of these results are worth quoting: at most half of
// their rounds were disturbed.
func Quotable(results ...*Result) bool {
	rounds, hurt := disturbedRounds(results)
	return 2*hurt <= rounds
}

// Fastest is the case that is certainly faster than every other one; nil if there is none: the
// highest median may be so by chance.
func Fastest(r *Result) *Case {
	best := r.Best(func(c *Case) bool { return !c.Invalid() })
	if len(r.Cases) < 2 || best == nil || len(broken(r, best)) > 0 {
		return nil
	}
	for _, c := range r.Cases {
		if c != best && !c.Invalid() {
			if k, err := Compare(c, best, "rate"); err != nil || k.Verdict != Better {
				return nil
			}
		}
	}
	return best
}

// Cautions is what to know before reading any figure of these results. It comes first in a
// report.
func Cautions(results ...*Result) []report.Finding {
	var out []report.Finding
	rounds, hurt := disturbedRounds(results)
	var single []string
	for _, r := range results {
		if len(r.Cases) > 1 && !slices.ContainsFunc(r.Cases, func(c *Case) bool { return len(c.Samples) > 1 }) {
			single = append(single, cmp.Or(r.Experiment.Title, r.Experiment.Name))
		}
	}
	if !Quotable(results...) {
		out = append(out, report.Finding{
			Warn: true, First: true,
			Claim:  fmt.Sprintf("Other programs disturbed %d of %d rounds: do not quote absolute figures of this run.", hurt, rounds),
			Advice: "Read the ratios of sides that took turns, with their intervals, or measure again on an idle machine.",
		})
	}
	if len(single) > 0 {
		out = append(out, report.Finding{
			Warn: true, First: true, Evidence: single,
			Claim:  fmt.Sprintf("One round per case cannot tell the sides apart; %d of %d experiments had only one.", len(single), len(results)),
			Advice: "Measure more rounds (--rounds).",
		})
	}
	return out
}

// The limits beyond which a load generator distorts its own figures.
const (
	generatorCPU   = 0.70 // of all processors that it may use
	generatorLate  = 0.10 // of the median service time, at p99
	generatorKept  = 0.95 // of the requested rate
	generatorPause = 0.05 // of the time
)

// generator checks whether the load generator did what it was told to.
func generator(r *Result) []Finding {
	var evidence []string
	for _, c := range r.Cases {
		seen := make(map[string]bool) // each kind once per case
		for j := range c.Samples {
			for kind, text := range generatorFaults(&c.Samples[j]) {
				if !seen[kind] {
					seen[kind] = true
					evidence = append(evidence, fmt.Sprintf("%s, round %d: %s", c.Name, c.Samples[j].Round, text))
				}
			}
		}
	}
	slices.Sort(evidence)
	return Found(evidence, Finding{
		ID: "generator", Severity: Warn,
		Claim:  "The load generator was at its limit: these figures partly show the generator.",
		Advice: "Use a lower rate, or give the generator its own processors.",
	})
}

// generatorFaults returns what is wrong with the generator of a sample, by kind.
func generatorFaults(s *Sample) map[string]string {
	g := s.Generator
	if g == nil {
		return nil
	}
	out := make(map[string]string)
	if g.CPUShare > generatorCPU {
		out["cpu"] = fmt.Sprintf("it used %.0f %% of its processors", 100*g.CPUShare)
	}
	if g.PauseShare > generatorPause {
		out["pause"] = fmt.Sprintf("garbage collection stopped it for %.1f %% of the time", 100*g.PauseShare)
	}
	if s.open() {
		if s.Service != nil && s.Service.Count() > 0 && float64(g.LateP99Ns) > generatorLate*float64(s.Service.Quantile(.5)) && g.LateP99Ns > 1e6 {
			out["late"] = fmt.Sprintf("it started operations up to %s late (p99); the median operation takes %s", Micros(float64(g.LateP99Ns)), Micros(float64(s.Service.Quantile(.5))))
		}
		if g.Dropped > 0 {
			out["dropped"] = fmt.Sprintf("%d of %d starts were dropped because %d were already waiting", g.Dropped, g.Intended, g.MaxBacklog)
		}
		if reached := float64(g.Answered) / s.Seconds; s.Seconds > 0 && g.Intended > 0 && reached < generatorKept*float64(g.Intended)/s.Seconds {
			out["behind"] = fmt.Sprintf("only %s of %s ops/s were answered in time, so latencies grow with the length of the run", Count(reached), Count(float64(g.Intended)/s.Seconds))
		}
	}
	if g.Unfinished > 0 {
		out["unfinished"] = fmt.Sprintf("%d operations had no answer when the run ended; no figure includes them", g.Unfinished)
	}
	return out
}

// unsettled finds windows that opened before the run had settled.
func unsettled(r *Result) []Finding {
	var evidence []string
	for c, s := range r.Rounds() {
		if s.Cold != nil && !s.Cold.Steady {
			evidence = append(evidence, fmt.Sprintf("%s, round %d: still moving after %.1f s", c.Name, s.Round, s.Cold.Seconds))
		}
	}
	return Found(evidence, Finding{
		ID: "unsettled", Severity: Warn,
		Claim:  "The warm-up ended at its time limit, before rate and latency had settled.",
		Advice: "Allow a longer warm-up.",
	})
}

// stallShare is the share of its usual rate below which an interval is a stall.
const stallShare = 0.10

// stalls finds intervals in which almost nothing was answered. A closed loop hides them: each
// worker records one slow operation, however long it took.
func stalls(r *Result) []Finding {
	var evidence []string
	for c, s := range r.Rounds() {
		if s.Series == nil || len(s.Series.Intervals) < 5 {
			continue
		}
		rates := s.Series.Rates()
		rates = rates[:len(rates)-1] // the last one may be incomplete
		usual := Median(rates)
		for k, v := range rates {
			if v < stallShare*usual {
				evidence = append(evidence, fmt.Sprintf("%s, round %d, second %.3g: %s ops/s, %s as a rule",
					c.Name, s.Round, float64(k)*s.Series.IntervalSeconds, Count(v), Count(usual)))
			}
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	f := Finding{
		ID: "stall", Severity: Warn, Evidence: evidence,
		Claim: "There were moments in which almost nothing was answered.",
	}
	if r.Experiment.Loop == "closed" {
		f.Claim += " A closed loop stops, too, so its percentiles hardly show it."
		f.Advice = "Use an open loop to measure what users who arrive at such a moment see."
	}
	return []Finding{f}
}

// Partial says that a run was interrupted.
func Partial(r *Result) []Finding {
	if !r.Partial {
		return nil
	}
	var evidence []string
	for _, c := range r.Cases {
		evidence = append(evidence, fmt.Sprintf("%s: %d of %d rounds", c.Name, len(c.Samples), r.Experiment.Rounds))
	}
	return []Finding{{
		ID: "partial", Severity: Warn, Evidence: evidence,
		Claim:  "The run was interrupted; the figures cover the rounds that were measured.",
		Advice: "Repeat the command with --resume to measure the rest.",
	}}
}

// invalid says which rounds broke a promise.
func invalid(r *Result) []Finding {
	var evidence []string
	for c, s := range r.Rounds() {
		if len(s.Invalid) > 0 {
			evidence = append(evidence, fmt.Sprintf("%s, round %d: %s", c.Name, s.Round, strings.Join(s.Invalid, "; ")))
		}
	}
	return Found(evidence, Finding{
		ID: "invalid", Severity: Warn,
		Claim:  fmt.Sprintf("%d rounds are invalid: a promise was broken. Their figures are those of something that does not work.", len(evidence)),
		Advice: "Do not compare them with anything.",
	})
}
