package rulercmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/profile"
	"github.com/weirdb/weir/internal/ruler/profile/study"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/ruler/report/flame"
	"github.com/weirdb/weir/internal/ruler/source"
)

// printable are the formats in which a profile can be printed.
var printable = []report.Format{report.FormatText, report.FormatMarkdown, report.FormatCSV, report.FormatHTML, report.FormatJSON}

// profileFlags is the command line of weir profile.
type profileFlags struct {
	dsn                  string
	lab                  bool
	engines              []string
	durability           string
	fsyncLatency         time.Duration
	experiment           string
	workload, sql        string
	rows                 int
	mode                 []string
	concurrency, poolMax []int
	drivers, transports  []string
	requests             int64
	duration, warmup     time.Duration
	netem                []string
	rate                 float64
	rounds               int
	cold, deep, cpu      bool
	strace, perf         bool
	passes               []study.Pass
	overheadPairs        int
	out                  string
	json                 cli.JSON[*report.Doc]
	resume               bool
	format               string
}

func newProfileCommand() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "Show where the time of a database call goes: pool, driver, wire, server, scheduler",
		Long: `Run a workload over a pool and a driver as an application would, and break down the
time of each operation: waiting for a connection, opening and checking it,
encoding, writing, network and server, waiting to be woken, decoding, releasing.
The segments do not overlap and add up to the latency.

Lists of pools, concurrencies, drivers, transports or modes are compared with each
other, in turn; pools and concurrencies together give a "what if" table. Cases begin with
open connections and wait for the rate to settle; the time until then is reported
separately. --cold adds cases that begin with an empty pool.

The DSN is a URL of postgres, mysql, mariadb, oracle or sleep, from --db or
WEIR_DSN; ps does not show the environment. With --lab, weir starts
private servers of its own instead. Workloads make their tables in a schema of
their own and remove it. With --sql, the file's statements are one operation.`,
		Example: `  weir profile --lab
  weir profile --lab --experiment pools               # 100 workers, pools of 100 and 5, cold and warm
  weir profile --lab --engine mariadb --workload update --concurrency 1,16,64 --pool-max 4,16,64
  weir profile --lab --workload point-select --driver pgx,pgx-sql,pq --transport tcp,unix,rtt:1ms
  weir profile --lab --pool-max 5,100 --concurrency 100 --netem delay=1ms --netem delay=10ms,jitter=2ms,loss=1%
  weir profile --lab --concurrency 16 --strace --perf
  weir profile --db postgres://app@db.example/shop --sql checkout.sql --rate 200
  weir profile --db 'sleep://?latency=5ms&jitter=3ms' --mode threads,async --concurrency 100`,
		Args: cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return f.complete(cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.register(cmd)
	cmd.AddCommand(newProfileDiffCommand())
	return cmd
}

