package kvload

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The frequencies of a skewed choice are those of Zipf's law, also for exponents
// below and at 1, which the standard library does not have.
func TestZipfKeepsItsLaw(t *testing.T) {
	const n, draws = 1000, 400_000
	for _, s := range []float64{0.2, 0.9, 0.99, 1, 1.01, 1.5, 3} {
		rng := rand.New(rand.NewPCG(7, 7))
		z := newZipf(n, s)
		var counts [n]int
		for range draws {
			counts[z.draw(rng)]++
		}
		var total float64
		for k := 1; k <= n; k++ {
			total += math.Pow(float64(k), -s)
		}
		for _, k := range []int{1, 2, 3, 10, 100} {
			p := math.Pow(float64(k), -s) / total
			// Five standard deviations of a binomial count: one false alarm in
			// millions, and the seed is fixed.
			if got, want := float64(counts[k-1]), p*draws; math.Abs(got-want) > 5*math.Sqrt(want*(1-p))+1 {
				t.Errorf("s=%v: key %d was drawn %v times, want about %.0f", s, k, got, want)
			}
		}
	}
	if z := newZipf(1, 0.9); z.draw(rand.New(rand.NewPCG(1, 1))) != 0 {
		t.Error("of one key, another was drawn")
	}
}

func TestValuesSayWhereTheyAreFrom(t *testing.T) {
	w := Workload{Keys: 3, ValueBytes: 30}
	i := 0
	for key, value := range w.Values() {
		k, stream, count, ok := origin(value, 30)
		if key != keyName(i) || k != i || stream != nobody || count != 0 || !ok {
			t.Errorf("%s holds key %d, stream %d, count %d", key, k, stream, count)
		}
		i++
	}
	if i != 3 {
		t.Errorf("%d values, want 3", i)
	}
	if _, _, _, ok := origin(make([]byte, 29), 30); ok {
		t.Error("a value of another size is taken for ours")
	}
}

func BenchmarkZipf(b *testing.B) {
	z, rng := newZipf(1_000_000, 0.9), rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		z.draw(rng)
	}
}
