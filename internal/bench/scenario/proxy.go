// Package scenario holds weir's experiments, one file each: what is started,
// which sides are compared, what is verified. The measuring itself is package
// bench, the load packages below it.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/pprof/profile"
	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/bench/pgload"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
)

// ProxyPlan says how much of the proxy scenario is run.
type ProxyPlan struct {
	// Inserts lists the numbers of clients of the insert experiments (reference
	// report 1: one INSERT per operation, hints 0, 1, 10, 100 ms and auto).
	Inserts []int
	// Windows are the fixed windows among the sides.
	Windows []time.Duration
	// Isolated adds weir without its multi-row lane, so that every write is a
	// transaction of its own.
	Isolated bool
	// SlowFsync lists flush latencies at which Slow is run again.
	SlowFsync []time.Duration
	Slow      []int
	// Reads lists the numbers of clients of the key lookups, prepared and
	// simple.
	Reads []int
	// Failing lists the numbers of clients with one failing insert in a hundred.
	Failing []int
	// Crowd lists numbers of clients that look up keys through weir, to see
	// whether throughput holds when they are many times the pool's size.
	Crowd []int
	// Idle is the number of sessions to open and leave alone, to see what weir
	// needs for them.
	Idle int
	// Rounds, Duration and Warmup are those of each experiment.
	Rounds   int
	Duration time.Duration
	Warmup   time.Duration
}

// ProxyPlans are the plans by name.
func ProxyPlans() map[string]ProxyPlan {
	ms := func(n ...int) (out []time.Duration) {
		for _, v := range n {
			out = append(out, time.Duration(v)*time.Millisecond)
		}
		return out
	}
	return map[string]ProxyPlan{
		"demo": {Inserts: []int{64}, Rounds: 3, Duration: 2500 * time.Millisecond, Warmup: 700 * time.Millisecond},
		"mini": {
			Inserts: []int{64, 256}, Windows: ms(1, 10), Rounds: 3,
			Duration: 2 * time.Second, Warmup: 500 * time.Millisecond, Reads: []int{64},
		},
		"full": {
			Inserts: []int{1, 16, 64, 256, 1000}, Windows: ms(1, 10, 100), Isolated: true,
			SlowFsync: ms(2), Slow: []int{64, 256}, Reads: []int{16, 64, 256}, Failing: []int{64, 256},
			Crowd: []int{64, 256, 2000}, Idle: 10000,
			Rounds: 6, Duration: 2 * time.Second, Warmup: 600 * time.Millisecond,
		},
	}
}

// ProxyOptions is how the scenario is run.
type ProxyOptions struct {
	Plan   ProxyPlan
	Out    string // directory for results; required
	Resume bool
	// Binary is the weir program that runs as the proxy. Required.
	Binary string
	// PgBouncer is the program to compare with. Default: the installed one;
	// none if there is none.
	PgBouncer string
	// Progress and Say tell how it goes; both may be nil.
	Progress func(bench.Progress)
	// Live is told, about four times a second, how many operations the side that
	// runs has answered within its present round, and after how long. May be nil.
	Live func(side string, ops int64, since time.Duration)
	Say  func(format string, args ...any)
}

// ProxyOutcome is everything that the scenario measured.
type ProxyOutcome struct {
	Results  []*bench.Result
	Profiles []CPUProfile
	Idle     *Idle
}

// CPUProfile is where one process's CPU time went in one case.
type CPUProfile struct {
	Case      string                `json:"case"`
	Role      string                `json:"role"`
	Breakdown *measure.CPUBreakdown `json:"breakdown"`
}

