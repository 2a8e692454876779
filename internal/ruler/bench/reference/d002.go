package reference

import (
	"fmt"
	"runtime"
)

// dbBackup is report 002.
func dbBackup() Document {
	procs := runtime.GOMAXPROCS(0)
	parallel := func(m string) string {
		if procs > 1 {
			return fmt.Sprintf("%s, %d processors", m, procs)
		}
		return m
	}
	buffers := At{Part: "002", Experiment: "buffers-1024k"}
	pack, unpack := At{Part: "002", Experiment: "compress-shop"}, At{Part: "002", Experiment: "decompress-shop"}
	copies, dump, restore := At{Part: "002", Experiment: "copy-memory"}, At{Part: "002", Experiment: "dump-shop", Case: "weir"}, At{Part: "002", Experiment: "restore-shop", Case: "weir"}
	stored := At{Part: "002", Experiment: "storage-dump-shop"}
	const std = "standard library, gzip:6"
	d := Document{
		ID: "002", Name: "dbbackup", Title: "dbbackup: Goroutine-Based Performance Analysis & Optimization Report",
		About: []string{
			"Compression is measured on rows that are made up to shrink as real ones do, and whole backups and restores are programs on a server, timed until the archive is on the disk.",
			"Sections 1.1, 3 and 9 describe code; their counterparts are named in docs/reports/coverage.md.",
		},
		Published: publishedBackup,
	}
	d.Tables = []Table{
		{
			Section: "Executive Summary", Title: "Performance Targets",
			Columns: []Column{{Name: "Metric", Text: true}, {Name: "Target", Text: true}, {Name: "Achieved"}, {Name: "Status", Text: true}},
			Rows: []Row{
				{Cells: []string{"Dump Throughput", "500 MB/s", "2,048 MB/s", "4x target"}, Ours: map[int]Measure{2: dump.figure("plain_rate", 1)}},
				{Cells: []string{"Restore Throughput", "300 MB/s", "1,673 MB/s", "5.6x target"}, Ours: map[int]Measure{2: restore.figure("plain_rate", 1)}},
				{Cells: []string{"Memory Usage", "< 2GB", "Bounded", "Pass"}, Ours: map[int]Measure{2: dump.figure("peak", 1)}},
				{Cells: []string{"Max Goroutines", "< 1000", "Configurable", "Pass"}, Why: "a fixed number for each job, not counted in this plan"},
			},
			Note: "The document's figures are of compressing a buffer in memory. Ours are of whole backups and restores with their server, in MB/s of rows as text, and peak memory in MB.",
		},
		{
			Section: "1.2 Concurrency Configuration", Title: "Parameters",
			Columns: []Column{{Name: "Parameter", Text: true}, {Name: "Default", Text: true}, {Name: "Range", Text: true}, {Name: "weir's", Own: true, Text: true}},
			Rows: []Row{
				words("Jobs", "runtime.NumCPU()", "1-32", "--jobs"),
				words("DumpJobs", "4", "1-16", "--dump-jobs"),
				words("ClusterParallelism", "2", "1-8", "--cluster-parallelism"),
				words("MaxWorkers", "4", "1-CPU count", "--profile: workers that compress, by processors and memory"),
			},
		},
		{
			Section: "2.1 Buffer Pool Performance", Title: "Buffers of 1 MB",
			Columns: []Column{{Name: "Operation", Text: true}, {Name: "Time", Unit: "ns"}, {Name: "Allocations", Unit: "B/op"}},
			Rows: []Row{
				{Cells: []string{"Buffer Pool Get/Put", "26", "0"}, Ours: eachBuffer(buffers.with("weir's pool"))},
				{Cells: []string{"Direct Allocation (1MB)", "131,000", "1 MB"}, Ours: eachBuffer(buffers.with("made anew"))},
				{Cells: []string{"Concurrent Pool Access", "6", "0"}, Ours: eachBuffer(buffers.with(fmt.Sprintf("weir's pool, by %d at once", procs)))},
				{Cells: []string{"(sync.Pool, as the document's)", "", ""}, Ours: eachBuffer(buffers.with("sync.Pool"))},
			},
			Note: "weir's pool is bounded: a goroutine that wants a buffer beyond the limit waits, which a sync.Pool does not do.",
		},
		compressionTable(pack, unpack, std, parallel),
		{
			Section: "2.3 Copy Performance", Title: "Copies in memory", Charted: 1,
			Columns: []Column{{Name: "Method", Text: true}, {Name: "Throughput", Unit: "MB/s", Metric: "plain_rate"}, {Name: "Buffer Size", Text: true}},
			Rows: []Row{
				{Cells: []string{"Standard io.Copy", "3,230", "32KB default"}, At: copies.with("io.Copy")},
				{Cells: []string{"OptimizedCopy (pooled)", "1,073", "1MB"}, At: copies.with("buffer of 1 MiB")},
				{Cells: []string{"HighThroughputCopy", "1,211", "4MB"}, At: copies.with("buffer of 4 MiB")},
				{Cells: []string{"(weir's pipeline, with a SHA-256)", "", ""}, At: copies.with("weir's pipeline, hashed")},
			},
		},
		memoryBudget(dump, restore),
		{
			Section: "5.1 Identified Bottlenecks", Title: "Bottlenecks",
			Columns: []Column{{Name: "Bottleneck", Text: true}, {Name: "Impact", Text: true}, {Name: "Mitigation", Text: true}, {Name: "seconds in a backup", Unit: "s", Own: true}},
			Rows: []Row{
				{Cells: []string{"Compression CPU", "High", "pgzip parallel compression"}, Ours: map[int]Measure{3: dump.figure("client_s", 1)}},
				{Cells: []string{"Disk I/O", "Medium", "Large buffers, sequential writes"}, Why: "inside the time of the whole"},
				{Cells: []string{"Database Query", "Variable", "Connection pooling, parallel dump"}, Ours: map[int]Measure{3: dump.figure("server_s", 1)}},
				{Cells: []string{"Network (cloud)", "Variable", "Multipart upload, retry logic"}, Why: "the S3 server is on this machine: its rows show requests and signatures, no distance"},
				{Cells: []string{"(time of the whole)", "", ""}, Ours: map[int]Measure{3: dump.figure("wall", 1)}},
				{Cells: []string{"(into a directory, beside S3)", "", ""}, Ours: map[int]Measure{3: stored.with("weir, dir").figure("wall", 1)}},
				{Cells: []string{"(into S3)", "", ""}, Ours: map[int]Measure{3: stored.with("weir, s3").figure("wall", 1)}},
			},
			Note: "Ours: processor time of the program and of the server, and the time of a whole backup.",
		},
		profileTable(),
		{
			Section: "7.2 Benchmark Summary", Title: "Benchmarks",
			Columns: []Column{{Name: "Benchmark", Text: true}, {Name: "Time", Text: true}, {Name: "Throughput", Unit: "MB/s", Metric: "plain_rate"}},
			Rows: []Row{
				{Cells: []string{"BenchmarkBufferPoolLarge-8", "30 ns/op", ""}, Ours: map[int]Measure{1: eachBuffer(buffers.with("weir's pool"))[1]}},
				{Cells: []string{"BenchmarkBufferAllocation-8", "131 us/op", ""}, Ours: map[int]Measure{1: eachBuffer(buffers.with("made anew"))[1]}},
				{Cells: []string{"BenchmarkParallelGzipWriterFastest", "5 ms/op", "2,048"}, At: pack.with(parallel("gzip:1"))},
				{Cells: []string{"BenchmarkStandardGzipWriter", "25 ms/op", "422"}, At: pack.with(std)},
				{Cells: []string{"BenchmarkSemaphoreParallel", "45 ns/op", ""}, Why: "weir bounds jobs by their number, and has no semaphore of its own"},
			},
			Note: "Times of buffers in ns.",
		},
	}
	d.Claims = []Claim{
		{
			Text: "Parallel gzip at level 1 is 4.9 times as fast as the standard library", Said: "2,048 against 422 MB/s, 8 workers", Reading: "gzip:1 on all processors has at least 4.9 times the rate of the standard library's gzip:6",
			Judge: atLeast(pack.with(parallel("gzip:1")).over(pack.with(std), "rate"), 4.9, "gzip:1 on all processors over the standard library"),
		},
		{
			Text: "At the default level it is 2.2 times as fast", Said: "915 against 422 MB/s", Reading: "gzip:6 on all processors has at least 2.2 times the rate of the standard library's gzip:6",
			Judge: atLeast(pack.with(parallel("gzip:6")).over(pack.with(std), "rate"), 2.2, "gzip:6 on all processors over the standard library"),
		},
		{
			Text: "Decompression is 4.0 times as fast", Said: "1,673 against 422 MB/s, which compresses", Reading: "decompression of gzip has at least 4.0 times the rate of the standard library's",
			Judge: atLeast(unpack.with("gzip:6").over(unpack.with(std), "rate"), 4, "decompression over the standard library's"),
		},
		{
			Text: "Pooled buffers are 5000 times as fast as allocation", Said: "26 ns against 131 us", Reading: "a buffer of the pool is had at least 5000 times as fast as a new one",
			Judge: atLeast(buffers.with("weir's pool").over(buffers.with("made anew"), "rate"), 5000, "weir's pool over made anew"),
		},
		{
			Text: "Standard io.Copy is faster in memory", Said: "3,230 against 1,073 and 1,211 MB/s", Reading: "io.Copy is faster than buffers of 1 and of 4 MiB, each told apart",
			Judge: fastest(copies.with("io.Copy"), "buffer of 1 MiB", "buffer of 4 MiB"),
		},
		{
			Text: "Dump throughput exceeds 500 MB/s", Said: "2,048 MB/s", Reading: "a whole backup of weir moves at least 500 MB/s of rows",
			Judge: atLeast(dump.figure("plain_rate", 1), 500, "backup"),
		},
		{
			Text: "Restore throughput exceeds 300 MB/s", Said: "1,673 MB/s", Reading: "a whole restore of weir, with indexes and keys, moves at least 300 MB/s of rows",
			Judge: atLeast(restore.figure("plain_rate", 1), 300, "restore"),
		},
		{
			Text: "Memory is bounded, below 2 GB", Said: "bounded via pooling", Reading: "the peak memory of backup and of restore is at most 2,000 MB",
			Judge: every(atMost(dump.figure("peak", 1), 2000, "peak of a backup"), atMost(restore.figure("peak", 1), 2000, "peak of a restore")),
		},
		{
			Text: "Zstd is 10 to 20 % faster than gzip", Said: "future optimization", Reading: "zstd:1 has at least 1.1 times the rate of gzip:1 on one processor",
			Judge: atLeast(pack.with("zstd:1").over(pack.with("gzip:1"), "rate"), 1.1, "zstd:1 over gzip:1"),
		},
		{
			Text: "Level 1 is 2 to 5 times as fast", Said: "BestSpeed against Default", Reading: "gzip:1 has at least 2 times the rate of gzip:6 on one processor",
			Judge: atLeast(pack.with("gzip:1").over(pack.with("gzip:6"), "rate"), 2, "gzip:1 over gzip:6"),
		},
		{
			Text: "Turbo is the fastest profile for restores", Said: "no figure", Reading: "weir's turbo is faster than its other profiles, each told apart",
			Judge: fastest(At{"002", "profiles-restore-shop", "weir, turbo"}, "weir, conservative", "weir, balanced", "weir, performance", "weir, max-performance"),
		},
	}
	return d
}

