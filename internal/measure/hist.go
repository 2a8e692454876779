package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// The layout of Hist. Each power of two is divided into 2^subBits equal buckets, so the width
// of a bucket is at most 1/128 = 0.8 % of its value, and its midpoint, which represents it, is
// at most 0.4 % off: two significant digits. Values of up to 42 bits (73 minutes) have buckets
// of their own; all larger values share the last one, and only Max has their size.
//
// Memory: 2^8 exact buckets for values below 256 ns and 2^7 for each of the 34 powers of two
// above, 4608 in total, of 8 bytes each: 36 KiB per histogram, whatever is recorded.
const (
	subBits    = 7
	valueBits  = 42
	numBuckets = 2<<subBits + (valueBits-subBits-1)<<subBits
	maxValue   = int64(1)<<valueBits - 1
)

// Hist is a log-linear histogram of durations in nanoseconds, with two significant digits and
// bounded memory. Its bucket boundaries are those of HdrHistogram with a lowest value of 1 and
// two digits.
type Hist struct {
	counts []uint64 // nil until the first value
	count  uint64
	sum    uint64 // nanoseconds; overflows after 584 years of summed time
	min    int64  // valid only if count > 0
	max    int64
}

// Record adds one value. A negative value, which only a broken clock produces, is recorded as
// zero.
func (h *Hist) Record(ns int64) { h.RecordN(ns, 1) }

// RecordN adds n occurrences of a value.
func (h *Hist) RecordN(ns int64, n uint64) {
	if n == 0 {
		return
	}
	if h.counts == nil {
		h.counts = make([]uint64, numBuckets)
	}
	ns = max(ns, 0)
	if h.count == 0 || ns < h.min {
		h.min = ns
	}
	h.max = max(h.max, ns)
	h.count += n
	h.sum += uint64(ns) * n
	h.counts[bucketOf(ns)] += n
}

// Merge adds all values of o. Merging is exact: the result is the same as if all values had
// been recorded into h. It is the only correct way to combine percentiles of several workers or
// rounds.
func (h *Hist) Merge(o *Hist) {
	if o == nil || o.count == 0 {
		return
	}
	if h.counts == nil {
		h.counts = make([]uint64, numBuckets)
	}
	if h.count == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.count += o.count
	h.sum += o.sum
	for i, n := range o.counts {
		h.counts[i] += n
	}
}

// Clone returns an independent copy.
func (h *Hist) Clone() *Hist {
	c := &Hist{}
	c.Merge(h)
	return c
}

// Reset empties the histogram but keeps its memory.
func (h *Hist) Reset() {
	clear(h.counts)
	*h = Hist{counts: h.counts}
}

// Count returns how many values were recorded.
func (h *Hist) Count() uint64 { return h.count }

// Sum returns the exact total of all values, in nanoseconds.
func (h *Hist) Sum() uint64 { return h.sum }

// Min returns the exact smallest value, or 0 if the histogram is empty.
func (h *Hist) Min() int64 { return h.min }

// Max returns the exact largest value, or 0 if the histogram is empty.
func (h *Hist) Max() int64 { return h.max }

// Mean returns the exact mean in nanoseconds, or 0 if the histogram is empty.
func (h *Hist) Mean() float64 {
	if h.count == 0 {
		return 0
	}
	return float64(h.sum) / float64(h.count)
}

// Quantile returns the value at quantile q of [0, 1] by nearest rank: the smallest recorded
// value such that at least a share q of all values is not larger, to two significant digits.
// Quantile(0) and Quantile(1) are exact. If the histogram is empty, it returns 0.
func (h *Hist) Quantile(q float64) int64 {
	if h.count == 0 {
		return 0
	}
	if q <= 0 || math.IsNaN(q) {
		return h.min
	}
	if q >= 1 {
		return h.max
	}
	rank := max(uint64(math.Ceil(q*float64(h.count))), 1)
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			return min(max(bucketMid(i), h.min), h.max)
		}
	}
	return h.max
}

