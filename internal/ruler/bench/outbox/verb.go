package outboxbench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// file describes the files of a run.
var file = &suite.File{Name: "metadata.json", Bench: "outbox", Schema: "weir.bench.outbox/1", Group: FactorPhase, Samples: true}

// Save writes the outcome next to its results, and the report in every format. It returns the
// path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) { return file.Save(dir, o) }

// Bench is weir bench outbox, which is also a verb of weir outbox.
func Bench() suite.Bench {
	own := newCommand()
	own.Use, own.Short = "bench", "Measure outboxes: the same as weir bench outbox"
	own.Example = strings.ReplaceAll(own.Example, "weir bench outbox", "weir outbox bench")
	return suite.Bench{
		Verb: newCommand(), Other: []*cobra.Command{cli.Below("outbox", own)},
		File: file, New: func() suite.Run { return &Outcome{} },
	}
}

// command is the configuration of weir bench outbox.
type command struct {
	suite.Flags
	suite.ServerFlags
	overrides
	durability, peers string
	fsyncLatency      time.Duration
	floor             bool
}

func newCommand() *cobra.Command {
	var c command
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Compare outboxes: weir's relay and SKIP LOCKED workers, alone and with producers",
		Long: `Start a private server and run a benchmark of transactional outboxes on it:

  screen     a backlog, over workers x batch of each claim
  records    the best of them over the lengths of --records, if there are several
  focus      the two best combinations and weir's claims, with more rounds
  payload    the same for payloads from 128 B to 128 KiB
  enqueue    producers alone: with a transaction, without, in groups
  mixed      producers and relay at once, in a closed loop and at fixed rates
  grid       the same with SKIP LOCKED workers, over workers x batch x producers
  out-of-band  payloads in the outbox, or in another table that it refers to
  partition  a backlog of 90 days, with and without a window and partitions
  peers      other outboxes on the same server, run by the program of --peers

The sides of each comparison take turns. Every round keeps a ledger of all
messages. A round in which a message is lost, or the order of a key is broken by
a relay that promises it, is invalid; the exit code is then 3.

With --db everything runs on an existing server. Tables whose names begin with
weir_bench_ are created there and dropped.`,
		Example: `  weir bench outbox --plan mini
  weir bench outbox --plan full --engine mariadb --out out/outbox --resume
  weir bench outbox --engine postgres --fsync-latency 2ms --experiments focus,mixed
  weir bench outbox --engine mariadb --workers 4,16 --batch 50,200 --producers 8 --records 200000,2000000
  weir bench outbox --experiments partition --window 1h,24h,none --partitions none,daily --rounds 3
  weir bench outbox --engine sqlite --plan smoke`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := c.options(cmd.Flags().Changed)
			if err != nil {
				return cli.UsageError(err)
			}
			o.ReportProgress(cmd.ErrOrStderr(), "msg/s", delivered)
			out, err := Run(cmd.Context(), o)
			if out == nil {
				return err
			}
			return c.Finish(file, o.Out, out, err, cmd.OutOrStdout())
		},
	}
	c.flags(cmd.Flags())
	cli.Renamed(cmd, "profile", "durability")
	cli.Renamed(cmd, "repeats", "rounds")
	cli.Words(cmd, "durability", "prod", "fast")
	c.ServerFlags.Completions(cmd)
	return cmd
}

func (c *command) flags(f *pflag.FlagSet) {
	c.Flags.Add(f, "outbox", suite.Names(Plans()))
	c.Alias(f, "phases")
	c.ServerFlags = suite.ServerFlags{Engines: Engines(), Flag: "db"}
	c.ServerFlags.Add(f)
	f.IntSliceVar(&c.workers, "workers", nil, "numbers of SKIP LOCKED workers to compare, instead of the plan's")
	f.IntSliceVar(&c.batches, "batch", nil, "batch sizes of the SKIP LOCKED workers to compare, instead of the plan's")
	f.IntSliceVar(&c.payloads, "payloads", nil, "sizes of payloads to compare, in bytes, instead of the plan's; from 16384 on with fewer rows")
	f.IntSliceVar(&c.producers, "producers", nil, "numbers of producers to compare, instead of the plan's")
	f.Int64SliceVar(&c.records, "records", nil, "rows of a backlog, instead of the plan's; the experiment records compares several, and all others use the first")
	f.IntVar(&c.rounds, "rounds", 0, "rounds of each experiment, instead of the plan's")
	f.IntVar(&c.warmup, "warmup", -1, "rounds before the measured ones, which are discarded (default the plan's)")
	f.Lookup("warmup").DefValue = "" // the default is that of the plan
	f.StringSliceVar(&c.partitions, "partitions", nil, "tables of the partition experiment to compare: none, daily (default both)")
	cli.Takes(f, "partitions", "none", "daily")
	f.DurationSliceVar(&c.windows, "window", nil, "windows of the partition experiment to compare, none for all rows; a round ends after as many deliveries as the longest window has rows (default the plan's and none)")
	cli.OrNone(f, "window", "0s")
	f.StringVar(&c.durability, "durability", lab.Prod.String(), "durability of the private server: prod (flush at each commit) or fast (never flush)")
	f.DurationVar(&c.fsyncLatency, "fsync-latency", 0, "make each flush of the private server take this much longer, such as 2ms")
	f.BoolVar(&c.floor, "floor", false, "also measure a relay that follows the log but does not record deliveries")
	f.StringVar(&c.peers, "peers", "", "program that runs other outboxes (default bin/weir-peers if it exists)")
}

// options checks the flags against each other.
func (c *command) options(changed func(string) bool) (o Options, err error) {
	if o.Plan, err = suite.PlanOf(&c.Flags, Plans()); err != nil {
		return o, err
	}
	if o.Plan, err = o.Plan.with(c.overrides); err != nil {
		return o, err
	}
	if o.Durability, err = lab.ParseDurability(c.durability); err != nil {
		return o, fmt.Errorf("--durability: %w", err)
	}
	if err := c.Complete(changed); err != nil {
		return o, err
	}
	if c.DSN != "" && changed("durability") {
		return o, errors.New("--durability is for a private server; that of --db is as it is set")
	}
	if c.fsyncLatency < 0 {
		return o, errors.New("--fsync-latency: want 0 or more")
	}
	o.Engine, o.DSN, o.FsyncLatency, o.Floor = c.Engine, strings.TrimPrefix(c.DSN, "file:"), c.fsyncLatency, c.floor
	if o.Options, err = c.Options("outbox", Steps(o)); err != nil {
		return o, err
	}
	if err := o.Validate(); err != nil {
		return o, err
	}
	o.Peers, err = c.peersProgram()
	return o, err
}

// peersProgram is the named program, or the one next to this one.
func (c *command) peersProgram() (string, error) {
	if c.peers != "" {
		if _, err := os.Stat(c.peers); err != nil {
			return "", fmt.Errorf("--peers: %w", err)
		}
		return filepath.Abs(c.peers)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), "weir-peers")
	if _, err := os.Stat(beside); err != nil {
		return "", nil //nolint:nilerr // it is optional
	}
	return beside, nil
}

// delivered formats how fast messages of a sample were delivered.
func delivered(s *bench.Sample) string {
	o := messages.Of(s.Parts)
	if o == nil || o.FromCommit == nil {
		return ""
	}
	return fmt.Sprintf("  delivered p95 %s", time.Duration(o.FromCommit.Quantile(.95)).Round(10*time.Microsecond))
}
