package reference

import (
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/profile/study"
	"github.com/weirdb/weir/internal/ruler/report"
)

// boundaryProfiler is report 003. Its server is not available here; the same load on PostgreSQL
// shows which of its figures are due to the pool and which to the opening of connections.
func boundaryProfiler() Document {
	at := At{Part: "003", Experiment: "profile-postgres"}
	warm100, warm5, cold100, cold5 := at.with("pool 100, warm"), at.with("pool 5, warm"), at.with("pool 100, cold"), at.with("pool 5, cold")
	d := Document{
		ID: "003", Name: "db-boundary-profiler", Title: "db-boundary-profiler",
		About: []string{
			"The document's server is Oracle, which is in no package registry; ours is PostgreSQL. weir's Oracle driver is tested against a stand-in for its errors only, and says so.",
			"Its future work is in the last sections: system calls by strace and CPU time by perf, where they are installed, each a pass of its own beside one without the tool.",
			"The document began with an empty pool, and a run of some 2,000 operations consists of little else than opening it. Ours is cold, as the document's, and warm.",
		},
		Published: publishedProfiler,
	}
	pools := Table{
		Section: "Example: Pool Contention at High Concurrency", Title: "Concurrency = 100",
		Columns: []Column{
			{Name: "pool-max", Text: true},
			{Name: "Throughput", Unit: "req/s", Metric: "rate"},
			{Name: "Latency p50", Unit: "ms", Metric: "p50"},
			{Name: "Acquire p50", Unit: "ms", Metric: "acquire_p50"},
			{Name: "Query p50", Unit: "ms", Metric: "query_p50"},
			{Name: "Latency p99", Unit: "ms", Own: true, Metric: "p99"},
			{Name: "Acquire p99", Unit: "ms", Own: true, Metric: "acquire_p99"},
			{Name: "of it opening connections", Unit: "ms, mean", Own: true, Metric: "in_connect"},
		},
		Rows: []Row{
			{Cells: []string{"100", "1,018", "82", "69", "13"}, At: cold100},
			{Cells: []string{"5", "451", "220", "210", "8"}, At: cold5},
			{Cells: []string{"(100, warm)", "", "", "", ""}, At: warm100},
			{Cells: []string{"(5, warm)", "", "", "", ""}, At: warm5},
		},
		Note: "Rows without a document's figure are what is left once the connections are open.",
	}
	fields := Table{
		Section: "JSON Output", Title: "Fields",
		Columns: []Column{{Name: "Field", Text: true}, {Name: "weir's, in weir.bench/1", Own: true, Text: true}},
		Rows: []Row{
			words("Run metadata (workload, mode, concurrency, pool-max)", "experiment.factors, cases[].factors, env"),
			words("latency_ms: p50, p95, p99", "cases[].summary.p50, p95, p99, and the whole histogram"),
			words("Throughput", "cases[].summary.rate"),
			words("CPU usage", "cases[].samples[].processes, user and system of client and server"),
			words("RSS memory", "cases[].summary.rss_client"),
			words("Context switches", "cases[].summary.voluntary, involuntary"),
			words("oracle.acquire_ms", "cases[].summary.acquire_p50, acquire_p95, acquire_p99"),
			words("oracle.query_ms", "cases[].summary.query_p50, query_p95, query_p99"),
		},
	}
	d.Tables = []Table{pools, fields}
	d.Details = func(m *Measured) []report.Section {
		if t := m.parts["003"]; t != nil {
			return study.PassSections(t.Passes)
		}
		return nil
	}
	d.Claims = []Claim{
		{
			Text: "Latency is dominated by connection acquisition, with a connection for each worker", Said: "69 of 82 ms", Reading: "warm, pool 100: acquire's p50 is at least half of the latency's",
			Judge: atLeast(quotient(warm100, "acquire_p50", "p50"), 0.5, "acquire p50 over latency p50, warm"),
		},
		{
			Text: "The same on an empty pool", Said: "69 of 82 ms", Reading: "cold, pool 100: the mean time in connect is at least half of the mean latency",
			Judge: atLeast(quotient(cold100, "in_connect", "mean"), 0.5, "connect over latency, means, cold"),
		},
		{
			Text: "Latency is dominated by acquisition with a pool of 5", Said: "210 of 220 ms", Reading: "warm, pool 5: acquire's p50 is at least half of the latency's",
			Judge: atLeast(quotient(warm5, "acquire_p50", "p50"), 0.5, "acquire p50 over latency p50, warm"),
		},
		{
			Text: "Reducing the pool costs throughput", Said: "1,018 to 451 req/s (-56 %)", Reading: "warm: the rate of pool 5 is at most 0.44 times that of pool 100",
			Judge: atMost(warm5.over(warm100, "rate"), 0.44, "pool 5 over pool 100, warm"),
		},
		{
			Text: "Reducing pool size increases context switching", Said: "no figure", Reading: "warm: the client waits more often for an operation with pool 5 than with pool 100",
			Judge: atLeast(warm5.over(warm100, "voluntary"), 1, "voluntary switches of pool 5 over pool 100"),
		},
		{
			Text: "Reducing pool size increases system CPU", Said: "no figure", Reading: "warm: the client uses more CPU for an operation with pool 5 than with pool 100",
			Judge: atLeast(warm5.over(warm100, "cpu_client"), 1, "CPU of pool 5 over pool 100"),
		},
	}
	return d
}

// quotient divides two metrics of a case round by round.
func quotient(at At, over, under string) Measure {
	return func(m *Measured) (Figure, string) {
		r, c, why := m.find(at)
		if c == nil {
			return Figure{}, why
		}
		a, _ := bench.MetricByKey(over)
		b, _ := bench.MetricByKey(under)
		var xs []float64
		for i := range c.Samples {
			x, okX := a.Of(&c.Samples[i])
			y, okY := b.Of(&c.Samples[i])
			if okX && okY && y > 0 {
				xs = append(xs, x/y)
			}
		}
		if len(xs) == 0 {
			return Figure{}, over + " was not measured"
		}
		return Figure{Interval: bench.MedianInterval(xs, 0.95), Flaw: flawOf(r, c)}, ""
	}
}