// Bucket is a non-empty bucket of a histogram.
type Bucket struct {
	LowNs  int64 // smallest value of the bucket
	HighNs int64 // largest value of the bucket
	Count  uint64
}

// Buckets returns the non-empty buckets in ascending order.
func (h *Hist) Buckets() []Bucket {
	var out []Bucket
	for i, n := range h.counts {
		if n > 0 {
			out = append(out, Bucket{LowNs: bucketLow(i), HighNs: bucketLow(i+1) - 1, Count: n})
		}
	}
	return out
}

// histJSON is the form of a histogram in a result file. Buckets is a flat list of pairs (gap,
// count): gap is the difference from the previous pair's index, starting at index -1, so that
// runs of empty buckets take no space.
type histJSON struct {
	Count   uint64   `json:"count"`
	SumNs   uint64   `json:"sum_ns"`
	MinNs   int64    `json:"min_ns"`
	MaxNs   int64    `json:"max_ns"`
	Buckets []uint64 `json:"buckets"`
}

// MarshalJSON writes the histogram without its empty buckets: 1 to 4 KB for the latencies of a
// real run.
func (h *Hist) MarshalJSON() ([]byte, error) {
	j := histJSON{Count: h.count, SumNs: h.sum, MinNs: h.min, MaxNs: h.max, Buckets: []uint64{}}
	prev := -1
	for i, n := range h.counts {
		if n > 0 {
			j.Buckets = append(j.Buckets, uint64(i-prev), n)
			prev = i
		}
	}
	return json.Marshal(j)
}

// UnmarshalJSON replaces the histogram with one written by MarshalJSON. It rejects anything
// that recording cannot produce.
func (h *Hist) UnmarshalJSON(b []byte) error {
	var j histJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("read histogram: %w", err)
	}
	if len(j.Buckets)%2 != 0 {
		return errors.New("read histogram: odd number of bucket fields")
	}
	n := Hist{count: j.Count, sum: j.SumNs, min: j.MinNs, max: j.MaxNs}
	if len(j.Buckets) > 0 {
		n.counts = make([]uint64, numBuckets)
	}
	var total uint64
	at := -1
	for i := 0; i < len(j.Buckets); i += 2 {
		gap, c := j.Buckets[i], j.Buckets[i+1]
		if gap == 0 || gap > uint64(numBuckets-1-at) {
			return fmt.Errorf("read histogram: bucket pair %d is out of range", i/2)
		}
		at += int(gap)
		if c == 0 || total+c < total {
			return fmt.Errorf("read histogram: bucket pair %d has an impossible count", i/2)
		}
		n.counts[at] = c
		total += c
	}
	if total != j.Count {
		return fmt.Errorf("read histogram: buckets hold %d values, count says %d", total, j.Count)
	}
	switch {
	case total == 0 && (j.SumNs != 0 || j.MinNs != 0 || j.MaxNs != 0):
		return errors.New("read histogram: empty, yet it has a sum, a minimum or a maximum")
	case total > 0 && (j.MinNs < 0 || j.MinNs > j.MaxNs):
		return errors.New("read histogram: minimum and maximum contradict each other")
	case total > 0 && (n.counts[bucketOf(j.MinNs)] == 0 || bucketOf(j.MaxNs) != at):
		return errors.New("read histogram: minimum or maximum lies outside the buckets")
	}
	*h = n
	return nil
}

// bucketOf returns the bucket of a non-negative value.
func bucketOf(ns int64) int {
	v := uint64(min(ns, maxValue))
	e := max(bits.Len64(v)-subBits-1, 0)
	return e<<subBits + int(v>>e)
}

// bucketLow returns the smallest value of bucket i.
func bucketLow(i int) int64 {
	if i < 2<<subBits {
		return int64(i)
	}
	e := i>>subBits - 1
	return int64(i-e<<subBits) << e
}

// bucketMid returns the value that represents bucket i.
func bucketMid(i int) int64 { return bucketLow(i) + (bucketLow(i+1)-bucketLow(i))/2 }
