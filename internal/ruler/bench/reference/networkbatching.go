package reference

import (
	"fmt"
	"slices"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/report"
)

// networkBatching is report 001.
func networkBatching() Document {
	delay, validate, tunings, length := At{Part: "001", Experiment: "delay"}, At{Part: "001", Experiment: "validate"}, At{Part: "001", Experiment: "tunings"}, At{Part: "001", Experiment: "length"}
	at := func(us int) At { return delay.with(fmt.Sprintf("%d us", us)) }
	tuned := func(pendings, us int) At { return tunings.with(fmt.Sprintf("%d pending, %d us", pendings, us)) }
	d := Document{
		ID: "001", Name: "Network batching", Title: "Phase 31.4: Network Batching Optimization",
		About: []string{
			"The same protocol (curp-ho), sessions, operations under way and mix; every replica is a process of its own and flushes each write to its disk before it is acknowledged, where the document's kept all in memory.",
			"The document's delay is a sleep in the sender; weir's is the least time between two rounds, held by a timer that keeps it. A delay of 0 is, in weir, the same as none.",
			"maxDescRoutines has no counterpart: weir starts no goroutine for an operation.",
		},
		Published: publishedNetworkBatching,
	}
	sweep := Table{
		Section: "Test Results", Title: "Batch Delay Sweep (3 iterations, pendings=15, 4 streams)", Charted: 1,
		Columns: []Column{
			{Name: "Delay (us)", Text: true},
			{Name: "Avg Throughput", Unit: "ops/s", Metric: "rate"},
			{Name: "Weak Median", Unit: "ms", Metric: "weak_p50"},
			{Name: "Strong Median", Unit: "ms", Metric: "strong_p50"},
			{Name: "Status", Text: true},
			{Name: "operations in a round", Own: true, Metric: "group"},
		},
	}
	for _, r := range []struct {
		us   int
		cell [5]string
	}{
		{0, [5]string{"0 (baseline)", "16,000", "2.06", "3.97", "Latency violated"}},
		{25, [5]string{"25", "19,496", "2.09", "2.98", "Latency violated"}},
		{50, [5]string{"50", "21,982", "1.66", "2.91", "Valid"}},
		{75, [5]string{"75", "22,350", "1.67", "2.64", "Valid"}},
		{100, [5]string{"100", "19,690", "1.71", "3.07", "Valid"}},
		{150, [5]string{"150", "22,811", "1.56", "2.76", "Valid, Optimal"}},
	} {
		sweep.Rows = append(sweep.Rows, Row{Cells: r.cell[:], At: at(r.us), Ours: map[int]Measure{4: status(at(r.us))}})
	}
	sweep.Rows = append(sweep.Rows, Row{Cells: []string{"none, weir's default", "", "", "", ""}, At: delay.with("auto"), Ours: map[int]Measure{4: status(delay.with("auto"))}})
	d.Tables = append(d.Tables, sweep, validationTable(validate), tuningTable(tuned), startTable(tuned, length), phaseTable(tuned), gapTable(validate), batchTable(at), writerTable(), replicaCPUTable(), gridTable(), configTable(tuned))
	d.Details = replicaDetails
	const best = "0 us"
	d.Claims = []Claim{
		{
			Text: "150 us is optimal", Said: "22,811 ops/s, weak median 1.56 ms", Reading: "150 us is faster than 0, 25, 50, 75 and 100 us, each told apart",
			Judge: fastest(at(150), best, "25 us", "50 us", "75 us", "100 us"),
		},
		{
			Text: "Batching by 150 us improves throughput", Said: "+14.8 % sustained, +26.4 % peak", Reading: "15 pendings: the rate at 150 us is at least 1.148 times that at 0",
			Judge: atLeast(tuned(15, 150).over(tuned(15, 0), "rate"), 1.148, "150 us over 0, 15 pendings"),
		},
		{
			Text: "Latency improves with batching", Said: "weak median -21.2 %", Reading: "15 pendings: the weak median at 150 us is at most 0.788 times that at 0",
			Judge: atMost(tuned(15, 150).over(tuned(15, 0), "weak_p50"), 0.788, "weak median of 150 us over 0"),
		},
		{
			Text: "100 us degrades", Said: "19,690 between 22,350 and 22,811", Reading: "100 us is slower than 75 us and than 150 us",
			Judge: every(atMost(at(100).over(at(75), "rate"), 1, "100 us over 75 us"), atMost(at(100).over(at(150), "rate"), 1, "100 us over 150 us")),
		},
		{
			Text: "23K ops/s with a weak median below 2 ms", Said: "peak 22,984, average 20,866", Reading: "the rate at 150 us is at least 23,000, and its weak median at most 2 ms",
			Judge: every(atLeast(at(150).figure("rate", 1), 23_000, "rate at 150 us"), atMost(at(150).figure("weak_p50", 1), 2, "weak median at 150 us")),
		},
		{
			Text: "Larger batches: 3 to 4 times fewer system calls", Said: "1-2 messages become 3-5", Reading: "a round carries at least 3 times as many operations at 150 us as at 0",
			Judge: atLeast(at(150).over(at(0), "group"), 3, "operations in a round, 150 us over 0"),
		},
		{
			Text: "pendings from 10 to 15", Said: "+6.6 %", Reading: "without a delay, the rate with 15 pendings is at least 1.066 times that with 10",
			Judge: atLeast(tuned(15, 0).over(tuned(10, 0), "rate"), 1.066, "15 pendings over 10"),
		},
		{
			Text: "Long runs degrade", Said: "18,206 becomes 6,538 (-64 %)", Reading: "a run of ten times as many operations has at most 0.36 of the rate",
			Judge: atMost(length.with("100000 ops").over(length.with("10000 ops"), "rate"), 0.36, "long run over short run"),
		},
		{
			Text: "12 pendings and 50 us have the lowest latency that is fit for interactive use", Said: "weak median 1.2-1.5 ms", Reading: "its weak median is lower than that of 15 pendings and 150 us",
			Judge: atMost(tuned(12, 50).over(tuned(15, 150), "weak_p50"), 1, "weak median, 12 and 50 us over 15 and 150 us"),
		},
		{
			Text: "System calls are the bottleneck: 38.76 % of CPU", Said: "profile of phase 31.2", Reading: "of the replicas' CPU time, system calls are the largest exclusive category",
			Judge: largestCategory("001", "0 us", bench.RoleReplica, "system calls and network I/O"),
		},
	}
	return d
}

