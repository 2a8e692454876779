package peers

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/reference"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Row is one line of the page: a goal, and where the run has measured it.
type Row struct {
	Area string // heading of its table
	Work string
	Part string // of the run
	// Goal names the experiment, the metric and the limit. Its cases are patterns of
	// path.Match; the fastest case that matches is used. With Against "" the figure of Side
	// itself is judged.
	Goal suite.Goal
	// Kind is the kind of work whose rate is compared, for cases that do several at once; ""
	// for the metric of the goal.
	Kind string
	// Window compares with the best fixed window of the experiment instead of Against.
	Window bool
	// Floor is the case of the experiment that does only what the work requires; "" if there is
	// none. It is judged like Side.
	Floor string
	// Limit is the page below docs/results that says what limits the figure here, and how that
	// was measured. A new row also needs a line in docs/results/speed-rows.md.
	Limit string
}

// judged is a row and the verdict of a run.
type judged struct {
	Row
	Target suite.Target
	// Theirs and Ours are the medians of the two sides, formatted with their unit; Name is the
	// name of the other side.
	Name, Theirs, Ours string
	// Floor is the figure of the row's floor, in the unit of the goal; "" if it was not
	// measured.
	Floor string
	// Beyond is set if the floor misses the goal as well, and weir is no better than the floor:
	// the share of the floor's figure that weir reaches. Otherwise 0.
	Beyond float64
	// Why says why there is no verdict.
	Why string
}

// judge judges a row by a run.
func (w Row) judge(m *reference.Measured) judged {
	out := judged{Row: w, Name: w.Goal.Against}
	r, why := m.Result(w.Part, w.Goal.Experiment)
	if r == nil {
		out.Why = why
		return out
	}
	side := r.Match(w.Goal.Side)
	if side == nil {
		out.Why = fmt.Sprintf("%s had no case %q", w.Goal.Experiment, w.Goal.Side)
		return out
	}
	var against *bench.Case
	switch {
	case w.Window:
		against = r.BestWindow()
		out.Name = "best fixed window"
	case w.Goal.Against != "":
		against = r.Match(w.Goal.Against)
	}
	if against == nil && (w.Window || w.Goal.Against != "") {
		out.Why = fmt.Sprintf("%s had no case %q", w.Goal.Experiment, out.Name)
		return out
	}
	if against != nil {
		out.Name = against.Name
		out.Theirs = w.figure(against)
	}
	out.Ours = w.figure(side)
	floor, ok := w.hold(against, r.Match(w.Floor))
	if ok {
		out.Floor = bench.Figure(floor.Got.Median)
		if floor.Unit == "x" {
			out.Floor += "x"
		} else {
			out.Floor += " " + floor.Unit
		}
	}
	measured := ok
	if out.Target, ok = w.hold(against, side); !ok {
		out.Why = fmt.Sprintf("%s of the two sides was not measured, or a round of one side broke a promise", w.Goal.Metric)
	} else if measured && out.Target.Verdict != suite.Met {
		out.Beyond = w.beyond(out.Target.Got.Median, floor.Got.Median)
	}
	return out
}

// nearFloor is by how much weir may be better than a floor that still counts as its limit: if
// weir is better by more, it does something else than the floor.
const nearFloor = 1.05

// beyond computes judged.Beyond from two medians.
func (w Row) beyond(ours, floor float64) float64 {
	share, misses := ours/floor, floor < w.Goal.Min
	if w.Goal.Max > 0 {
		share, misses = floor/ours, floor > w.Goal.Max
	}
	if !misses || !(share > 0 && share <= nearFloor) {
		return 0
	}
	return share
}

// want formats the goal of a row that was not measured.
func (w Row) want() string {
	unit := "x"
	if w.Kind == "" && !w.Window && w.Goal.Against == "" {
		unit = bench.MustMetric(w.Goal.Metric, subject.All()...).Unit
	}
	want, _ := suite.Decide(bench.Interval{}, w.Goal.Min, w.Goal.Max, unit)
	return want
}

