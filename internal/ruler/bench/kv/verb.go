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
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/version"
)

// file is how a run lies in its directory.
var file = &suite.File{Name: "kv.json", Scenario: "kv", Schema: "weir.bench.kv/1", Group: "scenario", Factors: []string{"system", "durability"}}

// Save writes the outcome beside its results, and the report in every format. It
// returns the path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) { return file.Save(dir, o) }

// Bench is weir bench kv.
func Bench() suite.Bench {
	return suite.Bench{Verb: newCommand(), File: file, New: func() suite.Run { return &Outcome{} }}
}

// command is the configuration of weir bench kv.
type command struct {
	suite.Flags
	preset, client, path, etcd, reference string
	rounds, keys, procs                   int
	duration                              time.Duration
}

func newCommand() *cobra.Command {
	var c command
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "The replicated store: delays of batches, protocols, distance, etcd beside it",
		Long: `Start clusters of weir kv, each replica a process, and run the experiments of a
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
  weir bench kv --experiments delay,validate --reference report-2.yaml
  WEIR_ETCD_BIN=/opt/etcd/etcd weir bench kv --experiments etcd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := c.options()
			if err != nil {
				return cli.UsageError(err)
			}
			o.Tell(cmd.ErrOrStderr(), "ops/s", medians)
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.Procs)) // the client is this process
			out, err := Run(cmd.Context(), o)
			if out == nil {
				return err
			}
			return file.Finish(o.Out, out, err, cmd.OutOrStdout())
		},
	}
	c.flags(cmd.Flags())
	return cmd
}

func (c *command) flags(f *pflag.FlagSet) {
	c.Add(f, "kv", suite.Names(Plans())+" (smoke: seconds, whose figures say nothing)")
	c.Alias(f, "scenarios")
	f.StringVar(&c.preset, "preset", "raft-ht", "protocol of all that does not compare protocols")
	f.StringVar(&c.client, "client", string(Native), "how weir is driven: native (its Go client) or redis (the Redis protocol)")
	f.StringVar(&c.path, "path", string(PathAuto), "when the native client tries the fast path: auto (where it has proved quicker), fast, log")
	f.IntVar(&c.rounds, "rounds", 0, "rounds of each experiment, instead of the plan's")
	f.DurationVar(&c.duration, "duration", 0, "measured time of each round, instead of the plan's")
	f.IntVar(&c.keys, "keys", 0, "number of keys, instead of the plan's")
	f.IntVar(&c.procs, "procs", 0, "processors that the client and each replica may use at once, as GOMAXPROCS says (default those of this machine, shared out among four)")
	f.StringVar(&c.etcd, "etcd", "", "etcd program to compare with (default: the one that is found)")
	f.StringVar(&c.reference, "reference", "", "YAML file with figures of another system, to be placed beside")
}

// options makes the flags agree.
func (c *command) options() (o Options, err error) {
	if o.Plan, err = suite.PlanOf(&c.Flags, Plans()); err != nil {
		return o, err
	}
	if _, err := consensus.Preset(c.preset); err != nil {
		return o, fmt.Errorf("--preset: %w", err)
	}
	if o.Client = Client(c.client); !slices.Contains(Clients(), o.Client) {
		return o, fmt.Errorf("--client %q: want native or redis", c.client)
	}
	if o.Path = Path(c.path); !slices.Contains(Paths(), o.Path) {
		return o, fmt.Errorf("--path %q: want auto, fast or log", c.path)
	}
	if c.rounds < 0 || c.duration < 0 || c.keys < 0 || c.procs < 0 {
		return o, errors.New("--rounds, --duration, --keys and --procs must not be negative")
	}
	o.Procs, o.Plan = cmp.Or(c.procs, SharedProcs()), o.Plan.with(c.rounds, c.keys, c.duration)
	if o.Options, err = c.Options("kv", Steps(o)); err != nil {
		return o, err
	}
	if c.reference != "" {
		if o.Reference, err = readReference(c.reference); err != nil {
			return o, fmt.Errorf("--reference: %w", err)
		}
	}
	o.Preset, o.Etcd, o.Version = c.preset, c.etcd, version.Current().Version
	if o.Binary, err = os.Executable(); err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	return o, nil
}

func readReference(path string) (*Reference, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadReference(f)
}

// medians are the median latencies of a sample by class.
func medians(s *bench.Sample) string {
	out := ""
	if s.KV == nil {
		return out
	}
	for _, class := range []struct {
		name string
		p50  int64
	}{{"weak", s.KV.Weak().Quantile(.5)}, {"strong", s.KV.Strong().Quantile(.5)}} {
		if class.p50 > 0 {
			out += fmt.Sprintf("  %s p50 %s", class.name, time.Duration(class.p50).Round(time.Microsecond))
		}
	}
	return out
}
