package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Rules that check whether figures are plausible. They need only rates, latencies and the
// settings of a case, so that they can also judge figures published elsewhere.

const (
	// sameLevel is how close two figures must be to count as equal.
	sameLevel = 0.03
	// inFlightSpread is how much the number of operations in flight may vary within a sweep before it
	// explains the differences between the levels.
	inFlightSpread = 0.25
	// waitShare is how large a window must be, as a share of the latency without a window, for
	// its effect on the latency to be visible.
	waitShare = 0.20
)

// opsInFlight is the number of operations in flight: as set, as counted, or by Little's law.
func opsInFlight(c *Case) (n float64, estimated bool) {
	if len(c.Samples) == 0 {
		return 0, false
	}
	if s := &c.Samples[0]; s.InFlight > 0 {
		return float64(s.InFlight), false
	}
	return c.Rate() * c.Summary["mean"].Median / 1e3, true
}

// inFlightVaries says how the number of operations in flight differs between the levels of a
// sweep of windows; "" if it is the same or unknown. In other sweeps it may be the swept
// factor.
func inFlightVaries(r *Result, g []Level) string {
	if windowUnit(r) == 0 || r.Experiment.Loop == "open" {
		return ""
	}
	var parts []string
	low, high, guessed := math.Inf(1), 0.0, false
	for _, l := range g {
		n, estimated := opsInFlight(l.Case)
		if n == 0 {
			return ""
		}
		low, high, guessed = min(low, n), max(high, n), guessed || estimated
		parts = append(parts, fmt.Sprintf("%s in flight at %s", Count(n), l.Name))
	}
	if high <= low*(1+inFlightSpread) {
		return ""
	}
	text := strings.Join(parts, ", ")
	if guessed {
		text += ", by rate times latency"
	}
	return text
}

// windowUnit is the unit of a sweep of windows in seconds, 0 for any other sweep.
func windowUnit(r *Result) float64 {
	return map[string]float64{"ms": 1e-3, "us": 1e-6}[r.Experiment.SweepUnit]
}

// windows finds windows that group nothing: groups of one, a rate that the window makes
// impossible, or a window that does not show in the latency.
func windows(r *Result) []Finding {
	unit := windowUnit(r)
	if unit == 0 || r.Experiment.Loop == "open" {
		return nil
	}
	var evidence, at []string
	order, groups := Sweeps(r)
	for _, key := range order {
		var none *Case
		for _, l := range groups[key] {
			if l.Value == 0 {
				none = l.Case
				continue
			}
			if text := ungrouped(l, none, unit, r.Experiment.SweepUnit); text != "" {
				evidence = append(evidence, l.Name+": "+text)
				at = append(at, formatLevel(l.Value, r.Experiment.SweepUnit))
			}
		}
	}
	return Found(evidence, Finding{
		ID: "no-batching", Severity: Warn,
		Claim:  fmt.Sprintf("At %s the window batches nothing: the figures do not show the effect of batching.", strings.Join(at, " and ")),
		Advice: "Report the size of groups: operations divided by requests sent.",
	})
}

// ungrouped says why a level with a window does not group operations, or returns "" if it may.
func ungrouped(l Level, none *Case, unit float64, unitName string) string {
	n, estimated := opsInFlight(l.Case)
	by := ""
	if estimated {
		by = " by rate times latency"
	}
	if g, ok := l.Summary["group"]; ok {
		if n >= 2 && g.Median <= 1+sameLevel {
			return fmt.Sprintf("groups of %.3g with %s in flight", g.Median, Count(n))
		}
		return "" // groups were counted, and are larger
	}
	wait := l.Value * unit
	if n > 0 && l.Rate()*wait > n*(1+littleTolerance) {
		return fmt.Sprintf("%s ops/s with %s in flight%s, but with a window of %s they cannot exceed %s ops/s",
			Count(l.Rate()), Count(n), by, formatLevel(l.Value, unitName), Count(n/wait))
	}
	if none == nil {
		return ""
	}
	before, after := none.Summary["mean"].Median, l.Summary["mean"].Median
	if before == 0 || wait*1e3 < waitShare*before || math.Abs(after/before-1) > sameLevel || math.Abs(l.Rate()/none.Rate()-1) > sameLevel {
		return ""
	}
	return fmt.Sprintf("%s of mean latency against %s without a window, at the same rate: no operation waits for it",
		Micros(after*1e6), Micros(before*1e6))
}