// hold judges a case by the goal.
func (w Row) hold(against, side *bench.Case) (suite.Target, bool) {
	if w.Kind != "" {
		return w.ofKind(against, side)
	}
	return w.Goal.JudgeCases(against, side)
}

// figure is the median of a side.
func (w Row) figure(c *bench.Case) string {
	if w.Kind != "" {
		return bench.Figure(bench.KindRates(c)[w.Kind]) + " ops/s"
	}
	s, ok := c.Summary[w.Goal.Metric]
	if !ok {
		return ""
	}
	return bench.Figure(s.Median) + " " + s.Unit
}

// ofKind compares the rates of one kind of work by pairs of rounds.
func (w Row) ofKind(against, side *bench.Case) (suite.Target, bool) {
	if against == nil || side == nil || against.Invalid() || side.Invalid() {
		return suite.Target{}, false
	}
	var ratios []float64
	for i := range min(len(against.Samples), len(side.Samples)) {
		if a, b := against.Samples[i].Rates[w.Kind], side.Samples[i].Rates[w.Kind]; a > 0 && b > 0 {
			ratios = append(ratios, b/a)
		}
	}
	if len(ratios) == 0 {
		return suite.Target{}, false
	}
	t := suite.Target{Claim: w.Work, Got: bench.MedianInterval(ratios, 0.95), Unit: "x"}
	t.Want, t.Verdict = suite.Decide(t.Got, w.Goal.Min, w.Goal.Max, t.Unit)
	return t, true
}

// floorNotes describes the floor of each heading, if it has one.
var floorNotes = map[string]string{
	areaProxyPG: "a program that only copies bytes: one thread that reads and writes, with a server connection per client; for hinted INSERTs and UPDATEs one that groups those that are waiting, without parsing them",
	areaProxyMy: "the same two programs",
	areaBackup:  "a program that copies the rows of PostgreSQL to zstd files, with weir's sessions, encoder and order: without definitions, snapshot, checksums or manifest, and the benchmark flushes its files",
	areaKV:      "a table in memory behind one thread, whose writes are answered when its log and that of one of two other processes are flushed: no elections, no checks, nothing to recover",
	areaOutbox:  "a relay that follows the log and records no deliveries, so that the rows stay and the table grows",
}

// The headings of the page.
const (
	areaProxyPG = "weir proxy, PostgreSQL"
	areaProxyMy = "weir proxy, MariaDB"
	areaBackup  = "weir backup and restore"
	areaKV      = "weir kv"
	areaOutbox  = "weir outbox"
)

