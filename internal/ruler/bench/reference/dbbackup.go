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
				{Cells: []string{"Max Goroutines", "< 1000", "Configurable", "Pass"}, Ours: map[int]Measure{2: dump.figure("goroutines", 1)}},
			},
			Note: "The document's figures are of compressing a buffer in memory. Ours are of whole backups and restores with their server, in MB/s of rows as text, peak memory in MB, and the most goroutines that a backup had at once, counted every 5 ms.",
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
		bufferClasses(),
		directIO(),
		pipelineTable(dump),
		workerTable(),
		restoreSettings(),
		memoryBudget(dump, restore),
		{
			Section: "5.1 Identified Bottlenecks", Title: "Bottlenecks",
			Columns: []Column{{Name: "Bottleneck", Text: true}, {Name: "Impact", Text: true}, {Name: "Mitigation", Text: true}, {Name: "seconds in a backup", Unit: "s", Own: true}},
			Rows: []Row{
				{Cells: []string{"Compression CPU", "High", "pgzip parallel compression"}, Ours: map[int]Measure{3: dump.figure("client_s", 1)}},
				{Cells: []string{"Disk I/O", "Medium", "Large buffers, sequential writes"}, Ours: map[int]Measure{3: sum(dump.figure("write", 1), dump.figure("commit", 1))}},
				{Cells: []string{"Database Query", "Variable", "Connection pooling, parallel dump"}, Ours: map[int]Measure{3: dump.figure("server_s", 1)}},
				{Cells: []string{"Network (cloud)", "Variable", "Multipart upload, retry logic"}, Why: "the S3 server is on this machine: its rows show requests and signatures, no distance"},
				{Cells: []string{"(time of the whole)", "", ""}, Ours: map[int]Measure{3: dump.figure("wall", 1)}},
				{Cells: []string{"(into a directory, beside S3)", "", ""}, Ours: map[int]Measure{3: stored.with("weir, dir").figure("wall", 1)}},
				{Cells: []string{"(into S3)", "", ""}, Ours: map[int]Measure{3: stored.with("weir, s3").figure("wall", 1)}},
			},
			Note: "Ours: processor time of the program and of the server, for the disk the time of writing and of durability over all chunks, and the time of a whole backup.",
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
	return Row{Cells: cells[:last], Ours: map[int]Measure{last: func(*Measured) (Figure, string) { return Figure{Text: cells[last]}, "" }}}
}