func (f *profileFlags) register(cmd *cobra.Command) {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(profile.Workloads())) {
		names = append(names, n+" ("+profile.Workloads()[n]+")")
	}
	s := cmd.Flags()
	s.StringVar(&f.dsn, "db", "", "`DSN` of the database to profile (default WEIR_DSN)")
	s.BoolVar(&f.lab, "lab", false, "start private servers and profile those")
	s.StringSliceVar(&f.engines, "engine", []string{profile.EnginePostgres}, "servers of --lab: "+strings.Join(study.LabEngines(), ", "))
	s.StringVar(&f.durability, "durability", "prod", "of --lab: prod (flush at each commit) or fast (never flush)")
	s.DurationVar(&f.fsyncLatency, "fsync-latency", 0, "of --lab: make each flush take this much longer, such as 2ms")
	s.StringVar(&f.experiment, "experiment", "", "a set of cases: "+strings.Join(study.Experiments(), ", "))
	s.StringVar(&f.workload, "workload", "ping", "what an operation does: "+strings.Join(names, ", "))
	s.StringVar(&f.sql, "sql", "", "`FILE` of statements that make an operation, instead of --workload")
	s.IntVar(&f.rows, "rows", 10_000, "rows of the workload's main table")
	s.StringSliceVar(&f.mode, "mode", []string{"async"}, "how workers run: sequential, threads, async; a list compares them")
	s.IntSliceVar(&f.concurrency, "concurrency", []int{10}, "workers; a list compares them")
	s.IntSliceVar(&f.poolMax, "pool-max", nil, "maximum connections of the pool; a list compares them (default: as many as workers)")
	s.StringSliceVar(&f.drivers, "driver", nil, "drivers to compare (default: the engine's first): "+driverNames())
	cli.Takes(s, "driver", slices.Concat(profile.Drivers(profile.EnginePostgres), profile.Drivers(profile.EngineMySQL), profile.Drivers(profile.EngineOracle))...)
	s.StringArrayVar(&f.netem, "netem", nil, "simulate a bad network to a server on this machine, such as delay=10ms,jitter=2ms,loss=1%: delay and jitter of a round trip, and the share of packets that are lost and resent; repeat it to compare several, along with --transport")
	s.IntSliceVar(&f.poolMax, "pool", nil, "the same as --pool-max")
	s.IntSliceVar(&f.concurrency, "workers", []int{10}, "the same as --concurrency")
	for _, name := range []string{"pool", "workers"} {
		s.Lookup(name).Hidden = true
	}
	s.StringSliceVar(&f.transports, "transport", nil, "ways to a server on this machine to compare: tcp, unix, rtt:1ms (a relay that delays)")
	cli.Takes(s, "transport", "tcp", "unix", "rtt:1ms")
	s.Int64Var(&f.requests, "requests", 0, "operations of each round, instead of --duration")
	s.DurationVar(&f.duration, "duration", 2*time.Second, "measured time of each round")
	s.DurationVar(&f.warmup, "warmup", 3*time.Second, "longest wait for the rate to settle before each round")
	s.Float64Var(&f.rate, "rate", 0, "start this many operations per second, whether or not others have ended (default: each worker starts its next one when its last has ended)")
	s.IntVar(&f.rounds, "rounds", 3, "rounds of each case")
	s.BoolVar(&f.cold, "cold", false, "add cases that begin with an empty pool and end after 20 operations for each worker (default: if there is only one other case)")
	s.BoolVar(&f.deep, "deep", false, "observe the server from outside, as far as this machine allows; it costs throughput")
	s.BoolVar(&f.cpu, "cpu-profile", false, "show where this process spends its CPU time: categories and a flame graph in the report, "+cpuProfile+" in --out")
	s.BoolVar(&f.strace, "strace", false, "run the last warm case again under strace, if it is installed: the client's system calls, and the slowdown")
	s.BoolVar(&f.perf, "perf", false, "run the last warm case again under perf, if it is installed: CPU time of client and server by function, including the kernel")
	s.IntVar(&f.overheadPairs, "overhead-pairs", 24, "pairs of slices by which the cost of tracing is measured; 0 leaves it out")
	s.StringVar(&f.out, "out", "", "directory for samples, results and reports (default out/profile-TIME)")
	s.BoolVar(&f.resume, "resume", false, "continue from the samples in --out")
	s.StringVarP(&f.format, "output", "o", "text", "what to print: text, md, csv, html or json")
	f.json.Flag(s, "print the report as JSON")
	cli.Renamed(cmd, "dsn", "db")
	cli.Words(cmd, "engine", study.LabEngines()...)
	cli.Words(cmd, "durability", "prod", "fast")
	cli.Words(cmd, "experiment", study.Experiments()...)
	cli.Words(cmd, "workload", slices.Sorted(maps.Keys(profile.Workloads()))...)
	cli.Words(cmd, "mode", "sequential", "threads", "async")
	cli.Words(cmd, "output", "text", "md", "csv", "html", "json")
}

func driverNames() string {
	var parts []string
	for _, e := range []string{profile.EnginePostgres, profile.EngineMySQL, profile.EngineOracle} {
		parts = append(parts, e+" has "+strings.Join(profile.Drivers(e), ", "))
	}
	return strings.Join(parts, "; ")
}

