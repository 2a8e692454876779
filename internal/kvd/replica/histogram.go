package replica

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Upper ends of the buckets of histograms.
var (
	secondsBounds = []float64{25e-6, 50e-6, 100e-6, 200e-6, 500e-6, .001, .002, .005, .01, .02, .05, .1, .5, 1}
	sizeBounds    = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000}
)

// A histogram is observed by one goroutine, without a lock, and read by any.
type histogram struct {
	bounds []float64
	counts []atomic.Uint64
	sum    *atomic.Uint64 // bits of a float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1), sum: new(atomic.Uint64)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i].Add(1)
	h.sum.Store(math.Float64bits(math.Float64frombits(h.sum.Load()) + v))
}

// metric renders the histogram as of now.
func (h *histogram) metric(desc *prometheus.Desc) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.bounds))
	var n uint64
	for i, bound := range h.bounds {
		n += h.counts[i].Load()
		buckets[bound] = n
	}
	n += h.counts[len(h.bounds)].Load()
	return prometheus.MustNewConstHistogram(desc, n, math.Float64frombits(h.sum.Load()), buckets)
}
