package kvbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	kvload "github.com/weirdb/weir/internal/ruler/bench/kv/load"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/kv"
)

// System is a store to measure.
type System string

// The systems.
const (
	Weir       System = "weir"
	SystemEtcd System = "etcd"
)

// Client is the protocol through which weir is driven.
type Client string

// The clients.
const (
	Native Client = "native" // weir's own Go client
	Redis  Client = "redis"  // the Redis protocol, one connection per session
)

// Path is when the native client tries the fast path, if the preset has it.
type Path string

// The paths.
const (
	PathAuto Path = "auto" // if it has proved faster
	PathFast Path = "fast" // always
	PathLog  Path = "log"  // never
)

var paths = map[Path]kv.Path{PathAuto: kv.PathAuto, PathFast: kv.PathFast, PathLog: kv.PathLog}

// Paths lists them.
func Paths() []Path { return []Path{PathAuto, PathFast, PathLog} }

// Clients lists them.
func Clients() []Client { return []Client{Native, Redis} }

// Durabilities of a cluster, by their names in weir kv serve.
const (
	onDisk   = "disk"
	inMemory = "memory"
)

// cluster is the configuration of a cluster. It is comparable with ==.
type cluster struct {
	system     System
	replicas   int
	preset     string
	durability string
	delay      string // "auto" or a duration
	rtt        time.Duration
	procs      int // processors that each replica may use
}

// factors are the factors of a cluster.
func (c cluster) factors() map[string]string {
	f := map[string]string{
		"system": string(c.system), "replicas": strconv.Itoa(c.replicas), "durability": c.durability, "rtt": c.rtt.String(),
		"preset": c.preset, "delay": delayLevel(c.delay), "procs": strconv.Itoa(c.procs),
	}
	if c.system != Weir {
		f["preset"], f["delay"] = bench.NotApplicable, bench.NotApplicable
	}
	return f
}

// delayLevel is a delay in microseconds, as a number, or "auto".
func delayLevel(delay string) string {
	d, err := time.ParseDuration(delay)
	if err != nil {
		return delay
	}
	return strconv.FormatInt(d.Microseconds(), 10)
}

// store is a running cluster.
type store interface {
	driver(s shape) kvload.Driver
	usage() (measure.Usage, error) // of all replicas together
	memory() ([]int64, error)      // of each
	// counters are the store's own counters since its start; nil if it has none.
	counters(ctx context.Context) (map[string]float64, error)
	describe() measure.Server
	stop(ctx context.Context) error
}

// delayed is a store in which the delay of messages to other replicas can be changed while it
// runs.
type delayed interface {
	setPeerDelay(ctx context.Context, d time.Duration) error
}

// profilable is a store that supports CPU profiles of its replicas.
type profilable interface {
	// profile returns a profile of all replicas together, over d.
	profile(ctx context.Context, d time.Duration) (*profile.Profile, error)
}

// processes is the common part of stores with several processes.
type processes struct {
	pids func() []int
}

func (p processes) usage() (measure.Usage, error) {
	var sum measure.Usage
	for _, pid := range p.pids() {
		u, err := measure.Process(pid)
		if err != nil {
			return sum, err
		}
		sum.UserSeconds += u.UserSeconds
		sum.SystemSeconds += u.SystemSeconds
		sum.RSSBytes += u.RSSBytes
		sum.Voluntary += u.Voluntary
		sum.Involuntary += u.Involuntary
		sum.Threads += u.Threads
		sum.ReadCalls += u.ReadCalls
		sum.WriteCalls += u.WriteCalls
		sum.CallsKnown = u.CallsKnown && (sum.Processes == 0 || sum.CallsKnown)
		sum.Processes++
	}
	return sum, nil
}

func (p processes) memory() ([]int64, error) {
	var all []int64
	for _, pid := range p.pids() {
		u, err := measure.Process(pid)
		if err != nil {
			return nil, err
		}
		all = append(all, u.RSSBytes)
	}
	return all, nil
}

// weirStore is a cluster of weir kv.
type weirStore struct {
	processes
	lab *lab.KV
	of  cluster
}

