package reference

import (
	"fmt"
	"math"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
)

// outboxBench is report 004. Its relay is weir's claim mode skip-locked, exactly the customary
// design.
func outboxBench() Document {
	screen := At{Part: "004", Experiment: "screen"}
	customary := func(experiment string) At { return At{"004", experiment, "skip-locked*"} }
	mixed, partition := customary("mixed-8"), At{Part: "004", Experiment: "partition"}
	enqueue := At{Part: "004", Experiment: "enqueue-8"}
	d := Document{
		ID: "004", Name: "Outbox", Title: "Outbox Bench Report - 2025-12-25",
		About: []string{
			"The relay of the document is the side skip-locked; weir's own claims stand below. MariaDB stands for MySQL 8.0.36.",
			"Backlogs of the mini plan are shorter than the document's 200,000 and 2 million rows; the full plan has its lengths.",
			"Partitions are measured with the document's relay, which takes a window without partitions. weir's own refuses that.",
		},
		Published: publishedOutbox,
	}
	consume := Table{
		Section: "1) Consume scaling: Workers x Batch size", Title: "Top combos by mean throughput (consume, payload 512B)", Charted: 1,
		Columns: []Column{{Name: "Combination", Text: true}, {Name: "Throughput", Unit: "msg/s", Metric: "rate"}},
		Rows: []Row{
			{Cells: []string{"16 workers / batch 200", "32,232"}, At: screen.with("skip-locked 16x200")},
			{Cells: []string{"8 workers / batch 200", "21,304"}, At: screen.with("skip-locked 8x200")},
			{Cells: []string{"16 workers / batch 100", "19,330"}, At: screen.with("skip-locked 16x100")},
			{Cells: []string{"(4 workers / batch 200)", ""}, At: screen.with("skip-locked 4x200")},
			{Cells: []string{"(weir, poll)", ""}, At: screen.with("poll")},
			{Cells: []string{"(weir, log)", ""}, At: screen.with("log")},
		},
	}
	payload := Table{
		Section: "2) Payload size impact", Title: "Throughput vs size", Charted: 1,
		Columns: []Column{
			{Name: "Payload", Text: true},
			{Name: "Throughput", Unit: "msg/s", Metric: "rate"},
			{Name: "Bytes", Unit: "MB/s", Metric: "payload_rate"},
			{Name: "weir, log", Unit: "msg/s", Own: true},
			{Name: "pages asked for", Unit: "/message", Own: true, Metric: "page_requests"},
			{Name: "pages read", Unit: "/1000 messages", Own: true, Metric: "page_reads"},
		},
		Note: "Pages by the server's counters: those that were looked for in its buffer pool, and those that were not there. The document explains its drop by them and has not counted any.",
	}
	for _, r := range []struct {
		size  int
		cells []string
	}{
		{128, []string{"128B", "29,292", "3.6"}},
		{512, []string{"512B", "26,003", "12.7"}},
		{4096, []string{"4KB", "1,199", "4.7"}},
		{16384, []string{"16KB", "9,271", "145"}},
		{131072, []string{"128KB", "184", "23"}},
	} {
		at := customary(fmt.Sprintf("payload-%d", r.size))
		payload.Rows = append(payload.Rows, Row{Cells: r.cells, At: at, Ours: map[int]Measure{3: at.with("log").figure("rate", 1)}})
	}
	producers := Table{
		Section: "3) Enqueue: Transaction cost (TX vs No-TX)", Title: "8 producers", Charted: 1,
		Columns: []Column{{Name: "Mode", Text: true}, {Name: "Throughput", Unit: "msg/s", Metric: "rate"}, {Name: "flushes", Unit: "/1000 messages", Own: true, Metric: "fsyncs"}},
		Rows: []Row{
			{Cells: []string{"use_tx=true", "203"}, At: enqueue.with("tx")},
			{Cells: []string{"use_tx=false", "211"}, At: enqueue.with("no tx")},
			{Cells: []string{"(weir, outbox.Group)", ""}, At: enqueue.with("group")},
		},
	}
	both := Table{
		Section: "4) Mixed workload: throughput vs latency", Title: "16 workers / batch 200 / 8 producers",
		Columns: []Column{{Name: "Relay", Text: true}, {Name: "Throughput", Unit: "msg/s", Metric: "rate"}, {Name: "p95 latency", Unit: "ms", Metric: "total_p95"}, {Name: "p99", Unit: "ms", Metric: "total_p99"}, {Name: "max lag", Unit: "messages", Metric: "max_lag"}},
		Rows: []Row{
			{Cells: []string{"16 workers / batch 200 (ours: the best of the screen)", "207", "54", "64", "15"}, At: mixed},
			{Cells: []string{"(no relay: the producers alone)", "", "", "", ""}, At: mixed.with("no relay")},
			{Cells: []string{"(weir, poll)", "", "", "", ""}, At: mixed.with("poll")},
			{Cells: []string{"(weir, log)", "", "", "", ""}, At: mixed.with("log")},
		},
	}
	parts := Table{
		Section: "5) Partition effect: pruning on/off", Title: "Partitions and window", Charted: 1,
		Columns: []Column{
			{Name: "Table", Text: true},
			{Name: "Throughput", Unit: "msg/s", Metric: "rate"},
			{Name: "pages of a claim", Unit: "/row", Own: true, Metric: "claim_pages"},
			{Name: "pages asked for", Unit: "/message", Own: true, Metric: "page_requests"},
			{Name: "pages read", Unit: "/1000 messages", Own: true, Metric: "page_reads"},
		},
		Rows: []Row{
			{Cells: []string{"partitioned=true, window=1h", "3,042"}, At: partition.with("partitioned, window")},
			{Cells: []string{"partitioned=false, window=1h", "212"}, At: partition.with("flat, window")},
			{Cells: []string{"partitioned=true, window=0", "3,226"}, At: partition.with("partitioned, no window")},
			{Cells: []string{"partitioned=false, window=0", "4,310"}, At: partition.with("flat, no window")},
			{Cells: []string{"(weir, poll)", ""}, At: partition.with("poll")},
			{Cells: []string{"(weir, log)", ""}, At: partition.with("log")},
		},
		Note: "As many rows are waited for as lie in the window, on each side. Pages of a claim are those that the first claim of a round looks at in the server's buffer pool for each row that it takes; the others are of the whole round.",
	}
	d.Tables = []Table{consume, payload, outOfBandTable(), producers, both, combinationTable(), parts, workingSet(customary), besideMySQL(), saturation()}
	d.Claims = []Claim{
		{
			Text: "16 workers x batch 200 is best", Said: "32,232 msg/s", Reading: "16x200 is faster than 8x200 and 16x100, each told apart",
			Judge: fastest(screen.with("skip-locked 16x200"), "skip-locked 8x200", "skip-locked 16x100"),
		},
		{
			Text: "Batch 200 clearly dominates", Said: "32,232 against 19,330 at 16 workers", Reading: "16x200 has at least 1.67 times the rate of 16x100",
			Judge: atLeast(screen.with("skip-locked 16x200").over(screen.with("skip-locked 16x100"), "rate"), 1.67, "batch 200 over 100"),
		},
		{
			Text: "Scaling is strong up to 8-16 workers", Said: "21,304 to 32,232", Reading: "16x200 has at least 1.5 times the rate of 8x200",
			Judge: atLeast(screen.with("skip-locked 16x200").over(screen.with("skip-locked 8x200"), "rate"), 1.5, "16 workers over 8"),
		},
		{
			Text: "Between 512 B and 4 KB throughput falls by an order of magnitude", Said: "26,003 to 1,199", Reading: "the rate at 4,096 bytes is at most a tenth of that at 512",
			Judge: atMost(apart(customary("payload-4096"), customary("payload-512"), "rate"), 0.1, "4,096 over 512 bytes"),
		},
		{
			Text: "TX and No-TX are close", Said: "203 against 211 msg/s", Reading: "8 producers: their rates are within 5 % of each other",
			Judge: alike(enqueue.with("no tx").over(enqueue.with("tx"), "rate"), 0.05, "no tx over tx"),
		},
		{
			Text: "Mixed work collapses because of what a commit costs", Said: "207 msg/s of 32k", Reading: "producers with the relay beside them keep at least 0.9 of their rate without it: they are the limit, and not the relay",
			Judge: atLeast(mixed.over(mixed.with("no relay"), "rate"), 0.9, "with the relay over without"),
		},
		{
			Text: "With a window, partitioning delivers 14 times the rate", Said: "3,042 against 212 msg/s", Reading: "partitioned has at least 14 times the rate of flat, both with a window",
			Judge: atLeast(partition.with("partitioned, window").over(partition.with("flat, window"), "rate"), 14, "partitioned over flat, with a window"),
		},
		{
			Text: "Without a window, partitioning is a net loss", Said: "3,226 against 4,310 msg/s", Reading: "partitioned has a lower rate than flat, both without a window",
			Judge: atMost(partition.with("partitioned, no window").over(partition.with("flat, no window"), "rate"), 1, "partitioned over flat, without a window"),
		},
		{
			Text: "A larger working set is slower", Said: "32k at 200,000 rows, 4.3k at 2 million", Reading: "a backlog ten times as long is delivered at most at half the rate",
			Judge: atMost(apart(customary("records-2000000"), customary("records-200000"), "rate"), 0.5, "2 million rows over 200,000"),
		},
		{
			Text: "MySQL CPU is the bottleneck", Said: "96 % (of one core, of 20)", Reading: "at most, the server uses at least 90 % of all processors",
			Judge: serverBound,
		},
		{
			Text: "Large payloads belong out of band", Said: "a recommendation", Reading: "64 and 256 KiB: a reference in the outbox and the payload in a table of its own, which the consumer reads and empties, is delivered faster than the payload in the outbox",
			Judge: every(
				atLeast(outOfBandAt(65536).with(keptRead).over(outOfBandAt(65536).with(keptIn), "rate"), 1, "64 KiB, fetched and removed, over the payload in the outbox"),
				atLeast(outOfBandAt(262144).with(keptRead).over(outOfBandAt(262144).with(keptIn), "rate"), 1, "256 KiB, the same"),
			),
		},
	}
	return d
}

