package measure

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSteady(t *testing.T) {
	for _, tc := range []struct {
		name   string
		values []float64
		want   bool
	}{
		{"too few to say", []float64{5, 5, 5, 5, 5}, false},
		{"flat", []float64{5, 5, 5, 5, 5, 5}, true},
		{"flat after a rise", []float64{1, 3, 5, 100, 100, 101, 99, 100, 100}, true},
		{"rises by 1 % in all", []float64{1000, 1002, 1004, 1006, 1008, 1010}, true},
		{"rises by 5 % in all", []float64{1000, 1010, 1020, 1030, 1040, 1050}, false},
		{"falls towards its level", []float64{800, 400, 200, 100, 50, 25}, false},
		{"noise without a trend", []float64{100, 130, 90, 120, 85, 110}, true},
		{"noise with a strong trend", []float64{10, 23, 29, 42, 49, 63}, false},
		{"nothing ended yet", []float64{0, 0, 0, 0, 0, 0}, false},
		{"a stall among them", []float64{100, 100, 0, 100, 100, 100}, false},
	} {
		if got := Steady(tc.values); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A warm-up that approaches its level exponentially, with noise of 5 %: what is
// left of the climb when it counts as settled must be small beside the noise.
func TestSteadySinceLeavesTheClimbBehind(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for trial := range 200 {
		s := &Series{IntervalSeconds: 0.1}
		climb := 0.6 + 0.35*rng.Float64()
		const tau = 5.0 // intervals
		for i := range 100 {
			level := 1 - climb*math.Exp(-float64(i)/tau)
			noise := math.Exp(0.05 * rng.NormFloat64())
			s.Intervals = append(s.Intervals, Interval{Ops: int64(10000 * level * noise), P50Ns: int64(1e6 / level / noise)})
		}
		at, ok := s.SteadySince()
		if !ok {
			t.Fatalf("trial %d: never settled", trial)
		}
		if left := climb * math.Exp(-float64(at)/tau); left > 0.2 {
			t.Errorf("trial %d: settled after %d intervals with %.0f %% of the climb to go", trial, at, 100*left)
		}
	}
}
