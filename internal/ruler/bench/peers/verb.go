package peers

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench/reference"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Command is weir bench peers.
func Command(benches []suite.Bench) *cobra.Command {
	var o reference.Options
	var experiments []string
	var programs Programs
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "Compare weir with the tools in use today, goal by goal, on one page",
		Long: `Run the benchmarks that compare weir with direct connections, PgBouncer, pg_dump,
mydumper, etcd and an outbox of SKIP LOCKED workers, on private servers, one after the
other, and write one page: both sides, their ratio with its interval, the goal, and
whether it is met.

Each part is a separate command with its full report in its own directory below --out.
An interrupted run leaves a valid page, and --resume continues it. If a peer is not
installed, its rows say so, and the others run.

Plan mini takes about half an hour on two processors.`,
		Example: `  weir bench peers --plan mini --out out/peers
  weir bench peers --experiments kv,proxy-mariadb/literals-1 --out out/some
  weir bench peers --resume --out out/peers`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parts, err := Parts(o.Plan, programs)
			if err != nil {
				return cli.UsageError(err)
			}
			o.Benches = benches
			o.Pages = func(m *reference.Measured, env *measure.Environment) map[string]*report.Doc {
				return pages(m, env, o.Plan)
			}
			return reference.RunParts(cmd, o, parts, experiments)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Plan, "plan", "mini", "how much to run: "+strings.Join(reference.Plans(), ", ")+" (smoke: a minute or two, with meaningless figures)")
	cli.Takes(f, "plan", reference.Plans()...)
	f.StringVar(&o.Out, "out", "", "directory for parts, samples and the page (default out/bench-peers-TIME)")
	f.BoolVar(&o.Resume, "resume", false, "continue the run in --out")
	o.JSON.Flag(f, "print the summary as JSON")
	f.StringVar(&programs.PgBouncer, "pgbouncer", "", "PgBouncer program to compare with (default: the installed one)")
	f.StringSliceVar(&programs.Tools, "tools", nil, "directories to search for other backup tools first")
	f.StringSliceVar(&experiments, "experiments", nil, "parts (kv) or experiments of one (proxy-mariadb/literals-1) to run, instead of all")
	return cmd
}
