package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// KVConfig describes a cluster of `weir kv serve`. Its zero value, except for the program, is
// three durable replicas with defaults.
type KVConfig struct {
	// Program is the weir to run. Required.
	Program string
	// Replicas is the number of replicas. Default: 3.
	Replicas int
	// Durability is the durability of an acknowledged write: Prod is --durability disk, Fast is
	// memory, whose replicas cannot be restarted. Default: Prod.
	Durability Durability
	// Preset is the protocol preset. Default: that of weir kv serve.
	Preset string
	// BatchDelay is the delay before a consensus round: "auto", or a duration. Default: "auto".
	BatchDelay string
	// LinkLatency is an artificial one-way delay of messages between replicas. Default: none.
	LinkLatency time.Duration
	// Procs is how many processors each replica may use, as GOMAXPROCS. Go programs keep as
	// many threads busy as they are allowed, which slows down the other processes of a shared
	// machine. Default: an equal share of this machine's processors, at least one.
	Procs int
	// Flags are further flags of weir kv serve, by name without dashes; they override the
	// lab's. Default: none.
	Flags map[string]string
	// Each may change the flags of one replica, by its number, before each of its starts;
	// several may start concurrently. Default: nil.
	Each func(number int, flags map[string]string)
}

func (c KVConfig) validate() error {
	switch {
	case c.Program == "":
		return errors.New("no program: name the weir to run")
	case c.Replicas < 1 || c.Replicas > 7 || c.Replicas == 2:
		return fmt.Errorf("%d replicas: must be 1 or 3 to 7", c.Replicas)
	case c.Procs < 0:
		return fmt.Errorf("%d processors: must not be negative", c.Procs)
	case c.LinkLatency < 0:
		return fmt.Errorf("link latency %v: must not be negative", c.LinkLatency)
	}
	return nil
}

// KV is a running cluster of weir kv on the loopback that belongs to this process. The
// addresses of its nodes are those for Redis clients.
type KV struct {
	fleet
	cfg KVConfig
}

// Ports of a replica other than the one for Redis clients.
const (
	kvPeerPort = iota
	kvAdminPort
	kvMorePorts
)

// StartKV starts a cluster and returns when every replica is ready, in about half a second,
// most of which is the election. Cancelling ctx aborts the start; it does not stop a running
// cluster: call Stop.
func StartKV(ctx context.Context, cfg KVConfig) (*KV, error) {
	cfg.Replicas, cfg.BatchDelay = cmp.Or(cfg.Replicas, 3), cmp.Or(cfg.BatchDelay, "auto")
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure weir kv: %w", err)
	}
	if !isFile(cfg.Program) {
		return nil, fmt.Errorf("configure weir kv: %s is not a program", cfg.Program)
	}
	k := &KV{cfg: cfg}
	out, err := runCommand(ctx, command{path: cfg.Program, args: []string{"version"}, dir: "/"})
	if err != nil {
		return nil, fmt.Errorf("ask weir for its version: %w", err)
	}
	k.version, _, _ = strings.Cut(strings.TrimPrefix(out, "weir "), "\n")
	if err := k.begin(ctx, fleetPlan{
		// As this process's user: the program may be unreadable for others, and a copy would
		// take 90 MB.
		title: "weir kv", nodes: cfg.Replicas, more: kvMorePorts, binary: cfg.Program, procs: cfg.Procs,
		cfg:   BrokerConfig{Durability: cfg.Durability},
		args:  func(ports [][]int, n *Node) []string { return kvArgs(cfg, ports, n) },
		ready: func(n *Node) string { return "http://" + loopback(n.aux[kvAdminPort]) + "/readyz" },
	}); err != nil {
		return nil, err
	}
	return k, nil
}

func kvArgs(cfg KVConfig, ports [][]int, n *Node) []string {
	var peers []string
	for i, m := range ports {
		peers = append(peers, fmt.Sprintf("%d=%s/%d", i+1, loopback(m[1+kvPeerPort]), m[0]))
	}
	flags := map[string]string{
		"id":          fmt.Sprint(n.number),
		"peers":       strings.Join(peers, ","),
		"resp":        n.Addr(),
		"admin":       loopback(n.aux[kvAdminPort]),
		"batch-delay": cfg.BatchDelay,
		"log-format":  "text",
		"log-level":   "warn",
	}
	if cfg.Durability == Fast {
		flags["durability"] = "memory"
	} else {
		flags["durability"], flags["data"] = "disk", n.DataDir()
	}
	if cfg.Preset != "" {
		flags["preset"] = cfg.Preset
	}
	if cfg.LinkLatency > 0 {
		flags["link-latency"] = cfg.LinkLatency.String()
	}
	maps.Copy(flags, cfg.Flags)
	if cfg.Each != nil {
		cfg.Each(n.number, flags)
	}
	args := []string{"kv", "serve"}
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		args = append(args, "--"+name+"="+flags[name])
	}
	return args
}

// Config is the configuration of the cluster, with defaults.
func (k *KV) Config() KVConfig { return k.cfg }

// URL is the address of the first replica for Redis clients; it forwards what another replica
// must decide.
func (k *KV) URL() string { return "redis://" + k.nodes[0].Addr() + "/0" }

// PeerAddrs are the addresses for replicas and native clients, by number.
func (k *KV) PeerAddrs() []string { return k.auxAddrs(kvPeerPort) }

// AdminAddrs are the addresses of the page and the metrics, by number.
func (k *KV) AdminAddrs() []string { return k.auxAddrs(kvAdminPort) }

func (k *KV) auxAddrs(which int) []string {
	var all []string
	for _, n := range k.nodes {
		all = append(all, loopback(n.aux[which]))
	}
	return all
}
