package core

import (
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// PoolStats counts what a pool has done since the start; see sight.PoolStatus.
type PoolStats struct {
	Units, Reads, Grouped, Errors uint64
	Transactions                  uint64
	Bytes                         uint64
	Received, Sent                uint64 // by clients that have left
	Waits, Timeouts               uint64
	Waited                        time.Duration
	Replays, Reruns               uint64
	Stalls, Moved, Preemptions    uint64
	Strays                        uint64
	Opened, Closed, DialErrors    uint64
	Latency                       measure.Hist
}

// AddTo adds the counts to those of all pools of one user and database.
func (st *PoolStats) AddTo(ps *sight.PoolStatus) {
	ps.Statements += st.Units
	ps.Reads += st.Reads
	ps.Grouped += st.Grouped
	ps.Errors += st.Errors
	ps.Transactions += st.Transactions
	ps.Bytes += st.Bytes
	ps.Received += st.Received
	ps.Sent += st.Sent
	ps.Waits += st.Waits
	ps.Waited += st.Waited
	ps.Timeouts += st.Timeouts
	ps.Replays += st.Replays
	ps.Reruns += st.Reruns
	ps.Stalls += st.Stalls
	ps.Moved += st.Moved
	ps.Preempted += st.Preemptions
	ps.Strays += st.Strays
	ps.Opened += st.Opened
	ps.Closed += st.Closed
	ps.DialErrors += st.DialErrors
	ps.Latency.Merge(&st.Latency)
}

// AddPins adds how often each cause has pinned a client; names has the causes.
func AddPins(ps *sight.PoolStatus, names []string, counts []uint64) {
	for i, n := range counts {
		if n > 0 {
			ps.Pins[names[i]] += n
		}
	}
}
