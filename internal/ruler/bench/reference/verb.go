package reference

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Command is weir bench all.
func Command(benches []suite.Bench) *cobra.Command {
	var o Options
	var experiments []string
	cmd := &cobra.Command{
		Use:   "all",
		Short: "Measure again what five published reports measured, and judge their claims",
		Long: `Run the benchmarks that measure what the five reference reports measured, on private
servers, one after the other, and write a page for each report: its tables in its
order, weir's figures beside them, and a verdict on each of its claims (holds, does
not hold, cannot tell) with the evidence. index.html links to them, and says what the
published figures show by themselves.

Each part is a separate command (weir bench proxy, kv, backup, outbox, weir profile)
with its full report in its own directory below --out. The pages are updated after
every part: an interrupted run leaves valid ones, and --resume continues after the last
sample. If a server is not installed, its tables say so, and the other parts run.

Plan mini takes less than ten minutes on two processors, full some hours.`,
		Example: `  weir bench all --plan mini --out out/all
  weir bench all --plan full --out out/all-full --resume
  weir bench all --experiments 000,004 --out out/some
  weir bench all --experiments 001/delay,003 --out out/some`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parts, err := PartsOf(o.Plan)
			if err != nil {
				return cli.UsageError(err)
			}
			o.Benches = benches
			return RunParts(cmd, o, parts, experiments)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Plan, "plan", "mini", "how much to run: "+strings.Join(Plans(), ", ")+" (smoke: a minute or two, with meaningless figures)")
	cli.Takes(f, "plan", Plans()...)
	f.StringVar(&o.Out, "out", "", "directory for parts, samples and pages (default out/bench-all-TIME)")
	f.BoolVar(&o.Resume, "resume", false, "continue the run in --out")
	o.JSON.Flag(f, "print the summary as JSON")
	f.StringSliceVar(&experiments, "experiments", nil, "reports (000 to 004), parts (000-postgres) or experiments of one (001/delay) to run, instead of all")
	return cmd
}

// RunParts runs the requested parts of a verb, or all of them, and prints the summary of the
// index page.
func RunParts(cmd *cobra.Command, o Options, parts []Part, experiments []string) (err error) {
	if o.Resume && o.Out == "" {
		return cli.UsageError(errors.New("--resume: name the directory with --out"))
	}
	o.All, o.Verb = parts, cmd.Name()
	if o.Parts, err = choose(parts, experiments); err != nil {
		return cli.UsageError(err)
	}
	if o.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o.Out = cmp.Or(o.Out, suite.NewDirName("bench-"+cmd.Name()))
	o.Output = cmd.ErrOrStderr()
	o.Say = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
	run, err := Start(o)
	if err != nil {
		return err
	}
	err = run.Parts(cmd.Context())
	if o.JSON.Given() {
		return errors.Join(err, run.Brief().Write(cmd.OutOrStdout(), report.FormatJSON))
	}
	if werr := run.Brief().Write(cmd.OutOrStdout(), report.FormatText); werr != nil {
		return errors.Join(err, werr)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "\nreport  %s/index.html\n", o.Out)
	return err
}