// status says whether a case keeps the limits of its experiment.
func status(at At) Measure {
	return func(m *Measured) (Figure, string) {
		r, c, why := m.find(at)
		if c == nil {
			return Figure{}, why
		}
		for _, k := range r.Experiment.Constraints {
			s, ok := c.Summary[k.Metric]
			metric, _ := bench.MetricByKey(k.Metric, subject.All()...)
			switch {
			case !ok:
			case k.Max != nil && s.Lo > *k.Max, k.Min != nil && s.Hi < *k.Min:
				return Figure{Text: "violated: " + metric.Name}, ""
			case k.Max != nil && s.Hi > *k.Max, k.Min != nil && s.Lo < *k.Min:
				return Figure{Text: "cannot tell: " + metric.Name}, ""
			}
		}
		return Figure{Text: "valid"}, ""
	}
}

// extreme is the largest or the smallest round of a metric.
func extreme(at At, metric string, pick func([]float64) float64) Measure {
	return func(m *Measured) (Figure, string) {
		_, c, why := m.find(at)
		if c == nil {
			return Figure{}, why
		}
		key := bench.MustMetric(metric, subject.All()...)
		xs := c.Values(key)
		if len(xs) == 0 {
			return Figure{}, metric + " was not measured"
		}
		v := pick(xs)
		return Figure{Interval: bench.Interval{Median: v, Lo: v, Hi: v, N: 1}, Unit: key.Unit}, ""
	}
}

func least(xs []float64) float64 { return slices.Min(xs) }
func most(xs []float64) float64  { return slices.Max(xs) }

func validationTable(at At) Table {
	at = at.with("* us")
	t := Table{
		Section: "Test Results", Title: "Validation Test (5 iterations, batchDelayUs=150)",
		Columns: []Column{
			{Name: "Iteration", Text: true},
			{Name: "Throughput", Unit: "ops/s"},
			{Name: "Weak Median", Unit: "ms"},
			{Name: "no delay: throughput", Unit: "ops/s", Own: true},
		},
		Note: "Ours is the fixed delay that was best in this run's sweep, and beside it none, in turn.",
	}
	auto := at.with("auto")
	for i, r := range [][2]string{{"20,469", "1.90"}, {"22,984", "0.97"}, {"21,488", "1.98"}, {"18,828", "1.11"}, {"20,561", "1.13"}} {
		t.Rows = append(t.Rows, Row{
			Cells: []string{fmt.Sprint(i + 1), r[0], r[1]},
			Ours:  map[int]Measure{1: at.round(i, "rate", 1), 2: at.round(i, "weak_p50", 1), 3: auto.round(i, "rate", 1)},
		})
	}
	t.Rows = append(t.Rows,
		Row{Cells: []string{"Avg (ours: median)", "20,866", "1.41"}, Ours: map[int]Measure{1: at.figure("rate", 1), 2: at.figure("weak_p50", 1), 3: auto.figure("rate", 1)}},
		Row{Cells: []string{"Min", "18,828", ""}, Ours: map[int]Measure{1: extreme(at, "rate", least), 3: extreme(auto, "rate", least)}},
		Row{Cells: []string{"Max", "22,984", ""}, Ours: map[int]Measure{1: extreme(at, "rate", most), 3: extreme(auto, "rate", most)}})
	return t
}

