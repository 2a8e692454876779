package libraries_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weirdb/weir/internal/measure"
)

// quantiles are those of a report.
var quantiles = []float64{0.5, 0.9, 0.99, 0.999}

// longest is the largest value that has a bucket of its own in both.
const longest = int64(1)<<42 - 1

// latencies returns durations in nanoseconds around 200 us, with a tail of seconds.
func latencies() []int64 {
	rng := rand.New(rand.NewPCG(1, 2))
	list := make([]int64, 10_000)
	for i := range list {
		list[i] = int64(float64(200*time.Microsecond) * math.Exp(1.5*rng.NormFloat64()))
	}
	return list
}

// TestHist checks that both give the same quantiles, to two significant digits.
func TestHist(t *testing.T) {
	ours, theirs := &measure.Hist{}, hdrhistogram.New(1, longest, 2)
	for _, ns := range latencies() {
		ours.Record(ns)
		if err := theirs.RecordValue(ns); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range quantiles {
		a, b := float64(ours.Quantile(q)), float64(theirs.ValueAtQuantile(100*q))
		if math.Abs(a-b) > 0.01*b {
			t.Errorf("quantile %v is %v and %v", q, a, b)
		}
	}
	a, err := json.Marshal(ours)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(theirs.Export())
	if err != nil {
		t.Fatal(err)
	}
	c, err := theirs.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d latencies as JSON: weir %d bytes, hdrhistogram %d; its own encoding %d", len(latencies()), len(a), len(b), len(c))
}

// BenchmarkHistRecord records 10,000 values.
func BenchmarkHistRecord(b *testing.B) {
	values := latencies()
	b.Run("weir", func(b *testing.B) {
		var h measure.Hist
		defer cost(b)()
		for b.Loop() {
			for _, ns := range values {
				h.Record(ns)
			}
		}
	})
	b.Run("hdrhistogram", func(b *testing.B) {
		h := hdrhistogram.New(1, longest, 2)
		defer cost(b)()
		for b.Loop() {
			for _, ns := range values {
				if err := h.RecordValue(ns); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// BenchmarkHistQuantiles finds four quantiles.
func BenchmarkHistQuantiles(b *testing.B) {
	var ours measure.Hist
	theirs := hdrhistogram.New(1, longest, 2)
	for _, ns := range latencies() {
		ours.Record(ns)
		_ = theirs.RecordValue(ns)
	}
	b.Run("weir", func(b *testing.B) {
		defer cost(b)()
		for b.Loop() {
			for _, q := range quantiles {
				ours.Quantile(q)
			}
		}
	})
	b.Run("hdrhistogram", func(b *testing.B) {
		defer cost(b)()
		for b.Loop() {
			for _, q := range quantiles {
				theirs.ValueAtQuantile(100 * q)
			}
		}
	})
}

func BenchmarkHistMerge(b *testing.B) {
	var one measure.Hist
	two := hdrhistogram.New(1, longest, 2)
	for _, ns := range latencies() {
		one.Record(ns)
		_ = two.RecordValue(ns)
	}
	b.Run("weir", func(b *testing.B) {
		defer cost(b)()
		var sum measure.Hist
		for b.Loop() {
			sum.Merge(&one)
		}
	})
	b.Run("hdrhistogram", func(b *testing.B) {
		defer cost(b)()
		sum := hdrhistogram.New(1, longest, 2)
		for b.Loop() {
			sum.Merge(two)
		}
	})
}
