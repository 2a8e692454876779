package bench

import (
	"cmp"
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
	// After is the key of the core's metric that a subject's metric follows in reports. Default:
	// the last one before those of segments.
	After string
	// Value computes the metric. It reports false if the sample does not have it.
	Value func(*Sample) (float64, bool)
}

// LeastCPUSeconds is the CPU time of a round below which it counts as not measured: the kernel
// counts CPU time of a multi-threaded process in ticks of 10 ms, and fewer than five ticks say
// little.
const LeastCPUSeconds = 0.05

// Of returns the metric of a sample, and false if the sample does not have it.
func (m Metric) Of(s *Sample) (float64, bool) {
	v, ok := m.Value(s)
	return v, ok && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// beforeSegments is the key of the last metric before those of segments.
const beforeSegments = "query_p99"

// Metrics lists the metrics of every sample and those of the given subjects, in the order of
// reports.
func Metrics(subjects ...*Subject) []Metric {
	all := slices.Clone(coreMetrics())
	for _, s := range subjects {
		if s.Metrics == nil {
			continue
		}
		for _, m := range s.Metrics() {
			m.After = cmp.Or(m.After, beforeSegments)
			at := 1 + slices.IndexFunc(all, func(o Metric) bool { return o.Key == m.After })
			if at == 0 {
				panic("bench: metric " + m.Key + " follows " + m.After + ", which does not exist")
			}
			for at < len(all) && all[at].After == m.After {
				at++
			}
			all = slices.Insert(all, at, m)
		}
	}
	return all
}

// QuantileOf is the value of a metric in milliseconds: a quantile of a histogram of the sample,
// which may be nil.
func QuantileOf(q float64, of func(*Sample) *measure.Hist) func(*Sample) (float64, bool) {
	return func(s *Sample) (float64, bool) {
		h := of(s)
		if h == nil || h.Count() == 0 {
			return 0, false
		}
		return float64(h.Quantile(q)) / 1e6, true
	}
}

// coreMetrics are the metrics of every sample. The list must not be changed.
var coreMetrics = sync.OnceValue(metrics)

func metrics() []Metric {
	quantile := func(q float64) func(*Sample) (float64, bool) {
		return QuantileOf(q, func(s *Sample) *measure.Hist { return s.Latency })
	}
	service := func(q float64) func(*Sample) (float64, bool) {
		return QuantileOf(q, func(s *Sample) *measure.Hist { return s.Service })
	}
	cpu := func(roles ...string) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			sum, found := 0.0, false
			for _, r := range roles {
				if u, ok := s.Processes[r]; ok {
					sum, found = sum+u.CPUSeconds(), true
				}
			}
			return sum / float64(s.Ops) * 1e6, found && s.Ops > 0 && sum >= LeastCPUSeconds
		}
	}
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
		{Key: "rate", Name: "throughput", Unit: "ops/s", Higher: true, Value: func(s *Sample) (float64, bool) {
			ops := s.Ops
			if s.open() && s.Generator.Answered > 0 {
				ops = s.Generator.Answered // operations answered after the window are not throughput
			}
			return float64(ops) / s.Seconds, s.Seconds > 0
		}},
		{Key: "mean", Name: "mean latency", Unit: "ms", Value: func(s *Sample) (float64, bool) {
			if s.Latency == nil || s.Latency.Count() == 0 {
				return 0, false
			}
			return s.Latency.Mean() / 1e6, true
		}},
		{Key: "p50", Name: "p50", Unit: "ms", Value: quantile(.50)},
		{Key: "p95", Name: "p95", Unit: "ms", Value: quantile(.95)},
		{Key: "p99", Name: "p99", Unit: "ms", Value: quantile(.99)},
		{Key: "service_p50", Name: "service p50", Unit: "ms", Value: service(.50)},
		{Key: "service_p99", Name: "service p99", Unit: "ms", Value: service(.99)},
		{Key: "cpu", Name: "CPU, all", Unit: "us/op", Value: cpu(RoleClient, RoleProxy, RoleServer)},
		{Key: "cpu_client", Name: "CPU, client", Unit: "us/op", Value: cpu(RoleClient)},
		{Key: "cpu_proxy", Name: "CPU, proxy", Unit: "us/op", Value: cpu(RoleProxy)},
		{Key: "cpu_server", Name: "CPU, server", Unit: "us/op", Value: cpu(RoleServer)},
		{Key: "fsyncs", Name: "fsyncs", Unit: "/1000 ops", Value: perOp(func(c *ServerCounters) int64 { return c.Fsyncs }, 1000)},
		{Key: "fsync_rate", Name: "fsyncs", Unit: "/s", Neutral: true, Value: func(s *Sample) (float64, bool) {
			if s.Server == nil || s.Server.Ops == 0 || s.Seconds == 0 {
				return 0, false
			}
			return float64(s.Server.Fsyncs) / float64(s.Server.Ops) * float64(s.Ops) / s.Seconds, true
		}},
		{Key: "log_bytes", Name: "log written", Unit: "B/op", Value: perOp(func(c *ServerCounters) int64 { return c.LogBytes }, 1)},
		{Key: "page_requests", Name: "pages requested", Unit: "/op", Detail: true, Value: some(perOp(func(c *ServerCounters) int64 { return c.PageRequests }, 1))},
		{Key: "page_reads", Name: "pages read", Unit: "/1000 ops", Detail: true, Value: func(s *Sample) (float64, bool) {
			if s.Server == nil || s.Server.Ops == 0 || s.Server.PageRequests <= 0 {
				return 0, false
			}
			return float64(max(0, s.Server.PageReads)) / float64(s.Server.Ops) * 1000, true
		}},
		{Key: "group", Name: "group size", Unit: "ops", Neutral: true, Value: func(s *Sample) (float64, bool) {
			if s.Groups == nil || s.Groups.Flushes == 0 {
				return 0, false
			}
			return float64(s.Groups.Items) / float64(s.Groups.Flushes), true
		}},
		{Key: "rss_proxy", Name: "memory, proxy", Unit: "MB", Value: func(s *Sample) (float64, bool) {
			u, ok := s.Processes[RoleProxy]
			return float64(u.RSSBytes) / 1e6, ok
		}},
		{Key: "errors", Name: "errors", Unit: "/1000 ops", Value: func(s *Sample) (float64, bool) {
			n := s.Ops + s.Failed()
			return float64(s.Failed()) / float64(n) * 1000, n > 0
		}},
		{Key: "rss_client", Name: "memory, client", Unit: "MB", Detail: true, Value: func(s *Sample) (float64, bool) {
			u, ok := s.Processes[RoleClient]
			return float64(u.RSSBytes) / 1e6, ok
		}},
		{Key: "voluntary", Name: "waits, client", Unit: "switches/op", Detail: true, Value: func(s *Sample) (float64, bool) {
			u, ok := s.Processes[RoleClient]
			return float64(u.Voluntary) / float64(s.Ops), ok && s.Ops > 0
		}},
		{Key: "involuntary", Name: "preemptions, client", Unit: "switches/op", Detail: true, Value: func(s *Sample) (float64, bool) {
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
			all = append(all, Metric{Key: side.name + "_" + q.name, Name: side.name + " " + q.name, Unit: "ms", Detail: true, Value: QuantileOf(q.q, of)})
		}
	}
	for _, name := range segmentNames {
		all = append(all, Metric{Key: "in_" + name, Name: "in " + name, Unit: "ms", Detail: true, Value: func(s *Sample) (float64, bool) {
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
func MustMetric(key string, subjects ...*Subject) Metric {
	m, ok := MetricByKey(key, subjects...)
	if !ok {
		panic("bench: no metric " + key)
	}
	return m
}

// MetricByKey returns the metric of a key, of every sample or of the given subjects.
func MetricByKey(key string, subjects ...*Subject) (Metric, bool) {
	all := Metrics(subjects...)
	i := slices.IndexFunc(all, func(m Metric) bool { return m.Key == key })
	if i < 0 {
		return Metric{}, false
	}
	return all[i], true
}