// Rows lists all goals.
func Rows() []Row {
	var out []Row
	area, part, limit, floor := "", "", "", ""
	least := func(work, experiment, against, side, metric string, least float64) {
		out = append(out, Row{Area: area, Work: work, Part: part, Limit: limit, Floor: floor, Goal: suite.AtLeast(experiment, against, side, metric, least, work)})
	}
	most := func(work, experiment, against, side, metric string, most float64) {
		out = append(out, Row{Area: area, Work: work, Part: part, Limit: limit, Floor: floor, Goal: suite.AtMost(experiment, against, side, metric, most, work)})
	}

	area, part, limit, floor = areaProxyPG, "proxy-postgres", "hop.md", "group"
	least("hinted INSERTs, prepared, 64 clients", "inserts-64", "direct", "weir auto", "rate", 4)
	least("hinted INSERTs, prepared, 256 clients", "inserts-256", "direct", "weir auto", "rate", 7)
	least("hinted INSERTs, prepared, 1000 clients", "inserts-1000", "direct", "weir auto", "rate", 10)
	most("weir's CPU time for a hinted INSERT, 64 clients", "inserts-64", "", "weir auto", "cpu_proxy", 4)
	least("hinted INSERTs as text, 64 clients", "literals-64", "direct", "weir auto", "rate", 3.5)
	least("hinted INSERTs as text, 256 clients", "literals-256", "direct", "weir auto", "rate", 6)
	least("hinted UPDATEs by key, prepared, 64 clients", "updates-64", "direct", "weir auto", "rate", 2)
	floor = "copy"
	for _, g := range []struct {
		clients int
		goal    float64
	}{{16, 0.9}, {64, 1}, {256, 1.1}} {
		least(fmt.Sprintf("pgbench -N, prepared, %d clients", g.clients), fmt.Sprintf("transactions-%d", g.clients), "direct", "weir", "rate", g.goal)
	}
	least("pgbench -N, prepared, 16 clients", "transactions-16", "pgbouncer", "weir", "rate", 1.5)
	for _, g := range []struct {
		clients int
		goal    float64
	}{{16, 0.95}, {64, 1.8}, {256, 2.2}} {
		least(fmt.Sprintf("key lookups, prepared, %d clients", g.clients), fmt.Sprintf("reads-prepared-%d", g.clients), "direct", "weir", "rate", g.goal)
	}
	least("key lookups, prepared, 64 clients", "reads-prepared-64", "pgbouncer", "weir", "rate", 1.6)
	for _, g := range []struct{ method, text string }{{"trust", "without a password"}, {"md5", "by md5 and a file"}, {"auth-query", "by md5 and a query"}} {
		least("pgbench -C, logins "+g.text+", 10 clients", "logins-"+g.method+"-10", "pgbouncer", "weir", "rate", 1)
	}
	out = append(out, Row{Area: area, Work: "no window against the best one, 2 ms for a flush, 256 clients", Part: part, Limit: limit, Window: true, Goal: suite.AtLeast("inserts-256-fsync2ms", "", "weir auto", "rate", 0.97, "")})

	area, part, limit = areaProxyMy, "proxy-mariadb", "hop.md"
	least("hinted INSERTs as text, 1 client", "literals-1", "direct", "weir auto", "rate", 0.85)
	for _, g := range []struct {
		clients int
		goal    float64
	}{{16, 0.95}, {64, 0.95}, {256, 1.1}} {
		least(fmt.Sprintf("INSERTs without a hint, %d clients", g.clients), fmt.Sprintf("inserts-%d", g.clients), "direct", "weir 0", "rate", g.goal)
	}
	floor = "group"
	least("hinted INSERTs, prepared, 64 clients", "inserts-64", "direct", "weir auto", "rate", 2.5)
	least("hinted INSERTs, prepared, 256 clients", "inserts-256", "direct", "weir auto", "rate", 5)

	area, part, limit, floor = areaBackup, "backup-postgres", "speed-backup.md", "floor"
	least("backup of a shop", "dump-shop", "pg_dump 1[678], zstd:1", "weir", "rate", 1)
	most("its CPU time, the client's", "dump-shop", "pg_dump 1[678], zstd:1", "weir", "cpu_client", 1.2)
	least("backup of one huge table", "dump-huge", "pg_dump 1[678], zstd:1", "weir", "rate", 1.3)
	part, floor = "restore-postgres", ""
	least("restore of a shop", "restore-shop", "pg_restore*", "weir", "rate", 1.2)
	part = "backup-mariadb"
	least("backup of a shop, MariaDB", "dump-shop", "mydumper*, zstd", "weir", "rate", 1.1)
	least("restore of a shop, MariaDB", "restore-shop", "myloader*", "weir", "rate", 1.2)

	area, part, limit, floor = areaKV, "kv", "speed-kv-outbox.md", "floor, three logs"
	least("report 2's mix, durable, the default preset", "presets", "", "raft-ht", "rate", 125_000)
	most("one client, p50 of a put", "single-put", "", "weir, disk", "strong_write_p50", 0.25)
	least("60 clients, half writes", "etcd-60", "etcd", "weir", "rate", 6)
	most("60 clients, p99", "etcd-60", "etcd", "weir", "p99", 0.33)
	floor = ""
	least("no delay against the best one, 60 clients, 10 ms away", "cell-disk-10ms-60", "* us", "auto", "rate", 0.97)

	area, part, limit, floor = areaOutbox, "outbox-mariadb", "speed-kv-outbox.md", "log, floor"
	least("a backlog by the log, against the customary design, MariaDB", "focus", "skip-locked*", "log", "rate", 20)
	out = append(out, Row{Area: area, Work: "what 8 producers keep of their rate beside a relay, closed loop", Part: part, Limit: limit, Floor: floor, Kind: "enqueue", Goal: suite.AtLeast("mixed-8", "no relay", "log", "rate", 0.95, "")})
	return out
}

