package proxybench

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// file describes the files of a run.
var file = &suite.File{Name: "outcome.json", Bench: "proxy"}

// Save writes the outcome next to its results, and the report in every format. It returns the
// path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) { return file.Save(dir, o) }

// Bench is weir bench proxy, and weir demo. If stack is nil, the demo has no --stack.
func Bench(stack Stack) suite.Bench {
	return suite.Bench{
		Verb: newCommand(&command{}), Other: []*cobra.Command{newDemoCommand(stack)},
		File: file, New: func() suite.Run { return &Outcome{} },
	}
}

// command is the configuration of weir bench proxy.
type command struct {
	suite.Flags
	suite.ServerFlags
	pgbouncer string
	floor     bool
	mysql     bool
	overrides
}

func newCommand(c *command) *cobra.Command {
	c.ServerFlags = suite.ServerFlags{Engines: Engines(), Flag: "db"}
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Compare a database direct and through weir",
		Long: `Start a private server, PgBouncer if it is installed and the server is
PostgreSQL, and weir proxy; send them the same load in turn (A B B A); check
every answer, and after each round every row; report ratios with confidence
intervals.

With --db the load runs on an existing server, in the database that the DSN names. The
tables weir_bench_test and weir_bench_keys are created there and dropped; that server's
processor time and disk are not measured.`,
		Example: `  weir bench proxy --plan mini
  weir bench proxy --experiments inserts-64
  weir bench proxy --experiments inserts,pool-sizes --clients 100 --windows 0,1,10,100 --pool-size 20,50,200
  weir bench proxy --experiments drivers --clients 100 --windows 0,1,10,100
  weir bench proxy --experiments leak --leak 1h
  weir bench proxy --engine mariadb --plan full --out out/mariadb --resume
  weir bench proxy --engine mysql
  weir bench proxy --db mysql://root@127.0.0.1:3306/scratch --clients 64`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := c.options(cmd.Flags())
			if err != nil {
				return cli.UsageError(err)
			}
			o.ReportProgress(cmd.ErrOrStderr(), "ops/s", suite.P50)
			out, err := Run(cmd.Context(), o)
			if out == nil {
				return err
			}
			return c.Finish(file, o.Out, out, err, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	c.Flags.Add(f, "proxy", suite.Names(Plans())+" (smoke: seconds, with meaningless figures)")
	c.ServerFlags.Add(f)
	cli.Renamed(cmd, "dsn", "db")
	c.ServerFlags.Completions(cmd)
	f.BoolVar(&c.mysql, "mysql", false, "the same as --engine mariadb")
	f.Lookup("mysql").Hidden = true // its name is misleading
	f.StringVar(&c.pgbouncer, "pgbouncer", "", "PgBouncer program to compare with (default: the installed one)")
	f.BoolVar(&c.floor, "floor", false, "also measure a program that only copies bytes, and for grouped writes one that only groups them: the minimum cost of a proxy")
	f.IntSliceVar(&c.clients, "clients", nil, "numbers of clients, instead of the plan's")
	f.StringSliceVar(&c.windows, "windows", nil, "fixed windows to compare, in milliseconds, such as 0,1,10,100, instead of the plan's; 0 and auto are always included")
	f.IntSliceVar(&c.poolSizes, "pool-size", nil, "maximum server connections of weir; several are compared (default: pools size themselves)")
	f.IntSliceVar(&c.groupLimits, "group-limit", nil, "maximum size of a group; several are compared (default 256)")
	f.IntVar(&c.rounds, "rounds", 0, "rounds of each experiment, instead of the plan's")
	f.DurationVar(&c.leak, "leak", 0, "how long the leak check loads weir, instead of the plan's time")
	f.DurationVar(&c.duration, "duration", 0, "measured time of each round, instead of the plan's")
	cmd.AddCommand(copyCommand())
	return cmd
}

// chooseEngine makes the flags for the engine consistent.
func (c *command) chooseEngine(f *pflag.FlagSet) error {
	if c.mysql {
		switch engine := f.Lookup("engine"); {
		case !engine.Changed:
			if err := f.Set("engine", string(suite.MariaDB)); err != nil {
				return err
			}
		case engine.Value.String() == string(suite.PostgreSQL):
			return errors.New("--mysql contradicts --engine postgres")
		}
	}
	return c.Complete(f.Changed)
}

// options checks the flags against each other.
func (c *command) options(f *pflag.FlagSet) (o Options, err error) {
	if o.Plan, err = suite.PlanOf(&c.Flags, Plans()); err != nil {
		return o, err
	}
	if err := c.chooseEngine(f); err != nil {
		return o, err
	}
	o.Engine, o.DSN, o.PgBouncer = c.Engine, c.DSN, c.pgbouncer
	o.Floor = c.floor
	if o.Plan, err = o.Plan.with(c.overrides); err != nil {
		return o, err
	}
	if o.Options, err = c.Flags.Options("proxy", Steps(o)); err != nil {
		return o, err
	}
	if o.Binary, err = os.Executable(); err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	return o, nil
}
