package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// EnvEtcd names the etcd program.
const EnvEtcd = "WEIR_ETCD_BIN"

func etcdProgram() brokerProgram {
	return brokerProgram{
		title: "etcd", env: EnvEtcd, name: "etcd", dirs: checkout("bin/tools"), late: []string{"/usr/sbin"},
		hint: "scripts/etcd (a current version, built) or apt-get install etcd-server",
	}
}

// FindEtcd returns the path and version of etcd: the first of given (when not
// empty), $WEIR_ETCD_BIN, bin/tools in the checkout, the PATH, /usr/sbin. The
// error is a *NotInstalledError when there is none.
func FindEtcd(ctx context.Context, given string) (path, version string, err error) {
	if path, err = etcdProgram().find(given); err != nil {
		return "", "", err
	}
	version, err = etcdProgram().ask(ctx, path)
	return path, version, err
}

// EtcdConfig describes an etcd cluster. Its zero value is three durable nodes.
type EtcdConfig struct {
	// Nodes is the number of members. Default: 3.
	Nodes int
	// Durability is what an acknowledged write promises. Fast needs etcd 3.5:
	// earlier ones always flush. Default: Prod.
	Durability Durability
	// Flags are etcd's own, by name without dashes; they win over the lab's.
	// Default: none.
	Flags map[string]string
	// Procs is how many processors each member may use at once, as GOMAXPROCS says.
	// Programs in Go keep all threads ready that they are allowed, which those of
	// the others wait for where they share a machine. Default: the processors of
	// this machine shared out, at least one for each.
	Procs int
	// Program is the etcd program. Default: see FindEtcd.
	Program string
}

// Etcd is a running etcd cluster on the loopback that belongs to this process.
type Etcd struct {
	fleet
	durability Durability
}

// StartEtcd starts a cluster and returns when every member has a leader, in about
// 1.5 s, most of which is the first election. Cancelling ctx abandons the start;
// it does not end a cluster that runs: call Stop.
func StartEtcd(ctx context.Context, cfg EtcdConfig) (*Etcd, error) {
	if cfg.Nodes == 0 {
		cfg.Nodes = 3
	}
	if cfg.Procs < 0 {
		return nil, fmt.Errorf("configure etcd: %d processors: must not be negative", cfg.Procs)
	}
	if cfg.Nodes < 1 || cfg.Nodes > 7 {
		return nil, fmt.Errorf("configure etcd: %d nodes: must be 1 to 7", cfg.Nodes)
	}
	binary, text, err := FindEtcd(ctx, cfg.Program)
	if err != nil {
		return nil, err
	}
	v, err := parseVersion(text)
	if err != nil {
		return nil, fmt.Errorf("configure etcd: %w", err)
	}
	if cfg.Durability == Fast && !v.atLeast(3, 5) {
		return nil, errors.New("configure etcd: durability fast needs etcd 3.5 or later; " + text + " always flushes")
	}
	e := &Etcd{durability: cfg.Durability}
	e.version = text
	if err := e.begin(ctx, fleetPlan{
		title: "etcd", user: "etcd", nodes: cfg.Nodes, more: 1, binary: binary, procs: cfg.Procs,
		cfg:   BrokerConfig{Durability: cfg.Durability},
		args:  func(ports [][]int, n *Node) []string { return etcdArgs(cfg, ports, n) },
		ready: func(n *Node) string { return "http://" + n.Addr() + "/health" },
	}); err != nil {
		return nil, err
	}
	return e, nil
}

func etcdArgs(cfg EtcdConfig, ports [][]int, n *Node) []string {
	var members []string
	for i, m := range ports {
		members = append(members, fmt.Sprintf("n%d=http://%s", i+1, loopback(m[1])))
	}
	flags := map[string]string{
		"name":                        fmt.Sprintf("n%d", n.number),
		"data-dir":                    n.DataDir() + "/member-data",
		"listen-client-urls":          "http://" + n.Addr(),
		"advertise-client-urls":       "http://" + n.Addr(),
		"listen-peer-urls":            "http://" + loopback(n.aux[0]),
		"initial-advertise-peer-urls": "http://" + loopback(n.aux[0]),
		"initial-cluster":             strings.Join(members, ","),
		"initial-cluster-token":       fmt.Sprintf("weir-%d", ports[0][0]),
		"logger":                      "zap",
		"log-outputs":                 "stderr",
		"log-level":                   "warn",
	}
	if cfg.Durability == Fast {
		flags["unsafe-no-fsync"] = "true"
	}
	maps.Copy(flags, cfg.Flags)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		args = append(args, "--"+name+"="+flags[name])
	}
	return args
}

// Durability is what an acknowledged write promises.
func (e *Etcd) Durability() Durability { return e.durability }

// Endpoints are the addresses of all members, as etcd's clients take them.
func (e *Etcd) Endpoints() []string {
	var all []string
	for _, addr := range e.Addrs() {
		all = append(all, "http://"+addr)
	}
	return all
}
