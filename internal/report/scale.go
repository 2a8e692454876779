package report

import (
	"math"
	"strconv"
	"strings"
)

// scale maps values to positions between from and to.
type scale struct {
	lo, hi   float64
	from, to float64
	kind     scaleKind
	ticks    []float64
}

type scaleKind int

const (
	linear scaleKind = iota
	logarithmic
	nines // of quantiles: each nine takes as much room as the one before
)

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
		if hi <= lo {
			s.hi = lo + 1
		}
		step := roundStep((s.hi - s.lo) / 5)
		s.lo, s.hi = math.Floor(s.lo/step)*step, math.Ceil(s.hi/step)*step
		for i := math.Round(s.lo / step); i*step <= s.hi+step/2; i++ {
			s.ticks = append(s.ticks, i*step)
		}
	case logarithmic:
		s.logTicks()
	case nines:
		if hi <= lo {
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

// logTicks puts the ends on 1, 2 or 5 times a power of ten, and ticks on all of
// these, or on the powers alone when that would be more than nine.
func (s *scale) logTicks() {
	if s.hi <= s.lo {
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

// label writes a tick: 2.5, 40, 12k, 3M; a quantile as p99.9.
func (s *scale) label(v float64) string {
	if s.kind == nines {
		if v == 0 {
			return "min"
		}
		return "p" + strconv.FormatFloat(v*100, 'f', max(0, int(math.Round(nine(v)))-2), 64)
	}
	return short(v)
}

// short writes a number with at most three digits and a suffix.
func short(v float64) string {
	for _, u := range []struct {
		size   float64
		suffix string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= u.size*0.9995 {
			return digits(v/u.size) + u.suffix
		}
	}
	return digits(v)
}

func digits(v float64) string {
	s := strconv.FormatFloat(v, 'g', 3, 64)
	if strings.Contains(s, "e") {
		s = strconv.FormatFloat(v, 'f', -1, 64)
	}
	return s
}