// The sides of the experiment out-of-band.
const (
	keptIn    = "in the outbox"
	keptRead  = "reference, fetched and removed"
	keptAlone = "reference, not fetched"
)

// outOfBandAt is the experiment for a size.
func outOfBandAt(size int) At {
	return At{Part: "004", Experiment: fmt.Sprintf("out-of-band-%d", size)}
}

// outOfBandTable is about what the document recommends and does not measure.
func outOfBandTable() Table {
	t := Table{
		Section: "Recommendations", Title: "Payloads out of band",
		Columns: []Column{
			{Name: "Payload", Text: true},
			{Name: "in the outbox", Unit: "msg/s", Own: true},
			{Name: "reference, fetched and removed", Unit: "msg/s", Own: true},
			{Name: "against in the outbox", Unit: "x", Own: true},
			{Name: "reference alone", Unit: "msg/s", Own: true},
		},
		Note: "The document recommends an object store and a pointer, and measures none. Ours keeps payloads in a table of their own on the same server, written in the transaction that enqueues the reference; the consumer of a batch reads them and removes them. Reference alone is what the relay saves, with payloads that nobody reads. The last row is what producers enqueue.",
	}
	for _, size := range []int{512, 65536, 262144} {
		at := outOfBandAt(size)
		t.Rows = append(t.Rows, Row{Cells: []string{fmt.Sprintf("(%d bytes)", size)}, Ours: map[int]Measure{
			1: at.with(keptIn).figure("rate", 1), 2: at.with(keptRead).figure("rate", 1), 3: at.with(keptRead).over(at.with(keptIn), "rate"), 4: at.with(keptAlone).figure("rate", 1),
		}})
	}
	at := At{Part: "004", Experiment: "out-of-band-enqueue-65536"}
	t.Rows = append(t.Rows, Row{Cells: []string{"(65536 bytes, enqueued by 8 producers)"}, Ours: map[int]Measure{
		1: at.with(keptIn).figure("rate", 1), 2: at.with("reference").figure("rate", 1), 3: at.with("reference").over(at.with(keptIn), "rate"),
	}})
	return t
}

