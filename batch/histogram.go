package batch

import "math/bits"

// The histogram's shape: 8 buckets per doubling, so a bucket is at most 1/8 of
// its value wide and its middle is within 6.25 %. 48 doublings of nanoseconds
// are 78 hours; what is larger falls into the last bucket.
const (
	histSubBits = 3
	histSub     = 1 << histSubBits
	histBuckets = (48 - histSubBits + 1) * histSub
)

// Histogram counts non-negative whole numbers (items, or nanoseconds) in
// buckets that grow with the value. The zero value is empty. It is plain
// memory of about 3 KiB: copy it to keep a snapshot. Not safe for concurrent
// use.
type Histogram struct {
	counts [histBuckets]uint64
	count  uint64
	sum    uint64
	max    uint64
}

// histIndex is the bucket of v.
func histIndex(v uint64) int {
	if v < histSub {
		return int(v)
	}
	e := bits.Len64(v) - 1 // 2^e <= v
	i := (e-histSubBits+1)*histSub + int(v>>(e-histSubBits))&(histSub-1)
	return min(i, histBuckets-1)
}

// histLow is the smallest value of bucket i.
func histLow(i int) uint64 {
	if i < histSub {
		return uint64(i)
	}
	e := i/histSub + histSubBits - 1
	return 1<<e | uint64(i%histSub)<<(e-histSubBits)
}

// Record counts v once; a negative v counts as zero.
func (h *Histogram) Record(v int64) {
	u := uint64(max(v, 0))
	h.counts[histIndex(u)]++
	h.count++
	h.sum += u
	h.max = max(h.max, u)
}

// Count is how many values were recorded.
func (h *Histogram) Count() uint64 { return h.count }

// Max is the largest value recorded, exactly.
func (h *Histogram) Max() int64 { return int64(h.max) }

// Sum is the sum of all values, exactly (as long as it fits).
func (h *Histogram) Sum() uint64 { return h.sum }

// Mean is the exact mean, 0 when empty.
func (h *Histogram) Mean() float64 {
	if h.count == 0 {
		return 0
	}
	return float64(h.sum) / float64(h.count)
}

// Quantile is the value below or at which the fraction q (0..1) of all values
// lie, within 6.25 %; 0 when empty. Values below 8 are exact.
func (h *Histogram) Quantile(q float64) int64 {
	if h.count == 0 {
		return 0
	}
	rank := uint64(q * float64(h.count))
	rank = min(rank, h.count-1)
	var seen uint64
	for i, c := range h.counts {
		if seen += c; seen > rank {
			low := histLow(i)
			width := histLow(i+1) - low
			return int64(min(low+(width-1)/2, h.max))
		}
	}
	return int64(h.max)
}

// Buckets calls yield for each non-empty bucket in rising order with the
// bucket's smallest value and its count, until yield returns false.
func (h *Histogram) Buckets(yield func(low int64, count uint64) bool) {
	for i, c := range h.counts {
		if c > 0 && !yield(int64(histLow(i)), c) {
			return
		}
	}
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.count += o.count
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Sub subtracts an earlier copy of the same histogram, which leaves what was
// recorded since. The maximum remains that of the whole.
func (h *Histogram) Sub(earlier *Histogram) {
	for i, c := range earlier.counts {
		h.counts[i] -= c
	}
	h.count -= earlier.count
	h.sum -= earlier.sum
}