// Proxy runs the scenario on servers of its own.
func Proxy(ctx context.Context, o ProxyOptions) (_ *ProxyOutcome, err error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	out := &ProxyOutcome{}
	rig, err := startRig(ctx, o, 0)
	if err != nil {
		return nil, err
	}
	err = rig.fastDisk(ctx, out)
	if err := errors.Join(err, rig.stop()); err != nil {
		return out, err
	}
	for _, latency := range o.Plan.SlowFsync {
		rig, err := startRig(ctx, o, latency)
		if err != nil {
			return out, err
		}
		for _, n := range o.Plan.Slow {
			if err == nil {
				err = rig.inserts(ctx, out, n)
			}
		}
		if err := errors.Join(err, rig.stop()); err != nil {
			return out, err
		}
	}
	return out, nil
}

// rig is a server with everything that stands in front of it.
type rig struct {
	o       ProxyOptions
	latency time.Duration // of the server's flushes, added
	pg      *lab.Postgres
	bouncer *lab.PgBouncer // nil without one
	weir    *weirProcess
	solo    *weirProcess // without the multi-row lane
	conn    *pgx.Conn    // to the server itself
	server  measure.Server
}

func startRig(ctx context.Context, o ProxyOptions, latency time.Duration) (_ *rig, err error) {
	r := &rig{o: o, latency: latency}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	most := slices.Max(append(slices.Concat(o.Plan.Inserts, o.Plan.Slow, o.Plan.Reads, o.Plan.Failing), 1))
	r.pg, err = lab.StartPostgres(ctx, lab.PostgresConfig{
		Durability: lab.Prod, FsyncLatency: latency, CountFlushes: true, MaxConnections: most + 100, SharedBuffers: "512MB",
		Settings: map[string]string{"max_wal_size": "8GB"},
	})
	if err != nil {
		return nil, err
	}
	o.Say("PostgreSQL %s, fsync on%s", r.pg.Version(), latencyNote(latency))
	r.bouncer, err = lab.StartPgBouncer(ctx, r.pg, lab.PgBouncerConfig{Binary: o.PgBouncer, MaxClients: most + 100})
	switch {
	case lab.NotInstalled(err):
		o.Say("PgBouncer is not installed: it is left out of the comparison")
	case err != nil:
		return nil, err
	case r.pooledStatements():
		o.Say("PgBouncer %s, 20 server connections", r.bouncer.Version())
	default:
		o.Say("PgBouncer %s pools no prepared statements (1.21 does): it is compared on the simple protocol only", r.bouncer.Version())
	}
	if r.weir, err = startWeir(ctx, o.Binary, r.pg.DSN("postgres")); err != nil {
		return nil, err
	}
	if o.Plan.Isolated {
		if r.solo, err = startWeir(ctx, o.Binary, r.pg.DSN("postgres"), "--no-rows-lane"); err != nil {
			return nil, err
		}
	}
	if r.conn, err = pgx.Connect(ctx, r.pg.DSN("postgres")); err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	r.server, err = pgload.ServerInfo(ctx, r.conn)
	return r, err
}

func latencyNote(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(", every flush %s slower", d)
}

// stop ends everything, in the order in which it depends on each other.
func (r *rig) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if r.conn != nil {
		errs = append(errs, r.conn.Close(ctx))
	}
	for _, w := range []*weirProcess{r.weir, r.solo} {
		if w != nil {
			errs = append(errs, w.stop())
		}
	}
	if r.bouncer != nil {
		errs = append(errs, r.bouncer.Stop(ctx))
	}
	if r.pg != nil {
		errs = append(errs, r.pg.Stop(ctx))
	}
	return errors.Join(errs...)
}

// fastDisk runs everything but the slow-disk experiments.
func (r *rig) fastDisk(ctx context.Context, out *ProxyOutcome) error {
	for _, n := range r.o.Plan.Inserts {
		if err := r.inserts(ctx, out, n); err != nil {
			return err
		}
	}
	for _, n := range r.o.Plan.Reads {
		for _, simple := range []bool{false, true} {
			if err := r.reads(ctx, out, n, simple); err != nil {
				return err
			}
		}
	}
	for _, n := range r.o.Plan.Failing {
		if err := r.failing(ctx, out, n); err != nil {
			return err
		}
	}
	if len(r.o.Plan.Crowd) > 0 {
		if err := r.crowd(ctx, out); err != nil {
			return err
		}
	}
	if r.o.Plan.Idle > 0 {
		return r.idle(ctx, out)
	}
	return nil
}

