package dash

import (
	"context"
	"iter"
	"time"

	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/measure"
)

// Totals are sums over a whole proxy at one moment; counters count since the start.
type Totals struct {
	Loops       int
	BusySeconds float64 // of all loops
	BytesIn     uint64  // over all sockets
	BytesOut    uint64

	Clients, Active, Pinned int
	Waiting                 int // statements without a backend
	OldestWait              time.Duration
	Backends                Backends

	Shared, Grouped, Alone, Cached uint64 // statements answered, by path
	Errors, Timeouts               uint64
	Limited                        uint64 // what limits have refused or ended
	LoginsFailed                   uint64
	Pins                           uint64

	Cache Cache

	Queued, InFlight, Allowed  int // of the write lanes: statements, groups, groups
	Groups, Members, Fallbacks uint64
	Reasons                    map[string]uint64 // groups by why they went

	// Replicas are the standbys whose lag is known, and Lag is the largest one.
	Replicas int
	Lag      time.Duration

	Latency, Wait, Server *measure.Hist // ns
}

// A Cache has the counters of the cache.
type Cache struct {
	Hits    uint64 `json:"hits"`    // answered with what was fresh
	Stale   uint64 `json:"stale"`   // ... with what was old, while it was fetched again
	Misses  uint64 `json:"misses"`  // fetched
	Shared  uint64 `json:"shared"`  // waited for what another client fetched
	Skipped uint64 `json:"skipped"` // asked to be cached, and were not
	Evicted uint64 `json:"evicted"` // given up for others
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"`
}

// page describes what is recorded and shown, of standbys where there may be any.
func page(several bool) live.Page {
	series := live.Keys([]string{"waiting", "oldest_wait", "p95", "p99"},
		"statements", "shared", "grouped", "alone", "cached", "errors", "timeouts", "limited", "logins_failed", "pins",
		"p50", "wait_p95", "server_p95", "clients", "active", "pinned",
		"free", "shared_backends", "owned", "laned", "connecting",
		"cache_hits", "cache_stale", "cache_misses", "cache_shared", "cache_skipped", "cache_bytes", "cache_entries", "group_size", "in_flight", "allowed", "queued", "apart", "went_idle", "went_full", "went_time", "busy", "bytes_in", "bytes_out",
		"replica_lag",
	)
	p := live.Page{
		Title: "weir proxy", Series: series, Links: []string{"snapshot.json", "shapes"},
		Tiles: []live.Tile{
			{Label: "Statements", Key: "statements", Format: live.Count, Per: "/s", Parts: []live.Part{{Key: "shared", Format: live.Share, Label: "shared"}, {Key: "grouped", Format: live.Share, Label: "grouped"}}},
			{Label: "p50", Key: "p50", Format: live.Seconds, Note: "median latency"},
			{Label: "p95", Key: "p95", Format: live.Seconds, Note: "one in twenty is slower"},
			{Label: "p99", Key: "p99", Format: live.Seconds, Note: "one in a hundred is slower"},
			{Label: "Clients", Key: "clients", Format: live.Count, Parts: []live.Part{{Key: "active", Format: live.Count, Label: "active"}, {Key: "pinned", Format: live.Count, Label: "pinned"}}},
			{Label: "Oldest wait", Key: "oldest_wait", Format: live.Seconds, Parts: []live.Part{{Key: "waiting", Format: live.Count, Label: "wait for a connection"}}, Alarm: 1},
			{Label: "Group size", Key: "group_size", Format: live.Count, Note: "statements per write"},
			{Label: "Errors", Key: "errors", Format: live.Count, Per: "/s", Parts: []live.Part{{Key: "timeouts", Format: live.Count, Label: "timeouts/s"}}},
			{Label: "Event loops", Key: "busy", Format: live.Percent, Parts: []live.Part{{Key: "bytes_in", Format: live.Bytes, Label: "in/s"}}, Alarm: 0.95},
		},
		Charts: []live.Chart{
			{Title: "Statements", Unit: "per second, by path", Format: live.Count, Lines: []live.Line{live.Draw("shared", "shared", 1), live.Draw("grouped", "grouped", 2), live.Draw("alone", "alone", 3), live.Draw("cached", "cached", 4)}},
			{Title: "Latency", Unit: "of each second", Format: live.Seconds, Decades: true, Lines: []live.Line{live.Draw("p50", "p50", 1), live.Draw("p95", "p95", 4), live.Draw("p99", "p99", 2)}},
			{Title: "Where time goes", Unit: "p95", Format: live.Seconds, Decades: true, Lines: []live.Line{live.Draw("wait_p95", "waiting in weir", 2), live.Draw("server_p95", "at the server", 1)}},
			{Title: "Clients", Format: live.Count, Lines: []live.Line{live.Draw("clients", "connected", 5), live.Draw("active", "active", 1), live.Draw("waiting", "waiting", 2), live.Draw("pinned", "pinned", 4)}},
			{Title: "Server connections", Unit: "by what they do", Format: live.Count, Lines: []live.Line{live.Draw("free", "free", 5), live.Draw("shared_backends", "shared", 1), live.Draw("owned", "one client's", 3), live.Draw("laned", "groups", 2), live.Draw("connecting", "connecting", 4)}},
			{Title: "Errors", Unit: "per second", Format: live.Count, Lines: []live.Line{live.Draw("errors", "of the server", 2), live.Draw("timeouts", "queue timeouts", 4), live.Draw("limited", "limits", 1), live.Draw("logins_failed", "logins failed", 5)}},
			{Title: "Group size", Unit: "mean, statements", Format: live.Count, Lines: []live.Line{live.Draw("group_size", "per group", 2)}},
			{Title: "Cache", Unit: "reads with a ttl, per second", Format: live.Count, Lines: []live.Line{live.Draw("cache_hits", "fresh", 1), live.Draw("cache_stale", "old, refreshed", 4), live.Draw("cache_misses", "fetched", 2), live.Draw("cache_shared", "waited for another's", 3), live.Draw("cache_skipped", "not cached", 5)}},
			{Title: "Cache size", Format: live.Bytes, Lines: []live.Line{live.Draw("cache_bytes", "answers and their keys", 1)}},
			{Title: "Write lanes", Format: live.Count, Lines: []live.Line{live.Draw("in_flight", "groups in flight", 2), live.Draw("allowed", "allowed", 5), live.Draw("queued", "statements queued", 4)}},
			{Title: "Why groups went", Unit: "groups per second", Format: live.Count, Lines: []live.Line{live.Draw("went_idle", "a lane was free", 3), live.Draw("went_full", "full", 2), live.Draw("went_time", "time was over", 1), live.Draw("apart", "failed, run apart", 4)}},
		},
	}
	if several {
		p.Charts = append(p.Charts, live.Chart{Title: "Replicas", Unit: "how far the last one is behind the primary", Format: live.Seconds, Lines: []live.Line{live.Draw("replica_lag", "lag", 4)}})
	}
	return p
}