// complete fills in what an experiment or the environment decides, and refuses contradictory
// flags.
func (f *profileFlags) complete(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	if f.json.Given() {
		f.format = string(report.FormatJSON)
	}
	if f.experiment != "" {
		e, err := study.Experiment(f.experiment)
		if err != nil {
			return fmt.Errorf("--experiment: %w", err)
		}
		for _, taken := range []string{"concurrency", "workers", "pool-max", "pool", "cold"} {
			if changed(taken) {
				return fmt.Errorf("--%s: experiment %s sets it itself", taken, f.experiment)
			}
		}
		f.concurrency, f.poolMax, f.cold = e.Concurrency, e.Pools, e.Cold
		if !changed("engine") {
			f.engines = e.Engines
		}
	}
	if alone := len(f.mode) < 2 && len(f.concurrency) < 2 && len(f.poolMax) < 2 && len(f.drivers) < 2 && len(f.transports)+len(f.netem) < 2; !changed("cold") && alone {
		f.cold = true
	}
	if !f.lab {
		f.dsn = cmp.Or(f.dsn, os.Getenv("WEIR_DSN"))
	}
	switch {
	case changed("pool") && changed("pool-max"), changed("workers") && changed("concurrency"):
		return errors.New("--pool is the same as --pool-max, and --workers as --concurrency: use only one")
	case f.lab && f.dsn != "":
		return errors.New("--lab starts private servers: use it without --db")
	case !f.lab && f.dsn == "":
		return errors.New("no database: give --db (or WEIR_DSN) a DSN, or --lab for a private server")
	case !f.lab && changed("engine"):
		return errors.New("--engine is for --lab: the DSN's scheme names the engine")
	case !f.lab && (changed("durability") || changed("fsync-latency")):
		return errors.New("--durability and --fsync-latency are for --lab: the database of a DSN has its own settings")
	case f.resume && f.out == "":
		return errors.New("--resume: name the directory with --out")
	case f.sql != "" && changed("workload"):
		return errors.New("--sql and --workload: use only one")
	case f.rounds < 1:
		return fmt.Errorf("--rounds %d: want 1 or more", f.rounds)
	case changed("requests") && f.requests < 1:
		return fmt.Errorf("--requests %d: want 1 or more", f.requests)
	case changed("requests") && changed("duration"):
		return errors.New("--requests and --duration: use only one")
	case changed("duration") && f.duration <= 0:
		return fmt.Errorf("--duration %v: want more than 0", f.duration)
	case f.rate < 0:
		return fmt.Errorf("--rate %v: want more than 0", f.rate)
	case f.rows < 1:
		return fmt.Errorf("--rows %d: want 1 or more", f.rows)
	case f.overheadPairs != 0 && f.overheadPairs < 6:
		return fmt.Errorf("--overhead-pairs %d: fewer than 6 give no interval; 0 leaves it out", f.overheadPairs)
	case !slices.Contains(printable, report.Format(f.format)):
		return fmt.Errorf("--output %q: want text, md, csv, html or json", f.format)
	}
	if _, ok := profile.Workloads()[f.workload]; !ok && f.sql == "" {
		return fmt.Errorf("--workload %q: want one of %s", f.workload, strings.Join(slices.Sorted(maps.Keys(profile.Workloads())), ", "))
	}
	for _, e := range f.engines {
		if f.lab && !slices.Contains(study.LabEngines(), e) {
			return fmt.Errorf("--engine %q: want %s", e, strings.Join(study.LabEngines(), ", "))
		}
		if err := f.checkDrivers(e); f.lab && err != nil {
			return err
		}
	}
	if _, err := f.axes(); err != nil {
		return err
	}
	if !f.lab {
		t, err := profile.ParseTarget(f.dsn)
		if err == nil && t.Engine == profile.EngineSleep && (changed("deep") || changed("rows") || changed("workload")) {
			return errors.New("--deep, --rows and --workload are for a database: sleep has no server and no tables")
		}
		if err != nil {
			return err
		}
		return f.checkDrivers(t.Engine)
	}
	_, err := lab.ParseDurability(f.durability)
	return err
}

// checkDrivers returns an error for a driver that an engine does not have.
func (f *profileFlags) checkDrivers(engine string) error {
	known := profile.Drivers(engine)
	for _, d := range f.drivers {
		if !slices.Contains(known, d) {
			return fmt.Errorf("--driver %q: %s has %s", d, engine, strings.Join(known, ", "))
		}
	}
	return nil
}

// axes is what to compare.
func (f *profileFlags) axes() (study.Axes, error) {
	a := study.Axes{
		Base: profile.Config{
			Requests: f.requests, Warmup: f.warmup, Rate: f.rate, Deep: f.deep,
		},
		Drivers: f.drivers, Pools: f.poolMax, Concurrency: f.concurrency, Cold: f.cold,
	}
	if f.requests == 0 {
		a.Base.Duration = f.duration
	}
	for _, n := range slices.Concat(f.concurrency, f.poolMax) {
		if n < 1 {
			return a, fmt.Errorf("--concurrency and --pool-max: %d is not a number of workers or connections", n)
		}
	}
	for _, m := range f.mode {
		switch mode := profile.Mode(m); mode {
		case profile.Sequential, profile.Threads, profile.Async:
			a.Modes = append(a.Modes, mode)
		default:
			return a, fmt.Errorf("--mode %q: want sequential, threads or async", m)
		}
	}
	for _, text := range f.netem {
		transport, err := profile.ParseNetem(text)
		if err != nil {
			return a, fmt.Errorf("--netem: %w", err)
		}
		a.Transports = append(a.Transports, transport)
	}
	for _, t := range f.transports {
		transport, err := profile.ParseTransport(t)
		if err != nil {
			return a, fmt.Errorf("--transport: %w", err)
		}
		a.Transports = append(a.Transports, transport)
	}
	return a, nil
}