// way is one way to the server.
type way struct {
	name   string
	dsn    string
	proxy  func() (measure.Usage, error) // nil without one
	weir   *weirProcess                  // nil if it is none
	hint   string
	window string // as the factor
	via    string
}

func (r *rig) direct() way {
	return way{name: "direct", dsn: r.pg.DSN("postgres"), window: bench.NotApplicable, via: "direct"}
}

func (r *rig) pgbouncer() way {
	return way{
		name: "pgbouncer", dsn: r.bouncer.DSN("postgres"), window: bench.NotApplicable, via: "pgbouncer",
		proxy: func() (measure.Usage, error) { return measure.Process(r.bouncer.PID()) },
	}
}

func weirWay(w *weirProcess, name, hint, window string) way {
	return way{
		name: name, dsn: w.dsn("postgres", "postgres"), proxy: w.usage, weir: w,
		hint: hint, window: window, via: "weir",
	}
}

// inserts is reference report 1 for one number of clients.
func (r *rig) inserts(ctx context.Context, out *ProxyOutcome, clients int) error {
	ways := []way{r.direct()}
	if r.bouncer != nil && r.pooledStatements() {
		ways = append(ways, r.pgbouncer())
	}
	if len(r.o.Plan.Windows) > 0 {
		ways = append(ways, weirWay(r.weir, "weir 0", "/* batch:off */", "0"))
	}
	for _, w := range r.o.Plan.Windows {
		n := strconv.FormatInt(w.Milliseconds(), 10)
		ways = append(ways, weirWay(r.weir, "weir "+n, "/* batch:"+n+" */", n))
	}
	ways = append(ways, weirWay(r.weir, "weir auto", "/* batch */", "auto"))
	if r.solo != nil {
		ways = append(ways, weirWay(r.solo, "weir isolated", "/* batch */", bench.NotApplicable))
	}
	e := r.experiment("inserts", clients, fmt.Sprintf("Single-row INSERTs, %s%s", clientsName(clients), latencyNote(r.latency)))
	e.Sweep, e.Adaptive, e.SweepUnit = "window", "auto", "ms"
	for _, w := range ways {
		e.Sides = append(e.Sides, r.side(w, clients, pgload.Insert{Hint: w.hint}, false))
	}
	res, err := r.run(ctx, e)
	if err != nil {
		return err
	}
	out.Results = append(out.Results, res)
	if clients != 64 || r.latency != 0 {
		return nil
	}
	for _, w := range []way{ways[0], ways[slices.IndexFunc(ways, func(w way) bool { return w.name == "weir auto" })]} {
		if err := r.profile(ctx, out, w, clients); err != nil {
			return err
		}
	}
	return nil
}

// reads compares key lookups.
func (r *rig) reads(ctx context.Context, out *ProxyOutcome, clients int, simple bool) error {
	protocol := "prepared"
	if simple {
		protocol = "simple"
	}
	e := r.experiment("reads-"+protocol, clients, fmt.Sprintf("Key lookups, %s protocol, %s", protocol, clientsName(clients)))
	e.Factors["protocol"] = protocol
	ways := []way{r.direct()}
	if r.bouncer != nil && (simple || r.pooledStatements()) {
		ways = append(ways, r.pgbouncer())
	}
	ways = append(ways, weirWay(r.weir, "weir", "", bench.NotApplicable))
	for _, w := range ways {
		e.Sides = append(e.Sides, r.side(w, clients, pgload.Select{}, simple))
	}
	res, err := r.run(ctx, e)
	if err != nil {
		return err
	}
	out.Results = append(out.Results, res)
	return nil
}