// words is a row whose last cell is ours, in words.
func words(cells ...string) Row {
	last := len(cells) - 1
	return Row{Cells: cells[:last], Ours: map[int]Measure{last: func(*Measured) (Got, string) { return Got{Text: cells[last]}, "" }}}
}

// eachBuffer reads time and allocation of one buffer: a move of the experiment is a
// thousand of them.
func eachBuffer(at At) map[int]Measure {
	return map[int]Measure{
		1: func(m *Measured) (Got, string) {
			g, why := at.figure("rate", 1)(m)
			if why != "" || g.Median == 0 {
				return g, why
			}
			g.Median, g.Lo, g.Hi, g.Unit = 1e6/g.Median, 1e6/g.Hi, 1e6/g.Lo, "ns"
			return g, ""
		},
		2: at.figure("allocated", 1e-3),
	}
}

func compressionTable(pack, unpack At, std string, parallel func(string) string) Table {
	row := func(at At, name, rate, times string) Row {
		return Row{Cells: []string{name, rate, times}, At: at, Ours: map[int]Measure{2: at.over(at.with(std), "rate")}}
	}
	return Table{
		Section: "2.2 Compression Performance", Title: "Compression", Charted: 1,
		Columns: []Column{{Name: "Method", Text: true}, {Name: "Throughput", Unit: "MB/s", Metric: "plain_rate"}, {Name: "vs Standard"}, {Name: "times smaller", Own: true, Metric: "squeeze"}},
		Rows: []Row{
			row(pack.with(parallel("gzip:1")), "pgzip BestSpeed (8 workers)", "2,048", "4.9x faster"),
			row(pack.with(parallel("gzip:6")), "pgzip Default (8 workers)", "915", "2.2x faster"),
			row(unpack.with("gzip:6"), "pgzip Decompression", "1,673", "4.0x faster"),
			{Cells: []string{"Standard gzip", "422", "Baseline"}, At: pack.with(std)},
			row(pack.with("zstd:1"), "(zstd:1, weir's default, one processor)", "", ""),
			row(pack.with("lz4:1"), "(lz4:1, one processor)", "", ""),
		},
		Note: fmt.Sprintf("Ours uses the %d processors of this machine where the document has 8 workers. Decompression is set against the standard library's decompression.", runtime.GOMAXPROCS(0)),
	}
}

