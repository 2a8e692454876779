package study

import (
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// detailTable shows one case's segments with percentiles.
func detailTable(c caseTotals) report.Table {
	t := report.Table{Title: "Segments of " + c.Name, Columns: report.Columns(":segment", ":what it is", "share")}
	for _, name := range []string{"mean", "p50", "p95", "p99", "max"} {
		t.Columns = append(t.Columns, report.Column{Name: name, Unit: "us", Numeric: true})
	}
	row := func(name, what string, share float64, h *measure.Hist) {
		r := report.Cells(name, what, fmt.Sprintf("%.1f %%", 100*share), number(h.Mean()/1e3))
		for _, q := range []float64{.5, .95, .99, 1} {
			r = append(r, report.Cell{Text: number(float64(h.Quantile(q)) / 1e3)})
		}
		t.Rows = append(t.Rows, r)
	}
	for _, s := range c.boundary.Segments {
		if s.Hist.Sum() > 0 {
			row(s.Name, about[s.Name], c.boundary.Share(s.Name), s.Hist)
		}
	}
	row("latency", "from the call to the end of the release", 1, c.latency)
	return t
}

// sidesTable shows acquire and query as reference report 4 does, with percentiles over
// operations; nil if they were not recorded.
func sidesTable(r *bench.Result) []report.Table {
	tables := bench.MetricTable(r, "Acquire and query", "acquire_p50", "acquire_p95", "acquire_p99", "query_p50", "query_p95", "query_p99")
	for i := range tables {
		tables[i].Note = "Acquire is queue, connect and check; query is encode to decode. Percentiles of operations, medians over the rounds."
	}
	return tables
}

// insideTable divides the segment server, as far as the server reports it.
func insideTable(list []caseTotals) []report.Table {
	t := report.Table{
		Title:   "Inside the server",
		Columns: report.Columns(":case", ":part", "mean|us", "of send and server", ":source"),
		Note: "A server can answer before the client's write returns, so its time is compared with send and server together. " +
			"Parts in parentheses are included in others. The rest is not attributable: the network, the kernel, waiting for a processor, the protocol. " +
			"The parts measured by eBPF can slightly exceed the whole, since a server starts before the client's write has ended.",
	}
	for _, c := range list {
		whole := (c.boundary.Segment(bench.SegmentSend).Mean() + c.boundary.Segment(bench.SegmentServer).Mean()) / 1e3
		if whole == 0 || len(c.boundary.Inside) == 0 {
			continue
		}
		rest := whole
		for _, p := range c.boundary.Inside {
			name := p.Name
			if p.Nested {
				name = "(" + name + ")"
			} else {
				rest -= p.MeanNs / 1e3
			}
			t.Rows = append(t.Rows, report.Cells(c.Name, name, number(p.MeanNs/1e3), fmt.Sprintf("%.1f %%", p.MeanNs/1e3/whole*100), p.Source))
		}
		t.Rows = append(t.Rows, report.Cells(c.Name, "not attributable", number(max(rest, 0)), fmt.Sprintf("%.1f %%", max(rest, 0)/whole*100), "what is left"))
	}
	return t.When(len(t.Rows) > 0)
}

// coldTable shows the time before the windows.
func coldTable(list []caseTotals) []report.Table {
	t := report.Table{
		Title:   "Before the measured window: until the rate had settled",
		Columns: report.Columns(":case", "seconds", "operations", "connections opened", "mean latency|us", "in connect", "in queue"),
		Note:    "Sums over the rounds. The other figures do not include them.",
	}
	for _, c := range list {
		if c.cold == nil || c.coldOps == 0 {
			continue
		}
		mean := 0.0
		for _, s := range c.cold.Segments {
			mean += s.Hist.Mean() / 1e3
		}
		t.Rows = append(t.Rows, report.Cells(c.Name, number(c.coldSecs), strconv.FormatInt(c.coldOps, 10), strconv.FormatInt(c.cold.Connects, 10), number(mean),
			fmt.Sprintf("%.0f %%", 100*c.cold.Share(bench.SegmentConnect)), fmt.Sprintf("%.0f %%", 100*c.cold.Share(bench.SegmentQueue))))
	}
	return t.When(len(t.Rows) > 0)
}

// processTable shows the CPU cost of an operation for client and server.
func processTable(list []caseTotals) []report.Table {
	t := report.Table{
		Title:   "Processes",
		Columns: report.Columns(":case", ":process", "user|us/op", "system|us/op", "cores busy", "memory|MB", "waits|/op", "preemptions|/op"),
		Note:    "Waits are voluntary context switches, preemptions involuntary ones. The client is this whole process, including a relay if there is one.",
	}
	for _, c := range list {
		for _, role := range []string{bench.RoleClient, bench.RoleServer} {
			var u measure.Usage
			found := false
			for i := range c.Samples {
				v, ok := c.Samples[i].Processes[role]
				if !ok {
					continue
				}
				found = true
				u.UserSeconds += v.UserSeconds
				u.SystemSeconds += v.SystemSeconds
				u.Voluntary += v.Voluntary
				u.Involuntary += v.Involuntary
				u.RSSBytes = max(u.RSSBytes, v.RSSBytes)
			}
			if !found || c.ops == 0 {
				continue
			}
			per := func(v float64) string { return number(v / float64(c.ops)) }
			t.Rows = append(t.Rows, report.Cells(c.Name, role, per(u.UserSeconds*1e6), per(u.SystemSeconds*1e6), number(u.CPUSeconds()/c.seconds),
				number(float64(u.RSSBytes)/1e6), per(float64(u.Voluntary)), per(float64(u.Involuntary))))
		}
	}
	return t.When(len(t.Rows) > 0)
}