func tuningTable(tuned func(int, int) At) Table {
	base, with := tuned(15, 0), tuned(15, 150)
	return Table{
		Section: "Performance Analysis", Title: "Comparison to Baseline (pendings=15, batchDelayUs=0)",
		Columns: []Column{{Name: "Metric", Text: true}, {Name: "Baseline"}, {Name: "With Batching"}, {Name: "Improvement"}},
		Rows: []Row{
			{Cells: []string{"Throughput (avg), ops/s", "19,440", "20,866", "+7.3 %"}, Ours: map[int]Measure{1: base.figure("rate", 1), 2: with.figure("rate", 1), 3: gain(with.over(base, "rate"))}},
			{Cells: []string{"Throughput (peak), ops/s", "20,094", "22,984", "+14.4 %"}, Ours: map[int]Measure{1: extreme(base, "rate", most), 2: extreme(with, "rate", most)}},
			{Cells: []string{"Weak median, ms", "1.79", "1.41", "-21.2 %"}, Ours: map[int]Measure{1: base.figure("weak_p50", 1), 2: with.figure("weak_p50", 1), 3: gain(with.over(base, "weak_p50"))}},
		},
		Note: "Ours took turns; improvements are paired ratios. A peak of single rounds is no improvement that could be told.",
	}
}

func startTable(tuned func(int, int) At, length At) Table {
	return Table{
		Section: "Performance Analysis", Title: "Comparison to Phase 31 Start",
		Columns: []Column{{Name: "Run", Text: true}, {Name: "Throughput", Unit: "ops/s", Metric: "rate"}},
		Rows: []Row{
			{Cells: []string{"31.1, pendings 10, short test", "18,206"}, At: tuned(10, 0)},
			{Cells: []string{"31.1, long test", "6,538"}, At: length.with("100000 ops")},
			{Cells: []string{"(ours: short test of the same)", ""}, At: length.with("10000 ops")},
			{Cells: []string{"31.5c, pendings 15, short test", "19,440"}, At: tuned(15, 0)},
			{Cells: []string{"31.4, pendings 15, 150 us, sustained", "20,866"}, At: tuned(15, 150)},
			{Cells: []string{"31.4, the same, peak", "22,984"}, Ours: map[int]Measure{1: extreme(tuned(15, 150), "rate", most)}},
		},
	}
}

func phaseTable(tuned func(int, int) At) Table {
	base := tuned(10, 0)
	row := func(at At, cells ...string) Row {
		r := Row{Cells: cells, At: at, Ours: map[int]Measure{}}
		if at != base {
			r.Ours[3] = gain(at.over(base, "rate"))
		}
		return r
	}
	return Table{
		Section: "Performance Analysis", Title: "Cumulative Phase 31 Improvements", Charted: 2,
		Columns: []Column{{Name: "Phase", Text: true}, {Name: "Optimization", Text: true}, {Name: "Throughput", Unit: "k ops/s", Metric: "rate", Scale: 1e-3}, {Name: "Cumulative Gain"}},
		Rows: []Row{
			row(base, "31.1", "Baseline", "18.2", "-"),
			{Cells: []string{"31.5b", "maxDescRoutines: 200 to 500", "18.3", "+0.5 %"}, Why: "weir starts no goroutine for an operation"},
			row(tuned(15, 0), "31.5c", "pendings: 10 to 15", "19.4", "+6.6 %"),
			row(tuned(15, 150), "31.4", "batchDelayUs: 0 to 150", "20.9", "+14.8 %"),
			{Cells: []string{"31.4 (peak)", "Same config", "23.0", "+26.4 %"}, Ours: map[int]Measure{2: scaledBy(extreme(tuned(15, 150), "rate", most), 1e-3)}},
		},
		Note: "The document's phases were measured on different days, ours in turn.",
	}
}

