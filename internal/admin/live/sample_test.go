package live

import (
	"iter"
	"math"
	"testing"
	"time"
)

// counts is a histogram: values and how often each was seen.
func counts(pairs ...float64) iter.Seq2[float64, uint64] {
	return func(yield func(float64, uint64) bool) {
		for i := 0; i < len(pairs); i += 2 {
			if !yield(pairs[i], uint64(pairs[i+1])) {
				return
			}
		}
	}
}

func TestSampleDerivesFromTheOneBefore(t *testing.T) {
	t.Parallel()
	s := newSample([]Series{{Key: "level"}, {Key: "rate"}, {Key: "mean"}, {Key: "p50"}, {Key: "p99"}})
	at := time.UnixMilli(1_000_000)
	take := func(level, counter, sum, count float64, h iter.Seq2[float64, uint64]) []float64 {
		s.begin(at)
		at = at.Add(2 * time.Second)
		s.Level("level", level)
		s.Rate("rate", counter)
		s.Mean("mean", sum, count)
		s.Quantiles(h, Quantile{"p50", 0.5}, Quantile{"p99", 0.99})
		return append([]float64(nil), s.values...)
	}
	nan := math.NaN()
	for i, tt := range []struct {
		got, want []float64
	}{
		// The slow ones of before the first sample never count.
		{take(3, 100, 1000, 10, counts(0.001, 5, 9, 1000)), []float64{3, nan, nan, nan, nan}},
		{take(4, 150, 1300, 20, counts(0.001, 65, 0.5, 40, 9, 1000)), []float64{4, 25, 30, 0.001, 0.5}},
		{take(0, 150, 1300, 20, counts(0.001, 65, 0.5, 40, 9, 1000)), []float64{0, 0, nan, nan, nan}}, // nothing happened
		{take(0, 20, 0, 0, counts(0.001, 5, 0.5, 41)), []float64{0, 0, nan, 0.5, 0.5}},                // what it counted in was dropped
		{take(0, 30, 80, 8, counts(0.001, 105, 0.5, 41, 2, 1)), []float64{0, 5, 10, 0.001, 0.001}},    // and counts anew
	} {
		for k := range tt.want {
			if g, w := tt.got[k], tt.want[k]; g != w && !(math.IsNaN(g) && math.IsNaN(w)) {
				t.Errorf("sample %d, value %d: %v, want %v", i, k, g, w)
			}
		}
	}
}

func TestSampleKnowsItsKeys(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a value that the page does not have was set")
		}
	}()
	newSample([]Series{{Key: "a"}}).Level("b", 1)
}