// combinationTable has the combinations of the document's mixed grid that both plans measure.
func combinationTable() Table {
	at := At{Part: "004", Experiment: "grid-8"}
	t := Table{
		Section: "4) Mixed workload: throughput vs latency", Title: "Workers x batch, 8 producers",
		Columns: []Column{
			{Name: "Combination", Text: true},
			{Name: "Throughput", Unit: "msg/s", Metric: "rate"},
			{Name: "p95 latency", Unit: "ms", Metric: "total_p95"},
			{Name: "max lag", Unit: "messages", Metric: "max_lag"},
			{Name: "commit to delivery p95", Unit: "ms", Own: true, Metric: "deliver_p95"},
		},
		Note: "The document has a grid and shows its best row; ours has its corners here, and all of it in the full plan. weir bench outbox --experiments grid measures all combinations at each number of producers.",
	}
	for _, w := range []int{16, 4} {
		for _, b := range []int{200, 100} {
			cells := []string{fmt.Sprintf("%d workers / batch %d", w, b), "", "", ""}
			if w == 16 && b == 200 {
				cells[1], cells[2], cells[3] = "207", "54", "15"
			}
			t.Rows = append(t.Rows, Row{Cells: cells, At: at.with(fmt.Sprintf("skip-locked %dx%d", w, b))})
		}
	}
	t.Rows = append(t.Rows, Row{Cells: []string{"(no relay)", "", "", ""}, At: at.with("no relay")})
	return t
}

