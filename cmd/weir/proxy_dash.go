package main

import (
	"context"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/weirdb/weir/internal/dash"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// proxyMetrics gathers what /metrics shows: the proxy, the process, the Go
// runtime, and what was built.
func proxyMetrics(srv *postgres.Server) *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weir_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": sight.Version, "commit": currentVersion().Commit, "goversion": runtime.Version()},
	})
	build.Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(sight.Collector(srv), build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// proxySource shows a proxy to the live page, which knows no part of weir.
type proxySource struct {
	srv            *postgres.Server
	server, listen string
}

// Ready implements dash.Source.
func (s *proxySource) Ready(ctx context.Context) error { return s.srv.Healthy(ctx) }

// State implements dash.Source.
func (s *proxySource) State(ctx context.Context) (dash.State, error) {
	snap, err := s.srv.Snapshot(ctx)
	if err != nil {
		return dash.State{}, err
	}
	out := dash.State{
		Version: sight.Version, Server: s.server, Listen: s.listen,
		UptimeSeconds: snap.Uptime.Seconds(), Clients: snap.Clients,
		Logins:         dash.Logins{Accepted: snap.Logins, Failed: snap.LoginsFailed, Refused: snap.LoginsRefused},
		ProtocolErrors: snap.ProtocolErrors, BadHints: snap.BadHints,
		Loops: len(snap.Loops),
		Pools: make([]dash.Pool, 0, len(snap.Pools)), Lanes: make([]dash.Lane, 0, len(snap.Lanes)),
	}
	for _, l := range snap.Loops {
		out.BusySeconds += l.Busy.Seconds()
		out.BytesIn += l.BytesIn
		out.BytesOut += l.BytesOut
	}
	for i := range snap.Pools {
		out.Pools = append(out.Pools, dashPool(&snap.Pools[i]))
	}
	for i := range snap.Lanes {
		out.Lanes = append(out.Lanes, dashLane(&snap.Lanes[i]))
	}
	for i := range snap.Shapes {
		sh := &snap.Shapes[i]
		out.AddStatement(dash.Statement{
			Text: sh.Text, Verb: sh.Verb, Runs: sh.Runs, Grouped: sh.Grouped, Errors: sh.Errors, CostNs: sh.Cost.Nanoseconds(),
		})
	}
	return out, nil
}

func dashPool(p *sight.PoolStatus) dash.Pool {
	return dash.Pool{
		Database: p.Database, User: p.User, Size: p.Size,
		Clients: p.Clients, Active: p.Active, Pinned: p.Pinned, Waiting: p.Waiting, OldestWaitNs: p.OldestWait.Nanoseconds(),
		Backends: dash.Backends{Free: p.Free, Shared: p.Shared, Owned: p.Owned, Laned: p.Laned, Connecting: p.Dialing},
		Shared:   p.Reads, Grouped: p.Grouped, Alone: p.Statements - min(p.Statements, p.Reads+p.Grouped),
		Errors: p.Errors, Timeouts: p.Timeouts, Reruns: p.Reruns, Replays: p.Replays,
		Pins: p.Pins, Latency: p.Latency,
	}
}

func dashLane(l *sight.LaneStatus) dash.Lane {
	return dash.Lane{
		Database: l.Database, User: l.User, Kind: l.Kind, WindowNs: l.Window.Nanoseconds(), Text: l.Text,
		Waiting: l.Waiting, InFlight: l.InFlight, Allowed: l.Lanes,
		Groups: l.Groups, Members: l.Members, Fallbacks: l.Fallbacks, Retried: l.Retried,
		SizeP50: l.Batch.GroupSize.Quantile(0.5), SizeMax: l.Batch.GroupSize.Max(),
		WaitP50Ns: l.Batch.Wait.Quantile(0.5), WaitP99Ns: l.Batch.Wait.Quantile(0.99), FlushP50Ns: l.Batch.Flush.Quantile(0.5),
	}
}
