package rulercmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	backupbench "github.com/weirdb/weir/internal/ruler/bench/backup"
	kvbench "github.com/weirdb/weir/internal/ruler/bench/kv"
	outboxbench "github.com/weirdb/weir/internal/ruler/bench/outbox"
	proxybench "github.com/weirdb/weir/internal/ruler/bench/proxy"
	"github.com/weirdb/weir/internal/ruler/report"
)

func newBenchCommand(weir func() *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a boundary costs, and what weir makes of it",
	}
	cmd.AddCommand(newBenchProxyCommand(), newBenchBackupCommand(weir), newBenchOutboxCommand(), newBenchKVCommand(), newBenchReportCommand(), newBenchDiffCommand(), newBenchGateCommand(), newBenchAACommand())
	return cmd
}

type benchProxy struct {
	plan, out, pgbouncer string
	engine, dsn          string
	resume, labServers   bool
	mysql                bool
	clients              []int
	rounds               int
	duration             time.Duration
}

func newBenchProxyCommand() *cobra.Command { return newBenchProxyCommandFor(&benchProxy{}) }

// newBenchProxyCommandFor reads its flags into b.
func newBenchProxyCommandFor(b *benchProxy) *cobra.Command {
	names := slices.Sorted(maps.Keys(proxybench.Plans()))
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "A database direct and through weir, side by side",
		Long: `Start a private server, PgBouncer if it is installed and the server is
PostgreSQL, and weir proxy; send them the same load in turn (A B B A); check
every answer, and after each round every row; report ratios with confidence
intervals.

--dsn has the load run on a server that is there already, in the database that
it names. Tables called weir_bench_test and weir_bench_keys are made there and
dropped; nothing is known of the server's processor time and disk.`,
		Example: `  weir bench proxy --plan mini
  weir bench proxy --mysql --plan full --out out/mariadb --resume
  weir bench proxy --engine mysql
  weir bench proxy --dsn mysql://root@127.0.0.1:3306/scratch --clients 64`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, ok := proxybench.Plans()[b.plan]
			if !ok {
				return cli.UsageError(fmt.Errorf("--plan %q: want one of %s", b.plan, strings.Join(names, ", ")))
			}
			if err := b.chooseEngine(cmd); err != nil {
				return cli.UsageError(err)
			}
			return b.run(cmd.Context(), plan, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.engine, "engine", string(proxybench.PostgreSQL), "database system: "+strings.Join(engineNames(), ", "))
	f.BoolVar(&b.mysql, "mysql", false, "the same as --engine mariadb")
	f.StringVar(&b.plan, "plan", "mini", "how much to run: "+strings.Join(names, ", "))
	f.StringVar(&b.out, "out", "", "directory for samples, results and the report (default out/bench-proxy-TIME)")
	f.BoolVar(&b.resume, "resume", false, "go on from the samples in --out")
	f.BoolVar(&b.labServers, "lab", true, "start a private server")
	f.StringVar(&b.dsn, "dsn", "", "URL of a server and a database to use instead of a private one")
	f.StringVar(&b.pgbouncer, "pgbouncer", "", "PgBouncer program to compare with (default: the installed one)")
	f.IntSliceVar(&b.clients, "clients", nil, "numbers of clients, instead of the plan's")
	f.IntVar(&b.rounds, "rounds", 0, "rounds of each experiment, instead of the plan's")
	f.DurationVar(&b.duration, "duration", 0, "measured time of each round, instead of the plan's")
	return cmd
}

func engineNames() []string {
	var names []string
	for _, e := range proxybench.Engines() {
		names = append(names, string(e))
	}
	return names
}

