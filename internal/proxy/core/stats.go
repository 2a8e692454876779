package core

import (
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// PoolStats counts what a pool has done since the start; see sight.PoolStatus.
type PoolStats struct {
	Units, Reads, Grouped, Errors uint64
	Cached                        uint64 // answered by the cache
	Transactions                  uint64
	Assignments                   uint64 // of a backend to a client, or to one of its statements
	Parses, ServerParses, Binds   uint64 // of prepared statements
	Bytes                         uint64
	Received, Sent                uint64 // by clients that have left
	Waits, Timeouts               uint64
	Waited                        time.Duration
	Replays, Reruns               uint64
	Stalls, Moved, Preemptions    uint64
	Strays                        uint64
	Opened, Closed, DialErrors    uint64
	Latency, Wait, Server         measure.Hist // Wait has only those that waited
	// Limited counts what each limit has refused or ended.
	Limited [limits]uint64
}

// Count records an answered statement; shape is nil where it has none.
func (st *PoolStats) Count(shape *sight.Shape, r *sight.Run) {
	st.Units++
	if r.Failed {
		st.Errors++
	}
	if shape != nil {
		shape.Ran(r)
	}
	st.Latency.Record(int64(r.Took))
	st.Server.Record(int64(r.Server))
	if wait := r.Wait(); wait > 0 {
		st.Wait.Record(int64(wait))
	}
}

// A Limit is one of the limits whose effects are counted.
type Limit uint8

// The limits.
const (
	LimitWaiting         Limit = iota // --max-waiting: statements refused
	LimitQuery                        // --query-timeout: statements ended
	LimitTransaction                  // --transaction-timeout: clients disconnected
	LimitIdleTransaction              // --idle-in-transaction-timeout: the same
	LimitIdle                         // --client-idle-timeout: the same
	LimitClients                      // logins refused because the user or database has too many clients
	LimitConnections                  // server connections closed for another pool
	limits
)

func (l Limit) String() string {
	return [limits]string{
		"max_waiting", "query_timeout", "transaction_timeout", "idle_in_transaction_timeout", "client_idle_timeout", "clients", "connections",
	}[l]
}

// AddTo adds the counters to those of all pools of the same user and database.
func (st *PoolStats) AddTo(ps *sight.PoolStatus) {
	ps.Statements += st.Units
	ps.Reads += st.Reads
	ps.Grouped += st.Grouped
	ps.Cached += st.Cached
	ps.Errors += st.Errors
	ps.Transactions += st.Transactions
	ps.Assignments += st.Assignments
	ps.Parses += st.Parses
	ps.ServerParses += st.ServerParses
	ps.Binds += st.Binds
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
	ps.Server.Merge(&st.Server)
	ps.Wait.Merge(&st.Wait)
	ps.Wait.RecordN(0, st.Latency.Count()-st.Wait.Count())
	for l, n := range st.Limited {
		if n > 0 {
			ps.Limited[Limit(l).String()] += n
		}
	}
}