// Programs are peers in unusual places.
type Programs struct {
	PgBouncer string   // the program
	Tools     []string // directories of backup tools
}

// Parts are the commands of a plan.
func Parts(plan string, p Programs) ([]reference.Part, error) {
	var out []reference.Part
	add := func(name, verb string, args ...string) {
		if verb == "proxy" && p.PgBouncer != "" {
			args = append(args, "--pgbouncer", p.PgBouncer)
		}
		if verb == "backup" && len(p.Tools) > 0 {
			args = append(args, "--tools", strings.Join(p.Tools, ","))
		}
		out = append(out, reference.Part{Name: name, Bench: verb, Args: append([]string{"bench", verb}, args...)})
	}
	switch plan {
	case "smoke":
		add("proxy-postgres", "proxy", "--engine", "postgres", "--plan", "full", "--experiments", "updates-4,transactions-4", "--clients", "4", "--rounds", "1", "--duration", "100ms")
	case "mini", "full":
		rounds, duration, size := "3", "1500ms", "128MB"
		if plan == "full" {
			rounds, duration, size = "6", "4s", "1300MB"
		}
		proxy := func(engine string, experiments ...string) {
			add("proxy-"+engine, "proxy", "--engine", engine, "--plan", "full", "--windows", "1", "--rounds", rounds, "--duration", duration, "--floor", "--experiments", strings.Join(experiments, ","))
		}
		proxy("postgres", "inserts-64", "inserts-256", "inserts-1000", "literals-64", "literals-256", "updates-64",
			"transactions-16", "transactions-64", "transactions-256", "reads-prepared-16", "reads-prepared-64", "reads-prepared-256",
			"logins-trust-10", "logins-md5-10", "logins-auth-query-10", "inserts-256-fsync2ms")
		proxy("mariadb", "inserts-16", "inserts-64", "inserts-256", "literals-1")
		// The goals of backups are set for this size. With a tenth of it, a fifth of weir's
		// time would be what a backup of an empty database takes.
		add("backup-postgres", "backup", "--engine", "postgres", "--plan", "mini", "--size", "1300MB", "--floor", "--side", "pg_dump 1[678], zstd:1", "--side", "weir", "--experiments", "dump-shop,dump-huge")
		add("restore-postgres", "backup", "--engine", "postgres", "--plan", "mini", "--size", size, "--side", "pg_restore*", "--side", "weir", "--experiments", "restore-shop")
		add("backup-mariadb", "backup", "--engine", "mariadb", "--plan", "mini", "--size", size, "--experiments", "dump-shop,restore-shop")
		add("kv", "kv", "--plan", "mini", "--rounds", rounds, "--floor", "--experiments", "presets,etcd-60,single-put,cell-disk-10ms-60")
		add("outbox-mariadb", "outbox", "--engine", "mariadb", "--plan", "mini", "--floor", "--experiments", "screen,focus,mixed-8")
	default:
		return nil, fmt.Errorf("--plan %q: want one of %s", plan, strings.Join(reference.Plans(), ", "))
	}
	return out, nil
}
