package process

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/dash"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// metrics gathers what /metrics shows.
func metrics(sides []side) *prometheus.Registry {
	var sources []sight.Source
	for _, s := range sides {
		sources = append(sources, s.srv)
	}
	return admin.Registry(sight.Collector(sources...))
}

// pageSource shows a proxy's sides to the live page.
type pageSource struct {
	sides    []side
	stopping *atomic.Bool
}

var errStopping = errors.New("weir is stopping")

// Ready implements dash.Source: every side is, and weir is not about to stop.
func (p pageSource) Ready(ctx context.Context) error {
	if p.stopping.Load() {
		return errStopping
	}
	var all []error
	for _, s := range p.sides {
		if err := s.srv.Healthy(ctx); err != nil {
			all = append(all, fmt.Errorf("%s: %w", s.title, err))
		}
	}
	return errors.Join(all...)
}

// Totals implements dash.Source.
func (p pageSource) Totals(ctx context.Context) (dash.Totals, error) {
	t := dash.Totals{Reasons: make(map[string]uint64), Latency: new(measure.Hist), Wait: new(measure.Hist), Server: new(measure.Hist)}
	for _, s := range p.sides {
		snap, err := s.brief(ctx)
		if err != nil {
			return dash.Totals{}, err
		}
		addBrief(&t, &snap)
	}
	return t, nil
}

// briefOf returns what collects the sums of a side.
func briefOf[L core.EventLoop](s *core.Server[L]) func(context.Context) (sight.Snapshot, error) {
	return func(ctx context.Context) (sight.Snapshot, error) { return core.Count(ctx, s, true) }
}

// addBrief adds what one side has in all.
func addBrief(t *dash.Totals, snap *sight.Snapshot) {
	t.Clients += snap.Clients
	t.LoginsFailed += snap.LoginsFailed + snap.LoginsRefused
	t.Loops += len(snap.Loops)
	for _, l := range snap.Loops {
		t.BusySeconds += l.Busy.Seconds()
		t.BytesIn += l.BytesIn
		t.BytesOut += l.BytesOut
	}
	for i := range snap.Pools { // one, or none yet
		p := &snap.Pools[i]
		t.Active += p.Active
		t.Pinned += p.Pinned
		t.Waiting += p.Waiting
		t.OldestWait = max(t.OldestWait, p.OldestWait)
		t.Backends.Free += p.Free
		t.Backends.Shared += p.Shared
		t.Backends.Owned += p.Owned
		t.Backends.Laned += p.Laned
		t.Backends.Connecting += p.Dialing
		t.Shared += p.Reads
		t.Grouped += p.Grouped
		t.Cached += p.Cached
		t.Alone += p.Statements - min(p.Statements, p.Reads+p.Grouped+p.Cached)
		t.Errors += p.Errors
		t.Timeouts += p.Timeouts
		for _, n := range p.Limited {
			t.Limited += n
		}
		for _, n := range p.Pins {
			t.Pins += n
		}
		t.Latency.Merge(p.Latency)
		t.Wait.Merge(p.Wait)
		t.Server.Merge(p.Server)
	}
	for i := range snap.Hosts {
		if h := &snap.Hosts[i]; h.LagKnown {
			t.Replicas++
			t.Lag = max(t.Lag, h.Lag)
		}
	}
	addCaches(&t.Cache, snap)
	for i := range snap.Lanes { // the same
		l := &snap.Lanes[i]
		t.Queued += l.Waiting
		t.InFlight += l.InFlight
		t.Allowed += l.Lanes
		t.Groups += l.Groups
		t.Members += l.Members
		t.Fallbacks += l.Fallbacks
		for why, n := range reasonsOf(&l.Batch) {
			t.Reasons[why] += n
		}
	}
}

// addCaches adds what the cache counts of all databases.
func addCaches(t *dash.Cache, snap *sight.Snapshot) {
	for i := range snap.Caches {
		c := &snap.Caches[i]
		t.Hits += c.Hits
		t.Stale += c.Stale
		t.Misses += c.Misses
		t.Shared += c.Shared
		t.Evicted += c.Evicted
		t.Entries += c.Entries
		t.Bytes += c.Bytes
		for _, n := range c.Skipped {
			t.Skipped += n
		}
	}
}

// reasonsOf counts the groups of a lane by why they went.
func reasonsOf(s *batch.Stats) map[string]uint64 {
	out := make(map[string]uint64)
	for _, why := range batch.Reasons() {
		if n := s.Reasons[why]; n > 0 {
			out[why.String()] = n
		}
	}
	return out
}

