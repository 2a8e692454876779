package rulercmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	backupbench "github.com/weirdb/weir/internal/ruler/bench/backup"
	"github.com/weirdb/weir/internal/ruler/report"
)

// benchBackup is the configuration of `weir bench backup`.
type benchBackup struct {
	weir       func() *cobra.Command // the whole program, to profile verbs of
	options    backupbench.Options
	plan       string
	engine     string
	labServers bool
	size       string
	shapes     []string
	rounds     int
}

func newBenchBackupCommand(weir func() *cobra.Command) *cobra.Command {
	return newBenchBackupCommandFor(&benchBackup{weir: weir})
}

// newBenchBackupCommandFor reads its flags into b.
func newBenchBackupCommandFor(b *benchBackup) *cobra.Command {
	names := slices.Sorted(maps.Keys(backupbench.Plans(1)))
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "weir's backup and restore beside the server's own tools and mydumper",
		Long: `Measure, from the inside out: what buffers, compressions and copies cost in this
process; whole backups and restores by weir, pg_dump and pg_restore, or mydumper,
myloader and mariadb-dump, each a program of its own, in turn (A B B A), on data
that is made up by a seed and looks real; and weir's memory at two sizes.

Every archive is read back by its tool's own check, and every restored database is
compared with its source. Tools that are not found are left out and named; --tools
says where others are, such as a newer pg_dump.

--dsn has a server that is there already used. Databases called weir_bench_source
and weir_bench_copy are made there and dropped; nothing is known of that server's
processor time.`,
		Example: `  weir bench backup --plan mini
  weir bench backup --plan full --size 766MB --tools /usr/lib/postgresql/17/bin --out out/backup --resume
  weir bench backup --engine mariadb --shapes shop,huge`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := b.complete(cmd); err != nil {
				return cli.UsageError(err)
			}
			return b.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f, o := cmd.Flags(), &b.options
	f.StringVar(&b.plan, "plan", "mini", "how much to run: "+strings.Join(names, ", ")+" (seconds, whose figures say nothing)")
	f.StringVar(&b.engine, "engine", string(backupbench.PostgreSQL), "database system: postgres or mariadb")
	f.StringVar(&o.Out, "out", "", "directory for samples, results and the report (default out/bench-backup-TIME)")
	f.BoolVar(&o.Resume, "resume", false, "go on from the samples in --out")
	f.BoolVar(&b.labServers, "lab", true, "start a private server")
	f.StringVar(&o.DSN, "dsn", "", "URL of a server to use instead of a private one")
	f.StringVar(&o.BinDir, "bin-dir", "", "directory of the private server's programs (default the newest installed)")
	f.StringSliceVar(&o.Tools, "tools", nil, "directories to look for other tools in, before all others")
	f.StringVar(&b.size, "size", "", "size of the shop as text, others are parts of it (default by the plan: 1MB, 64MB, 766MB)")
	f.StringSliceVar(&b.shapes, "shapes", nil, "of the plan's databases, only these: shop, many, huge, text, binary, random")
	f.IntVar(&b.rounds, "rounds", 0, "rounds of each experiment with whole programs, instead of the plan's")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the data")
	return cmd
}

// complete judges the flags and fills in the plan.
func (b *benchBackup) complete(cmd *cobra.Command) error {
	o, said := &b.options, cmd.Flags().Changed
	size := backupbench.DefaultSize(b.plan)
	if b.size != "" {
		n, err := cli.ParseSize(b.size)
		if err != nil || n < 1 {
			return fmt.Errorf("--size %q: want bytes, such as 766MB", b.size)
		}
		size = int64(n)
	}
	plans := backupbench.Plans(size)
	plan, ok := plans[b.plan]
	if !ok {
		return fmt.Errorf("--plan %q: want one of %s", b.plan, strings.Join(slices.Sorted(maps.Keys(plans)), ", "))
	}
	if len(b.shapes) > 0 {
		var chosen []backupbench.Size
		for _, name := range b.shapes {
			i := slices.IndexFunc(plan.Shapes, func(s backupbench.Size) bool { return s.Shape == name })
			if i < 0 {
				return fmt.Errorf("--shapes: plan %s has no %q", b.plan, name)
			}
			chosen = append(chosen, plan.Shapes[i])
		}
		plan.Shapes = chosen
	}
	if b.rounds < 0 {
		return errors.New("--rounds: at least 1 is needed")
	}
	plan.Rounds = cmp.Or(b.rounds, plan.Rounds)
	o.Plan = plan
	switch {
	case o.DSN == "" && !b.labServers:
		return errors.New("--lab=false: name the server with --dsn")
	case o.DSN != "" && said("lab") && b.labServers:
		return errors.New("--dsn contradicts --lab")
	case o.DSN != "" && backupbench.EngineOfDSN(o.DSN) == "":
		return errors.New("--dsn: want a URL that begins with postgres://, mysql:// or mariadb://")
	case o.DSN != "" && !said("engine"):
		b.engine = string(backupbench.EngineOfDSN(o.DSN))
	}
	o.Engine = backupbench.Engine(b.engine)
	if !slices.Contains(backupbench.Engines(), o.Engine) {
		return fmt.Errorf("--engine %q: want postgres or mariadb", b.engine)
	}
	if o.DSN != "" && backupbench.EngineOfDSN(o.DSN) != o.Engine {
		return fmt.Errorf("--dsn names a server that --engine %s does not speak to", b.engine)
	}
	return nil
}

func (b *benchBackup) run(ctx context.Context, stdout, stderr io.Writer) error {
	o := &b.options
	o.Out = cmp.Or(o.Out, stampedDir("bench-backup"))
	var err error
	if o.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o.Verb = func(ctx context.Context, args []string) error {
		root := b.weir()
		root.SetArgs(args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		return root.ExecuteContext(ctx)
	}
	o.Progress = func(p bench.Progress) { printMove(stderr, p) }
	o.Say = func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	out, err := backupbench.Run(ctx, *o)
	if out == nil || len(out.Results) == 0 {
		return err
	}
	return errors.Join(err, writeBackupReport(o.Out, out, stdout))
}

// printMove tells of one sample on a line of its own.
func printMove(w io.Writer, p bench.Progress) {
	note := ""
	switch {
	case p.Cached:
		note = "  (kept)"
	case p.Round < 0:
		note = "  (warm-up)"
	}
	each := time.Duration(p.Sample.Seconds / float64(max(p.Sample.Ops, 1)) * float64(time.Second))
	memory := ""
	if t := p.Sample.Transfer; t != nil && t.PeakBytes > 0 {
		memory = "  peak " + cli.ByteText(t.PeakBytes)
	}
	fmt.Fprintf(w, "  [%d/%d] %-28s %12s%s%s\n", p.Done, p.Total, p.Side, each.Round(each/1000+1), memory, note)
}

// writeBackupReport saves the outcome and prints the report for a quick look.
func writeBackupReport(dir string, out *backupbench.Outcome, stdout io.Writer) error {
	page, err := out.Save(dir)
	if err != nil {
		return err
	}
	if err := out.Brief().Write(stdout, report.FormatText); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\nreport  %s\n", page)
	return err
}

// reportBackup prints the report of a finished run, and writes its files anew
// when no format is asked for. err is that of reading it.
func reportBackup(dir string, out *backupbench.Outcome, err error, format string, stdout io.Writer) error {
	if err != nil {
		return err
	}
	if format == "" {
		return writeBackupReport(dir, out, stdout)
	}
	doc, err := out.Full(dir)
	if err != nil {
		return err
	}
	return doc.Write(stdout, report.Format(format))
}