// The least time that a closed loop without a warm-up must be measured for.
const (
	leastRound = 1.0 // seconds
	leastCase  = 3.0
)

// tooShort finds cases whose rounds end before anything has settled.
func tooShort(r *Result) []Finding {
	var evidence []string
	longest := 0.0
	for _, c := range r.Cases {
		total, most, cold := 0.0, 0.0, len(c.Samples) > 0
		for j := range c.Samples {
			s := &c.Samples[j]
			total, most = total+s.Seconds, max(most, s.Seconds)
			cold = cold && s.Cold == nil && s.Series == nil && s.Boundary == nil
		}
		if !cold || r.Experiment.Warmup > 0 || most >= leastRound || total >= leastCase {
			continue
		}
		longest = max(longest, most)
		evidence = append(evidence, fmt.Sprintf("%s: %s of at most %.2g s", c.Name, Rounds(len(c.Samples)), most))
	}
	return Found(evidence, Finding{
		ID: "too-short", Severity: Warn,
		Claim:  fmt.Sprintf("Rounds of %.2g s without a warm-up are too short to mean anything: they end before caches, garbage collection and the disk reach their usual pace.", longest),
		Advice: "Measure for seconds, after a warm-up, and once for ten times as long to see whether the rate holds.",
	})
}

// Share is a published part of a whole, in percent.
type Share struct {
	Name    string
	Percent float64
}

// overlapBy is by how many points a sum of shares may exceed 100.
const overlapBy = 5

// Overlapping finds shares of one whole that add up to more than it.
func Overlapping(whole string, shares []Share) []Finding {
	sum := 0.0
	var evidence []string
	for _, s := range shares {
		sum += s.Percent
		evidence = append(evidence, fmt.Sprintf("%s: %.2f %%", s.Name, s.Percent))
	}
	if sum <= 100+overlapBy {
		return nil
	}
	return []Finding{{
		ID: "overlapping-shares", Severity: Warn, Evidence: evidence,
		Claim:  fmt.Sprintf("The shares of %s add up to %.0f %%: the same time is counted in several of them, so they cannot be compared with each other.", whole, sum),
		Advice: "Count each sample once, for the category nearest to its leaf: such shares add up to 100 %.",
	}}
}

// Slept is how long a sleep took.
type Slept struct{ Nominal, Took time.Duration }

// sleepOff is how many times its nominal duration a sleep may take.
const sleepOff = 1.5

// FarFromNominal finds sleeps that take much longer than requested, and levels of a sweep that
// are the same because of it.
func FarFromNominal(sleeps []Slept) []Finding {
	var evidence []string
	var off []Slept
	for _, s := range sleeps {
		if s.Nominal > 0 && float64(s.Took) > sleepOff*float64(s.Nominal) {
			off = append(off, s)
			evidence = append(evidence, fmt.Sprintf("a sleep of %v takes %v, %.1f times as long", s.Nominal, s.Took.Round(10*time.Microsecond), float64(s.Took)/float64(s.Nominal)))
		}
	}
	if len(off) == 0 {
		return nil
	}
	f := Finding{
		ID: "sleep", Severity: Warn, Evidence: evidence,
		Claim:  fmt.Sprintf("A sleep takes much longer than requested: %v takes %v.", off[0].Nominal, off[0].Took.Round(10*time.Microsecond)),
		Advice: "State the measured delay, or use a more precise timer.",
	}
	low := slices.MinFunc(off, func(a, b Slept) int { return int(a.Took - b.Took) })
	high := slices.MaxFunc(off, func(a, b Slept) int { return int(a.Took - b.Took) })
	if len(off) > 1 && float64(high.Took) < sleepOff*float64(low.Took) {
		f.Claim += fmt.Sprintf(" %d levels with different names are the same delay.", len(off))
	}
	return []Finding{f}
}