func gapTable(at At) Table {
	at = at.with("* us")
	return Table{
		Section: "Gap to Target Analysis", Title: "Target: 23,000 ops/sec with weak median < 2ms",
		Columns: []Column{{Name: "Figure", Text: true}, {Name: "Throughput", Unit: "ops/s"}, {Name: "Gap"}},
		Rows: []Row{
			{Cells: []string{"Sustained (5 iterations)", "20,866", "-9.3 %"}, Ours: map[int]Measure{1: at.figure("rate", 1), 2: toTarget(at, 23_000)}},
			{Cells: []string{"Peak (best iteration)", "22,984", "-0.07 %"}, Ours: map[int]Measure{1: extreme(at, "rate", most)}},
		},
	}
}

// toTarget is the distance of a rate from a target, in percent.
func toTarget(at At, target float64) Measure {
	return func(m *Measured) (Figure, string) {
		got, why := at.figure("rate", 1)(m)
		if why != "" {
			return got, why
		}
		return Figure{Text: fmt.Sprintf("%+.1f %%", 100*(got.Median/target-1))}, ""
	}
}

func batchTable(at func(int) At) Table {
	return Table{
		Section: "Batch Size Analysis", Title: "Theoretical Analysis",
		Columns: []Column{
			{Name: "Delay", Text: true},
			{Name: "Average batch size", Metric: "group"},
			{Name: "Syscalls", Unit: "/s", Metric: "calls_rate"},
			{Name: "messages in a write", Own: true, Metric: "messages_per_write"},
			{Name: "writes to peers and clients", Unit: "/s", Own: true, Metric: "writes_rate"},
			{Name: "flushes of a replica", Unit: "/s", Own: true, Metric: "fsync_rate"},
			{Name: "mean GC pause of a replica", Unit: "us", Own: true, Metric: "gc_pause"},
		},
		Rows: []Row{
			{Cells: []string{"0", "1-2", "~18,000"}, At: at(0)},
			{Cells: []string{"150 us", "3-5", "4,000-7,000"}, At: at(150)},
		},
		Note: "The document's are computed, not measured. Ours are counted: operations that share a round, messages and their writes by the replicas; Syscalls are the read and write calls of all three replicas, by the kernel, without those that wait, flush or wake.",
	}
}

