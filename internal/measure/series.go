package measure

import (
	"slices"
	"sync"
)

// maxIntervals bounds the memory of a Timeline: at most this many histograms of
// 36 KiB, 18 MiB. When a run outlives them, neighbours are merged and the
// interval doubles, so a run of ten minutes is still told by the two seconds.
const maxIntervals = 512

// Series is how a run went over time, in intervals of equal length.
type Series struct {
	// IntervalSeconds is the length of each interval. The last one may hold less.
	IntervalSeconds float64    `json:"interval_s"`
	Intervals       []Interval `json:"intervals"`
}

// Interval is one of them. Operations belong to the interval in which they
// ended. Percentiles of intervals cannot be combined: those of the whole run
// are in its histogram.
type Interval struct {
	Ops    int64 `json:"ops"`
	Errors int64 `json:"errors,omitempty"`
	P50Ns  int64 `json:"p50_ns"`
	P99Ns  int64 `json:"p99_ns"`
	MaxNs  int64 `json:"max_ns"`
}

// Timeline collects a Series from many workers. Each records into a TimelineShard
// of its own; time is an argument, and each shard's must not run backwards by
// more than an interval or it costs a lock more.
type Timeline struct {
	shards []TimelineShard

	mu     sync.Mutex // guards all below
	width  int64      // nanoseconds
	closed []*Hist    // by interval; nil where nothing ended
	errors []int64    // of the same length
}

// NewTimeline returns a Timeline for n workers with intervals of the given
// length in nanoseconds.
func NewTimeline(n int, widthNs int64) *Timeline {
	t := &Timeline{shards: make([]TimelineShard, n), width: widthNs}
	for i := range t.shards {
		t.shards[i].parent = t
	}
	return t
}

// Shard returns the shard of worker i, 0 <= i < n.
func (t *Timeline) Shard(i int) *TimelineShard { return &t.shards[i] }

// TimelineShard is one worker's part of a Timeline. Safe for concurrent use, but
// meant for one worker: it then meets others only once per interval.
type TimelineShard struct {
	parent *Timeline

	mu     sync.Mutex // guards all below
	until  int64      // end of the interval that hist is of
	from   int64
	hist   Hist
	errors int64
	_      [40]byte // keeps the locks of two workers out of one cache line
}

// Record adds an operation that ended at a time, in nanoseconds since the run
// began. A failed one is counted and its latency is not.
func (s *TimelineShard) Record(atNs, latencyNs int64, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if atNs >= s.until || atNs < s.from {
		s.flush()
		width := s.parent.intervalNs()
		s.from = max(atNs, 0) / width * width
		s.until = s.from + width
	}
	if failed {
		s.errors++
		return
	}
	s.hist.Record(latencyNs)
}

// flush hands what the shard holds to the parent. The shard's lock is held.
func (s *TimelineShard) flush() {
	if s.hist.Count() == 0 && s.errors == 0 {
		return
	}
	s.parent.take(s.from, &s.hist, s.errors)
	s.hist.Reset()
	s.errors = 0
}

func (t *Timeline) intervalNs() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.width
}

func (t *Timeline) take(from int64, h *Hist, errors int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for from/t.width >= maxIntervals {
		t.halve()
	}
	i := int(from / t.width)
	for len(t.closed) <= i {
		t.closed, t.errors = append(t.closed, nil), append(t.errors, 0)
	}
	t.errors[i] += errors
	if h.Count() > 0 {
		if t.closed[i] == nil {
			t.closed[i] = &Hist{}
		}
		t.closed[i].Merge(h)
	}
}

// halve merges neighbours and doubles the interval. The lock is held.
func (t *Timeline) halve() {
	t.width *= 2
	n := (len(t.closed) + 1) / 2
	for i := range n {
		a, e := t.closed[2*i], t.errors[2*i]
		if 2*i+1 < len(t.closed) {
			e += t.errors[2*i+1]
			switch b := t.closed[2*i+1]; {
			case a == nil:
				a = b
			default:
				a.Merge(b)
			}
		}
		t.closed[i], t.errors[i] = a, e
	}
	clear(t.closed[n:])
	t.closed, t.errors = t.closed[:n], t.errors[:n]
}

// Series returns what has been recorded so far, also while workers still record.
func (t *Timeline) Series() *Series {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.flush()
		s.mu.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out := &Series{IntervalSeconds: float64(t.width) / 1e9, Intervals: make([]Interval, len(t.closed))}
	for i, h := range t.closed {
		v := Interval{Errors: t.errors[i]}
		if h != nil {
			v.Ops, v.P50Ns, v.P99Ns, v.MaxNs = int64(h.Count()), h.Quantile(.5), h.Quantile(.99), h.Max()
		}
		out.Intervals[i] = v
	}
	return out
}

// Rates returns the operations per second of each interval.
func (s *Series) Rates() []float64 {
	out := make([]float64, len(s.Intervals))
	for i, v := range s.Intervals {
		out[i] = float64(v.Ops) / s.IntervalSeconds
	}
	return out
}

// Between returns the part of the series from one second to another, whole
// intervals only.
func (s *Series) Between(from, to float64) *Series {
	lo := min(max(int(from/s.IntervalSeconds+0.999999), 0), len(s.Intervals))
	hi := min(max(int(to/s.IntervalSeconds), lo), len(s.Intervals))
	return &Series{IntervalSeconds: s.IntervalSeconds, Intervals: slices.Clone(s.Intervals[lo:hi])}
}