// chooseEngine makes the flags that say what the load is for agree.
func (b *benchProxy) chooseEngine(cmd *cobra.Command) error {
	said := cmd.Flags().Changed
	if b.mysql {
		if said("engine") && b.engine == string(proxybench.PostgreSQL) {
			return fmt.Errorf("--mysql contradicts --engine %s", b.engine)
		}
		if !said("engine") {
			b.engine = string(proxybench.MariaDB)
		}
	}
	if !slices.Contains(engineNames(), b.engine) {
		return fmt.Errorf("--engine %q: want one of %s", b.engine, strings.Join(engineNames(), ", "))
	}
	switch {
	case b.dsn == "" && !b.labServers:
		return fmt.Errorf("--lab=false: name the server with --dsn")
	case b.dsn == "":
		return nil
	case said("lab") && b.labServers:
		return fmt.Errorf("--dsn contradicts --lab")
	}
	speaks := proxybench.EngineOfDSN(b.dsn)
	switch {
	case speaks == "":
		return fmt.Errorf("--dsn: want a URL that begins with postgres://, mysql:// or mariadb://")
	case !said("engine") && !b.mysql:
		b.engine = string(speaks)
	case (speaks == proxybench.PostgreSQL) != (b.engine == string(proxybench.PostgreSQL)):
		return fmt.Errorf("--dsn names a server that --engine %s does not speak to", b.engine)
	}
	return nil
}

func (b *benchProxy) run(ctx context.Context, plan proxybench.Plan, stdout, stderr io.Writer) error {
	b.out = cmp.Or(b.out, stampedDir("bench-proxy"))
	if len(b.clients) > 0 {
		for _, list := range []*[]int{&plan.Inserts, &plan.Literals, &plan.Slow, &plan.Reads, &plan.Failing, &plan.Crowd} {
			if len(*list) > 0 {
				*list = b.clients
			}
		}
	}
	if b.rounds > 0 {
		plan.Rounds = b.rounds
	}
	if b.duration > 0 {
		plan.Duration = b.duration
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	out, err := proxybench.Run(ctx, proxybench.Options{
		Engine: proxybench.Engine(b.engine), DSN: b.dsn, Plan: plan, Out: b.out, Resume: b.resume, Binary: binary, PgBouncer: b.pgbouncer,
		Progress: func(p bench.Progress) { printProgress(stderr, p) },
		Say:      func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) },
	})
	if out != nil && len(out.Results) > 0 {
		err = errors.Join(err, writeProxyReport(b.out, out, stdout))
	}
	return err
}

// printProgress tells of one sample on a line of its own.
func printProgress(w io.Writer, p bench.Progress) {
	note := ""
	if p.Cached {
		note = "  (kept)"
	}
	fmt.Fprintf(w, "  [%d/%d] %-14s %9.0f ops/s  p50 %s%s\n", p.Done, p.Total, p.Side,
		float64(p.Sample.Ops)/p.Sample.Seconds, time.Duration(p.Sample.Latency.Quantile(0.5)).Round(time.Microsecond), note)
}

// writeProxyReport saves the outcome and prints the report for a quick look.
func writeProxyReport(dir string, out *proxybench.Outcome, stdout io.Writer) error {
	page, err := out.Save(dir)
	if err != nil {
		return err
	}
	if err := out.Brief().Write(stdout, report.FormatText); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nreport  %s\n", page)
	return nil
}

func newBenchReportCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "report DIR",
		Short:   "Make the report of a finished run again",
		Example: "  weir bench report out/bench-proxy --format md",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out, err := backupbench.Load(args[0]); !errors.Is(err, fs.ErrNotExist) {
				return reportBackup(args[0], out, err, format, cmd.OutOrStdout())
			}
			if out, err := kvbench.Load(args[0]); !errors.Is(err, fs.ErrNotExist) {
				return reportKV(args[0], out, err, format, cmd.OutOrStdout())
			}
			if err := reportOutbox(args[0], format, cmd.OutOrStdout()); !errors.Is(err, outboxbench.ErrNotOutbox) {
				return err
			}
			out, err := proxybench.Load(args[0])
			if err != nil {
				return err
			}
			if format == "" {
				return writeProxyReport(args[0], out, cmd.OutOrStdout())
			}
			return out.Report().Write(cmd.OutOrStdout(), report.Format(format))
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", "print text, md, csv, html or json, and write no files")
	return cmd
}
