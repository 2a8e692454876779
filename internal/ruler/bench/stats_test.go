package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestMedianIntervalRanks(t *testing.T) {
	for _, tc := range []struct {
		n        int
		lo, hi   float64 // of the samples 1..n
		achieved float64
	}{
		{1, 1, 1, 0},
		{5, 1, 5, 1 - 2.0/32},
		{6, 1, 6, 1 - 2.0/64},
		{8, 1, 8, 1 - 2.0/256},        // the second would give 1 - 2*9/256 = 93 %
		{9, 2, 8, 1 - 2.0*10/512},     // 1 + 9 ways
		{12, 3, 10, 1 - 2.0*79/4096},  // 1 + 12 + 66
		{20, 6, 15, 0.95861053466797}, // any table of the sign test
	} {
		xs := make([]float64, tc.n)
		for i := range xs {
			xs[i] = float64((i*7)%tc.n + 1)
			if tc.n%7 == 0 {
				xs[i] = float64(i + 1)
			}
		}
		got := MedianInterval(xs, .95)
		if got.Lo != tc.lo || got.Hi != tc.hi || math.Abs(got.Confidence-tc.achieved) > 1e-9 {
			t.Errorf("n=%d: [%v, %v] at %v, want [%v, %v] at %v", tc.n, got.Lo, got.Hi, got.Confidence, tc.lo, tc.hi, tc.achieved)
		}
	}
}

func TestMedian(t *testing.T) {
	if got := Median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("median = %v", got)
	}
	if got := Median([]float64{9, 1, 5, 6}); got != 5.5 {
		t.Errorf("median = %v", got)
	}
	if got := Median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing = %v", got)
	}
}

func TestPairedRatioCancelsDrift(t *testing.T) {
	// The machine becomes four times slower on the way; b is always 20 % faster.
	var a, b []float64
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 12 {
		speed := 1000 / (1 + float64(i)/4)
		a = append(a, speed*(1+0.01*rng.NormFloat64()))
		b = append(b, 1.2*speed*(1+0.01*rng.NormFloat64()))
	}
	r := PairedRatio(a, b, .95)
	if r.Lo < 1.17 || r.Hi > 1.23 || r.Lo > r.Median || r.Median > r.Hi {
		t.Errorf("ratio = %+v, want about 1.2", r)
	}
	if again := PairedRatio(a, b, .95); again != r {
		t.Error("the same samples give another interval")
	}
	if got := Judge(r, true, .03); got != Better {
		t.Errorf("verdict = %s", got)
	}
	if got := Judge(r, false, .03); got != Worse {
		t.Errorf("verdict of a latency = %s", got)
	}
}

func TestPairedRatioOfFew(t *testing.T) {
	if r := PairedRatio([]float64{1}, []float64{5}, .95); !math.IsInf(r.Hi, 1) || Judge(r, true, .03) != CannotTell {
		t.Errorf("one pair: %+v", r)
	}
	if r := PairedRatio(nil, nil, .95); Judge(r, true, .03) != CannotTell {
		t.Errorf("no pair: %+v", r)
	}
	// log ratios ln 4, ln 5, ln 6: mean 1.5958, sd 0.2029; t(2) = 4.303.
	r := PairedRatio([]float64{1, 1, 1}, []float64{4, 5, 6}, .95)
	half := 4.303 * 0.20286 / math.Sqrt(3)
	if math.Abs(math.Log(r.Hi)-(1.59577+half)) > 1e-3 || math.Abs(math.Log(r.Lo)-(1.59577-half)) > 1e-3 {
		t.Errorf("three pairs: %+v", r)
	}
	if r := PairedRatio([]float64{0, 1, -1}, []float64{1, 2, 2}, .95); r.N != 1 {
		t.Errorf("%d pairs, but only one is positive", r.N)
	}
}

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		lo, hi float64
		want   Verdict
	}{
		{1.05, 1.10, Better},
		{0.80, 0.95, Worse},
		{0.98, 1.02, NoDifference},
		{1.005, 1.02, NoDifference}, // real, and too small to matter
		{0.95, 1.10, CannotTell},
		{1.005, 1.30, Better},
	} {
		i := Interval{Median: (tc.lo + tc.hi) / 2, Lo: tc.lo, Hi: tc.hi, N: 8}
		if got := Judge(i, true, .03); got != tc.want {
			t.Errorf("[%v, %v]: %s, want %s", tc.lo, tc.hi, got, tc.want)
		}
	}
}

func TestRoundsNeeded(t *testing.T) {
	// Half-width 0.2 in logs, effect 0.1: 0.2 (2.576 + 0.842) / 1.96 / 0.1 = 3.49
	// times narrower.
	i := Interval{Median: math.Exp(.1), Lo: math.Exp(-.1), Hi: math.Exp(.3), N: 8}
	if got := RoundsNeeded(i, .03); got != 98 {
		t.Errorf("rounds = %d, want 8 times 3.49 squared", got)
	}
	// No effect: 0.06 (1.96 + 0.842) / 1.96 has to fit into ln(1/0.97) = 0.0305.
	i = Interval{Median: 1, Lo: math.Exp(-.06), Hi: math.Exp(.06), N: 8}
	if got := RoundsNeeded(i, .03); got != 64 {
		t.Errorf("rounds = %d, want 8 times 2.82 squared", got)
	}
	// An effect as large as the margin itself: only showing it is left.
	i = Interval{Median: .97, Lo: .97 * .97, Hi: 1, N: 20}
	if got := RoundsNeeded(i, .03); got != 61 {
		t.Errorf("rounds = %d, want 20 times 1.744 squared", got)
	}
	if got := RoundsNeeded(Interval{N: 1, Hi: math.Inf(1)}, .03); got != 0 {
		t.Errorf("rounds from nothing = %d", got)
	}
}

func TestSlope(t *testing.T) {
	xs := []float64{0, 1, 2, 3, 4, 5, 6, 7}
	exact := make([]float64, len(xs))
	for i, x := range xs {
		exact[i] = 5 + 3*x
	}
	if s := Slope(xs, exact, .95); math.Abs(s.Median-3) > 1e-12 || math.Abs(s.Hi-s.Lo) > 1e-9 {
		t.Errorf("slope of a line: %+v", s)
	}
	// By hand: residuals of +1 and -1 in turn leave the slope at 2.905 with a standard
	// error of 0.174, and Student's t of 6 degrees is 2.447.
	bent := make([]float64, len(xs))
	for i := range xs {
		bent[i] = exact[i] + 1 - 2*float64(i%2)
	}
	s := Slope(xs, bent, .95)
	if math.Abs(s.Median-2.9048) > 1e-3 || s.Lo > 2.5 || s.Lo < 2.45 || s.Hi < 3.3 || s.Hi > 3.36 {
		t.Errorf("slope with residuals: %+v", s)
	}
	for _, few := range [][]float64{nil, {1}, {1, 2}} {
		if s := Slope(few, few, .95); !math.IsInf(s.Hi, 1) || !math.IsInf(s.Lo, -1) {
			t.Errorf("of %d points: %+v", len(few), s)
		}
	}
	if s := Slope([]float64{2, 2, 2}, []float64{1, 2, 3}, .95); !math.IsInf(s.Hi, 1) {
		t.Errorf("of one place: %+v", s)
	}
}
