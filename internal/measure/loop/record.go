package loop

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"github.com/weirdb/weir/internal/measure"
)

// never is a point in time that is never reached.
const never = int64(math.MaxInt64)

// recorder is shared by all workers of a run.
type recorder struct {
	config Config
	clock  measure.Clock
	open   bool

	// from and to delimit the window; from is never until it opens, to until it closes.
	from, to atomic.Int64

	shards   []shard
	warm     *measure.Timeline // since the run began, in short intervals
	timeline *measure.Timeline // since the window opened
}

// warmInterval is the length of the intervals during the warm-up, in nanoseconds.
const warmInterval = int64(100e6)

func newRecorder(c Config, clock measure.Clock) *recorder {
	n := c.shards()
	r := &recorder{
		config: c, clock: clock, open: c.Arrivals != nil,
		shards:   make([]shard, n),
		warm:     measure.NewTimeline(n, warmInterval),
		timeline: measure.NewTimeline(n, int64(c.Interval)),
	}
	r.from.Store(never)
	r.to.Store(never)
	return r
}

// shard is the part of the recorder that some of the workers use.
type shard struct {
	mu                             sync.Mutex // guards the fields below
	cold, latency, service, failed measure.Hist
	errors                         map[string]int64
	answered                       int64 // within the window, even if they were due before it
	startNs, startCount            int64 // sums over all starts so far
	endNs, endCount                int64 // and over all ends
	_                              [24]byte
}

// mark sets one end of the window to the current time, which it returns. No shard records
// meanwhile: what was recorded before had ended before, and what is recorded later is judged by
// the new end, however late this goroutine runs.
func (r *recorder) mark(end *atomic.Int64) int64 {
	for i := range r.shards {
		r.shards[i].mu.Lock()
		defer r.shards[i].mu.Unlock()
	}
	now := r.clock.Now()
	end.Store(now)
	return now
}

// opened reports whether the window was open at a time in the past.
func (r *recorder) opened(at int64) bool {
	s := &r.shards[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	return at >= r.from.Load()
}

// started records the start of an operation.
func (r *recorder) started(worker int, at int64) {
	s := &r.shards[worker%len(r.shards)]
	s.mu.Lock()
	s.startNs += at
	s.startCount++
	s.mu.Unlock()
}

// ended records the end of an operation. In a closed loop, its intended start is its actual
// start.
func (r *recorder) ended(worker int, intended, began, end int64, err error) {
	kept, cold := r.keep(worker, intended, began, end, err)
	if kept && err == nil && r.config.Ended != nil {
		r.config.Ended(Ended{worker, cold, intended, began, end})
	}
}

// keep reports whether the operation belongs to the window or to the phase before.
func (r *recorder) keep(worker int, intended, began, end int64, err error) (kept, cold bool) {
	i := worker % len(r.shards)
	s := &r.shards[i]
	class := ""
	if err != nil {
		class = r.config.Classify(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endNs += end
	s.endCount++
	from, to := r.from.Load(), r.to.Load()
	if end < from {
		r.warm.Shard(i).Record(end, end-intended, err != nil)
	}
	if err == nil && end >= from && end < to {
		s.answered++
	}
	belongs := end
	if r.open {
		belongs = intended
	}
	switch {
	case belongs >= to:
		return false, false
	case belongs < from:
		if err == nil {
			s.cold.Record(end - intended)
		}
		return true, true
	case err != nil:
		if s.errors == nil {
			s.errors = make(map[string]int64)
		}
		s.errors[class]++
		s.failed.Record(end - intended)
	default:
		s.latency.Record(end - intended)
		if r.open {
			s.service.Record(end - began)
		}
	}
	if end < to {
		r.timeline.Shard(i).Record(end-from, end-intended, err != nil)
	}
	return true, false
}

// inFlightNs returns the time integral of the number of running operations, from the start of
// the run to a point in time: ended operations contribute their duration, and others the time
// since their start. The sums may overflow, but their differences are right.
func (r *recorder) inFlightNs(at int64) int64 {
	var sum, n int64
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		sum += s.endNs - s.startNs
		n += s.startCount - s.endCount
		s.mu.Unlock()
	}
	return sum + n*at
}

// unfinished returns how many operations began and did not end.
func (r *recorder) unfinished() int64 {
	var n int64
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		n += s.startCount - s.endCount
		s.mu.Unlock()
	}
	return n
}

// fill merges the shards into the outcome.
func (r *recorder) fill(o *Outcome) {
	o.Latency, o.FailedLatency = &measure.Hist{}, &measure.Hist{}
	o.Errors = make(map[string]int64)
	cold := &measure.Hist{}
	if r.open {
		o.Service = &measure.Hist{}
	}
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		o.Latency.Merge(&s.latency)
		o.FailedLatency.Merge(&s.failed)
		cold.Merge(&s.cold)
		if r.open {
			o.Service.Merge(&s.service)
		}
		for class, n := range s.errors {
			o.Errors[class] += n
		}
		o.Generator.Answered += s.answered
		s.mu.Unlock()
	}
	o.Ops = int64(o.Latency.Count())
	o.Series = r.timeline.Series()
	if o.Cold != nil {
		o.Cold.Ops, o.Cold.Latency = int64(cold.Count()), cold
	}
	maps.DeleteFunc(o.Errors, func(_ string, n int64) bool { return n == 0 })
}
