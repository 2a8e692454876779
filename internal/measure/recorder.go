package measure

import "sync"

// Recorder collects the values of many workers. Each worker records into a Shard
// of its own, so workers never wait for each other; Merged adds the shards up at
// any time, also while they are in use. The shards share nothing but the slice.
type Recorder struct {
	shards []Shard
}

// NewRecorder returns a Recorder with one shard for each of n workers. Its cost
// is 36 KiB for each shard that records anything.
func NewRecorder(n int) *Recorder { return &Recorder{shards: make([]Shard, n)} }

// Shard returns the shard of worker i, 0 <= i < n.
func (r *Recorder) Shard(i int) *Shard { return &r.shards[i] }

// Merged returns the sum of all shards. Values recorded meanwhile are in it or
// not; none is torn or counted twice.
func (r *Recorder) Merged() *Hist {
	out := &Hist{}
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		out.Merge(&s.hist)
		s.mu.Unlock()
	}
	return out
}

// Reset empties all shards, as at the end of a warm-up.
func (r *Recorder) Reset() {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		s.hist.Reset()
		s.mu.Unlock()
	}
}

// Shard is the part of a Recorder that one worker records into. Safe for
// concurrent use, but meant for one worker: its lock is then never contended
// and costs about as much as the recording itself.
type Shard struct {
	mu   sync.Mutex
	hist Hist
	_    [56]byte // keeps the locks of two workers out of one cache line
}

// Record adds one value in nanoseconds.
func (s *Shard) Record(ns int64) {
	s.mu.Lock()
	s.hist.Record(ns)
	s.mu.Unlock()
}
