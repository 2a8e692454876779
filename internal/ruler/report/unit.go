package report

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// scaledUnit is a unit as a multiple of the smallest of its kind.
type scaledUnit struct {
	size float64
	name string
}

// Units that change with the size of the value: 1500 us is 1.5 ms. Other units get the prefixes
// k, M and G.
var (
	plain = []scaledUnit{{1, ""}, {1e3, "k"}, {1e6, "M"}, {1e9, "G"}}
	times = []scaledUnit{{1, "ns"}, {1e3, "us"}, {1e6, "ms"}, {1e9, "s"}}
	sizes = []scaledUnit{{1, "B"}, {1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}}
)

// unitsFor returns the units for values of a unit, and whether they replace it.
func unitsFor(unit string) (ladder []scaledUnit, replace bool) {
	for _, l := range [][]scaledUnit{times, sizes} {
		if slices.ContainsFunc(l, func(r scaledUnit) bool { return r.name == unit }) {
			return l, true
		}
	}
	return plain, false
}

// fitted returns the factor and the suffix with which a value has few digits.
func fitted(v float64, unit string) (factor float64, suffix string) {
	ladder, replace := unitsFor(unit)
	own := 1.0
	if replace {
		own = ladder[slices.IndexFunc(ladder, func(r scaledUnit) bool { return r.name == unit })].size
	}
	size := math.Abs(v) * own
	best := ladder[0]
	for _, r := range ladder {
		if size >= r.size*0.9995 {
			best = r
		}
	}
	switch {
	case replace && v == 0:
		return 1, " " + unit
	case replace:
		return own / best.size, " " + best.name
	case unit == "":
		return 1 / best.size, best.name
	}
	return 1 / best.size, best.name + " " + unit
}

// withUnit formats a value with at most three digits and its unit.
func withUnit(v float64, unit string) string {
	factor, suffix := fitted(v, unit)
	return digits(v*factor) + suffix
}

// withRange formats a value with its range, all in one unit and with as many digits as the
// width of the range justifies.
func withRange(p Point, unit string) string {
	factor, suffix := fitted(max(math.Abs(p.Y), math.Abs(p.Lo)), unit)
	d := decimals((p.Hi - p.Lo) * factor)
	number := func(v float64) string { return strconv.FormatFloat(v*factor, 'f', d, 64) }
	// The suffix for thousands belongs to each number, a unit to the whole.
	scale, name, _ := strings.Cut(suffix, " ")
	text := number(p.Y) + scale + " [" + number(p.Lo) + scale + ", " + number(p.Hi) + scale + "]"
	if name != "" {
		text = number(p.Y) + scale + " " + name + " [" + number(p.Lo) + scale + ", " + number(p.Hi) + scale + "]"
	}
	return text
}

// decimals is how many decimals a number needs to show two digits of a range of the given
// width.
func decimals(width float64) int {
	if width <= 0 {
		return 2
	}
	return min(max(1-int(math.Floor(math.Log10(width))), 0), 6)
}

// short formats a number with at most three digits and a suffix.
func short(v float64) string { return withUnit(v, "") }

// digits formats a number with at most three significant digits.
func digits(v float64) string {
	s := strconv.FormatFloat(v, 'g', 3, 64)
	if !strings.Contains(s, "e") {
		return s
	}
	rounded, err := strconv.ParseFloat(s, 64)
	if err != nil || math.Abs(rounded) < 1e-9 {
		return s
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// figure formats a number with three significant digits, or, from 100 on, as a whole number
// with thousands separators.
func figure(v float64) string {
	if math.Abs(v) < 99.95 {
		return digits(v)
	}
	return grouped(v, 0)
}

// figureRange is figure, with its range.
func figureRange(p Point) string {
	d := decimals(p.Hi - p.Lo)
	return grouped(p.Y, d) + " [" + grouped(p.Lo, d) + ", " + grouped(p.Hi, d) + "]"
}

// grouped formats a number with the given decimals and thousands separators.
func grouped(v float64, d int) string {
	s, fraction, _ := strings.Cut(strconv.FormatFloat(math.Abs(v), 'f', d, 64), ".")
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if fraction != "" {
		s += "." + fraction
	}
	if v < 0 {
		s = "-" + s
	}
	return s
}

// percent formats a share in [0, 1] as a percentage without the sign.
func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 1, 64) }

// Plural formats a number of things: "1 round", "2 rounds".
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}
