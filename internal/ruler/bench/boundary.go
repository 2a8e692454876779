package bench

import "github.com/weirdb/weir/internal/measure"

// The segments of an operation on its way through a pool, a driver and a server,
// in the order of the timeline. They are exclusive: an operation is in one of
// them at any time, and their durations add up to its latency.
const (
	SegmentSchedule = "schedule" // open loop: from the intended start to the start
	SegmentQueue    = "queue"    // for a connection of the pool to be free
	SegmentConnect  = "connect"  // opening a connection: network, TLS, login, set-up
	SegmentCheck    = "check"    // whether a connection from the pool still works
	SegmentEncode   = "encode"   // the driver, from the call to the write
	SegmentSend     = "send"     // the write itself
	SegmentServer   = "server"   // network and server, from the end of the write to the arrival of the answer
	SegmentWake     = "wake"     // from the arrival of the answer to the goroutine that reads it
	SegmentReceive  = "receive"  // for the rest of an answer of which the head has been read
	SegmentDecode   = "decode"   // the driver, from the read to the end of the call
	SegmentRelease  = "release"  // giving the connection back
	SegmentHarness  = "harness"  // the generator's own work: parameters, bookkeeping
)

// Boundary tells where the time of a sample's operations went.
type Boundary struct {
	// Segments holds a histogram for each segment, in the order of the timeline,
	// with one value for each operation in Sample.Latency, 0 where the operation
	// did not pass the segment. Their sums add up to the sum of Sample.Latency.
	Segments []Segment `json:"segments"`
	// Acquire and Query are sums of segments of each operation, under the names that
	// reference report 4 has for them: queue, connect and check; and encode to
	// decode. They are percentiles of operations, which sums of the percentiles of
	// segments are not. Nil in results of before.
	Acquire *measure.Hist `json:"acquire,omitempty"`
	Query   *measure.Hist `json:"query,omitempty"`
	// ArrivalKnown is false where the moment at which an answer arrived cannot be
	// told from that at which it was read. Then wake is inside server.
	ArrivalKnown bool `json:"arrival_known"`
	// Overtaken counts round trips whose answer arrived before the write had
	// returned: their time in the server is inside send.
	Overtaken int64 `json:"overtaken,omitempty"`
	// RoundTrips counts writes that were followed by an answer.
	RoundTrips int64 `json:"round_trips"`
	// Cold tells that the sample began with an empty pool.
	Cold bool `json:"cold,omitempty"`
	// PoolMax is the most connections that the pool may have, and Connects how
	// many were opened within the sample.
	PoolMax  int   `json:"pool_max,omitempty"`
	Connects int64 `json:"connects,omitempty"`
	// Inside divides the mean of the segment server, as far as the server tells.
	// Time that is left over is not attributable.
	Inside []ServerPart `json:"inside,omitempty"`
	// Unavailable lists what could not be looked at, and why.
	Unavailable []string `json:"unavailable,omitempty"`
}

// Segment is one part of the way of all operations.
type Segment struct {
	Name string        `json:"name"`
	Hist *measure.Hist `json:"hist"`
}

// NewSegment returns a segment without values.
func NewSegment(name string) Segment { return Segment{Name: name, Hist: &measure.Hist{}} }

// ServerPart is a part of the time inside the segment server.
type ServerPart struct {
	Name string `json:"name"` // "execution", "log flush", "lock"
	// MeanNs is per operation.
	MeanNs float64 `json:"mean_ns"`
	// Source says where the number is from, such as "pg_stat_statements".
	Source string `json:"source"`
	// Nested tells that the time is also inside another part of the list and must
	// not be added up with it.
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

// Share returns the part of all operations' time, in [0, 1], that was spent in the
// given segments, and 0 when there was none.
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

// Overhead is what the measuring itself costs: the same load in short slices with
// and without it, in pairs.
type Overhead struct {
	Concurrency  int     `json:"concurrency"`
	SliceSeconds float64 `json:"slice_s"`
	// Rate and CPU are with over without: of operations a second, and of the
	// client's CPU time for each of them.
	Rate Interval `json:"rate"`
	CPU  Interval `json:"cpu"`
}