// eachBuffer reads the time and the allocation of one buffer: a move of the experiment takes a
// thousand buffers.
func eachBuffer(at At) map[int]Measure {
	return map[int]Measure{
		1: func(m *Measured) (Figure, string) {
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

// sum adds figures of one case. The interval is that of the sum of their ends, which is too
// wide if anything.
func sum(parts ...Measure) Measure {
	return func(m *Measured) (Figure, string) {
		var out Figure
		for i, part := range parts {
			g, why := part(m)
			if why != "" {
				return Figure{}, why
			}
			if i == 0 {
				out = g
				continue
			}
			out.Median, out.Lo, out.Hi = out.Median+g.Median, out.Lo+g.Lo, out.Hi+g.Hi
		}
		return out, ""
	}
}

// bufferClasses is about the document's pool of four classes, and what each of them would do
// for weir's pipeline, which has one.
func bufferClasses() Table {
	t := Table{
		Section: "3.1 Buffer Pool", Title: "Four classes of buffers",
		Columns: []Column{
			{Name: "Class", Text: true},
			{Name: "weir's pool", Unit: "ns", Own: true},
			{Name: "sync.Pool", Unit: "ns", Own: true},
			{Name: "a chunk with it", Unit: "MB/s", Own: true},
			{Name: "allocated", Unit: "MB", Own: true},
		},
		Note: "weir has one class, of 256 KiB, and a bounded number of them: the last two columns are a chunk through its pipeline (zstd:1) with buffers of each class. A pool of several classes is for callers that ask for several sizes; all stages of the pipeline hand on the same buffer.",
	}
	for _, r := range []struct {
		name string
		kib  int
	}{{"small", 64}, {"medium", 256}, {"large", 1024}, {"huge", 4096}} {
		at := At{Part: "002", Experiment: fmt.Sprintf("buffers-%dk", r.kib)}
		through := At{"002", "classes-shop", fmt.Sprintf("buffers of %d KiB", r.kib)}
		t.Rows = append(t.Rows, Row{Cells: []string{fmt.Sprintf("%s, %d KB", r.name, r.kib)}, Ours: map[int]Measure{
			1: eachBuffer(at.with("weir's pool"))[1], 2: eachBuffer(at.with("sync.Pool"))[1], 3: through.figure("plain_rate", 1), 4: through.figure("allocated", 1e-6),
		}})
	}
	return t
}

// directIO is about what the document names as future work.
func directIO() Table {
	at := At{Part: "002", Experiment: "direct-io"}
	t := Table{
		Section: "8.2 Future Optimizations", Title: "Direct I/O",
		Columns: []Column{{Name: "Way", Text: true}, {Name: "rate", Unit: "MB/s", Own: true}, {Name: "against buffered", Unit: "x", Own: true}, {Name: "left in the page cache", Unit: "MB", Own: true}},
		Note:    "A file that is durable at its end (fsync), in blocks of 1 MiB. weir writes through the page cache. O_DIRECT takes aligned blocks, and a file system that has it.",
	}
	for _, how := range []string{"buffered", "buffered, then dropped from the cache", "O_DIRECT"} {
		c := at.with(how)
		row := Row{Cells: []string{how}, Ours: map[int]Measure{1: c.figure("plain_rate", 1), 3: c.figure("cached", 1)}}
		if how != "buffered" {
			row.Ours[2] = c.over(at.with("buffered"), "rate")
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// pipelineTable shows which stages wait for which.
func pipelineTable(dump At) Table {
	t := Table{
		Section: "3.4 Pipeline Stage System", Title: "Stages: who waits for whom, in a backup",
		Columns: []Column{{Name: "Stage", Text: true}, {Name: "works", Unit: "s", Own: true}, {Name: "waits for input", Unit: "s", Own: true}, {Name: "for output", Unit: "s", Own: true}, {Name: "readers' time", Unit: "%", Own: true}},
		Note:    "Over all chunks together, by the clock of weir backup itself (--json), which looks at it where a stage waits. The last column is what those who read rows spend their time on; their own work is in the line of read.",
	}
	for _, r := range []struct{ name, key, share string }{
		{"(the server)", "", "wait_server"}, {"read", "read", "own_work"}, {"compress, hash of rows", "compress", "wait_compressor"}, {"encrypt, hash, store", "store", "wait_storage"},
	} {
		row := Row{Cells: []string{r.name}, Ours: map[int]Measure{4: dump.figure(r.share, 1)}}
		if r.key != "" {
			for i, part := range []string{"_busy", "_input", "_output"} {
				row.Ours[i+1] = dump.figure(r.key+part, 1)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	for _, r := range [][2]string{{"(of it: hash)", "hash"}, {"(of it: writes)", "write"}, {"(durability)", "commit"}} {
		t.Rows = append(t.Rows, Row{Cells: []string{r[0]}, Ours: map[int]Measure{1: dump.figure(r[1], 1)}})
	}
	return t
}

// workerTable compares the document's scaling pool of workers with weir's.
func workerTable() Table {
	procs := runtime.GOMAXPROCS(0)
	at := At{Part: "002", Experiment: "adaptive-dump-shop"}
	t := Table{
		Section: "3.5 Worker Pool", Title: "Adaptive workers",
		Columns: []Column{
			{Name: "Workers", Text: true},
			{Name: "backup", Unit: "s", Own: true},
			{Name: "at most", Own: true},
			{Name: "busy", Own: true},
			{Name: "grown", Own: true},
			{Name: "shrunk", Own: true},
			{Name: "completed", Unit: "jobs", Own: true},
		},
		Note: "weir's number follows the bytes that all workers move in a time: one more stays if it adds at least a quarter of what each moves (docs/backup.md, --max-jobs). A backup of a second is over before it has looked twice.",
	}
	for _, name := range []string{fmt.Sprintf("weir, %d jobs", procs), fmt.Sprintf("weir, 1 to %d jobs", 4*procs)} {
		c := at.with(name)
		row := Row{Cells: []string{name}, Ours: map[int]Measure{1: c.figure("wall", 1)}}
		for i, key := range []string{"workers_peak", "workers_busy", "workers_grown", "workers_shrunk", "jobs_completed"} {
			row.Ours[i+2] = c.figure(key, 1)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// restoreSettings sweeps the document's settings for restores.
func restoreSettings() Table {
	at := At{Part: "002", Experiment: "settings-restore-shop"}
	t := Table{
		Section: "3.2 Streaming Restore Engine I/O", Title: "Settings of a restore's sessions",
		Columns: []Column{{Name: "Setting", Text: true}, {Name: "document's", Text: true}, {Name: "restore", Unit: "s", Own: true}, {Name: "against as it is", Unit: "x", Own: true}},
		Note:    "One archive, restored without ANALYZE. weir's flags: --index-workers, --index-memory, --set, --index-timeout; the full plan also sweeps 1 and 8 workers and the memory of index builds. The ratio is of speeds: below 1 is slower.",
	}
	for _, r := range [][3]string{
		{"(as it is)", "", "as it is"},
		{"max_parallel_maintenance_workers = 0", "", "index workers: 0"},
		{"max_parallel_maintenance_workers = 2", "", "index workers: 2"},
		{"max_parallel_maintenance_workers = 4", "4", "index workers: 4"},
		{"effective_io_concurrency, random_page_cost", "200, 1.1", "settings of an SSD"},
	} {
		c := at.with("weir, " + r[2])
		row := Row{Cells: []string{r[0], r[1]}, Ours: map[int]Measure{2: c.figure("wall", 1)}}
		if r[2] != "as it is" {
			row.Ours[3] = c.over(at.with("weir, as it is"), "rate")
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func memoryBudget(dump, restore At) Table {
	of := func(keys ...string) map[int]Measure {
		var backup, back []Measure
		for _, k := range keys {
			backup, back = append(backup, dump.figure("mem_"+k, 1)), append(back, restore.figure("mem_"+k, 1))
		}
		return map[int]Measure{3: sum(backup...), 4: sum(back...)}
	}
	return Table{
		Section: "4.1 Memory Budget", Title: "Memory",
		Columns: []Column{{Name: "Component", Text: true}, {Name: "Per-Instance", Text: true}, {Name: "Total (typical)"}, {Name: "backup", Unit: "MB", Own: true}, {Name: "restore", Unit: "MB", Own: true}},
		Rows: []Row{
			{Cells: []string{"pgzip Writer (ours: compressors, zstd)", "2 x blockSize x workers", "~16MB @ 1MB x 8"}, Ours: map[int]Measure{3: dump.figure("mem_compressors", 1)}},
			{Cells: []string{"pgzip Reader (ours: decompressors, zstd)", "blockSize x workers", "~8MB @ 1MB x 8"}, Ours: map[int]Measure{4: restore.figure("mem_compressors", 1)}},
			{Cells: []string{"Copy Buffer (ours: the pipeline's buffers)", "1-4MB", "4MB"}, Ours: of("buffers")},
			{Cells: []string{"(buffers of sessions)", "", ""}, Ours: of("sessions")},
			{Cells: []string{"(lists: catalogue, chunks, manifest)", "", ""}, Ours: of("lists")},
			{Cells: []string{"Goroutine Stack", "2KB minimum", "~200KB @ 100 goroutines"}, Ours: of("stacks")},
			{Cells: []string{"Channel Buffers (ours: the rest of the heap)", "Negligible", "< 1MB"}, Ours: of("rest")},
			{Cells: []string{"(Go's runtime, free heap)", "", ""}, Ours: of("runtime")},
			{Cells: []string{"(the program: code and data)", "", ""}, Ours: of("program")},
			{Cells: []string{"(garbage at the peak)", "", ""}, Ours: of("garbage")},
			{Cells: []string{"Total estimated peak", "", "~30MB"}, Ours: of("peak")},
		},
		Note: "The document's budget is estimated. Ours is measured by the process itself: components by a sampled heap profile right after a collection, buffers exactly; what the peak had beyond them is garbage.",
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
