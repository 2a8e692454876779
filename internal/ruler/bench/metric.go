package bench

import (
	"math"
	"slices"
	"sync"

	"github.com/weirdb/weir/internal/measure"
)

// Metric is a number computed from a sample.
type Metric struct {
	Key, Name, Unit string
	// Higher is set if more is better; Neutral, if neither is.
	Higher, Neutral bool
	// Detail keeps it out of tables that do not ask for it by its key.
	Detail bool
	of     func(*Sample) (float64, bool)
}

// leastCPUSeconds is the CPU time of a round below which it counts as not measured: the kernel
// counts CPU time of a multi-threaded process in ticks of 10 ms, and fewer than five ticks say
// little.
const leastCPUSeconds = 0.05

// Of returns the metric of a sample, and false if the sample does not have it.
func (m Metric) Of(s *Sample) (float64, bool) {
	v, ok := m.of(s)
	return v, ok && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// Metrics lists all metrics in the order of reports. Callers must not change the list.
var Metrics = sync.OnceValue(metrics)

func metrics() []Metric {
	quantileOf := func(q float64, of func(*Sample) *measure.Hist) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			h := of(s)
			if h == nil || h.Count() == 0 {
				return 0, false
			}
			return float64(h.Quantile(q)) / 1e6, true
		}
	}
	quantile := func(q float64) func(*Sample) (float64, bool) {
		return quantileOf(q, func(s *Sample) *measure.Hist { return s.Latency })
	}
	service := func(q float64) func(*Sample) (float64, bool) {
		return quantileOf(q, func(s *Sample) *measure.Hist { return s.Service })
	}
	cpu := func(roles ...string) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			sum, found := 0.0, false
			for _, r := range roles {
				if u, ok := s.Processes[r]; ok {
					sum, found = sum+u.CPUSeconds(), true
				}
			}
			return sum / float64(s.Ops) * 1e6, found && s.Ops > 0 && sum >= leastCPUSeconds
		}
	}
	delivery := func(s *Sample) *measure.Hist { return s.Outbox.fromCommit() }
	fromStart := func(s *Sample) *measure.Hist { return s.Outbox.fromStart() }
	perOp := func(f func(*ServerCounters) int64, scale float64) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			if s.Server == nil || s.Server.Ops == 0 {
				return 0, false
			}
			return float64(f(s.Server)) / float64(s.Server.Ops) * scale, true
		}
	}
	// some drops values that were not counted.
	some := func(of func(*Sample) (float64, bool)) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			v, ok := of(s)
			return v, ok && v > 0
		}
	}
	all := []Metric{
		{Key: "rate", Name: "throughput", Unit: "ops/s", Higher: true, of: func(s *Sample) (float64, bool) {
			ops := s.Ops
			if s.open() && s.Generator.Answered > 0 {
				ops = s.Generator.Answered // operations answered after the window are not throughput
			}
			return float64(ops) / s.Seconds, s.Seconds > 0
		}},
		{Key: "mean", Name: "mean latency", Unit: "ms", of: func(s *Sample) (float64, bool) {
			if s.Latency == nil || s.Latency.Count() == 0 {
				return 0, false
			}
			return s.Latency.Mean() / 1e6, true
		}},
		{Key: "p50", Name: "p50", Unit: "ms", of: quantile(.50)},
		{Key: "p95", Name: "p95", Unit: "ms", of: quantile(.95)},
		{Key: "p99", Name: "p99", Unit: "ms", of: quantile(.99)},
		{Key: "service_p50", Name: "service p50", Unit: "ms", of: service(.50)},
		{Key: "service_p99", Name: "service p99", Unit: "ms", of: service(.99)},
		{Key: "cpu", Name: "CPU, all", Unit: "us/op", of: cpu(RoleClient, RoleProxy, RoleServer)},
		{Key: "cpu_client", Name: "CPU, client", Unit: "us/op", of: cpu(RoleClient)},
		{Key: "cpu_proxy", Name: "CPU, proxy", Unit: "us/op", of: cpu(RoleProxy)},
		{Key: "cpu_server", Name: "CPU, server", Unit: "us/op", of: cpu(RoleServer)},
		{Key: "fsyncs", Name: "fsyncs", Unit: "/1000 ops", of: perOp(func(c *ServerCounters) int64 { return c.Fsyncs }, 1000)},
		{Key: "fsync_rate", Name: "fsyncs", Unit: "/s", Neutral: true, of: func(s *Sample) (float64, bool) {
			if s.Server == nil || s.Server.Ops == 0 || s.Seconds == 0 {
				return 0, false
			}
			return float64(s.Server.Fsyncs) / float64(s.Server.Ops) * float64(s.Ops) / s.Seconds, true
		}},
		{Key: "log_bytes", Name: "log written", Unit: "B/op", of: perOp(func(c *ServerCounters) int64 { return c.LogBytes }, 1)},
		{Key: "page_requests", Name: "pages requested", Unit: "/op", Detail: true, of: some(perOp(func(c *ServerCounters) int64 { return c.PageRequests }, 1))},
		{Key: "page_reads", Name: "pages read", Unit: "/1000 ops", Detail: true, of: func(s *Sample) (float64, bool) {
			if s.Server == nil || s.Server.Ops == 0 || s.Server.PageRequests <= 0 {
				return 0, false
			}
			return float64(max(0, s.Server.PageReads)) / float64(s.Server.Ops) * 1000, true
		}},
		{Key: "claim_pages", Name: "pages of a claim", Unit: "/row", Detail: true, of: func(s *Sample) (float64, bool) {
			if s.Outbox == nil {
				return 0, false
			}
			return s.Outbox.ClaimPages, s.Outbox.ClaimPages > 0
		}},
		{Key: "group", Name: "group size", Unit: "ops", Neutral: true, of: func(s *Sample) (float64, bool) {
			if s.Groups == nil || s.Groups.Flushes == 0 {
				return 0, false
			}
			return float64(s.Groups.Items) / float64(s.Groups.Flushes), true
		}},
		{Key: "rss_proxy", Name: "memory, proxy", Unit: "MB", of: func(s *Sample) (float64, bool) {
			u, ok := s.Processes[RoleProxy]
			return float64(u.RSSBytes) / 1e6, ok
		}},
		{Key: "errors", Name: "errors", Unit: "/1000 ops", of: func(s *Sample) (float64, bool) {
			n := s.Ops + s.Failed()
			return float64(s.Failed()) / float64(n) * 1000, n > 0
		}},
		{Key: "acked_rate", Name: "acknowledged", Unit: "ops/s", Higher: true, of: func(s *Sample) (float64, bool) {
			if s.Outbox == nil || s.Outbox.AckedSeconds == 0 {
				return 0, false
			}
			return float64(s.Ops) / s.Outbox.AckedSeconds, true
		}},
		{Key: "payload_rate", Name: "payload", Unit: "MB/s", Higher: true, Detail: true, of: func(s *Sample) (float64, bool) {
			if s.Outbox == nil || s.Seconds == 0 {
				return 0, false
			}
			return float64(s.Ops) * float64(s.Outbox.PayloadBytes) / s.Seconds / 1e6, true
		}},
		{Key: "deliver_p50", Name: "commit to delivery p50", Unit: "ms", of: quantileOf(.50, delivery)},
		{Key: "deliver_p95", Name: "commit to delivery p95", Unit: "ms", of: quantileOf(.95, delivery)},
		{Key: "deliver_p99", Name: "commit to delivery p99", Unit: "ms", of: quantileOf(.99, delivery)},
		{Key: "total_p50", Name: "enqueue to delivery p50", Unit: "ms", Detail: true, of: quantileOf(.50, fromStart)},
		{Key: "total_p95", Name: "enqueue to delivery p95", Unit: "ms", Detail: true, of: quantileOf(.95, fromStart)},
		{Key: "total_p99", Name: "enqueue to delivery p99", Unit: "ms", Detail: true, of: quantileOf(.99, fromStart)},
		{Key: "max_lag", Name: "largest lag", Unit: "messages", of: func(s *Sample) (float64, bool) {
			if s.Outbox == nil || s.Outbox.FromCommit == nil {
				return 0, false
			}
			return float64(s.Outbox.MaxLag), true
		}},
		{Key: "rss_client", Name: "memory, client", Unit: "MB", Detail: true, of: func(s *Sample) (float64, bool) {
			u, ok := s.Processes[RoleClient]
			return float64(u.RSSBytes) / 1e6, ok
		}},
		{Key: "voluntary", Name: "waits, client", Unit: "switches/op", Detail: true, of: func(s *Sample) (float64, bool) {
			u, ok := s.Processes[RoleClient]
			return float64(u.Voluntary) / float64(s.Ops), ok && s.Ops > 0
		}},
		{Key: "involuntary", Name: "preemptions, client", Unit: "switches/op", Detail: true, of: func(s *Sample) (float64, bool) {
			u, ok := s.Processes[RoleClient]
			return float64(u.Involuntary) / float64(s.Ops), ok && s.Ops > 0
		}},
	}
	for _, side := range []struct {
		name string
		of   func(*Boundary) *measure.Hist
	}{
		{"acquire", func(b *Boundary) *measure.Hist { return b.Acquire }},
		{"query", func(b *Boundary) *measure.Hist { return b.Query }},
	} {
		of := func(s *Sample) *measure.Hist {
			if s.Boundary == nil {
				return nil
			}
			return side.of(s.Boundary)
		}
		for _, q := range []struct {
			name string
			q    float64
		}{{"p50", .50}, {"p95", .95}, {"p99", .99}} {
			all = append(all, Metric{Key: side.name + "_" + q.name, Name: side.name + " " + q.name, Unit: "ms", Detail: true, of: quantileOf(q.q, of)})
		}
	}
	all = append(all, transferMetrics()...)
	all = append(all, kvMetrics()...)
	for _, name := range segmentNames {
		all = append(all, Metric{Key: "in_" + name, Name: "in " + name, Unit: "ms", Detail: true, of: func(s *Sample) (float64, bool) {
			if s.Boundary == nil || s.Latency == nil || s.Latency.Count() == 0 {
				return 0, false
			}
			h := s.Boundary.Segment(name)
			return float64(h.Sum()) / float64(s.Latency.Count()) / 1e6, h.Count() > 0
		}})
	}
	return all
}

// segmentNames lists the segments in the order of the timeline.
var segmentNames = []string{
	SegmentSchedule, SegmentQueue, SegmentConnect, SegmentCheck, SegmentEncode, SegmentSend,
	SegmentServer, SegmentWake, SegmentReceive, SegmentDecode, SegmentRelease, SegmentHarness,
}

// MustMetric returns the metric of a key, and panics if there is none.
func MustMetric(key string) Metric {
	m, ok := MetricByKey(key)
	if !ok {
		panic("bench: no metric " + key)
	}
	return m
}

// MetricByKey returns the metric of a key.
func MetricByKey(key string) (Metric, bool) {
	all := Metrics()
	i := slices.IndexFunc(all, func(m Metric) bool { return m.Key == key })
	if i < 0 {
		return Metric{}, false
	}
	return all[i], true
}
