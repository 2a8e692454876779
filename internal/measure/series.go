package measure

import (
	"slices"
	"sync"
)

// maxIntervals limits the memory of a Timeline: 512 histograms of 36 KiB are 18 MiB. When a run
// gets longer, neighbors are merged and the interval doubles: a run of ten minutes has
// intervals of two seconds.
const maxIntervals = 512

// Series shows a run over time, in intervals of equal length.
type Series struct {
	// IntervalSeconds is the length of each interval. The last one may be incomplete.
	IntervalSeconds float64    `json:"interval_s"`
	Intervals       []Interval `json:"intervals"`
}

// Interval is one interval. Operations belong to the interval in which they ended. Percentiles
// of intervals cannot be combined: the histogram has those of the whole run.
type Interval struct {
	Ops    int64 `json:"ops"`
	Errors int64 `json:"errors,omitempty"`
	P50Ns  int64 `json:"p50_ns"`
	P99Ns  int64 `json:"p99_ns"`
	MaxNs  int64 `json:"max_ns"`
}

// Timeline collects a Series from many workers. Each records into a TimelineShard of its own.
// Time is an argument; if a shard's time runs backwards by more than an interval, that costs an
// additional lock.
type Timeline struct {
	shards []TimelineShard

	mu     sync.Mutex // guards the fields below
	width  int64      // nanoseconds
	closed []*Hist    // by interval; nil if no operation ended in it
	errors []int64    // by interval
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

// TimelineShard is one worker's part of a Timeline. It is safe for concurrent use, but meant
// for one worker, which then contends with others only once per interval.
type TimelineShard struct {
	parent *Timeline

	mu     sync.Mutex // guards the fields below
	until  int64      // end of hist's interval
	from   int64
	hist   Hist
	errors int64
	_      [40]byte // keeps the locks of two workers in different cache lines
}

// Record adds an operation that ended at a time, in nanoseconds since the beginning of the run.
// If it failed, it is counted, but its latency is not recorded.
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

// flush passes the content of the shard to the Timeline. The shard's lock is held.
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

// halve merges neighbors and doubles the interval. The lock is held.
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

// Series returns what was recorded so far; workers may still be recording.
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

// Between returns the part of the series between two times, in seconds; only whole intervals.
func (s *Series) Between(from, to float64) *Series {
	lo := min(max(int(from/s.IntervalSeconds+0.999999), 0), len(s.Intervals))
	hi := min(max(int(to/s.IntervalSeconds), lo), len(s.Intervals))
	return &Series{IntervalSeconds: s.IntervalSeconds, Intervals: slices.Clone(s.Intervals[lo:hi])}
}
