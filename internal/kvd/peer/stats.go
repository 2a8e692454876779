package peer

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// perFrameBuckets is the length of Flow.PerFrame.
const perFrameBuckets = 16

// Flow counts the traffic in one direction.
type Flow struct {
	Calls    uint64 // system calls: writes, or reads that returned something
	Frames   uint64 // frames with messages
	Messages uint64
	Bytes    uint64 // of whole frames
	// PerFrame[i] counts the frames with 2^i to 2^(i+1)-1 messages; the last
	// bucket has all above, too.
	PerFrame [perFrameBuckets]uint64
}

// PeerStats are the counters of one replica since it became known.
type PeerStats struct {
	ID       uint64
	Address  string // for dialing
	Up       bool
	Sent     Flow
	Received Flow
	Dropped  uint64 // messages that were not accepted: no connection, or a full queue
	Connects uint64
	Failures uint64 // attempts to connect that failed
	// Bytes of snapshots, whether they were completed or not.
	SnapshotSent, SnapshotReceived uint64
	Queued                         int    // bytes that wait to be written
	RTT                            RTT    // of the connection, or of the last one
	LastErr                        string // why the last connection or attempt ended; "" if none did
}

// ClientStats are the counters of all clients together.
type ClientStats struct {
	Open     int
	Sent     Flow
	Received Flow
	Dropped  uint64 // messages that were not accepted
	Connects uint64
}

// Stats is a copy of all counters of a Transport.
type Stats struct {
	Peers   []PeerStats // by id
	Clients ClientStats
	Refused map[Code]uint64 // handshakes that this side refused
	Corrupt uint64          // connections ended because of a wrong length, checksum or message
	Silent  uint64          // connections given up because nothing was sent or received
}

// RTT is the measured round trip of a connection, through both queues: the least time for a
// message and its answer. Before the first answer to a ping, which is
// sent at once, Last and Smoothed are the duration of the handshake, and
// Min is 0.
type RTT struct {
	Last     time.Duration
	Smoothed time.Duration // gives the newest one a weight of an eighth
	Min      time.Duration
}

// flow is a Flow that is being counted. Safe for concurrent use.
type flow struct {
	calls, frames, messages, bytes atomic.Uint64
	perFrame                       [perFrameBuckets]atomic.Uint64
}

func (f *flow) frame(messages int) {
	f.frames.Add(1)
	f.messages.Add(uint64(messages))
	f.perFrame[min(bits.Len(uint(messages))-1, perFrameBuckets-1)].Add(1)
}

func (f *flow) read() Flow {
	out := Flow{Calls: f.calls.Load(), Frames: f.frames.Load(), Messages: f.messages.Load(), Bytes: f.bytes.Load()}
	for i := range f.perFrame {
		out.PerFrame[i] = f.perFrame[i].Load()
	}
	return out
}

// counters belong to a replica, or to all clients; they outlive connections.
type counters struct {
	sent, received flow
	dropped        atomic.Uint64
	connects       atomic.Uint64
	failures       atomic.Uint64
}

// rtt is an RTT that is being measured. One goroutine adds, any may read.
type rtt struct{ last, smoothed, min atomic.Int64 }

func (r *rtt) add(d time.Duration) {
	ns := max(int64(d), 1)
	r.last.Store(ns)
	if m := r.min.Load(); m == 0 {
		r.smoothed.Store(ns)
		r.min.Store(ns)
	} else {
		s := r.smoothed.Load()
		r.smoothed.Store(max(s+(ns-s)/8, 1))
		r.min.Store(min(m, ns))
	}
}

// guess sets the value before the first measurement.
func (r *rtt) guess(d time.Duration) {
	r.last.Store(max(int64(d), 1))
	r.smoothed.Store(max(int64(d), 1))
}

func (r *rtt) read() RTT {
	return RTT{time.Duration(r.last.Load()), time.Duration(r.smoothed.Load()), time.Duration(r.min.Load())}
}
