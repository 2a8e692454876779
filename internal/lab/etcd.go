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

// FindEtcd returns the path and version of etcd: the first of given (if not empty),
// $WEIR_ETCD_BIN, bin/tools in the checkout, the PATH, /usr/sbin. The error is a
// *NotInstalledError if there is none.
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
	// Durability is the durability of an acknowledged write. Fast needs etcd 3.5: earlier
	// versions always flush. Default: Prod.
	Durability Durability
	// Flags are etcd's own, by name without dashes; they override the lab's. Default: none.
	Flags map[string]string
	// Procs is how many processors each member may use, as GOMAXPROCS. Go programs keep as many
	// threads busy as they are allowed, which slows down the other processes of a shared
	// machine. Default: an equal share of this machine's processors, at least one.
	Procs int
	// Program is the etcd program. Default: see FindEtcd.
	Program string
}

// Etcd is a running etcd cluster on the loopback that belongs to this process.
type Etcd struct {
	fleet
	durability Durability
}

// StartEtcd starts a cluster and returns when every member has a leader, in about 1.5 s, most
// of which is the first election. Cancelling ctx aborts the start; it does not stop a running
// cluster: call Stop.
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

// Durability is the durability of an acknowledged write.
func (e *Etcd) Durability() Durability { return e.durability }

// Endpoints are the addresses of all members, in the form for etcd's clients.
func (e *Etcd) Endpoints() []string {
	var all []string
	for _, addr := range e.Addrs() {
		all = append(all, "http://"+addr)
	}
	return all
}
