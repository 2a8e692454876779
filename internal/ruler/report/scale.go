package report

import (
	"math"
	"strconv"
)

// scale maps values to positions between from and to.
type scale struct {
	lo, hi   float64
	from, to float64
	kind     scaleKind
	ticks    []float64
	percent  bool   // labels are shares, shown as percentages
	unit     string // of the labels, if it changes with the values
}

type scaleKind int

const (
	linear scaleKind = iota
	logarithmic
	nines   // quantiles: each nine is as wide as the one before
	seconds // linear, with ticks at whole seconds and minutes
)

// leastRange is the range, relative to the values, below which an axis is widened: ticks so
// close together would all have the same label, and eventually be the same number.
const leastRange = 1e-9

func (s *scale) at(v float64) float64 {
	a, b, x := s.lo, s.hi, v
	switch s.kind {
	case logarithmic:
		a, b, x = math.Log(s.lo), math.Log(s.hi), math.Log(max(v, s.lo))
	case nines:
		a, b, x = nine(s.lo), nine(s.hi), nine(v)
	}
	return s.from + (x-a)/(b-a)*(s.to-s.from)
}

func nine(q float64) float64 { return -math.Log10(1 - q) }

// newScale covers [lo, hi] with round ends and ticks.
func newScale(kind scaleKind, lo, hi, from, to float64) *scale {
	s := &scale{lo: lo, hi: hi, from: from, to: to, kind: kind}
	switch kind {
	case linear:
		if hi-lo <= max(leastRange*math.Abs(hi), leastLog) {
			s.hi = lo + max(1, math.Abs(lo)/100)
		}
		step := roundStep((s.hi - s.lo) / 5)
		s.lo, s.hi = math.Floor(s.lo/step)*step, math.Ceil(s.hi/step)*step
		s.stepTicks(step)
	case seconds:
		if hi-lo <= max(leastRange*math.Abs(hi), leastLog) {
			s.hi = lo + max(1, math.Abs(lo)/100)
		}
		s.stepTicks(timeStep((s.hi - s.lo) / 8))
	case logarithmic:
		s.logTicks()
	case nines:
		if nine(hi)-nine(lo) < 0.01 {
			s.hi = 1 - (1-lo)/10
		}
		for _, q := range []float64{0, .5, .9, .99, .999, .9999, .99999} {
			if q <= s.hi {
				s.ticks = append(s.ticks, q)
			}
		}
	}
	return s
}

// atLevels puts the ticks at the measured values if they are few and far enough apart: readers
// of a sweep look for these.
func (s *scale) atLevels(levels []float64) *scale {
	if len(levels) > 12 {
		return s
	}
	if len(levels) == 1 {
		s.ticks = levels
		return s
	}
	last := math.Inf(-1)
	for _, v := range levels {
		half := textWidth(s.label(v)) / 2
		if s.at(v)-half < last+6 {
			return s
		}
		last = s.at(v) + half
	}
	if s.kind == logarithmic {
		s.lo, s.hi = levels[0], levels[len(levels)-1]
	}
	s.ticks = levels
	return s
}

// stepTicks puts ticks at the multiples of a step.
func (s *scale) stepTicks(step float64) {
	for i := math.Ceil(s.lo/step - 1e-9); i*step <= s.hi+step*1e-9; i++ {
		s.ticks = append(s.ticks, i*step+0) // + 0 turns -0 into 0
	}
}

// timeStep returns a step in round seconds, minutes or hours, at least v seconds.
func timeStep(v float64) float64 {
	if v <= 1 {
		return roundStep(v)
	}
	for _, s := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800} {
		if s >= v {
			return s
		}
	}
	return 3600 * math.Ceil(v/3600)
}

// logTicks puts the ends at 1, 2 or 5 times a power of ten, and ticks at all of these, or only
// at the powers if there would be more than nine ticks.
func (s *scale) logTicks() {
	if s.hi <= s.lo*(1+leastRange) {
		s.hi = s.lo * 1.01
	}
	var all []float64
	for e := math.Floor(math.Log10(s.lo)) - 1; e <= math.Ceil(math.Log10(s.hi))+1; e++ {
		for _, m := range []float64{1, 2, 5} {
			all = append(all, m*math.Pow(10, e))
		}
	}
	first, last := 0, len(all)-1
	for first+1 < len(all) && all[first+1] <= s.lo*1.0000001 {
		first++
	}
	for last > 0 && all[last-1] >= s.hi*0.9999999 {
		last--
	}
	s.lo, s.hi = all[first], all[last]
	few := last-first < 9
	for i := first; i <= last; i++ {
		if few || i%3 == 0 {
			s.ticks = append(s.ticks, all[i])
		}
	}
}

// roundStep returns 1, 2 or 5 times a power of ten, at least v.
func roundStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= v*0.999 {
			return m * p
		}
	}
	return 10 * p
}

// label formats a tick: 2.5, 40, 12k, 3M; a quantile as p99.9.
func (s *scale) label(v float64) string {
	switch {
	case s.kind == nines:
		return quantileName(v)
	case s.kind == seconds:
		return clock(v, s.hi)
	case s.percent:
		return digits(100*v) + " %"
	}
	_, replace := unitsFor(s.unit)
	switch {
	case !replace || v == 0:
		return short(v)
	case s.kind == linear: // one unit for the whole axis
		factor, suffix := fitted(max(math.Abs(s.lo), math.Abs(s.hi)), s.unit)
		return digits(v*factor) + suffix
	}
	return withUnit(v, s.unit)
}

// labels formats all ticks.
func (s *scale) labels() []string {
	out := make([]string, len(s.ticks))
	for i, t := range s.ticks {
		out[i] = s.label(t)
	}
	return out
}

// quantileName formats a quantile in [0, 1) as p99.9.
func quantileName(q float64) string {
	if q == 0 {
		return "min"
	}
	return "p" + strconv.FormatFloat(q*100, 'f', max(0, int(math.Round(nine(q)))-2), 64)
}

// clock formats seconds as 12 s or, if the whole is long, as minutes 2:05.
func clock(v, whole float64) string {
	if whole < 180 {
		return digits(v) + " s"
	}
	n := int(math.Round(v))
	if whole >= 3600 {
		return strconv.Itoa(n/3600) + ":" + twoDigits(n/60%60) + ":" + twoDigits(n%60)
	}
	return strconv.Itoa(n/60) + ":" + twoDigits(n%60)
}

func twoDigits(n int) string {
	if n < 10 {
		return "0" + strconv.Itoa(n)
	}
	return strconv.Itoa(n)
}
