package rulercmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench"
	outboxbench "github.com/weirdb/weir/internal/ruler/bench/outbox"
	"github.com/weirdb/weir/internal/ruler/report"
)

// benchOutbox is the configuration of `weir bench outbox`.
type benchOutbox struct {
	plan, engine, profile, db, out, peers string
	phases                                []string
	fsyncLatency                          time.Duration
	labServer, resume                     bool
}

func newBenchOutboxCommand() *cobra.Command {
	var b benchOutbox
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Outboxes: weir's claims and the customary one, alone and beside producers",
		Long: `Start a private server and run the phases of a benchmark of transactional
outboxes on it:

  screen     a backlog, over workers x batch of each claim
  focus      the two best combinations and weir's claims, with more rounds
  payload    the same for payloads from 128 B to 128 KiB
  enqueue    producers alone: with a transaction, without, in groups
  mixed      producers and relay at once, in a closed loop and at fixed rates
  partition  a backlog of 90 days, with and without window and partitions
  peers      other outboxes on the same server, by the program of --peers

The sides of each comparison take turns. Every round keeps a ledger of all
messages. A round in which a message is lost, or the order of a key is broken by
a relay that promises it, is invalid; the exit code is 3 then.

--db has it all run on a server that is there already. Tables whose names begin
with weir_bench_ are made there and dropped.`,
		Example: `  weir bench outbox --plan mini
  weir bench outbox --plan full --engine mariadb --out out/outbox --resume
  weir bench outbox --engine postgres --fsync-latency 2ms --phases focus,mixed
  weir bench outbox --engine sqlite --plan smoke`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := b.options(cmd)
			if err != nil {
				return cli.UsageError(err)
			}
			return b.run(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	b.flags(cmd.Flags())
	return cmd
}

func (b *benchOutbox) flags(f *pflag.FlagSet) {
	var engines []string
	for _, e := range outboxbench.Engines() {
		engines = append(engines, string(e))
	}
	plans := slices.Sorted(maps.Keys(outboxbench.Plans()))
	f.StringVar(&b.plan, "plan", "mini", "how much to run: "+strings.Join(plans, ", "))
	f.StringSliceVar(&b.phases, "phases", nil, "phases to run (default all)")
	f.StringVar(&b.engine, "engine", string(outboxbench.PostgreSQL), "database system: "+strings.Join(engines, ", "))
	f.BoolVar(&b.labServer, "lab", true, "start a private server")
	f.StringVar(&b.db, "db", "", "URL of a server and a database to use instead of a private one")
	f.StringVar(&b.profile, "profile", lab.Prod.String(), "durability of the private server: prod (commits are flushed), fast (never)")
	f.DurationVar(&b.fsyncLatency, "fsync-latency", 0, "make every flush of the private server so much slower")
	f.StringVar(&b.peers, "peers", "", "program that runs other outboxes (default bin/weir-peers if it is there)")
	f.StringVar(&b.out, "out", "", "directory for samples, results and the report (default out/bench-outbox-TIME)")
	f.BoolVar(&b.resume, "resume", false, "go on from the samples in --out")
}

// newOutboxBench is the same command among those of the outbox.
func newOutboxBench() *cobra.Command {
	cmd := newBenchOutboxCommand()
	cmd.Use, cmd.Short = "bench", "Measure outboxes: the same as weir bench outbox"
	cmd.Example = strings.ReplaceAll(cmd.Example, "weir bench outbox", "weir outbox bench")
	return cmd
}

// options makes the flags agree.
func (b *benchOutbox) options(cmd *cobra.Command) (o outboxbench.Options, err error) {
	said := cmd.Flags().Changed
	var ok bool
	if o.Plan, ok = outboxbench.Plans()[b.plan]; !ok {
		return o, fmt.Errorf("--plan %q: want one of %s", b.plan, strings.Join(slices.Sorted(maps.Keys(outboxbench.Plans())), ", "))
	}
	if err := o.Plan.SetPhases(b.phases); err != nil {
		return o, fmt.Errorf("--phases: %w", err)
	}
	if o.Durability, err = lab.ParseDurability(b.profile); err != nil {
		return o, fmt.Errorf("--profile: %w", err)
	}
	o.Engine = outboxbench.Engine(b.engine)
	if !slices.Contains(outboxbench.Engines(), o.Engine) {
		return o, fmt.Errorf("--engine %q: want one of postgres, mariadb, mysql, sqlite", b.engine)
	}
	if err := b.server(&o, said); err != nil {
		return o, err
	}
	if b.fsyncLatency < 0 {
		return o, errors.New("--fsync-latency: want 0 or more")
	}
	o.FsyncLatency, o.Resume = b.fsyncLatency, b.resume
	if b.resume && b.out == "" {
		return o, errors.New("--resume: name the directory with --out")
	}
	o.Out = cmp.Or(b.out, stampedDir("bench-outbox"))
	if err := o.Validate(); err != nil {
		return o, err
	}
	o.Peers, err = b.peersProgram()
	return o, err
}

// server chooses between a private server and one that is there.
func (b *benchOutbox) server(o *outboxbench.Options, said func(string) bool) error {
	switch {
	case b.db == "" && !b.labServer:
		return errors.New("--lab=false: name the server with --db")
	case b.db == "":
		return nil
	case said("lab") && b.labServer:
		return errors.New("--db contradicts --lab")
	case said("profile"):
		return errors.New("--profile is for a private server; that of --db is as it is set")
	}
	speaks := outboxbench.EngineOfDSN(b.db)
	family := func(e outboxbench.Engine) outboxbench.Engine {
		if e == outboxbench.MariaDB {
			return outboxbench.MySQL
		}
		return e
	}
	switch {
	case speaks == "":
		return errors.New("--db: want a URL that begins with postgres://, mysql:// or mariadb://, or file:PATH")
	case !said("engine"):
		o.Engine = speaks
	case family(speaks) != family(o.Engine):
		return fmt.Errorf("--db names a server that --engine %s does not speak to", o.Engine)
	}
	o.DSN = strings.TrimPrefix(b.db, "file:")
	return nil
}

// peersProgram is the program that was named, or the one that lies beside this one.
func (b *benchOutbox) peersProgram() (string, error) {
	if b.peers != "" {
		if _, err := os.Stat(b.peers); err != nil {
			return "", fmt.Errorf("--peers: %w", err)
		}
		return filepath.Abs(b.peers)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), "weir-peers")
	if _, err := os.Stat(beside); err != nil {
		return "", nil //nolint:nilerr // there need be none
	}
	return beside, nil
}