// State implements dash.Source.
func (p pageSource) State(ctx context.Context) (dash.State, error) {
	out := dash.State{
		Version: sight.Version, Sides: make([]dash.Side, 0, len(p.sides)),
		Pools: []dash.Pool{}, Lanes: []dash.Lane{},
	}
	var servers, listens []string
	for _, s := range p.sides {
		snap, err := s.srv.Snapshot(ctx)
		if err != nil {
			return dash.State{}, err
		}
		listen := s.srv.Addr().String()
		servers, listens = append(servers, s.server), append(listens, listen)
		out.Sides = append(out.Sides, dash.Side{Engine: s.engine, Title: s.title, Server: s.server, Listen: listen, Clients: snap.Clients})
		addSnapshot(&out, &snap)
	}
	out.Server, out.Listen = strings.Join(servers, ", "), strings.Join(listens, ", ")
	return out, nil
}

// addSnapshot adds what one side reports.
func addSnapshot(out *dash.State, snap *sight.Snapshot) {
	out.UptimeSeconds = max(out.UptimeSeconds, snap.Uptime.Seconds())
	out.Clients += snap.Clients
	out.Logins.Accepted += snap.Logins
	out.Logins.Failed += snap.LoginsFailed
	out.Logins.Refused += snap.LoginsRefused
	out.ProtocolErrors += snap.ProtocolErrors
	out.BadHints += snap.BadHints
	out.Loops += len(snap.Loops)
	for _, l := range snap.Loops {
		out.BusySeconds += l.Busy.Seconds()
		out.BytesIn += l.BytesIn
		out.BytesOut += l.BytesOut
	}
	for i := range snap.Pools {
		p := dashPool(&snap.Pools[i])
		p.Engine = snap.Engine
		out.Pools = append(out.Pools, p)
	}
	for i := range snap.Lanes {
		l := dashLane(&snap.Lanes[i])
		l.Engine = snap.Engine
		out.Lanes = append(out.Lanes, l)
	}
	addCaches(&out.Cache, snap)
	for i := range snap.Hosts {
		h := &snap.Hosts[i]
		shown := dash.Host{Engine: snap.Engine, Host: h.Host, Address: h.Address, Role: h.Role, Term: h.Term, Current: h.Current, Error: h.Err}
		if h.LagKnown {
			ns := h.Lag.Nanoseconds()
			shown.LagNs, shown.Behind = &ns, h.Behind
		}
		out.Hosts = append(out.Hosts, shown)
	}
	for i := range snap.Shapes {
		sh := &snap.Shapes[i]
		out.AddStatement(dash.Statement{
			Engine: snap.Engine, Text: sh.Text, Verb: sh.Verb, Runs: sh.Runs, Grouped: sh.Grouped, Errors: sh.Errors, CostNs: sh.Cost.Nanoseconds(),
			Fingerprint: sight.FingerprintText(sh.Fingerprint), Shared: sh.Shared, Pinned: sh.Pinned, Rows: sh.Rows,
			TotalNs: sh.Total.Nanoseconds(), MaxNs: sh.Max.Nanoseconds(), WaitNs: sh.Waited().Nanoseconds(),
		})
	}
}

func dashPool(p *sight.PoolStatus) dash.Pool {
	return dash.Pool{
		Database: p.Database, User: p.User, Size: p.Size,
		Clients: p.Clients, Active: p.Active, Pinned: p.Pinned, Waiting: p.Waiting, OldestWaitNs: p.OldestWait.Nanoseconds(),
		Backends: dash.Backends{Free: p.Free, Shared: p.Shared, Owned: p.Owned, Laned: p.Laned, Connecting: p.Dialing},
		Shared:   p.Reads, Grouped: p.Grouped, Alone: p.Statements - min(p.Statements, p.Reads+p.Grouped+p.Cached), Cached: p.Cached,
		Errors: p.Errors, Timeouts: p.Timeouts, Reruns: p.Reruns, Replays: p.Replays,
		Pins: p.Pins, Limited: p.Limited, Latency: p.Latency,
	}
}

func dashLane(l *sight.LaneStatus) dash.Lane {
	return dash.Lane{
		Database: l.Database, User: l.User, Kind: l.Kind, WindowNs: l.Window.Nanoseconds(), Text: l.Text,
		Waiting: l.Waiting, InFlight: l.InFlight, Allowed: l.Lanes,
		Groups: l.Groups, Members: l.Members, Fallbacks: l.Fallbacks, Retried: l.Retried,
		SizeP50: l.Batch.GroupSize.Quantile(0.5), SizeMax: l.Batch.GroupSize.Max(),
		Reasons: reasonsOf(&l.Batch), Holding: l.Batch.Holding, Probes: l.Batch.Probes, Moves: l.Batch.Moves,
		WaitP50Ns: l.Batch.Wait.Quantile(0.5), WaitP99Ns: l.Batch.Wait.Quantile(0.99), FlushP50Ns: l.Batch.Flush.Quantile(0.5),
	}
}
