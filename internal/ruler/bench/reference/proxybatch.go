package reference

import (
	"fmt"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// proxyBatch is report 000. Its numbers of clients differ between the windows (rate times
// latency is 100, 100, 998 and 4,899), ours do not.
func proxyBatch() Document {
	pg, my := At{Part: "000-postgres", Experiment: "inserts-100"}, At{Part: "000-mariadb", Experiment: "inserts-100"}
	d := Document{
		ID: "000", Name: "ProxyBatch", Title: "ProxyBatch Benchmark Analysis - CPU Load Study",
		About: []string{
			"Here the same 100 clients send at every window, each side in turn with the others; the document raised its clients with the window.",
			"Its profile is of the load generator, with database/sql and the drivers in it. Ours are of the same drivers over database/sql, of weir, and of a load generator that speaks the protocols itself, in exclusive shares.",
			"MariaDB stands for MySQL, as packages have it; the full plan adds MySQL where its server is installed.",
		},
		Published: publishedProxyBatch,
	}
	d.Tables = append(d.Tables,
		hintTable("MySQL Performance", my, [][3]string{{"0 (no batching)", "42.6", "2.35"}, {"1", "42.4", "2.36"}, {"10", "82.6", "12.08"}, {"100", "58.7", "83.45"}}),
		hintTable("PostgreSQL Performance", pg, [][3]string{{"0 (no batching)", "44.5", "2.24"}, {"1", "45.5", "2.19"}, {"10", "66.9", "14.71"}, {"100", "52.9", "89.54"}}),
		cpuTable(), driverTable(), proxyMemoryTable())
	d.Details = proxyDetails
	for _, e := range []struct {
		name, gain string
		at         At
		least      float64
	}{{"MySQL", "94 % (42.6k to 82.6k)", my, 1.94}, {"PostgreSQL", "50 % (44.5k to 66.9k)", pg, 1.50}} {
		none, one, ten, hundred := e.at.with("weir 0"), e.at.with("weir 1"), e.at.with("weir 10"), e.at.with("weir 100")
		d.Claims = append(d.Claims,
			Claim{
				Text: e.name + ": a 10 ms batch window achieves the best throughput", Said: e.gain,
				Reading: "10 ms is faster than 0, 1 and 100 ms, each told apart",
				Judge:   fastest(ten, none.Case, one.Case, hundred.Case),
			},
			Claim{
				Text: e.name + ": the gain over no batching", Said: e.gain,
				Reading: fmt.Sprintf("the rate at 10 ms is at least %.2f times that at 0, with as many clients", e.least),
				Judge:   atLeast(ten.over(none, "rate"), e.least, "10 ms over 0"),
			},
			Claim{
				Text: e.name + ": 100 ms batching degrades performance", Said: "latency without throughput",
				Reading: "100 ms has a lower rate and a higher median latency than 10 ms",
				Judge: every(
					atMost(hundred.over(ten, "rate"), 1, "rate of 100 ms over 10 ms"),
					atLeast(hundred.over(ten, "p50"), 1, "p50 of 100 ms over 10 ms")),
			},
			Claim{
				Text: e.name + ": the optimal batch holds 800 to 900 operations", Said: "82.6k/s times 10 ms",
				Reading: "groups of the 10 ms window hold 800 to 900, which needs as many clients",
				Judge:   limit(ten.figure("group", 1), 800, 900, "operations in a group at 10 ms"),
			},
		)
	}
	d.Claims = append(d.Claims,
		Claim{
			Text: "System calls and I/O dominate CPU usage", Said: "40.62 %", Reading: "of weir's own time, system calls are the largest exclusive category",
			Judge: largestCategory("000-postgres", "weir auto", bench.RoleProxy, "system calls and network I/O"),
		},
		Claim{
			Text: "Only 12.5 MB in use", Said: "12.5 MB", Reading: "a limit of 12.5 MB on weir's memory after grouped inserts, which is more than its heap",
			Judge: atMost(pg.with("weir auto").figure("rss_proxy", 1), 12.5, "memory of the proxy in MB"),
		},
		Claim{
			Text: "No obvious memory leaks", Said: "one reading after 32 s", Reading: "over a long load the heap after a collection grows by less than 8 B, the smallest object, for each statement; by as much or more refutes it",
			Judge: keepsNothing("000-postgres", "000-mariadb"),
		})
	return d
}

func hintTable(title string, at At, rows [][3]string) Table {
	t := Table{
		Section: "Performance Results", Title: title, Charted: 1,
		Columns: []Column{
			{Name: "Batch Hint (ms)", Text: true},
			{Name: "Throughput", Unit: "k ops/s", Metric: "rate", Scale: 1e-3},
			{Name: "Avg Latency", Unit: "ms", Metric: "mean"},
			{Name: "against hint 0", Own: true},
			{Name: "operations in a group", Own: true, Metric: "group"},
		},
		Note: "Medians of the rounds with the range that they lie in. 100 clients at every window.",
	}
	zero := at.with("weir 0")
	for i, r := range rows {
		t.Rows = append(t.Rows, Row{Cells: r[:], At: at.with("weir " + []string{"0", "1", "10", "100"}[i])})
	}
	for _, more := range []struct{ name, side string }{{"auto, weir's default", "weir auto"}, {"direct, without a proxy", "direct"}} {
		t.Rows = append(t.Rows, Row{Cells: []string{more.name, "", ""}, At: at.with(more.side)})
	}
	for i := range t.Rows {
		if at := t.Rows[i].At; at != zero {
			t.Rows[i].Ours = map[int]Measure{3: at.over(zero, "rate")}
		}
	}
	return t
}

// cpuTable compares the document's categories with the exclusive ones of the proxy.
func cpuTable() Table {
	t := Table{
		Section: "CPU Profile Analysis", Title: "Top CPU Consumers (by category)",
		Columns: []Column{
			{Name: "Category", Text: true},
			{Name: "Share", Unit: "%"},
			{Name: "load by pq", Unit: "%", Own: true},
			{Name: "load by pgx stdlib", Unit: "%", Own: true},
			{Name: "load by go-sql-driver", Unit: "%", Own: true},
			{Name: "weir, PostgreSQL", Unit: "%", Own: true},
			{Name: "weir, MariaDB", Unit: "%", Own: true},
			{Name: "load without drivers", Unit: "%", Own: true},
		},
		Note: "The document's shares are cumulative, overlap and add up to 168 %. Ours are exclusive and add up to 100 %: its load was of pq and go-sql-driver, whose columns are its counterpart.",
	}
	for _, r := range []struct {
		name, share string
		categories  []string
	}{
		{"System Calls & I/O", "40.62", []string{"system calls and network I/O", "epoll and netpoll"}},
		{"Database Drivers", "~23", []string{"driver and protocol"}},
		{"Runtime Scheduler", "27.65", []string{"scheduler"}},
		{"Database/SQL Package", "62.89", []string{"database/sql"}},
		{"Synchronization", "13.35", []string{"locks and futex"}},
		{"(garbage collection and allocation)", "", []string{"garbage collection and allocation"}},
		{"(the proxy's and the load's own work)", "", []string{"proxy session", "batching", "sql scan", "application", "crypto and TLS", measure.OtherCategory}},
	} {
		t.Rows = append(t.Rows, Row{Cells: []string{r.name, r.share}, Ours: map[int]Measure{
			2: cpuShare("000-drivers-postgres", "pq", bench.RoleClient, r.categories...),
			3: cpuShare("000-drivers-postgres", "pgx-sql", bench.RoleClient, r.categories...),
			4: cpuShare("000-drivers-mariadb", "go-sql-driver", bench.RoleClient, r.categories...),
			5: cpuShare("000-postgres", "weir auto", bench.RoleProxy, r.categories...),
			6: cpuShare("000-mariadb", "weir auto", bench.RoleProxy, r.categories...),
			7: cpuShare("000-postgres", "weir auto", bench.RoleClient, r.categories...),
		}})
	}
	return t
}

// driverTable is the document's own load: every hint with each driver.
func driverTable() Table {
	t := Table{
		Section: "CPU Profile Analysis: Database Drivers", Title: "Throughput by hint, through database/sql",
		Columns: []Column{{Name: "Batch Hint (ms)", Text: true}},
		Note:    "100 goroutines on a pool of 100 connections, one INSERT with its values as literals each at a time. The load takes processor time from weir and the server: these are not the rates of the tables above, whose load speaks the protocols itself.",
	}
	for _, d := range driverColumns {
		t.Columns = append(t.Columns, Column{Name: d.name, Unit: "k ops/s", Own: true})
	}
	for _, d := range driverColumns {
		t.Columns = append(t.Columns, Column{Name: d.name + ": CPU of the load", Unit: "us/op", Own: true})
	}
	for _, r := range [][2]string{{"0 (no batching)", "weir 0"}, {"1", "weir 1"}, {"10", "weir 10"}, {"100", "weir 100"}, {"auto, weir's default", "weir auto"}, {"direct, without a proxy", "direct"}} {
		row := Row{Cells: []string{r[0]}, Ours: map[int]Measure{}}
		for i, d := range driverColumns {
			row.Ours[1+i] = d.at.with(r[1]).figure("rate", 1e-3)
			row.Ours[1+len(driverColumns)+i] = optional(d.at.with(r[1]).figure("cpu_client", 1))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// driverColumns are the drivers of the document's load, and pgx.
var driverColumns = []struct {
	name string
	at   At
}{
	{"pq", At{Part: "000-drivers-postgres", Experiment: "drivers-pq-100"}},
	{"pgx stdlib", At{Part: "000-drivers-postgres", Experiment: "drivers-pgx-sql-100"}},
	{"go-sql-driver", At{Part: "000-drivers-mariadb", Experiment: "drivers-go-sql-driver-100"}},
}

// proxyDetails are the functions of each category, flame graphs, the server's functions and the
// heap under a long load.
func proxyDetails(m *Measured) []report.Section {
	var out []report.Section
	proxies := []profileAt{{"000-postgres", "weir auto", bench.RoleProxy}, {"000-mariadb", "weir auto", bench.RoleProxy}}
	loads := []profileAt{
		{"000-drivers-postgres", "pq", bench.RoleClient},
		{"000-drivers-postgres", "pgx-sql", bench.RoleClient},
		{"000-drivers-mariadb", "go-sql-driver", bench.RoleClient},
	}
	if s, ok := m.functionsOf("CPU time of the load through drivers: functions of each category", loads...); ok {
		m.flameOf(&s, "CPU time of the load by call, pq", loads[0])
		out = append(out, s)
	}
	if s, ok := m.functionsOf("CPU time of weir: functions of each category", proxies...); ok {
		m.flameOf(&s, "CPU time of weir by call, PostgreSQL", proxies[0])
		out = append(out, s)
	}
	for _, part := range []string{"000-postgres", "000-mariadb"} {
		t := m.parts[part]
		if t == nil {
			continue
		}
		if s, ok := suite.ServerSection(t.Servers); ok {
			s.Title += ", " + part
			out = append(out, s)
		}
		if t.Leak != nil {
			s := t.Leak.Section()
			s.Title += ", " + part
			out = append(out, s)
		}
	}
	return out
}

func proxyMemoryTable() Table {
	at := At{"000-postgres", "inserts-100", "weir auto"}
	heap := "of the load generator's own runtime and drivers: weir has neither"
	return Table{
		Section: "Memory Profile Analysis", Title: "Top Memory Consumers",
		Columns: []Column{{Name: "Consumer", Text: true}, {Name: "In use", Unit: "kB"}, {Name: "Share", Unit: "%"}, {Name: "weir's largest sites", Own: true, Text: true}},
		Rows: []Row{
			{Cells: []string{"total", "12,500", "100"}, Ours: map[int]Measure{1: at.figure("rss_proxy", 1e3)}},
			{Cells: []string{"runtime.allocm", "4,104", "32.81"}, Why: heap, Ours: map[int]Measure{3: heapSite(at.Part, 0)}},
			{Cells: []string{"runtime.malg", "3,073", "24.57"}, Why: heap, Ours: map[int]Measure{3: heapSite(at.Part, 1)}},
			{Cells: []string{"mysql.newBuffer", "2,056", "16.44"}, Why: heap, Ours: map[int]Measure{3: heapSite(at.Part, 2)}},
			{Cells: []string{"database/sql.(*DB).conn", "4,145", "33.14"}, Why: heap, Ours: map[int]Measure{3: heapSite(at.Part, 3)}},
			{Cells: []string{"(heap in use after a collection)", "", ""}, Ours: map[int]Measure{1: heapFigure(at.Part, "kB", func(h *suite.Heap) float64 { return h.Readings[len(h.Readings)-1].Bytes / 1e3 })}},
			{Cells: []string{"(allocated for each statement)", "", ""}, Ours: map[int]Measure{1: heapFigure(at.Part, "kB", func(h *suite.Heap) float64 { return h.Bytes / 1e3 / float64(h.Statements()) })}},
			{Cells: []string{"(objects for each statement, a number)", "", ""}, Ours: map[int]Measure{1: heapFigure(at.Part, "", func(h *suite.Heap) float64 { return h.Objects / float64(h.Statements()) })}},
		},
		Note: "The total is the whole memory of the proxy's process. Its sites are those of its own heap in use, by a profile; they are not the counterpart of the document's in the same row.",
	}
}

// cpuOf finds where the CPU time of a process went.
func (m *Measured) cpuOf(part, side, role string) (*measure.CPUBreakdown, string) {
	t := m.parts[part]
	if t == nil {
		return nil, "not in this plan"
	}
	for _, c := range t.CPU {
		if c.Case == side && c.Role == role {
			if c.Breakdown.Samples < suite.MinSamples {
				return nil, fmt.Sprintf("%d samples of the CPU profile tell no shares", c.Breakdown.Samples)
			}
			return c.Breakdown, ""
		}
	}
	if why := t.State.why(); why != "" {
		return nil, why
	}
	return nil, "no CPU profile was taken"
}

// cpuShare reads the exclusive share of several categories together, in percent.
func cpuShare(part, side, role string, categories ...string) Measure {
	return func(m *Measured) (Figure, string) {
		b, why := m.cpuOf(part, side, role)
		if b == nil {
			return Figure{}, why
		}
		sum := 0.0
		for _, c := range b.Categories {
			for _, name := range categories {
				if c.Name == name {
					sum += 100 * c.Exclusive
				}
			}
		}
		return Figure{Interval: bench.Interval{Median: sum, Lo: sum, Hi: sum, N: 1}, Unit: "%"}, ""
	}
}

// largestCategory holds if a category has the largest exclusive share, by more than the
// sampling error.
func largestCategory(part, side, role, name string) func(*Measured) Judgement {
	return func(m *Measured) Judgement {
		b, why := m.cpuOf(part, side, role)
		if b == nil {
			return Judgement{Verdict: CannotTell, Evidence: sentence(why)}
		}
		own, other := measure.Category{}, measure.Category{}
		for _, c := range b.Categories {
			switch {
			case c.Name == name:
				own = c
			case c.Exclusive > other.Exclusive:
				other = c
			}
		}
		j := Judgement{Verdict: CannotTell, Evidence: fmt.Sprintf("%s %.1f %%, %s %.1f %%, of %d samples", name, 100*own.Exclusive, other.Name, 100*other.Exclusive, b.Samples)}
		if margin := shareMargin(b.Samples); own.Exclusive-other.Exclusive > margin {
			j.Verdict = Holds
		} else if other.Exclusive-own.Exclusive > margin {
			j.Verdict = DoesNotHold
		}
		return j
	}
}