// besideMySQL compares MySQL itself with MariaDB, on the same machine but not in turn.
func besideMySQL() Table {
	t := Table{
		Section: "Overview", Title: "MySQL itself, beside MariaDB",
		Columns: []Column{{Name: "Case", Text: true}, {Name: "MariaDB", Unit: "msg/s", Own: true}, {Name: "MySQL", Unit: "msg/s", Own: true}, {Name: "MySQL over MariaDB", Unit: "x", Own: true}},
		Note:    "The document's server is MySQL 8.0.36. weir bench outbox --engine mysql measures MySQL where its server is installed (docs/lab.md); the full plan does.",
	}
	for _, r := range [][3]string{
		{"(backlog, 16 workers / batch 200)", "screen", "skip-locked 16x200"},
		{"(backlog, weir, poll)", "screen", "poll"},
		{"(backlog, weir, log)", "screen", "log"},
		{"(8 producers, a transaction for each message)", "enqueue-8", "tx"},
		{"(8 producers, outbox.Group)", "enqueue-8", "group"},
		{"(8 producers and the best relay)", "mixed-8", "skip-locked*"},
	} {
		maria, mysql := At{"004", r[1], r[2]}, At{"004-mysql", r[1], r[2]}
		t.Rows = append(t.Rows, Row{Cells: []string{r[0]}, Ours: map[int]Measure{
			1: maria.figure("rate", 1), 2: mysql.figure("rate", 1), 3: apart(mysql, maria, "rate"),
		}})
	}
	return t
}

func workingSet(customary func(string) At) Table {
	return Table{
		Section: "5) Partition effect: pruning on/off", Title: "Working-set effect",
		Columns: []Column{{Name: "Backlog", Text: true}, {Name: "Throughput", Unit: "msg/s", Metric: "rate"}, {Name: "weir, log", Unit: "msg/s", Own: true}},
		Rows: []Row{
			{Cells: []string{"200k", "~32,000"}, At: customary("records-200000"), Ours: map[int]Measure{2: customary("records-200000").with("log").figure("rate", 1)}},
			{Cells: []string{"2M", "~4,300"}, At: customary("records-2000000"), Ours: map[int]Measure{2: customary("records-2000000").with("log").figure("rate", 1)}},
		},
		Note: "The document's two differ in more than the length: the second is spread over 90 days. Ours differ in the length alone, in the full plan.",
	}
}

