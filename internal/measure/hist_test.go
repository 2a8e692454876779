package measure

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestHistQuantilesWithinTwoDigits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	draws := map[string]func() int64{
		"uniform":     func() int64 { return rng.Int64N(1_000_000) },
		"exponential": func() int64 { return int64(rng.ExpFloat64() * 2e6) },
		"wide":        func() int64 { return int64(math.Exp(rng.Float64() * 29)) },
		"small":       func() int64 { return rng.Int64N(300) },
		"bimodal":     func() int64 { return 40_000 + rng.Int64N(2)*90_000_000 },
	}
	for name, draw := range draws {
		t.Run(name, func(t *testing.T) {
			var h Hist
			values := make([]int64, 20_001)
			var sum uint64
			for i := range values {
				values[i] = draw()
				sum += uint64(values[i])
				h.Record(values[i])
			}
			slices.Sort(values)
			for _, q := range []float64{0, .001, .25, .5, .9, .99, .999, 1} {
				rank := max(int(math.Ceil(q*float64(len(values)))), 1)
				want, got := values[rank-1], h.Quantile(q)
				if diff := math.Abs(float64(got - want)); diff > 0.005*float64(want)+0.5 {
					t.Errorf("quantile %v = %d, want %d within half a percent", q, got, want)
				}
			}
			if h.Count() != uint64(len(values)) || h.Sum() != sum || h.Min() != values[0] || h.Max() != values[len(values)-1] {
				t.Errorf("count, sum, min, max = %d %d %d %d; these must be exact", h.Count(), h.Sum(), h.Min(), h.Max())
			}
		})
	}
}

func TestBucketsTileTheRange(t *testing.T) {
	for i := range numBuckets {
		low, next := bucketLow(i), bucketLow(i+1)
		if got := bucketOf(low); got != i {
			t.Fatalf("bucketOf(%d) = %d, want %d", low, got, i)
		}
		if got := bucketOf(next - 1); got != i {
			t.Fatalf("bucketOf(%d) = %d, want %d", next-1, got, i)
		}
		if low >= 256 && float64(next-low) > float64(low)/128 {
			t.Fatalf("bucket %d [%d, %d) is wider than 1/128 of its value", i, low, next)
		}
	}
	if got := bucketLow(numBuckets); got != maxValue+1 {
		t.Errorf("buckets end at %d, want %d", got, maxValue+1)
	}
}

func TestHistExtremeValues(t *testing.T) {
	var h Hist
	h.Record(-5)
	h.Record(math.MaxInt64)
	if h.Min() != 0 || h.Max() != math.MaxInt64 {
		t.Errorf("min, max = %d, %d; want 0 and the largest value", h.Min(), h.Max())
	}
	if got := h.Quantile(.5); got != 0 {
		t.Errorf("median = %d, want 0", got)
	}
	var empty Hist
	if empty.Quantile(.5) != 0 || empty.Mean() != 0 || len(empty.Buckets()) != 0 {
		t.Error("an empty histogram must answer with zeros")
	}
}

func TestHistMergeEqualsRecordingTogether(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var parts [3]Hist
	var whole Hist
	for i := range 5000 {
		v := int64(rng.ExpFloat64() * 1e6)
		parts[i%3].Record(v)
		whole.Record(v)
	}
	var merged Hist
	merged.Merge(nil)
	merged.Merge(&Hist{})
	for i := range parts {
		merged.Merge(&parts[i])
	}
	if !equalHist(&merged, &whole) {
		t.Error("merged parts differ from the whole")
	}
	clone := whole.Clone()
	clone.Record(1)
	if equalHist(clone, &whole) {
		t.Error("recording into a clone changed the original")
	}
	whole.Reset()
	if !equalHist(&whole, &Hist{}) {
		t.Error("a reset histogram is not empty")
	}
}

func TestHistJSONRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{0, 1, 2, 10_000} {
		var h, back Hist
		for range n {
			h.Record(int64(rng.ExpFloat64() * 3e6))
		}
		b, err := json.Marshal(&h)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%d values: %v", n, err)
		}
		if !equalHist(&h, &back) {
			t.Errorf("%d values: histogram changed on its way through JSON", n)
		}
		if len(b) > 16_000 {
			t.Errorf("%d values take %d bytes of JSON", n, len(b))
		}
	}
}

func TestHistJSONRefusesTheImpossible(t *testing.T) {
	for name, in := range map[string]string{
		"not an object":   `[]`,
		"odd":             `{"count":1,"buckets":[1]}`,
		"zero gap":        `{"count":1,"buckets":[0,1]}`,
		"past the end":    `{"count":1,"buckets":[4609,1]}`,
		"zero count":      `{"count":0,"buckets":[1,0]}`,
		"count differs":   `{"count":3,"sum_ns":0,"min_ns":0,"max_ns":0,"buckets":[1,2]}`,
		"sum of nothing":  `{"count":0,"sum_ns":4,"buckets":[]}`,
		"min above max":   `{"count":1,"sum_ns":9,"min_ns":9,"max_ns":3,"buckets":[10,1]}`,
		"min elsewhere":   `{"count":1,"sum_ns":9,"min_ns":2,"max_ns":9,"buckets":[10,1]}`,
		"max elsewhere":   `{"count":1,"sum_ns":9,"min_ns":9,"max_ns":70,"buckets":[10,1]}`,
		"counts overflow": `{"count":1,"buckets":[1,18446744073709551615,1,2]}`,
	} {
		var h Hist
		if err := json.Unmarshal([]byte(in), &h); err == nil {
			t.Errorf("%s: accepted %s", name, in)
		}
	}
}

func FuzzHistJSON(f *testing.F) {
	f.Add([]byte(`{"count":3,"sum_ns":30,"min_ns":9,"max_ns":11,"buckets":[10,1,1,1,1,1]}`))
	f.Add([]byte(`{"count":0,"sum_ns":0,"min_ns":0,"max_ns":0,"buckets":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, back Hist
		if json.Unmarshal(b, &h) != nil {
			return
		}
		if q := h.Quantile(.5); q < h.Min() || q > h.Max() {
			t.Errorf("median %d outside [%d, %d]", q, h.Min(), h.Max())
		}
		out, err := json.Marshal(&h)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("own output refused: %v", err)
		}
		if !equalHist(&h, &back) {
			t.Error("accepted histogram does not survive a round trip")
		}
	})
}

func equalHist(a, b *Hist) bool {
	return a.Count() == b.Count() && a.Sum() == b.Sum() && a.Min() == b.Min() && a.Max() == b.Max() &&
		slices.Equal(a.Buckets(), b.Buckets())
}

func BenchmarkHistRecord(b *testing.B) {
	var h Hist
	i := int64(0)
	for b.Loop() {
		h.Record(40_000 + i&0xfffff)
		i += 7919
	}
}

// The reference implementation's HistogramEncodingTest lays values out so that
// a histogram with two digits has bucket 1 of value 1 and 128 buckets for each
// power of two from 256 on. Stored results hold counts by bucket.
func TestBucketsAreThoseOfHdrHistogram(t *testing.T) {
	for value, index := range map[int64]int{0: 0, 1: 1, 255: 255, 256: 256, 257: 256, 258: 257, 511: 383, 512: 384, 1023: 511, 1 << 20: 128*13 + 128} {
		if got := bucketOf(value); got != index {
			t.Errorf("bucket of %d = %d, want %d", value, got, index)
		}
	}
}
