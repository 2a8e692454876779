package outboxcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/outbox"
)

func newOutboxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Transactional outbox: delivers what applications commit to a broker",
		Long: `An application writes a message to a table, in the transaction that writes its
business data. weir delivers what was committed: every message at least once, and
those of one key in commit order.

  weir outbox migrate      creates the tables
  weir outbox relay        delivers, until it is stopped
  weir outbox status       counts, lag, leaders; a check for scripts

Options can be flags, WEIR_OUTBOX_ variables (--max-in-flight as
WEIR_OUTBOX_MAX_IN_FLIGHT) or lines of a YAML file (max_in_flight). A flag overrides
the variable, which overrides the file. No password needs to be on the command line:
PGPASSWORD, the password file (~/.pgpass), MYSQL_PWD, WEIR_OUTBOX_DB and the YAML file
hold it as well.`,
	}
	cmd.AddCommand(newOutboxMigrate(), newOutboxRelay(), newOutboxStatus(), newOutboxInspect(),
		newOutboxReplay(), newOutboxPurge(), newOutboxPartitions(), newOutboxTorture())
	return cmd
}

// outboxVerb is a command on the outbox of one database.
type outboxVerb struct {
	cfg outboxConfig
	// create creates a missing SQLite file.
	create bool
}

// command adds the options to a verb and loads them before it runs.
func (v *outboxVerb) command(cmd *cobra.Command, run func(ctx context.Context, out io.Writer) error) *cobra.Command {
	loader := outboxLoader(cmd.Name())
	cmd.Args = cobra.NoArgs
	inner := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) (err error) {
		if v.cfg, err = loadOutbox(loader); err != nil || inner == nil {
			return err
		}
		return inner(cmd, args)
	}
	if cmd.RunE == nil {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			v.cfg.warnOfPasswords(v.cfg.log(cmd.ErrOrStderr()))
			return run(cmd.Context(), cmd.OutOrStdout())
		}
	}
	loader.AddFlags(cmd)
	return cmd
}