func saturation() Table {
	return Table{
		Section: "6) Resource saturation", Title: "Peak CPU observed during runs",
		Columns: []Column{{Name: "Process", Text: true}, {Name: "Peak CPU", Unit: "% of one core"}, {Name: "of all cores", Unit: "%", Own: true}},
		Rows: []Row{
			{Cells: []string{"MySQL", "~96"}, Ours: map[int]Measure{1: peakCPU(bench.RoleServer, false), 2: peakCPU(bench.RoleServer, true)}},
			{Cells: []string{"Benchmark process", "~26"}, Ours: map[int]Measure{1: peakCPU(bench.RoleClient, false), 2: peakCPU(bench.RoleClient, true)}},
		},
		Note: "The document's machine has 20 threads: 96 % of one is 5 % of all.",
	}
}

// leastSeconds is how long a round must be for its CPU time to be reported: the kernel counts
// in ticks of 10 ms.
const leastSeconds = 0.5

// peakCPU is the largest use of processors by a role in any round, in percent of one or of all.
func peakCPU(role string, ofAll bool) Measure {
	return func(m *Measured) (Figure, string) {
		t := m.parts["004"]
		if t == nil {
			return Figure{}, "not in this plan"
		}
		peak := 0.0
		for _, r := range t.Results {
			for _, s := range r.Rounds() {
				u, ok := s.Processes[role]
				if !ok || s.Seconds < leastSeconds || r.Env.Cores == 0 {
					continue
				}
				share := 100 * u.CPUSeconds() / s.Seconds
				if ofAll {
					share /= float64(r.Env.Cores)
				}
				peak = max(peak, share)
			}
		}
		if peak == 0 {
			return Figure{}, "no round was long enough for its CPU time to be told"
		}
		return Figure{Interval: bench.Interval{Median: peak, Lo: peak, Hi: peak, N: 1}, Unit: "%"}, ""
	}
}

// serverBound holds if the server alone saturates the machine in some round.
func serverBound(m *Measured) Judgement {
	server, why := peakCPU(bench.RoleServer, true)(m)
	if why != "" {
		return Judgement{Verdict: CannotTell, Evidence: sentence(why)}
	}
	client, _ := peakCPU(bench.RoleClient, true)(m)
	j := Judgement{Verdict: DoesNotHold, Got: server}
	j.Evidence = fmt.Sprintf("at most, the server uses %.0f %% of all processors in a round, producers and relay %.0f %%", server.Median, client.Median)
	switch {
	case server.Median >= 100*bench.SaturatedShare:
		j.Verdict = Holds
	case !bench.Quotable(m.parts["004"].Results...):
		j.Verdict = CannotTell
		j.Evidence += "; other programs took the rest in most rounds, so that it cannot be told what would be used without them"
	}
	return j
}

// apart compares cases that were not measured in turn.
func apart(at, base At, metric string) Measure {
	return func(m *Measured) (Figure, string) {
		_, a, why := m.find(base)
		if a == nil {
			return Figure{}, why
		}
		r, b, why := m.find(at)
		if b == nil {
			return Figure{}, why
		}
		key := bench.MustMetric(metric, subject.All()...)
		ratio := bench.UnpairedRatio(a.Values(key), b.Values(key), 0.95)
		if ratio.N == 0 || math.IsNaN(ratio.Median) {
			return Figure{}, metric + " was not measured"
		}
		got := Figure{Interval: ratio, Unit: "x", Flaw: flawOf(r, b)}
		// A disturbance of one case does not affect the other.
		got.Disturbed = got.Flaw != ""
		got.Flaw = strings.TrimPrefix(got.Flaw+", measured one after the other", ", ")
		return got, ""
	}
}
