//go:build linux

package kvcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/lab"
)

// labKV has the flags of weir lab kv.
type labKV struct {
	program, durability, preset, batchDelay string
	replicas                                int
	linkLatency                             time.Duration
	json                                    cli.JSON[labKVReport]
}

func newLabKVCommand() *cobra.Command {
	var c labKV
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Start a cluster of weir kv and run it until Ctrl-C, then remove it",
		Long: `Start replicas of weir kv as processes of this program, in temporary directories
and on free loopback ports, print how to reach them, and run them until Ctrl-C or
SIGTERM. Then everything is removed; if weir itself is killed, the replicas die
with it.`,
		Example: `  weir lab kv
  weir lab kv --replicas 5 --preset curp-ht --link-latency 25ms   # replicas 50 ms apart
  weir lab kv --durability memory --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.config()
			if err != nil {
				return cli.UsageError(err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return c.run(ctx, stop, cfg, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.replicas, "replicas", 3, "number of replicas: 1, 3, 5 or 7")
	f.StringVar(&c.durability, "durability", "disk", "disk, or memory: nothing is written")
	f.StringVar(&c.preset, "preset", "raft-ht", strings.Join(consensus.PresetNames(), ", "))
	f.StringVar(&c.batchDelay, "batch-delay", "auto", "auto, or a fixed delay of each round, for comparison")
	f.DurationVar(&c.linkLatency, "link-latency", 0, "artificial delay of messages between replicas, one way")
	c.json.Flag(cmd.Flags(), "print one line of JSON instead of text")
	cli.Words(cmd, "replicas", "1", "3", "5", "7")
	cli.Words(cmd, "preset", consensus.PresetNames()...)
	cli.Words(cmd, "durability", "disk", "memory")
	return cmd
}

// config returns the configuration of the cluster.
func (c *labKV) config() (lab.KVConfig, error) {
	cfg := lab.KVConfig{Program: c.program, Replicas: c.replicas, Preset: c.preset, BatchDelay: c.batchDelay, LinkLatency: c.linkLatency}
	switch c.durability {
	case "disk":
	case "memory":
		cfg.Durability = lab.Fast
	default:
		return cfg, fmt.Errorf("--durability %q: must be disk or memory", c.durability)
	}
	if _, err := consensus.Preset(c.preset); err != nil {
		return cfg, fmt.Errorf("--preset: %w", err)
	}
	if c.replicas%2 == 0 || c.replicas < 1 || c.replicas > 7 {
		return cfg, fmt.Errorf("--replicas %d: must be 1, 3, 5 or 7", c.replicas)
	}
	if _, err := time.ParseDuration(c.batchDelay); err != nil && c.batchDelay != "auto" {
		return cfg, fmt.Errorf("--batch-delay %q: must be auto or a duration such as 150us", c.batchDelay)
	}
	if c.linkLatency < 0 {
		return cfg, errors.New("--link-latency must not be negative")
	}
	self, err := os.Executable()
	if err != nil {
		return cfg, fmt.Errorf("find this program: %w", err)
	}
	cfg.Program = cmp.Or(cfg.Program, self)
	return cfg, nil
}

// labReplica describes a replica to users and scripts.
type labReplica struct {
	ID    int    `json:"id"`       // of the replica, from 1
	Redis string `json:"redis"`    // for Redis clients
	Peer  string `json:"peer"`     // for replicas and native clients
	Admin string `json:"admin"`    // address of its HTTP endpoint
	PID   int    `json:"pid"`      // process id
	Data  string `json:"data_dir"` // data directory
}

// labKVReport is the output of weir lab kv --json, one line, once all replicas are ready.
type labKVReport struct {
	Durability string       `json:"durability"`       // how durable an acknowledged write is: see weir kv serve --durability
	Preset     string       `json:"preset"`           // consensus preset
	BatchDelay string       `json:"batch_delay"`      // wait before each round, or none
	Client     string       `json:"client,omitempty"` // a command that connects a Redis client
	Replicas   []labReplica `json:"replicas"`         // each replica
}

// run starts the replicas, prints the report, and stops them when ctx ends. Then release
// restores the default handling of signals: a second Ctrl-C ends weir at once.
func (c *labKV) run(ctx context.Context, release func(), cfg lab.KVConfig, out io.Writer) (err error) {
	kv, err := lab.StartKV(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.End(kv.Stop)) }()
	r := labKVReport{Durability: c.durability, Preset: cfg.Preset, BatchDelay: cfg.BatchDelay}
	for i, n := range kv.Nodes() {
		r.Replicas = append(r.Replicas, labReplica{
			ID: n.Number(), Redis: n.Addr(), Peer: kv.PeerAddrs()[i], Admin: "http://" + kv.AdminAddrs()[i] + "/", PID: n.PID(), Data: n.DataDir(),
		})
	}
	if cli, e := exec.LookPath("redis-cli"); e == nil {
		r.Client = fmt.Sprintf("%s -u '%s'", cli, kv.URL())
	}
	if err := c.print(out, r); err != nil {
		return fmt.Errorf("print replicas: %w", err)
	}
	<-ctx.Done()
	release()
	return nil
}

func (c *labKV) print(out io.Writer, r labKVReport) error {
	if c.json.Given() {
		return c.json.Line(out, r)
	}
	var b strings.Builder
	var endpoints []string
	for _, n := range r.Replicas {
		endpoints = append(endpoints, n.Peer)
		fmt.Fprintf(&b, "replica %d   redis://%s/0  peers %s  page %s  (pid %d)\n", n.ID, n.Redis, n.Peer, n.Admin, n.PID)
	}
	fmt.Fprintf(&b, "weir kv     export WEIR_KV_ENDPOINTS=%s\n", strings.Join(endpoints, ","))
	if r.Client != "" {
		fmt.Fprintf(&b, "redis-cli   %s\n", r.Client)
	}
	fmt.Fprintf(&b, "preset      %s, batch delay %s\ndurability  %s\nCtrl-C stops and removes it.\n", r.Preset, r.BatchDelay, r.Durability)
	_, err := io.WriteString(out, b.String())
	return err
}