// withStore opens the store and runs f.
func (v *outboxVerb) withStore(ctx context.Context, f func(store outbox.Store) error) (err error) {
	o := v.cfg.store
	o.Create = v.create
	store, err := v.cfg.db.Open(ctx, o)
	if err != nil {
		return fmt.Errorf("open %s: %w", v.cfg.db.Address, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return f(store)
}

// migrated is what `weir outbox migrate --json` prints.
type migrated struct {
	Table      string   `json:"table"`      // name of the outbox table
	DryRun     bool     `json:"dry_run"`    // nothing was executed
	Statements []string `json:"statements"` // that were executed, or would be
}

func newOutboxMigrate() *cobra.Command {
	v := &outboxVerb{create: true}
	var asJSON cli.JSON[migrated]
	var layout, partition string
	var plan outbox.Plan
	var dry, notify bool
	cmd := &cobra.Command{
		Use:   "migrate --db DSN",
		Short: "Create the outbox tables, or upgrade them to this version",
		Long: `Create the tables of an outbox, or upgrade them to this version. It can run again at
any time, even after an interruption and while relays run.

Layout queue deletes delivered messages. Layout history keeps them for replay; with
--partition the table is partitioned by time, so that old partitions can be dropped.
An existing table keeps its layout and partitions unless flags say otherwise; --convert
rebuilds a table whose partitions must change.`,
		Example: `  weir outbox migrate --db postgres://app@db.example.com/shop
  weir outbox migrate --db sqlite:shop.db
  weir outbox migrate --db mysql://app@db.example.com/shop --layout history --partition day
  weir outbox migrate --db postgres://app@db.example.com/shop --print > outbox.sql`,
		PreRunE: func(*cobra.Command, []string) error {
			if layout != "" {
				l, err := outbox.ParseLayout(layout)
				if err != nil {
					return fmt.Errorf("--layout %q: want queue or history", layout)
				}
				plan.Layout = l
			}
			if partition != "" {
				p, err := outbox.ParsePeriod(partition)
				if err != nil {
					return fmt.Errorf("--partition %q: want none, day or month", partition)
				}
				plan.Partition.Period = p
			}
			if plan.Shards < 0 || plan.Shards > outbox.Buckets {
				return fmt.Errorf("--shards %d: want 1 to %d", plan.Shards, outbox.Buckets)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&layout, "layout", "", "LAYOUT|whether delivered messages are deleted (queue) or kept (history) (default the table's own, queue for a new one)")
	f.StringVar(&partition, "partition", "", "PERIOD|period of the partitions of layout history: none, day or month (default the table's own, none for a new one)")
	cli.Takes(f, "partition", "none", "day", "month")
	f.IntVar(&plan.Shards, "shards", 0, "N|how many relays deliver at the same time, each the keys of its shard (default the table's own, 1 for a new one)")
	f.Lookup("shards").DefValue = ""
	f.BoolVar(&plan.Convert, "convert", false, "rebuild the table when its partitions must change, which copies every row")
	f.BoolVar(&notify, "notify", false, "PostgreSQL: create a trigger that wakes relays at each insert; producers then commit one at a time")
	f.BoolVar(&dry, "dry-run", false, "print what would be executed, and change nothing")
	f.BoolVar(&dry, "print", false, "the same as --dry-run")
	asJSON.Flag(cmd.Flags(), "print one line of JSON")
	return v.command(cmd, func(ctx context.Context, out io.Writer) error {
		plan.DryRun = dry
		v.cfg.store.Notify = notify
		return v.withStore(ctx, func(store outbox.Store) error {
			desc, err := store.Describe(ctx)
			switch {
			case errors.Is(err, outbox.ErrNotMigrated):
			case err != nil:
				return err
			default:
				if layout == "" {
					plan.Layout = desc.Layout
				}
				if partition == "" && plan.Layout == desc.Layout {
					plan.Partition.Period = desc.Period
				}
			}
			plan.Partition = outbox.PartitionSpec{Period: plan.Partition.Period, Ahead: v.cfg.partitions.Ahead, Lookback: v.cfg.partitions.Lookback}
			return migrate(ctx, store, plan, out, &asJSON)
		})
	})
}

func migrate(ctx context.Context, store outbox.Store, plan outbox.Plan, out io.Writer, asJSON *cli.JSON[migrated]) error {
	done, err := store.Migrate(ctx, plan)
	if err != nil {
		return err
	}
	if asJSON.Given() {
		if done == nil {
			done = []string{}
		}
		return asJSON.Line(out, migrated{store.Name(), plan.DryRun, done})
	}
	if plan.DryRun {
		for _, text := range done {
			fmt.Fprintf(out, "%s;\n\n", text)
		}
		return nil
	}
	desc, err := store.Describe(ctx)
	if err != nil {
		return err
	}
	partitions := ""
	if desc.Period != outbox.Unpartitioned {
		partitions = ", partitions by " + desc.Period.String()
	}
	fmt.Fprintf(out, "%s is ready: layout %s, %d shard%s%s, %s (statements executed: %d)\n",
		store.Name(), desc.Layout, desc.Shards, plural(desc.Shards), partitions, desc.Server, len(done))
	return nil
}

func plural[N int | int64](n N) string {
	if n == 1 {
		return ""
	}
	return "s"
}

func newOutboxStatus() *cobra.Command {
	v := &outboxVerb{}
	var asJSON cli.JSON[outboxctl.StatusReport]
	var maxLag string
	var lag time.Duration
	maxPending, maxDead := int64(-1), int64(-1)
	led := false
	cmd := &cobra.Command{
		Use:   "status --db DSN",
		Short: "Count what is pending, scheduled and dead, and say who leads",
		Long: `Count the messages in the tables, and show which relay leads and whether the database's
log can be followed. With limits it is a check: exit code 3 means that one is exceeded.
Counting reads every row of the tables.`,
		Example: `  weir outbox status --db sqlite:shop.db
  weir outbox status --db postgres://app@db.example.com/shop --max-lag 30s --max-dead 0
  weir outbox status --db mysql://app@db.example.com/shop --json`,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if maxLag != "" {
				if lag, err = cli.ParseSpan(maxLag); err != nil {
					return fmt.Errorf("--max-lag %q: %w", maxLag, err)
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&maxLag, "max-lag", "", "DURATION|exit code 3 if the oldest pending message is older")
	f.Int64Var(&maxPending, "max-pending", -1, "N|exit code 3 if more messages are pending")
	f.Int64Var(&maxDead, "max-dead", -1, "N|exit code 3 if there are more dead letters")
	for _, name := range []string{"max-pending", "max-dead"} {
		f.Lookup(name).DefValue = ""
	}
	f.BoolVar(&led, "led", false, "exit code 3 if a shard has no leader")
	asJSON.Flag(cmd.Flags(), "print one line of JSON")
	return v.command(cmd, func(ctx context.Context, out io.Writer) error {
		return v.withStore(ctx, func(store outbox.Store) error {
			report, err := readStatus(ctx, store)
			if err != nil {
				return err
			}
			if asJSON.Given() {
				err = asJSON.Line(out, report)
			} else {
				err = printStatus(out, &report)
			}
			if err != nil {
				return err
			}
			var short []error
			if age := time.Duration(report.OldestAge * float64(time.Second)); lag > 0 && age > lag {
				short = append(short, fmt.Errorf("the oldest pending message is %s old, more than %s", round(age), lag))
			}
			if maxPending >= 0 && report.Pending > maxPending {
				short = append(short, fmt.Errorf("%d messages are pending, more than %d", report.Pending, maxPending))
			}
			if maxDead >= 0 && report.Dead > maxDead {
				short = append(short, fmt.Errorf("%d dead letters, more than %d", report.Dead, maxDead))
			}
			for _, l := range report.Leases {
				if led && !l.Held {
					short = append(short, fmt.Errorf("shard %d has no leader", l.Shard))
				}
			}
			if len(short) > 0 {
				return cli.Shortfall(errors.Join(short...))
			}
			return nil
		})
	})
}

func readStatus(ctx context.Context, store outbox.Store) (outboxctl.StatusReport, error) {
	desc, err := store.Describe(ctx)
	if err != nil {
		return outboxctl.StatusReport{}, err
	}
	status, err := store.Status(ctx)
	if err != nil {
		return outboxctl.StatusReport{}, err
	}
	report := outboxctl.Report(store.Name(), desc, status)
	if p, ok := store.(outbox.Partitioner); ok && desc.Period != outbox.Unpartitioned {
		parts, err := p.Partitions(ctx)
		if err != nil {
			return report, err
		}
		rows, _ := outboxctl.Reach(parts)
		report.CatchAllRows = &rows
	}
	return report, nil
}

func printStatus(out io.Writer, r *outboxctl.StatusReport) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "table\t%s, layout %s, partitions: %s, %s\n", r.Table, r.Layout, r.Period, r.Server)
	fmt.Fprintf(w, "pending\t%d", r.Pending)
	if r.Pending > 0 {
		fmt.Fprintf(w, ", the oldest for %s", round(time.Duration(r.OldestAge*float64(time.Second))))
	}
	fmt.Fprintf(w, "\n  of these failed\t%d\n", r.Parked)
	fmt.Fprintf(w, "scheduled\t%d\ndead\t%d\n", r.Scheduled, r.Dead)
	if r.Layout == outbox.History.String() {
		fmt.Fprintf(w, "delivered\t%d\n", r.Delivered)
	}
	if r.CatchAllRows != nil {
		fmt.Fprintf(w, "catch-all rows\t%d\n", *r.CatchAllRows)
	}
	for _, l := range r.Leases {
		who := "none"
		switch {
		case l.Held:
			who = l.Owner
		case l.Owner != "":
			who = "none, last " + l.Owner
		}
		fmt.Fprintf(w, "leader of shard %d\t%s (%d take-over%s)\n", l.Shard, who, l.Epoch, plural(l.Epoch))
	}
	tail := "can be followed"
	if !r.CanTail {
		tail = "cannot be followed: " + cmp.Or(r.TailReason, "unknown")
	}
	fmt.Fprintf(w, "log\t%s\n", tail)
	return w.Flush()
}

// round rounds a duration for people.
func round(d time.Duration) time.Duration {
	switch {
	case d > time.Minute:
		return d.Round(time.Second)
	case d > time.Second:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