// pooledStatements tells whether this PgBouncer pools prepared statements.
func (r *rig) pooledStatements() bool {
	major, rest, _ := strings.Cut(r.bouncer.Version(), ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err1 == nil && err2 == nil && (a > 1 || b >= 21)
}

// failing compares groups in which one insert of a hundred violates a
// constraint with groups in which none does. Every answer is checked.
func (r *rig) failing(ctx context.Context, out *ProxyOutcome, clients int) error {
	e := r.experiment("failing", clients, fmt.Sprintf("Grouped INSERTs of which 1 %% fail, %s", clientsName(clients)))
	e.Baseline = "none fail"
	for _, pct := range []float64{0, 1} {
		w := weirWay(r.weir, "none fail", "/* batch */", "auto")
		if pct > 0 {
			w.name = "1 % fail"
		}
		e.Sides = append(e.Sides, r.side(w, clients, pgload.Insert{Hint: w.hint, FailPercent: pct}, false))
	}
	res, err := r.run(ctx, e)
	if err != nil {
		return err
	}
	out.Results = append(out.Results, res)
	return nil
}

func (r *rig) experiment(kind string, clients int, title string) bench.Experiment {
	name := fmt.Sprintf("%s-%d", kind, clients)
	if r.latency > 0 {
		name += "-fsync" + r.latency.String()
	}
	return bench.Experiment{Description: bench.Description{
		Name: name, Title: title, Rounds: r.o.Plan.Rounds, Warmup: 0, Loop: "closed", Baseline: "direct",
		Factors: map[string]string{
			"clients": strconv.Itoa(clients), "fsync_latency": r.latency.String(), "durability": "prod",
			"seconds": r.o.Plan.Duration.String(),
		},
	}}
}

// side measures one way with one workload. The tables are made anew before each
// round and compared with what was acknowledged after it.
func (r *rig) side(w way, clients int, load pgload.Workload, simple bool) bench.Side {
	return bench.Side{
		Name:    w.name,
		Factors: map[string]string{"via": w.via, "window": w.window},
		Run: func(ctx context.Context, _ int) (bench.Sample, error) {
			return r.sample(ctx, w, clients, load, simple)
		},
	}
}

func (r *rig) sample(ctx context.Context, w way, clients int, load pgload.Workload, simple bool) (bench.Sample, error) {
	var none bench.Sample
	direct := r.pg.DSN("postgres")
	if err := pgload.Setup(ctx, direct, load); err != nil {
		return none, err
	}
	before, err := pgload.Counters(ctx, r.conn)
	if err != nil {
		return none, err
	}
	flushes, err := r.pg.Flushes()
	if err != nil {
		return none, err
	}
	var groups bench.Groups
	if w.weir != nil {
		if groups, err = w.weir.groups(ctx); err != nil {
			return none, err
		}
	}
	cfg := pgload.Config{
		DSN: w.dsn, Workload: load, Connections: clients, Simple: simple,
		Warmup: r.o.Plan.Warmup, Duration: r.o.Plan.Duration,
		Watch: map[string]func() (measure.Usage, error){
			bench.RoleServer: func() (measure.Usage, error) { return measure.Tree(r.pg.PID()) },
		},
	}
	if w.proxy != nil {
		cfg.Watch[bench.RoleProxy] = w.proxy
	}
	got, err := r.watched(ctx, w.name, cfg)
	if err != nil {
		return none, err
	}
	if len(got.WrongExamples) > 0 {
		return none, fmt.Errorf("%s gave wrong answers: %q", w.name, got.WrongExamples)
	}
	after, err := pgload.Counters(ctx, r.conn)
	if err != nil {
		return none, err
	}
	s := got.Sample
	s.Server = pgload.CountersSince(after, before, got.TotalOps)
	// The server's own count comes late from sessions that a proxy keeps.
	now, err := r.pg.Flushes()
	if err != nil {
		return none, err
	}
	s.Server.Fsyncs = int64(now - flushes)
	if w.weir != nil {
		now, err := w.weir.groups(ctx)
		if err != nil {
			return none, err
		}
		if n := now.Flushes - groups.Flushes; n > 0 {
			s.Groups = &bench.Groups{Flushes: n, Items: now.Items - groups.Items}
		}
	}
	if ins, ok := load.(pgload.Insert); ok {
		audit, err := ins.Verify(ctx, direct, got.Ledger)
		if err != nil {
			return none, err
		}
		if err := audit.Err(); err != nil {
			return none, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return s, nil
}

// watched runs the load while Live is told how it goes.
func (r *rig) watched(ctx context.Context, side string, cfg pgload.Config) (*pgload.Outcome, error) {
	if r.o.Live == nil {
		return pgload.Run(ctx, cfg)
	}
	cfg.Live = new(atomic.Int64)
	began := time.Now()
	stop := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		t := time.NewTicker(250 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				r.o.Live(side, cfg.Live.Load(), time.Since(began))
			}
		}
	})
	defer watcher.Wait()
	defer close(stop)
	return pgload.Run(ctx, cfg)
}

