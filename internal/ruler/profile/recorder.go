package profile

import (
	"runtime"
	"sync"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// recorder collects the segments of the operations of many workers. A histogram takes 36 KiB
// and there are twelve, so workers share shards, two per processor: one set for each of a
// hundred workers would take 43 MB.
type recorder struct {
	shards []recorderShard
}

type recorderShard struct {
	mu                           sync.Mutex // guards all below
	parts                        [segments]measure.Hist
	acquire, query               measure.Hist
	count, roundTrips, overtaken int64
	_                            [64]byte // keeps two locks out of one cache line
}

func newRecorder(workers int) *recorder {
	return &recorder{shards: make([]recorderShard, max(1, min(workers, 2*runtime.GOMAXPROCS(0))))}
}

// enter adds the last operation of a worker. A segment that no operation enters stays empty and
// costs nothing.
func (r *recorder) enter(index int, w *worker) {
	h := &r.shards[index%len(r.shards)]
	h.mu.Lock()
	for i, d := range w.spent {
		if d != 0 {
			h.parts[i].Record(d)
		}
	}
	acquire, query := w.spent.sides()
	h.acquire.Record(acquire)
	h.query.Record(query)
	h.count++
	h.roundTrips += w.roundTrips
	h.overtaken += w.overtaken
	h.mu.Unlock()
}

// boundary returns the recorded segments.
func (r *recorder) boundary() *bench.Boundary {
	parts := make([]measure.Hist, segments)
	b := &bench.Boundary{Acquire: &measure.Hist{}, Query: &measure.Hist{}}
	var count int64
	for i := range r.shards {
		h := &r.shards[i]
		h.mu.Lock()
		for j := range parts {
			parts[j].Merge(&h.parts[j])
		}
		b.Acquire.Merge(&h.acquire)
		b.Query.Merge(&h.query)
		count += h.count
		b.RoundTrips += h.roundTrips
		b.Overtaken += h.overtaken
		h.mu.Unlock()
	}
	for j := range parts {
		// Operations that skipped a segment spent no time in it.
		parts[j].RecordN(0, uint64(count)-parts[j].Count())
		b.Segments = append(b.Segments, bench.Segment{Name: segmentNames[j], Hist: &parts[j]})
	}
	return b
}
