package kvbench

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/version"
)

// file describes the files of a run.
var file = &suite.File{Name: "kv.json", Bench: "kv", Schema: "weir.bench.kv/1", Group: "scenario", Factors: []string{"system", "durability"}}

// Save writes the outcome next to its results, and the report in every format. It returns the
// path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) { return file.Save(dir, o) }

// Bench is weir bench kv.
func Bench() suite.Bench {
	return suite.Bench{Verb: newCommand(), File: file, New: func() suite.Run { return &Outcome{} }}
}

// command is the configuration of weir bench kv.
type command struct {
	suite.Flags
	overrides
	presets, targets   []string
	client, path, etcd string
	procs              int
	floor              bool
}

func newCommand() *cobra.Command {
	var c command
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Measure the replicated store: delays of batches, protocols, distance; and etcd",
		Long: `Start clusters of weir kv, each replica a process, and run the experiments of a
benchmark on them:

  delay      fixed delays of batches, 0 to 150 us, and none (reference report 2)
  validate   the best of them and none, round by round: smallest, largest, range
  tunings    the settings that report 2 names: pendings with their delay
  grid       operations in flight in each session, by delay of batches
  writer     delay at the writers between replicas, changed while they run
  cpu        where the CPU time of replicas goes
  pendings   operations in flight in each session
  threads    sessions
  length     10,000 and 100,000 operations in each session
  presets    raft, raft-ht, curp, curp-ht, curp-ho side by side
  wan        the same with a round trip of 0 to 50 ms, 3 and 5 replicas
  etcd       etcd at the same load and durability
  cells      no delay against fixed ones by distance, clients, durability
  single     one client with one operation

The sides of each comparison take turns. Every answer to a read is checked; a round
with wrong answers is invalid, and the exit code is then 3.`,
		Example: `  weir bench kv --plan mini
  weir bench kv --plan full --out out/kv --resume
  weir bench kv --experiments delay --delays 0,50,150 --preset curp-ho,raft-ht --target 'weak_p50<=2,rate>=23000'
  WEIR_ETCD_BIN=/opt/etcd/etcd weir bench kv --experiments etcd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := c.options()
			if err != nil {
				return cli.UsageError(err)
			}
			o.ReportProgress(cmd.ErrOrStderr(), "ops/s", medians)
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.Procs)) // the client is this process
			out, err := Run(cmd.Context(), o)
			if out == nil {
				return err
			}
			return c.Finish(file, o.Out, out, err, cmd.OutOrStdout())
		},
	}
	c.flags(cmd.Flags())
	cmd.AddCommand(floorCommands()...)
	return cmd
}

func (c *command) flags(f *pflag.FlagSet) {
	c.Add(f, "kv", suite.Names(Plans())+" (smoke: seconds, with meaningless figures)")
	c.Alias(f, "scenarios")
	f.StringSliceVar(&c.presets, "preset", []string{"raft-ht"}, "protocol of the experiments that do not compare protocols; with a list, delay, validate and tunings run with each, and the others with the first")
	cli.Takes(f, "preset", consensus.PresetNames()...)
	f.IntSliceVar(&c.delays, "delays", nil, "delays of batches to compare, in microseconds, instead of the plan's; no delay is always included")
	f.IntSliceVar(&c.peerDelays, "peer-delays", nil, "delays at the writers between replicas to compare, in microseconds, instead of the plan's; no delay is always included")
	f.IntSliceVar(&c.pendings, "pendings", nil, "operations in flight in each session to compare, instead of the plan's")
	f.IntSliceVar(&c.sessions, "sessions", nil, "numbers of sessions to compare, instead of the plan's")
	f.Int64SliceVar(&c.ops, "ops", nil, "operations of each session in the short and the long run of the experiment length, instead of the plan's (one number: the short run; the long one is ten times as long)")
	f.StringSliceVar(&c.targets, "target", nil, "limits that a case of delay, validate or tunings must meet to be recommended (default weak_p50<=2)")
	f.StringVar(&c.client, "client", string(Native), "client to drive weir with: native (its Go client) or redis (the Redis protocol)")
	cli.Takes(f, "client", string(Native), "redis")
	f.StringVar(&c.path, "path", string(PathAuto), "when the native client tries the fast path: auto (if it has proved faster), fast, log")
	cli.Takes(f, "path", string(PathAuto), "fast", "log")
	f.IntVar(&c.rounds, "rounds", 0, "rounds of each experiment, instead of the plan's")
	f.DurationVar(&c.duration, "duration", 0, "measured time of each round, instead of the plan's")
	f.IntVar(&c.keys, "keys", 0, "number of keys, instead of the plan's")
	f.IntVar(&c.procs, "procs", 0, "GOMAXPROCS of the client and of each replica (default a quarter of this machine's processors, at least 1)")
	f.BoolVar(&c.floor, "floor", false, "also measure the minimum that a durable store needs: a table in memory with one log, and with three logs of which a majority is flushed")
	f.StringVar(&c.etcd, "etcd", "", "etcd program to compare with (default: the installed one)")
}

// options checks the flags against each other.
func (c *command) options() (o Options, err error) {
	if o.Plan, err = suite.PlanOf(&c.Flags, Plans()); err != nil {
		return o, err
	}
	for i, p := range c.presets {
		if _, err := consensus.Preset(p); err != nil {
			return o, fmt.Errorf("--preset: %w", err)
		}
		if slices.Contains(c.presets[:i], p) {
			return o, fmt.Errorf("--preset names %s twice", p)
		}
	}
	if len(c.presets) == 0 {
		return o, errors.New("--preset: want at least one")
	}
	o.Preset, o.Presets = c.presets[0], c.presets
	for _, t := range c.targets {
		limit, err := parseTarget(t)
		if err != nil {
			return o, fmt.Errorf("--target: %w", err)
		}
		o.Limits = append(o.Limits, limit)
	}
	if o.Client = Client(c.client); !slices.Contains(Clients(), o.Client) {
		return o, fmt.Errorf("--client %q: want native or redis", c.client)
	}
	if o.Path = Path(c.path); !slices.Contains(Paths(), o.Path) {
		return o, fmt.Errorf("--path %q: want auto, fast or log", c.path)
	}
	if c.procs < 0 {
		return o, errors.New("--procs must not be negative")
	}
	if err := c.overrides.validate(); err != nil {
		return o, err
	}
	o.Procs, o.Plan = cmp.Or(c.procs, SharedProcs()), o.Plan.with(c.overrides)
	if o.Options, err = c.Options("kv", Steps(o)); err != nil {
		return o, err
	}
	o.Floor = c.floor
	o.Etcd, o.Version = c.etcd, version.Current().Version
	if o.Binary, err = os.Executable(); err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	return o, nil
}

// medians are the median latencies of a sample by class.
func medians(s *bench.Sample) string {
	out := ""
	k := kvs.Of(s.Parts)
	if k == nil {
		return out
	}
	for _, class := range []struct {
		name string
		p50  int64
	}{{"weak", k.Weak().Quantile(.5)}, {"strong", k.Strong().Quantile(.5)}} {
		if class.p50 > 0 {
			out += fmt.Sprintf("  %s p50 %s", class.name, time.Duration(class.p50).Round(time.Microsecond))
		}
	}
	return out
}
