package suite

import (
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// One round has no interval: its figure is on some side of the target always.
func TestTargetsAreDecidedByMoreThanOneRound(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got       bench.Interval
		low, high float64
		want      string
	}{
		{"above", bench.Interval{Median: 3, Lo: 2.5, Hi: 3.5, N: 6}, 2, 0, Met},
		{"below", bench.Interval{Median: 1, Lo: 0.5, Hi: 1.5, N: 6}, 2, 0, NotMet},
		{"across", bench.Interval{Median: 2, Lo: 1.5, Hi: 2.5, N: 6}, 2, 0, Undecided},
		{"short enough", bench.Interval{Median: 1, Lo: 0.5, Hi: 1.5, N: 2}, 0, 2, Met},
		{"one round above", bench.Interval{Median: 3, Lo: 3, Hi: 3, N: 1}, 2, 0, Undecided},
		{"one round below", bench.Interval{Median: 1, Lo: 1, Hi: 1, N: 1}, 2, 0, Undecided},
	} {
		if _, got := Decide(tc.got, tc.low, tc.high, "x"); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