// run measures an experiment and keeps its samples and result.
func (r *rig) run(ctx context.Context, e bench.Experiment) (*bench.Result, error) {
	dir := filepath.Join(r.o.Out, e.Name)
	store, err := bench.OpenStore(dir, r.o.Resume)
	if err != nil {
		return nil, err
	}
	env := measure.ReadEnvironment()
	env.Durability = "prod"
	env.Servers = []measure.Server{r.server}
	r.o.Say("%s", e.Title)
	res, err := bench.Run(ctx, e, bench.Options{Store: store, Env: &env, FlushDir: r.o.Out, Progress: r.o.Progress})
	return res, errors.Join(err, store.Close())
}

// profile says where the CPU time of the load generator and of the proxy goes.
func (r *rig) profile(ctx context.Context, out *ProxyOutcome, w way, clients int) error {
	load := pgload.Insert{Hint: w.hint}
	if err := pgload.Setup(ctx, r.pg.DSN("postgres"), load); err != nil {
		return err
	}
	d := max(2*time.Second, r.o.Plan.Duration)
	base := filepath.Join(r.o.Out, "cpu-"+strings.ReplaceAll(w.name, " ", "-"))
	clientFile, err := os.Create(base + "-client.pb.gz")
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	defer clientFile.Close()
	type taken struct {
		p   *profile.Profile
		err error
	}
	proxied := make(chan taken, 1)
	if w.weir != nil {
		go func() {
			p, err := w.weir.profile(ctx, d)
			proxied <- taken{p, err}
		}()
	}
	if err := pprof.StartCPUProfile(clientFile); err != nil {
		return fmt.Errorf("profile the load: %w", err)
	}
	_, err = pgload.Run(ctx, pgload.Config{DSN: w.dsn, Workload: load, Connections: clients, Duration: d})
	pprof.StopCPUProfile()
	if err != nil {
		return err
	}
	if _, err := clientFile.Seek(0, 0); err != nil {
		return err
	}
	p, err := profile.Parse(clientFile)
	if err := r.addProfile(out, w.name, bench.RoleClient, p, err); err != nil {
		return err
	}
	if w.weir == nil {
		return nil
	}
	t := <-proxied
	if err := r.addProfile(out, w.name, bench.RoleProxy, t.p, t.err); err != nil {
		return err
	}
	f, err := os.Create(base + "-proxy.pb.gz")
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	return errors.Join(t.p.Write(f), f.Close())
}

func (r *rig) addProfile(out *ProxyOutcome, name, role string, p *profile.Profile, err error) error {
	if err != nil {
		return fmt.Errorf("profile of the %s: %w", role, err)
	}
	b, err := measure.DefaultRules().Breakdown(p)
	if err != nil {
		return fmt.Errorf("profile of the %s: %w", role, err)
	}
	out.Profiles = append(out.Profiles, CPUProfile{Case: name, Role: role, Breakdown: b})
	return nil
}