// run profiles one database after the other and makes a report of all.
func (f *profileFlags) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	axes, err := f.axes()
	if err != nil {
		return err
	}
	script := ""
	if f.sql != "" {
		b, err := os.ReadFile(f.sql)
		if err != nil {
			return fmt.Errorf("--sql: %w", err)
		}
		if len(bytes.TrimSpace(b)) == 0 {
			return fmt.Errorf("--sql: %s is empty", f.sql)
		}
		script, f.workload = string(b), filepath.Base(f.sql)
	}
	f.out = cmp.Or(f.out, suite.NewDirName("profile"))
	store, err := bench.OpenStore(f.out, f.resume)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	stopCPU, err := f.profileCPU()
	if err != nil {
		return err
	}
	var results []*bench.Result
	for _, engine := range f.targets() {
		s := &study.Study{
			Name: "profile-" + engine, Title: f.title(engine), Axes: axes,
			Workload: f.workload, Script: script, Rows: f.rows, Rounds: f.rounds, OverheadPairs: f.overheadPairs,
			Tools: f.tools(),
		}
		r, runErr := f.one(ctx, engine, s, store, stderr)
		f.passes = append(f.passes, s.Passes...)
		if r != nil {
			results = append(results, r)
		}
		if runErr != nil {
			err = runErr
			break
		}
	}
	err = errors.Join(err, stopCPU())
	if len(results) == 0 {
		return err
	}
	// The results of an interrupted run are useful, too.
	return errors.Join(f.report(results, stdout, stderr), err)
}

// cpuProfile is the file of this process's CPU profile in the directory.
const cpuProfile = "cpu-client" + source.ProfileEnding

// profileCPU starts to profile this process, if requested, and returns a function that stops
// it.
func (f *profileFlags) profileCPU() (stop func() error, err error) {
	if !f.cpu {
		return func() error { return nil }, nil
	}
	file, err := os.Create(filepath.Join(f.out, cpuProfile))
	if err != nil {
		return nil, fmt.Errorf("profile own CPU time: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(fmt.Errorf("profile own CPU time: %w", err), file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

// targets names the databases to profile: the lab's engines, or the one of the DSN.
func (f *profileFlags) targets() []string {
	if f.lab {
		return f.engines
	}
	t, err := profile.ParseTarget(f.dsn)
	if err != nil { // complete has already parsed it
		return nil
	}
	return []string{t.Engine}
}

// tools are the requested tools for passes.
func (f *profileFlags) tools() []string {
	var out []string
	if f.strace {
		out = append(out, "strace")
	}
	if f.perf {
		out = append(out, "perf")
	}
	return out
}

func (f *profileFlags) title(engine string) string {
	title := engine + ", " + f.workload
	if f.experiment != "" {
		title = f.experiment + ": " + title
	}
	return title
}

// one profiles one database.
func (f *profileFlags) one(ctx context.Context, engine string, s *study.Study, store *bench.Store, stderr io.Writer) (_ *bench.Result, err error) {
	dsn := f.dsn
	var tell suite.Options
	tell.ReportProgress(stderr, "ops/s", suite.P50)
	o := study.Options{
		Store: store, Progress: tell.Progress,
		Say: func(format string, args ...any) { tell.Say("  "+format, args...) },
	}
	if f.lab {
		durability, err := lab.ParseDurability(f.durability)
		if err != nil {
			return nil, err
		}
		o.Say("starting a private %s", engine)
		server, err := study.StartLab(ctx, engine, study.LabConfig{
			Durability: durability, FsyncLatency: f.fsyncLatency, Connections: s.Axes.LargestPool(),
		})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, lab.End(server.Stop)) }()
		dsn, o.Durability = server.DSN, durability.String()
		if durability == lab.Prod {
			o.FlushDir = server.DataDir
		}
	}
	t, err := profile.ParseTarget(dsn)
	if err != nil {
		return nil, err
	}
	if err := t.Connect(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if f.lab {
		if err := t.PrepareLab(ctx); err != nil {
			return nil, err
		}
	}
	return s.Run(ctx, t, o)
}

// report writes the reports to the directory and prints one.
func (f *profileFlags) report(results []*bench.Result, stdout, stderr io.Writer) error {
	doc := study.Document("weir profile: "+f.workload, results...)
	if len(f.passes) > 0 {
		doc.Sections = append(doc.Sections, study.PassSections(f.passes)...)
		if err := study.SavePasses(f.out, f.passes); err != nil {
			return err
		}
	}
	if f.cpu {
		// A run that used almost no CPU time has an empty profile: the rest is valid.
		if err := flame.Append(doc, filepath.Join(f.out, cpuProfile)); err != nil {
			doc.Sections[0].Text = append(doc.Sections[0].Text, "No profile of the CPU time: "+err.Error()+".")
		}
	}
	for _, format := range []report.Format{report.FormatHTML, report.FormatMarkdown} {
		if err := writeReport(filepath.Join(f.out, "report."+string(format)), doc, format); err != nil {
			return err
		}
	}
	if err := doc.Write(stdout, report.Format(f.format)); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "\nreport  %s\n", filepath.Join(f.out, "report.html"))
	return nil
}

func writeReport(path string, d *report.Doc, format report.Format) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return d.Write(file, format)
}
