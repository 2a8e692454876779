package bench

import (
	"math"
	"slices"
)

// Metric is a number that a sample yields.
type Metric struct {
	Key, Name, Unit string
	// Higher tells that more is better; Neutral, that it is neither.
	Higher, Neutral bool
	of              func(*Sample) (float64, bool)
}

// Of returns the metric of a sample, and false when the sample does not have it.
func (m Metric) Of(s *Sample) (float64, bool) {
	v, ok := m.of(s)
	return v, ok && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// Metrics lists all metrics in the order of reports.
func Metrics() []Metric {
	quantile := func(q float64) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			if s.Latency == nil || s.Latency.Count() == 0 {
				return 0, false
			}
			return float64(s.Latency.Quantile(q)) / 1e6, true
		}
	}
	cpu := func(roles ...string) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			sum, found := 0.0, false
			for _, r := range roles {
				if u, ok := s.Processes[r]; ok {
					sum, found = sum+u.CPUSeconds(), true
				}
			}
			return sum / float64(s.Ops) * 1e6, found && s.Ops > 0
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
	return []Metric{
		{Key: "rate", Name: "throughput", Unit: "ops/s", Higher: true, of: func(s *Sample) (float64, bool) {
			return float64(s.Ops) / s.Seconds, s.Seconds > 0
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
	}
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
