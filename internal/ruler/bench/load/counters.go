package load

import "github.com/weirdb/weir/internal/ruler/bench"

// CountersSince returns the difference of two readings for a number of
// operations.
func CountersSince(after, before bench.ServerCounters, ops int64) *bench.ServerCounters {
	return &bench.ServerCounters{
		Ops:        ops,
		Fsyncs:     after.Fsyncs - before.Fsyncs,
		LogWrites:  after.LogWrites - before.LogWrites,
		LogBytes:   after.LogBytes - before.LogBytes,
		LogRecords: after.LogRecords - before.LogRecords,
		Commits:    after.Commits - before.Commits,
		Rollbacks:  after.Rollbacks - before.Rollbacks,

		PageRequests: after.PageRequests - before.PageRequests,
		PageReads:    after.PageReads - before.PageReads,
	}
}
