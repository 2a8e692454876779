package sight

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirdb/weir/internal/measure"
)

// ladder has the upper bounds of the classic buckets, in seconds: about three per power of
// ten, from a quick read over loopback to the longest wait that makes sense.
var ladder = []float64{
	.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60,
}

const (
	// nativeSchema makes native buckets grow by 2^(1/8), 9 %: a measure.Hist
	// distinguishes values that differ by 0.8 %, so each of its buckets falls into one
	// of these, or crosses a border by less than a tenth.
	nativeSchema = 3
	// nativeZero is the width of the zero bucket: an event loop reads its clock once a
	// turn, so what took less is often 0.
	nativeZero = 1e-6
)

// A histogram is a measure.Hist as a Prometheus metric: with classic buckets in the text
// format, and also with native ones for a scraper that asks for protobuf.
type histogram struct {
	prometheus.Metric // native
	classic           prometheus.Metric
}

// newHistogram returns a metric with the contents of h, to which it keeps no reference.
func newHistogram(desc *prometheus.Desc, h *measure.Hist, labels ...string) prometheus.Metric {
	cumulative := make(map[float64]uint64, len(ladder))
	native := make(map[int]int64)
	var zero uint64
	counts := make([]uint64, len(ladder)+1)
	for _, b := range h.Buckets() {
		mid := float64(b.LowNs+(b.HighNs-b.LowNs)/2) / 1e9
		counts[sort.SearchFloat64s(ladder, mid)] += b.Count
		if mid <= nativeZero {
			zero += b.Count
			continue
		}
		native[int(math.Ceil(math.Log2(mid)*(1<<nativeSchema)))] += int64(b.Count)
	}
	var below uint64
	for i, bound := range ladder {
		below += counts[i]
		cumulative[bound] = below
	}
	sum := time.Duration(h.Sum()).Seconds()
	n, err := prometheus.NewConstNativeHistogram(desc, h.Count(), sum, native, nil, zero, nativeSchema, nativeZero, time.Time{}, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	c, err := prometheus.NewConstHistogram(desc, h.Count(), sum, cumulative, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return histogram{n, c}
}

// Write implements prometheus.Metric.
func (h histogram) Write(out *dto.Metric) error {
	if err := h.Metric.Write(out); err != nil {
		return fmt.Errorf("write native histogram: %w", err)
	}
	var classic dto.Metric
	if err := h.classic.Write(&classic); err != nil {
		return fmt.Errorf("write classic histogram: %w", err)
	}
	out.Histogram.Bucket, out.Histogram.CreatedTimestamp = classic.Histogram.Bucket, nil
	return nil
}