func (b *benchOutbox) run(ctx context.Context, o outboxbench.Options, stdout, stderr io.Writer) error {
	o.Progress = func(p bench.Progress) { printOutboxProgress(stderr, p) }
	o.Say = func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	out, err := outboxbench.Run(ctx, o)
	if out != nil && len(out.Results) > 0 {
		page, saveErr := out.Save(o.Out)
		if err = errors.Join(err, saveErr); err == nil {
			err = printOutboxReport(stdout, out, page)
		}
	}
	if err != nil {
		return err
	}
	return judgeOutbox(out)
}

func printOutboxReport(w io.Writer, out *outboxbench.Outcome, page string) error {
	if err := out.Brief().Write(w, report.FormatText); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nreport  %s\n", page)
	return err
}

// judgeOutbox turns broken promises into the exit code.
func judgeOutbox(out *outboxbench.Outcome) error {
	if broken := out.Invalid(); len(broken) > 0 {
		return cli.Shortfall(fmt.Errorf("%d rounds are invalid: %s", len(broken), strings.Join(broken, " | ")))
	}
	return nil
}

// reportOutbox makes the report of a finished run again, in a format or, with
// "", as files and on the terminal.
func reportOutbox(dir, format string, w io.Writer) error {
	out, err := outboxbench.Load(dir)
	if err != nil {
		return err
	}
	if format != "" {
		return out.Report().Write(w, report.Format(format))
	}
	page, err := out.Save(dir)
	if err != nil {
		return err
	}
	return printOutboxReport(w, out, page)
}

// printOutboxProgress tells of one sample on a line of its own.
func printOutboxProgress(w io.Writer, p bench.Progress) {
	note := ""
	if p.Cached {
		note = "  (kept)"
	}
	if x := p.Sample.Outbox; x != nil && x.FromCommit != nil {
		note = fmt.Sprintf("  delivered p95 %s%s", time.Duration(x.FromCommit.Quantile(.95)).Round(10*time.Microsecond), note)
	}
	if len(p.Sample.Invalid) > 0 {
		note += "  INVALID: " + strings.Join(p.Sample.Invalid, "; ")
	}
	rate := 0.0
	if p.Sample.Seconds > 0 {
		rate = float64(p.Sample.Ops) / p.Sample.Seconds
	}
	fmt.Fprintf(w, "  [%d/%d] %-22s %9.0f msg/s%s\n", p.Done, p.Total, p.Side, rate, note)
}
