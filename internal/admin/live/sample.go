package live

import (
	"fmt"
	"iter"
	"math"
	"time"
)

// Sample collects the current values. Counters are converted to a rate, a mean or a quantile
// since the previous sample; the first sample has none of these.
type Sample struct {
	index  map[string]int
	values []float64

	at, before time.Time // before is zero in the first sample
	counters   map[string]counter
	windows    map[string]map[float64]uint64
}

// counter is a counter's state in the previous sample.
type counter struct{ sum, count float64 }

func newSample(series []Series) *Sample {
	s := &Sample{
		index: make(map[string]int, len(series)), values: make([]float64, len(series)),
		counters: make(map[string]counter), windows: make(map[string]map[float64]uint64),
	}
	for i := range series {
		s.index[series[i].Key] = i
	}
	return s
}

// begin clears the values of the previous sample, but keeps its counters.
func (s *Sample) begin(at time.Time) {
	s.before, s.at = s.at, at
	for i := range s.values {
		s.values[i] = math.NaN()
	}
}

// set sets a value. A key that the page does not have is a bug in the program.
func (s *Sample) set(key string, v float64) {
	i, ok := s.index[key]
	if !ok {
		panic(fmt.Sprintf("live: value %q is not a series of the page", key))
	}
	s.values[i] = v
}

// Level sets a current value.
func (s *Sample) Level(key string, v float64) { s.set(key, v) }

// Highest sets the highest of several current values.
func (s *Sample) Highest(key string, v float64) {
	if i, ok := s.index[key]; ok && s.values[i] > v {
		return
	}
	s.set(key, v)
}

// Rate sets the growth of a counter per second. If the counter has decreased, because what it
// counted for was removed, the rate is unknown.
func (s *Sample) Rate(key string, count float64) {
	was, known := s.counters[key]
	s.counters[key] = counter{sum: count}
	if seconds := s.at.Sub(s.before).Seconds(); known && seconds > 0 {
		s.set(key, max(0, count-was.sum)/seconds)
	} else {
		s.set(key, math.NaN())
	}
}

// Mean sets the mean since the previous sample: the growth of sum divided by that of count.
func (s *Sample) Mean(key string, sum, count float64) {
	was, known := s.counters[key]
	s.counters[key] = counter{sum, count}
	if grown := count - was.count; known && grown > 0 {
		s.set(key, max(0, sum-was.sum)/grown)
	} else {
		s.set(key, math.NaN())
	}
}

// A Quantile maps a quantile to a value of the page.
type Quantile struct {
	Key string
	Of  float64 // 0 to 1
}

// Quantiles sets quantiles of a histogram since the previous sample. buckets are cumulative
// over time: in ascending order a value that represents the bucket, and its count; empty
// buckets may be left out.
func (s *Sample) Quantiles(buckets iter.Seq2[float64, uint64], quantiles ...Quantile) {
	name := quantiles[0].Key
	was, known := s.windows[name]
	now := make(map[float64]uint64, len(was))
	type bucket struct {
		value float64
		count uint64
	}
	var grown []bucket
	var total uint64
	for value, count := range buckets {
		now[value] = count
		if n := count - min(count, was[value]); n > 0 && known {
			grown = append(grown, bucket{value, n})
			total += n
		}
	}
	s.windows[name] = now
	for _, q := range quantiles {
		v := math.NaN()
		rank, seen := max(1, uint64(math.Ceil(q.Of*float64(total)))), uint64(0)
		for _, b := range grown {
			if seen += b.count; seen >= rank {
				v = b.value
				break
			}
		}
		s.set(q.Key, v)
	}
}