func startWeir(ctx context.Context, binary string, c cluster) (store, error) {
	cfg := lab.KVConfig{Program: binary, Replicas: c.replicas, Preset: c.preset, BatchDelay: c.delay, LinkLatency: c.rtt / 2, Procs: c.procs}
	if c.durability == inMemory {
		cfg.Durability = lab.Fast
	}
	running, err := lab.StartKV(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &weirStore{processes: processes{running.PIDs}, lab: running, of: c}, nil
}

func (w *weirStore) driver(s shape) kvload.Driver {
	weak := w.of.preset != "raft" && w.of.preset != "curp"
	if s.client == Redis {
		return &kvload.RESP{Addrs: w.lab.Addrs(), Place: s.place, Levels: weak, WeakWrites: weak}
	}
	return &kvload.Native{Addrs: w.lab.PeerAddrs(), Place: s.place, RTT: w.of.rtt, Path: paths[s.path], Weak: weak}
}

func (w *weirStore) describe() measure.Server {
	settings := w.of.factors()
	delete(settings, "system")
	return measure.Server{Name: "weir kv", Version: w.lab.Version(), Settings: settings}
}

func (w *weirStore) stop(ctx context.Context) error { return w.lab.Stop(ctx) }

// counters adds up the counters in the replicas' metrics.
func (w *weirStore) counters(ctx context.Context) (map[string]float64, error) {
	sum := make(map[string]float64)
	for _, addr := range w.lab.AdminAddrs() {
		err := ask(ctx, http.MethodGet, addr, "/metrics", "", func(page io.Reader) error { return addCounters(sum, page) })
		if err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
	}
	return sum, nil
}

// ask sends a request to the admin server of a replica, and passes the answer to take.
func ask(ctx context.Context, method, addr, path, body string, take func(io.Reader) error) (err error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, res.Status)
	}
	return take(res.Body)
}

func (w *weirStore) setPeerDelay(ctx context.Context, d time.Duration) error {
	for _, addr := range w.lab.AdminAddrs() {
		err := ask(ctx, http.MethodPut, addr, "/peer-delay", d.String(), func(io.Reader) error { return nil })
		if err != nil {
			return fmt.Errorf("set the delay of writes to other replicas: %w", err)
		}
	}
	return nil
}

func (w *weirStore) profile(ctx context.Context, d time.Duration) (*profile.Profile, error) {
	all := make([]*profile.Profile, len(w.lab.AdminAddrs()))
	g, gctx := errgroup.WithContext(ctx)
	for i, addr := range w.lab.AdminAddrs() {
		g.Go(func() error {
			return ask(gctx, http.MethodGet, addr, "/debug/pprof/profile?seconds="+strconv.Itoa(max(1, int(d.Seconds()))), "", func(page io.Reader) (err error) {
				all[i], err = profile.Parse(page)
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("profile the replicas: %w", err)
	}
	return profile.Merge(all)
}

// counterSuffixes are those of metrics that only grow, so that the difference of two readings
// is meaningful.
var counterSuffixes = []string{"_total", "_sum", "_count"}

// addCounters adds the counters of weir and of garbage collection in a metrics page, summed
// over their labels.
func addCounters(sum map[string]float64, page io.Reader) error {
	for lines := bufio.NewScanner(page); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		line := lines.Text()
		if !strings.HasPrefix(line, "weir_kv_") && !strings.HasPrefix(line, kvs.GCPauses+"_") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		name, _, _ := strings.Cut(line[:max(at, 0)], "{")
		if at < 0 || !slices.ContainsFunc(counterSuffixes, func(s string) bool { return strings.HasSuffix(name, s) }) {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return fmt.Errorf("metric %q: %w", line, err)
		}
		sum[strings.TrimPrefix(name, "weir_kv_")] += v
	}
}

// since returns the differences of two readings that are not 0.
func since(now, before map[string]float64) map[string]float64 {
	out := maps.Clone(now)
	for name, v := range before {
		out[name] -= v
	}
	maps.DeleteFunc(out, func(_ string, v float64) bool { return v == 0 })
	return out
}

// etcdStore is an etcd cluster.
type etcdStore struct {
	processes
	etcd  *lab.Etcd
	procs int
}

func startEtcd(ctx context.Context, program string, c cluster) (store, error) {
	cfg := lab.EtcdConfig{Nodes: c.replicas, Program: program, Procs: c.procs}
	if c.durability == inMemory {
		cfg.Durability = lab.Fast
	}
	e, err := lab.StartEtcd(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &etcdStore{processes: processes{e.PIDs}, etcd: e, procs: c.procs}, nil
}

func (e *etcdStore) driver(s shape) kvload.Driver {
	return &kvload.Etcd{Endpoints: e.etcd.Endpoints(), Place: s.place}
}

func (e *etcdStore) describe() measure.Server {
	return measure.Server{Name: "etcd", Version: e.etcd.Version(), Settings: map[string]string{
		"members": strconv.Itoa(len(e.etcd.Nodes())), "flags": "etcd's defaults, except for addresses and the log", "procs": strconv.Itoa(e.procs),
		"fsync": strconv.FormatBool(e.etcd.Durability() == lab.Prod),
	}}
}

func (e *etcdStore) counters(context.Context) (map[string]float64, error) { return nil, nil }

func (e *etcdStore) stop(ctx context.Context) error { return e.etcd.Stop(ctx) }