// panels shows a source on the live page.
type panels struct {
	source Source
	recent []*State // the latest last, at most rateStates
}

// Sample implements live.Source.
func (p *panels) Sample(ctx context.Context, s *live.Sample) error {
	t, err := p.source.Totals(ctx)
	if err != nil {
		return err
	}
	s.Rate("statements", float64(t.Shared+t.Grouped+t.Alone+t.Cached))
	s.Rate("shared", float64(t.Shared))
	s.Rate("grouped", float64(t.Grouped))
	s.Rate("alone", float64(t.Alone))
	s.Rate("cached", float64(t.Cached))
	s.Rate("cache_hits", float64(t.Cache.Hits))
	s.Rate("cache_stale", float64(t.Cache.Stale))
	s.Rate("cache_misses", float64(t.Cache.Misses))
	s.Rate("cache_shared", float64(t.Cache.Shared))
	s.Rate("cache_skipped", float64(t.Cache.Skipped))
	s.Level("cache_bytes", float64(t.Cache.Bytes))
	s.Level("cache_entries", float64(t.Cache.Entries))
	s.Rate("errors", float64(t.Errors))
	s.Rate("timeouts", float64(t.Timeouts))
	s.Rate("limited", float64(t.Limited))
	s.Rate("logins_failed", float64(t.LoginsFailed))
	s.Rate("pins", float64(t.Pins))
	s.Quantiles(buckets(t.Latency), live.Quantile{Key: "p50", Of: 0.5}, live.Quantile{Key: "p95", Of: 0.95}, live.Quantile{Key: "p99", Of: 0.99})
	s.Quantiles(buckets(t.Wait), live.Quantile{Key: "wait_p95", Of: 0.95})
	s.Quantiles(buckets(t.Server), live.Quantile{Key: "server_p95", Of: 0.95})
	s.Level("clients", float64(t.Clients))
	s.Level("active", float64(t.Active))
	s.Level("pinned", float64(t.Pinned))
	s.Level("waiting", float64(t.Waiting))
	s.Level("oldest_wait", t.OldestWait.Seconds())
	s.Level("free", float64(t.Backends.Free))
	s.Level("shared_backends", float64(t.Backends.Shared))
	s.Level("owned", float64(t.Backends.Owned))
	s.Level("laned", float64(t.Backends.Laned))
	s.Level("connecting", float64(t.Backends.Connecting))
	s.Mean("group_size", float64(t.Members), float64(t.Groups))
	s.Level("in_flight", float64(t.InFlight))
	s.Level("allowed", float64(t.Allowed))
	s.Level("queued", float64(t.Queued))
	s.Rate("apart", float64(t.Fallbacks))
	s.Rate("went_idle", float64(t.Reasons["idle"]))
	s.Rate("went_full", float64(t.Reasons["items"]+t.Reasons["bytes"]))
	s.Rate("went_time", float64(t.Reasons["window"]+t.Reasons["max-wait"]))
	s.Rate("busy", t.BusySeconds/float64(max(1, t.Loops)))
	s.Rate("bytes_in", float64(t.BytesIn))
	s.Rate("bytes_out", float64(t.BytesOut))
	if t.Replicas > 0 {
		s.Level("replica_lag", t.Lag.Seconds())
	}
	return nil
}

// buckets are the bounds of a histogram, in seconds.
func buckets(h *measure.Hist) iter.Seq2[float64, uint64] {
	return func(yield func(float64, uint64) bool) {
		if h == nil {
			return
		}
		for _, b := range h.Buckets() {
			if !yield(float64(b.LowNs+(b.HighNs-b.LowNs)/2)/1e9, b.Count) {
				return
			}
		}
	}
}
