package core

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sight"
)

// This file has the causes of pins, which are bits with names; each side has its own.

// PinText lists the causes in a set, "none" if it is empty.
func PinText(pins uint64, names []string) string {
	var in []string
	for i, name := range names {
		if pins&(1<<i) != 0 {
			in = append(in, name)
		}
	}
	if in == nil {
		return "none"
	}
	return strings.Join(in, ",")
}

// CountPins counts each cause in a set.
func CountPins(counts []uint64, pins uint64) {
	for i := range counts {
		counts[i] += pins >> i & 1
	}
}

// AddPins adds the number of pins by each cause; names are the causes.
func AddPins(ps *sight.PoolStatus, names []string, counts []uint64) {
	for i, n := range counts {
		if n > 0 {
			ps.Pins[names[i]] += n
		}
	}
}
