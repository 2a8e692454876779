package bench

import (
	"slices"

	"github.com/weirdb/weir/internal/measure"
)

// The segments of an operation on its way through a pool, a driver and a server, in the order
// of the timeline. They are exclusive: at any moment an operation is in one of them, and their
// durations add up to its latency.
const (
	SegmentSchedule = "schedule" // open loop: from the intended start to the actual start
	SegmentQueue    = "queue"    // waiting for a free connection of the pool
	SegmentConnect  = "connect"  // opening a connection: network, TLS, login, set-up
	SegmentCheck    = "check"    // checking that a connection from the pool still works
	SegmentEncode   = "encode"   // in the driver, from the call to the write
	SegmentSend     = "send"     // the write itself
	SegmentServer   = "server"   // network and server, from the end of the write to the arrival of the answer
	SegmentWake     = "wake"     // from the arrival of the answer to the goroutine that reads it
	SegmentReceive  = "receive"  // waiting for the rest of an answer whose head has been read
	SegmentDecode   = "decode"   // in the driver, from the read to the end of the call
	SegmentRelease  = "release"  // returning the connection to the pool
	SegmentHarness  = "harness"  // the generator's own work: parameters, bookkeeping
)

// Boundary is where the time of a sample's operations went.
type Boundary struct {
	// Segments holds a histogram for each segment, in the order of the timeline, with one value
	// for each operation in Sample.Latency: 0 where the operation skipped the segment. Their
	// sums add up to the sum of Sample.Latency.
	Segments []Segment `json:"segments"`
	// Acquire and Query are sums of segments for each operation, as reference report 4 defines
	// them: Acquire is queue, connect and check; Query is encode to decode. They exist because
	// percentiles of segments do not add up to percentiles of operations. Nil in older results.
	Acquire *measure.Hist `json:"acquire,omitempty"`
	Query   *measure.Hist `json:"query,omitempty"`
	// ArrivalKnown is false if the time at which an answer arrived cannot be told from the time
	// at which it was read. Then wake is part of server.
	ArrivalKnown bool `json:"arrival_known"`
	// Overtaken counts round trips whose answer arrived before the write had returned: their
	// time in the server is part of send.
	Overtaken int64 `json:"overtaken,omitempty"`
	// RoundTrips counts writes that were followed by an answer.
	RoundTrips int64 `json:"round_trips"`
	// Cold is set if the sample began with an empty pool.
	Cold bool `json:"cold,omitempty"`
	// PoolMax is the largest number of connections that the pool may have. Connects is how many
	// were opened within the sample.
	PoolMax  int   `json:"pool_max,omitempty"`
	Connects int64 `json:"connects,omitempty"`
	// Inside divides the mean of the segment server, as far as the server reports it. The rest
	// of the time cannot be attributed.
	Inside []ServerPart `json:"inside,omitempty"`
	// Unavailable lists what could not be measured, and why.
	Unavailable []string `json:"unavailable,omitempty"`
}

// Add adds the boundary of a number of operations to a sum, whose parts inside the server are
// totals instead of means until Divide is called.
func (b *Boundary) Add(more *Boundary, ops int64) {
	for _, s := range more.Segments {
		at := slices.IndexFunc(b.Segments, func(t Segment) bool { return t.Name == s.Name })
		if at < 0 {
			at = len(b.Segments)
			b.Segments = append(b.Segments, NewSegment(s.Name))
		}
		b.Segments[at].Hist.Merge(s.Hist)
	}
	for _, p := range more.Inside {
		at := slices.IndexFunc(b.Inside, func(q ServerPart) bool { return q.Name == p.Name && q.Source == p.Source })
		if at < 0 {
			at = len(b.Inside)
			b.Inside = append(b.Inside, ServerPart{Name: p.Name, Source: p.Source, Nested: p.Nested})
		}
		b.Inside[at].MeanNs += p.MeanNs * float64(ops)
	}
	for _, u := range more.Unavailable {
		if !slices.Contains(b.Unavailable, u) {
			b.Unavailable = append(b.Unavailable, u)
		}
	}
	b.ArrivalKnown = b.ArrivalKnown && more.ArrivalKnown
	b.Overtaken += more.Overtaken
	b.RoundTrips += more.RoundTrips
	b.Connects += more.Connects
	b.PoolMax = more.PoolMax
}

// Divide turns the totals inside the server into means of that many operations.
func (b *Boundary) Divide(ops int64) {
	for i := range b.Inside {
		b.Inside[i].MeanNs /= float64(max(ops, 1))
	}
}

// Segment is one part of the timeline, over all operations.
type Segment struct {
	Name string        `json:"name"`
	Hist *measure.Hist `json:"hist"`
}

// NewSegment returns a segment without values.
func NewSegment(name string) Segment { return Segment{Name: name, Hist: &measure.Hist{}} }

// ServerPart is a part of the time in the segment server.
type ServerPart struct {
	Name string `json:"name"` // "execution", "log flush", "lock"
	// MeanNs is per operation.
	MeanNs float64 `json:"mean_ns"`
	// Source is where the number comes from, such as "pg_stat_statements".
	Source string `json:"source"`
	// Nested is set if the time is also part of another entry of the list, so that the two must
	// not be added.
	Nested bool `json:"nested,omitempty"`
}

// Segment returns the histogram of a segment, and an empty one if it is missing.
func (b *Boundary) Segment(name string) *measure.Hist {
	for _, s := range b.Segments {
		if s.Name == name && s.Hist != nil {
			return s.Hist
		}
	}
	return &measure.Hist{}
}

// Share returns the share of all operations' time, in [0, 1], that was spent in the given
// segments, and 0 if there was none.
func (b *Boundary) Share(names ...string) float64 {
	var all, wanted uint64
	for _, s := range b.Segments {
		if s.Hist == nil {
			continue
		}
		all += s.Hist.Sum()
		for _, n := range names {
			if n == s.Name {
				wanted += s.Hist.Sum()
			}
		}
	}
	if all == 0 {
		return 0
	}
	return float64(wanted) / float64(all)
}

// Overhead is the cost of measuring: the same load runs in pairs of short slices, with and
// without it.
type Overhead struct {
	Concurrency  int     `json:"concurrency"`
	SliceSeconds float64 `json:"slice_s"`
	// Rate and CPU are ratios of with to without: of operations per second, and of the client's
	// CPU time per operation.
	Rate Interval `json:"rate"`
	CPU  Interval `json:"cpu"`
}
