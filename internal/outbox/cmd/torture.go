//go:build linux

package outboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/outbox/torture"
	"github.com/weirdb/weir/outbox"
)

// outboxTorture is `weir outbox torture`.
type outboxTorture struct {
	cfg        torture.Config
	claim      string
	layout     string
	durability string
	json       cli.JSON[*torture.Result]
	verbose    bool
}

func newOutboxTorture() *cobra.Command {
	var v outboxTorture
	cmd := &cobra.Command{
		Use:   "torture [--engine ENGINE | --db DSN]",
		Short: "Kill relays, the database and the broker, and check that nothing is lost",
		Long: `Commit messages while relay processes are killed with SIGKILL or paused, and the
database and the broker are killed and restarted. A ledger compares what the database
holds as committed with what arrived: nothing may be lost, no key out of order, nothing
delivered that was rolled back or that another session of the database could not see at
that moment. Exit code 3 means that a promise was broken.

--engine starts a private server (postgres, mariadb, mysql or sqlite). --db uses an
existing database, which is not killed; the run creates its own tables there, and
removes them if it finds no fault.

--sink ledger is a broker inside the run that sees every delivery. Unless --quiet is
given, it also is slow, refuses messages, closes connections in the middle of a request
and rejects poison messages. The others (redis, nats, rabbitmq, kafka) are real
servers, started for the run and read at its end.`,
		Example: `  weir outbox torture --engine postgres --duration 1m --kills 600 --database-kills 5 --broker-kills 5
  weir outbox torture --engine mariadb --claim log --sink redis --json
  weir outbox torture --engine postgres --claim skip-locked   # exit code 3: out of order`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			return v.validate()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return v.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	c := &v.cfg
	f.StringVar(&c.Engine, "engine", "", "`ENGINE` of the private server: "+strings.Join(torture.Engines, ", ")+" (default postgres)")
	f.StringVar(&c.DSN, "db", "", "`DSN` of an existing database to use instead")
	f.StringVar(&v.durability, "durability", lab.Fast.String(), "durability of the private server: prod (flush at each commit) or fast (commits survive kill -9, but not a crash of the machine)")
	f.StringVar(&c.Sink, "sink", "ledger", "`BROKER`: "+strings.Join(torture.Sinks, ", "))
	f.StringVar(&v.claim, "claim", "poll", "`DESIGN`: auto, log, poll or skip-locked, which keeps no order")
	f.StringVar(&v.layout, "layout", "queue", "`LAYOUT` of the table: queue or history, by day where there are partitions")
	f.IntVar(&c.Plan.Shards, "shards", 1, "shards of the table")
	f.DurationVar(&c.Duration, "duration", 30*time.Second, "how long to commit and kill")
	f.IntVar(&c.Kills, "kills", 300, "relays to kill; a slow machine may reach fewer")
	f.BoolVar(&c.Following, "following", false, "kill only while a relay follows the log, and wait for one")
	f.IntVar(&c.DatabaseKills, "database-kills", 0, "times to kill and restart the private server")
	f.IntVar(&c.BrokerKills, "broker-kills", 0, "times to kill and restart the broker")
	f.IntVar(&c.Pauses, "pauses", 0, "times to stop a relay for up to 3 s and let it continue")
	f.IntVar(&c.Relays, "relays", 3, "relay processes")
	f.IntVar(&c.Producers, "producers", 6, "producers")
	f.IntVar(&c.MaxInFlight, "max-in-flight", 1000, "maximum messages that are read but not yet recorded as delivered")
	f.BoolVar(&c.Quiet, "quiet", false, "keep the ledger's broker from misbehaving")
	v.json.Flag(cmd.Flags(), "print one line of JSON")
	f.BoolVarP(&v.verbose, "verbose", "v", false, "log what the run and its relays do")
	cli.Renamed(cmd, "lab", "engine")
	cli.Words(cmd, "engine", torture.Engines...)
	cli.Words(cmd, "durability", "prod", "fast")
	cli.Words(cmd, "sink", torture.Sinks...)
	cli.Words(cmd, "claim", "auto", "log", "poll", "skip-locked")
	cli.Words(cmd, "layout", "queue", "history")
	cmd.AddCommand(newTortureWorker())
	return cmd
}

// newTortureWorker is the relay process of a run.
func newTortureWorker() *cobra.Command {
	return &cobra.Command{
		Use: "relay", Short: "Be a relay process of a run, told what to do on standard input", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return torture.Worker(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), log)
		},
	}
}