func memoryBudget(dump, restore At) Table {
	inside := "inside the peak of the whole"
	return Table{
		Section: "4.1 Memory Budget", Title: "Memory",
		Columns: []Column{{Name: "Component", Text: true}, {Name: "Per-Instance", Text: true}, {Name: "Total (typical)"}},
		Rows: []Row{
			{Cells: []string{"pgzip Writer", "2 x blockSize x workers", "~16MB @ 1MB x 8"}, Why: inside},
			{Cells: []string{"pgzip Reader", "blockSize x workers", "~8MB @ 1MB x 8"}, Why: inside},
			{Cells: []string{"Copy Buffer", "1-4MB", "4MB"}, Why: inside},
			{Cells: []string{"Goroutine Stack", "2KB minimum", "~200KB @ 100 goroutines"}, Why: inside},
			{Cells: []string{"Channel Buffers", "Negligible", "< 1MB"}, Why: inside},
			{Cells: []string{"Total estimated peak (backup)", "", "~30MB"}, Ours: map[int]Measure{2: dump.figure("peak", 1)}},
			{Cells: []string{"(restore)", "", ""}, Ours: map[int]Measure{2: restore.figure("peak", 1)}},
		},
		Note: "The document's budget is estimated. Ours is the peak of the process, in MB, measured.",
	}
}

