package loop

import (
	"math"
	"slices"
	"testing"
)

func next(a Arrivals, n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = a.Next()
	}
	return out
}

func must(t *testing.T) func(Arrivals, error) Arrivals {
	return func(a Arrivals, err error) Arrivals {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
}

func TestConstantDoesNotDrift(t *testing.T) {
	a := must(t)(Constant(3))
	if got, want := next(a, 4), []int64{0, 333333333, 666666666, 1e9}; !slices.Equal(got, want) {
		t.Errorf("starts %v, want %v", got, want)
	}
	a = must(t)(Constant(7))
	all := next(a, 7*3600+1)
	if last := all[len(all)-1]; last != 3600e9 {
		t.Errorf("after an hour: %d ns", last)
	}
}

func TestPoissonIsRandomAndRepeatable(t *testing.T) {
	a, b := must(t)(Poisson(1000, 5)), must(t)(Poisson(1000, 5))
	xs, ys := next(a, 20000), next(b, 20000)
	if !slices.Equal(xs, ys) || !slices.IsSorted(xs) {
		t.Fatal("the same seed gives other starts, or they go back")
	}
	// The distances of a Poisson process have their mean as standard deviation.
	mean, sq := 0.0, 0.0
	for i := 1; i < len(xs); i++ {
		d := float64(xs[i]-xs[i-1]) / 1e6
		mean += d
		sq += d * d
	}
	n := float64(len(xs) - 1)
	mean /= n
	if sd := math.Sqrt(sq/n - mean*mean); math.Abs(mean-1) > 0.03 || math.Abs(sd-1) > 0.05 {
		t.Errorf("distances have mean %.3f ms and deviation %.3f ms, want 1 and 1", mean, sd)
	}
}

func TestArrivalsAreRefused(t *testing.T) {
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1), 2e9} {
		if _, err := Constant(rate); err == nil {
			t.Errorf("constant rate %v was taken", rate)
		}
		if _, err := Poisson(rate, 1); err == nil {
			t.Errorf("Poisson rate %v was taken", rate)
		}
	}
}