// writerTable is about the document's own delay, that of its sender: messages to other replicas
// are collected before they are written. Ours was changed while one cluster ran.
func writerTable() Table {
	at := At{Part: "001", Experiment: "writer"}
	t := Table{
		Section: "Batch Size Analysis", Title: "Delay at the writers between replicas, changed at run time", Charted: 1,
		Columns: []Column{
			{Name: "Delay at the writer (us)", Text: true},
			{Name: "Throughput", Unit: "ops/s", Own: true, Metric: "rate"},
			{Name: "Weak median", Unit: "ms", Own: true, Metric: "weak_p50"},
			{Name: "Strong median", Unit: "ms", Own: true, Metric: "strong_p50"},
			{Name: "messages in a write to a replica", Own: true, Metric: "peer_messages_per_write"},
			{Name: "messages in any write", Own: true, Metric: "messages_per_write"},
			{Name: "read and write calls", Unit: "/s", Own: true, Metric: "calls_rate"},
			{Name: "throughput over none", Own: true},
		},
		Note: "The document's SetBatchDelay sleeps in the sender. Ours is --peer-delay of weir kv serve, here set by PUT /peer-delay while one cluster ran; rounds are cut as always. It holds messages to other replicas back; those to clients are counted, too.",
	}
	for _, us := range []int{0, 25, 50, 75, 100, 150, 500} {
		name := fmt.Sprintf("%d us", us)
		row := Row{Cells: []string{fmt.Sprint(us)}, At: at.with(name), Optional: true}
		if us > 0 {
			row.Ours = map[int]Measure{7: at.with(name).over(at.with("0 us"), "rate")}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// replicaCPUTable compares the one figure of the document's profile with the exclusive
// categories of the replicas.
func replicaCPUTable() Table {
	t := Table{
		Section: "Lessons Learned", Title: "CPU time of the replicas by category",
		Columns: []Column{
			{Name: "Category", Text: true},
			{Name: "Share", Unit: "%"},
			{Name: "no delay", Unit: "%", Own: true},
			{Name: "150 us", Unit: "%", Own: true},
		},
		Note: "Exclusive shares of all three replicas together, which add up to 100 %, of profiles that were taken from their admin servers while a round was measured. The document says neither which process its share is of nor whether it is exclusive.",
	}
	for _, r := range []struct {
		name, share string
		categories  []string
	}{
		{"network system calls", "38.76", []string{"system calls and network I/O"}},
		{"(waiting for the network, by epoll)", "", []string{"epoll and netpoll"}},
		{"(scheduler)", "", []string{"scheduler"}},
		{"(locks and futex)", "", []string{"locks and futex"}},
		{"(garbage collection and allocation)", "", []string{"garbage collection and allocation"}},
		{"(protocol, frames and messages)", "", []string{"driver and protocol"}},
		{"(consensus, log and store)", "", []string{"consensus and store"}},
		{"(the rest)", "", []string{"application", "crypto and TLS", "batching", measure.OtherCategory}},
	} {
		t.Rows = append(t.Rows, Row{Cells: []string{r.name, r.share}, Ours: map[int]Measure{
			2: cpuShare("001", "0 us", bench.RoleReplica, r.categories...),
			3: cpuShare("001", "150 us", bench.RoleReplica, r.categories...),
		}})
	}
	return t
}

// gridTable has every number of operations in flight with every delay: the document names four
// of these points.
func gridTable() Table {
	at := At{Part: "001", Experiment: "grid"}
	t := Table{
		Section: "Next", Title: "Combined Optimization Testing, throughput by pendings and delay",
		Columns: []Column{{Name: "Pendings", Text: true}},
		Note:    "The document announces this grid (its phase 31.9) and has no figures of it. Each cell is a cluster of its own, in turn with the others.",
	}
	delays := []int{0, 25, 50, 75, 100, 150}
	for _, us := range delays {
		t.Columns = append(t.Columns, Column{Name: fmt.Sprintf("%d us", us), Unit: "ops/s", Own: true, Optional: true})
	}
	for _, n := range []int{5, 10, 15, 20, 30} {
		row := Row{Cells: []string{fmt.Sprint(n)}, Optional: true, Ours: map[int]Measure{}}
		for i, us := range delays {
			row.Ours[i+1] = optional(at.with(fmt.Sprintf("%d pending, %d us", n, us)).figure("rate", 1))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// replicaDetails shows which functions used the replicas' CPU time.
func replicaDetails(m *Measured) []report.Section {
	at := profileAt{"001", "0 us", bench.RoleReplica}
	s, ok := m.functionsOf("CPU time of the replicas: functions of each category", at)
	if !ok {
		return nil
	}
	m.flameOf(&s, "CPU time of the replicas by call, no delay", at)
	return []report.Section{s}
}

func configTable(tuned func(int, int) At) Table {
	t := Table{
		Section: "Configuration Recommendation", Title: "Expected performance",
		Columns: []Column{
			{Name: "Configuration", Text: true},
			{Name: "Throughput", Unit: "k ops/s", Metric: "rate", Scale: 1e-3},
			{Name: "Weak median", Unit: "ms", Metric: "weak_p50"},
			{Name: "Strong median", Unit: "ms", Metric: "strong_p50"},
		},
	}
	for _, r := range []struct {
		at    At
		cells []string
	}{
		{tuned(15, 150), []string{"Maximum throughput: pendings 15, 150 us", "20-23", "1.4-1.6", "2.7-3.0"}},
		{tuned(12, 50), []string{"Lowest latency: pendings 12, 50 us", "18-20", "1.2-1.5", "2.5-2.8"}},
		{tuned(10, 0), []string{"Ultra-low latency: pendings 10, 0 us", "16-18", "< 1.5", "2.0-2.5"}},
	} {
		t.Rows = append(t.Rows, Row{Cells: r.cells, At: r.at})
	}
	return t
}

// gain formats a ratio as a percentage, as the document does.
func gain(of Measure) Measure {
	return func(m *Measured) (Figure, string) {
		g, why := of(m)
		if why != "" {
			return g, why
		}
		if g.N < 2 {
			return Figure{Text: "one round: cannot tell"}, ""
		}
		return Figure{Text: fmt.Sprintf("%+.1f %% [%+.1f, %+.1f]", 100*(g.Median-1), 100*(g.Lo-1), 100*(g.Hi-1))}, ""
	}
}

// scaledBy multiplies a figure.
func scaledBy(of Measure, by float64) Measure {
	return func(m *Measured) (Figure, string) {
		g, why := of(m)
		g.Interval = scaled(g.Interval, by)
		return g, why
	}
}