func profileTable() Table {
	dump, restore := At{Part: "002", Experiment: "profiles-dump-shop"}, At{Part: "002", Experiment: "profiles-restore-shop"}
	t := Table{
		Section: "6.1 Existing Profiles", Title: "Resource profiles",
		Columns: []Column{
			{Name: "Profile", Text: true},
			{Name: "Jobs"},
			{Name: "Cluster Parallelism"},
			{Name: "Memory", Text: true},
			{Name: "Use Case", Text: true},
			{Name: "backup", Unit: "s", Own: true},
			{Name: "restore", Unit: "s", Own: true},
			{Name: "peak of a backup", Unit: "MB", Own: true},
		},
		Note: "The full plan measures the profiles.",
	}
	for _, r := range [][]string{
		{"conservative", "1", "1", "Low", "Small VMs, large DBs"},
		{"balanced", "2", "2", "Medium", "Default, most scenarios"},
		{"performance", "4", "4", "Medium-High", "8+ core servers"},
		{"max-performance", "8", "8", "High", "16+ core servers"},
		{"turbo", "8", "2", "High", "Fastest restore"},
	} {
		name := "weir, " + r[0]
		t.Rows = append(t.Rows, Row{Cells: r, Ours: map[int]Measure{
			5: dump.with(name).figure("wall", 1), 6: restore.with(name).figure("wall", 1), 7: dump.with(name).figure("peak", 1),
		}})
	}
	return t
}