func (v *outboxTorture) validate() (err error) {
	c := &v.cfg
	if c.Claim, err = outbox.ParseClaimMode(v.claim); err != nil {
		return fmt.Errorf("--claim: %w", err)
	}
	if c.Plan.Layout, err = outbox.ParseLayout(v.layout); err != nil {
		return fmt.Errorf("--layout: %w", err)
	}
	if c.Durability, err = lab.ParseDurability(v.durability); err != nil {
		return fmt.Errorf("--durability: %w", err)
	}
	switch {
	case c.DSN != "" && c.Engine != "":
		return errors.New("--db and --engine: want one of them")
	case c.DSN == "" && c.Engine == "":
		c.Engine = torture.Engines[0]
	}
	if c.Engine != "" && !slices.Contains(torture.Engines, c.Engine) {
		return fmt.Errorf("--engine %q: want one of %s", c.Engine, strings.Join(torture.Engines, ", "))
	}
	if !slices.Contains(torture.Sinks, c.Sink) {
		return fmt.Errorf("--sink %q: want one of %s", c.Sink, strings.Join(torture.Sinks, ", "))
	}
	if c.Plan.Layout == outbox.History && c.Engine != "sqlite" {
		c.Plan.Partition = outbox.PartitionSpec{Period: outbox.Daily, Ahead: 48 * time.Hour}
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	c.Worker = []string{exe, "outbox", "torture", "relay"}
	return c.Validate()
}

func (v *outboxTorture) run(ctx context.Context, out, stderr io.Writer) error {
	if v.verbose {
		v.cfg.Log, v.cfg.WorkerLog = slog.New(slog.NewTextHandler(stderr, nil)), stderr
	}
	res, err := torture.Run(ctx, v.cfg)
	if err != nil {
		return err
	}
	return v.conclude(out, res)
}

// conclude prints the result, and returns an error if there are violations.
func (v *outboxTorture) conclude(out io.Writer, res *torture.Result) error {
	print := printTorture
	if v.json.Given() {
		print = v.json.Line
	}
	if err := print(out, res); err != nil {
		return err
	}
	if len(res.Violations) > 0 {
		return cli.Shortfall(fmt.Errorf("promises were broken: %s", strings.Join(res.Violations, "; ")))
	}
	return nil
}

func printTorture(out io.Writer, r *torture.Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "run\t%s to %s, claim %s, layout %s, %.0f s\n", r.Server, r.Sink, r.Claim, r.Layout, r.Seconds)
	fmt.Fprintf(w, "killed\t%d relays (%d that led, %d of them by the log), the database %d times, the broker %d times (%d and %d of them while a relay followed the log)\n",
		r.Kills, r.Leaders, r.Tailing, r.Database, r.Broker, r.DatabaseTailing, r.BrokerTailing)
	fmt.Fprintf(w, "stopped for a while\t%d relays\n", r.Pauses)
	fmt.Fprintf(w, "transactions\t%d committed, %d rolled back, %d broken off, %d failed, %d with unknown outcome\n",
		r.Writing.Commits, r.Writing.RolledBack, r.Writing.HungUp, r.Writing.Errors, r.Writing.Unknown)
	fmt.Fprintf(w, "messages committed\t%d\n", r.Committed)
	fmt.Fprintf(w, "delivered\t%d, and %d in the dead letters\n", r.Delivered, r.Dead)
	if r.Waiting > 0 {
		fmt.Fprintf(w, "not delivered\t%d, which are still in the outbox\n", r.Waiting)
	}
	fmt.Fprintf(w, "lost\t%d\n", r.Lost)
	fmt.Fprintf(w, "out of order\t%d\n", r.OutOfOrder)
	fmt.Fprintf(w, "not to be seen\t%d of %d that were looked for when they arrived\n", r.Invisible, r.Looked)
	fmt.Fprintf(w, "never committed\t%d\n", r.Phantoms)
	fmt.Fprintf(w, "duplicates\t%d, %.1f per kill\n", r.Duplicates, r.DuplicatesPerKill)
	fmt.Fprintf(w, "take-overs\t%d\n", r.TakeOvers)
	for _, e := range r.Examples {
		fmt.Fprintf(w, "  for example\t%s\n", e)
	}
	return w.Flush()
}
