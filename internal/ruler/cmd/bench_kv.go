package rulercmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	kvbench "github.com/weirdb/weir/internal/ruler/bench/kv"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/version"
)

// benchKV is the configuration of `weir bench kv`.
type benchKV struct {
	plan, preset, client, path, out, etcd, reference string
	scenarios                                        []string
	rounds, keys, procs                              int
	duration                                         time.Duration
	resume                                           bool
}

func newBenchKVCommand() *cobra.Command {
	var b benchKV
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "The replicated store: delays of batches, protocols, distance, etcd beside it",
		Long: `Start clusters of weir kv, each replica a process, and run the scenarios of a
benchmark on them:

  delay      fixed delays of batches, 0 to 150 us, and none (reference report 2)
  validate   the best of them and none, round by round: smallest, largest, range
  pendings   operations under way in each session
  threads    sessions
  conflicts  operations that meet at one key, and skew, with and without fast path
  length     10,000 and 100,000 operations in each session
  presets    raft, raft-ht, curp, curp-ht, curp-ho side by side
  wan        the same with a round trip of 0 to 50 ms, 3 and 5 replicas
  etcd       etcd at the same load and durability
  cells      no delay against fixed ones by distance, clients, durability
  single     one client with one operation

The sides of each comparison take turns. Every answer to a read is checked; a round
with wrong answers is invalid, and the exit code is 3 then.

--reference places figures of another system beside, from a YAML file; they are
labelled as not measured in this run.`,
		Example: `  weir bench kv --plan mini
  weir bench kv --plan full --out out/kv --resume
  weir bench kv --scenarios delay,validate --reference report-2.yaml
  WEIR_ETCD_BIN=/opt/etcd/etcd weir bench kv --scenarios etcd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := b.options()
			if err != nil {
				return cli.UsageError(err)
			}
			return b.run(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	b.flags(cmd.Flags())
	return cmd
}

func (b *benchKV) flags(f *pflag.FlagSet) {
	f.StringVar(&b.plan, "plan", "mini", "how much to run: "+strings.Join(kvPlanNames(), ", ")+" (smoke: seconds, whose figures say nothing)")
	f.StringSliceVar(&b.scenarios, "scenarios", nil, "scenarios to run (default all)")
	f.StringVar(&b.preset, "preset", "raft-ht", "protocol of all that does not compare protocols")
	f.StringVar(&b.client, "client", string(kvbench.Native), "how weir is driven: native (its Go client) or redis (the Redis protocol)")
	f.StringVar(&b.path, "path", string(kvbench.PathAuto), "when the native client tries the fast path: auto (where it has proved quicker), fast, log")
	f.IntVar(&b.rounds, "rounds", 0, "rounds of each experiment, instead of the plan's")
	f.DurationVar(&b.duration, "duration", 0, "measured time of each round, instead of the plan's")
	f.IntVar(&b.keys, "keys", 0, "number of keys, instead of the plan's")
	f.IntVar(&b.procs, "procs", 0, "processors that the client and each replica may use at once, as GOMAXPROCS says (default those of this machine, shared out among four)")
	f.StringVar(&b.etcd, "etcd", "", "etcd program to compare with (default: the one that is found)")
	f.StringVar(&b.reference, "reference", "", "YAML file with figures of another system, to be placed beside")
	f.StringVar(&b.out, "out", "", "directory for samples, results and the report (default out/bench-kv-TIME)")
	f.BoolVar(&b.resume, "resume", false, "go on from the samples in --out")
}

func kvPlanNames() []string { return slices.Sorted(maps.Keys(kvbench.Plans())) }

// options makes the flags agree.
func (b *benchKV) options() (o kvbench.Options, err error) {
	var ok bool
	if o.Plan, ok = kvbench.Plans()[b.plan]; !ok {
		return o, fmt.Errorf("--plan %q: want one of %s", b.plan, strings.Join(kvPlanNames(), ", "))
	}
	if err := o.Plan.SetScenarios(b.scenarios); err != nil {
		return o, fmt.Errorf("--scenarios: %w", err)
	}
	if err := kvbench.CheckPreset(b.preset); err != nil {
		return o, fmt.Errorf("--preset: %w", err)
	}
	if o.Client = kvbench.Client(b.client); !slices.Contains(kvbench.Clients(), o.Client) {
		return o, fmt.Errorf("--client %q: want native or redis", b.client)
	}
	if o.Path = kvbench.Path(b.path); !slices.Contains(kvbench.Paths(), o.Path) {
		return o, fmt.Errorf("--path %q: want auto, fast or log", b.path)
	}
	if b.rounds < 0 || b.duration < 0 || b.keys < 0 || b.procs < 0 {
		return o, errors.New("--rounds, --duration, --keys and --procs must not be negative")
	}
	o.Procs = cmp.Or(b.procs, kvbench.SharedProcs())
	if b.rounds > 0 {
		o.Plan.Rounds, o.Plan.SweepRounds, o.Plan.ValidationRounds = b.rounds, b.rounds, b.rounds
	}
	o.Plan.Duration, o.Plan.Keys = cmp.Or(b.duration, o.Plan.Duration), cmp.Or(b.keys, o.Plan.Keys)
	if b.resume && b.out == "" {
		return o, errors.New("--resume: name the directory with --out")
	}
	if b.reference != "" {
		if o.Reference, err = readReference(b.reference); err != nil {
			return o, fmt.Errorf("--reference: %w", err)
		}
	}
	o.Preset, o.Etcd, o.Resume, o.Version = b.preset, b.etcd, b.resume, version.Current().Version
	o.Out = cmp.Or(b.out, stampedDir("bench-kv"))
	if o.Binary, err = os.Executable(); err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	return o, nil
}

func readReference(path string) (*kvbench.Reference, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return kvbench.ReadReference(f)
}

func (b *benchKV) run(ctx context.Context, o kvbench.Options, stdout, stderr io.Writer) error {
	o.Progress = func(p bench.Progress) { printKVProgress(stderr, p) }
	o.Say = func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.Procs)) // the client is this process
	out, err := kvbench.Run(ctx, o)
	if out != nil && len(out.Results) > 0 {
		err = errors.Join(err, writeKVReport(o.Out, out, stdout))
	}
	if err != nil {
		return err
	}
	return judgeKV(out)
}

// printKVProgress tells of one sample on a line of its own.
func printKVProgress(w io.Writer, p bench.Progress) {
	note := ""
	if p.Cached {
		note = "  (kept)"
	}
	if k := p.Sample.KV; k != nil {
		for _, half := range []struct {
			name string
			p50  int64
		}{{"strong", k.Strong().Quantile(.5)}, {"weak", k.Weak().Quantile(.5)}} {
			if half.p50 > 0 {
				note = fmt.Sprintf("  %s p50 %s", half.name, time.Duration(half.p50).Round(time.Microsecond)) + note
			}
		}
	}
	if n := p.Sample.Failed(); n > 0 {
		note += fmt.Sprintf("  %d failed", n)
	}
	if len(p.Sample.Invalid) > 0 {
		note += "  INVALID: " + strings.Join(p.Sample.Invalid, "; ")
	}
	rate := 0.0
	if p.Sample.Seconds > 0 {
		rate = float64(p.Sample.Ops) / p.Sample.Seconds
	}
	fmt.Fprintf(w, "  [%d/%d] %-16s %9.0f ops/s%s\n", p.Done, p.Total, p.Side, rate, note)
}

// writeKVReport saves the outcome and prints the report for a quick look.
func writeKVReport(dir string, out *kvbench.Outcome, stdout io.Writer) error {
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

// judgeKV turns wrong answers into the exit code.
func judgeKV(out *kvbench.Outcome) error {
	if broken := out.Invalid(); len(broken) > 0 {
		return cli.Shortfall(fmt.Errorf("%d rounds are invalid: %s", len(broken), strings.Join(broken, " | ")))
	}
	return nil
}

// reportKV prints the report of a finished run, and writes its files anew when no
// format is asked for. err is that of reading it.
func reportKV(dir string, out *kvbench.Outcome, err error, format string, stdout io.Writer) error {
	switch {
	case err != nil:
		return err
	case format == "":
		return writeKVReport(dir, out, stdout)
	}
	return out.Report().Write(stdout, report.Format(format))
}
