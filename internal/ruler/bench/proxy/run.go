// Package proxybench is the benchmark of weir proxy: what is started, which sides are compared,
// what is verified. Package bench measures; the load packages below it generate the load.
package proxybench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Options is how the benchmark is run.
type Options struct {
	suite.Options
	// Engine is the database system behind weir. Default: PostgreSQL.
	Engine suite.Engine
	// DSN is a URL of a server and a database to use. Tables called weir_bench_test and
	// weir_bench_keys are created there and dropped. Default: a private server.
	DSN  string
	Plan Plan
	// Binary is the weir program that runs as the proxy. Required.
	Binary string
	// PgBouncer is the program to compare with. Default: the installed one, if there is one.
	PgBouncer string
	// Floor also measures a program that only copies bytes, in experiments in which every
	// direct client has its own server connection. Linux only.
	Floor bool
	// Live is called about four times a second with the number of operations that the running
	// side has answered in the current round, and the time since its start. May be nil.
	Live func(side string, ops int64, since time.Duration)
}

// Outcome is everything that the benchmark measured.
type Outcome struct {
	suite.Outcome `json:"-"`
	Profiles      []suite.CPUProfile `json:"profiles,omitempty"`
	Heaps         []suite.Heap       `json:"heaps,omitempty"`
	Idle          *Idle              `json:"idle,omitempty"`
	Leak          *suite.Leak        `json:"leak,omitempty"`
	// Servers are where the CPU time of the server went, by perf.
	Servers []suite.ServerCPU `json:"servers,omitempty"`
}

// ProfileFiles are the profiles whose flame graphs are at the end of the report.
func (o *Outcome) ProfileFiles() []string { return suite.ProfileFiles(o.Profiles) }

// run is the state of one Run.
type run struct {
	*suite.Runner
	*rig // the current one; nil before the first
	o    Options
	out  *Outcome
}

// Run runs the steps of the plan. With an error it returns what was measured until then.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	o.Engine = cmp.Or(o.Engine, suite.PostgreSQL)
	r := &run{out: &Outcome{Outcome: suite.Outcome{Engine: o.Engine}}}
	if r.Runner, err = suite.NewRunner(o.Options, &r.out.Outcome); err != nil {
		return nil, err
	}
	o.Options = r.Runner.Options
	r.o = o
	defer func() { err = errors.Join(err, r.end()) }()
	if o.DSN != "" && len(o.Plan.SlowFsync) > 0 && len(o.Experiments) == 0 {
		r.Leave("a slow disk: it needs a private server")
	}
	if o.DSN == "" && !lab.WatchesDisks() {
		r.Leave("flushes counted at the disk, which needs a C compiler (apt-get install gcc libc6-dev): the server's own count is shown instead")
	}
	return r.out, r.Run(ctx, r.steps())
}

// end stops the current rig.
func (r *run) end() error {
	if r.rig == nil {
		return nil
	}
	defer func() { r.rig = nil }()
	return r.rig.stop()
}

// on runs a step on a server with the given added flush latency. The server is started when the
// first step needs it.
func (r *run) on(latency time.Duration, step func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		if r.rig == nil || r.rig.latency != latency {
			if err := r.end(); err != nil {
				return err
			}
			if r.rig, err = startRig(ctx, r.o, latency); err != nil {
				return err
			}
		}
		return step(ctx)
	}
}

// Steps are the steps of a plan, in order.
func Steps(o Options) []suite.Step { return (&run{o: o}).steps() }

func (r *run) steps() []suite.Step {
	var out []suite.Step
	add := func(group, name string, latency time.Duration, step func(context.Context) error) {
		out = append(out, suite.Step{Group: group, Names: []string{name}, Run: r.on(latency, step)})
	}
	// over adds an experiment for each number of clients.
	over := func(group, kind string, clients []int, step func(context.Context, int) error) {
		for _, n := range clients {
			add(group, experimentName(kind, n, 0), 0, func(ctx context.Context) error { return step(ctx, n) })
		}
	}
	p, text, postgres := r.o.Plan, textProtocol(r.o.Engine), r.o.Engine == suite.PostgreSQL || r.o.Engine == ""
	over("inserts", "inserts", p.Inserts, r.inserts)
	if len(p.PoolSizes) > 1 && len(p.Inserts) > 0 {
		add("", "pool-sizes", 0, func(ctx context.Context) error {
			return r.settings(ctx, "pool-sizes", "pool_size", "--pool-size", "connections", p.PoolSizes)
		})
	}
	if len(p.GroupLimits) > 1 && len(p.Inserts) > 0 {
		add("", "group-limits", 0, func(ctx context.Context) error {
			return r.settings(ctx, "group-limits", "group_limit", "--group-limit", "in a group", p.GroupLimits)
		})
	}
	if len(p.PoolSizes) > 1 {
		over("pools", "pools", p.Inserts, r.poolsInserts)
		over("pools", "pools-reads", p.Reads, r.poolsReads)
		if postgres {
			over("pools", "pools-transactions", p.Transactions, r.poolsTransactions)
		}
	}
	over("literals", "literals", p.Literals, r.literals)
	for _, n := range p.Reads {
		for _, protocol := range []string{prepared, text} {
			add("reads", experimentName("reads-"+protocol, n, 0), 0, func(ctx context.Context) error { return r.reads(ctx, n, protocol) })
		}
	}
	for _, n := range p.Cached {
		for _, protocol := range []string{prepared, text} {
			add("cached", experimentName("cached-"+protocol, n, 0), 0, func(ctx context.Context) error { return r.cached(ctx, n, protocol) })
		}
	}
	over("updates", "updates", p.Updates, r.updates)
	if postgres {
		over("transactions", "transactions", p.Transactions, r.transactions)
	}
	over("failing", "failing", p.Failing, r.failing)
	if n := len(p.Crowd); n > 0 {
		add("crowd", experimentName("crowd", p.Crowd[n-1], 0), 0, r.crowd)
	}
	if p.Leak > 0 && len(p.Inserts) > 0 {
		add("", leakExperiment, 0, r.leak)
	}
	if e, err := engineOf(r.o.Engine); err == nil {
		for _, n := range p.Drivers {
			for _, d := range e.drivers {
				add("drivers", driverExperiment(d, n), 0, func(ctx context.Context) error { return r.drivers(ctx, d, n) })
			}
		}
	}
	if p.Idle > 0 {
		add("", "idle", 0, r.idle)
	}
	if r.o.DSN == "" {
		methods, logins := loginMethods, r.logins
		if !postgres {
			methods, logins = myLoginMethods, r.mysqlLogins
		}
		for _, n := range p.Logins {
			for _, m := range methods {
				out = append(out, suite.Step{
					Group: "logins", Names: []string{experimentName("logins-"+m.name, n, 0)},
					Run: func(ctx context.Context) error { return logins(ctx, m, n) },
				})
			}
		}
	}
	if r.o.DSN != "" {
		return out // a slow disk needs a private server
	}
	for _, latency := range p.SlowFsync {
		for _, n := range p.Slow {
			add("inserts-fsync"+latency.String(), experimentName("inserts", n, latency), latency, func(ctx context.Context) error { return r.inserts(ctx, n) })
		}
	}
	return out
}

// prepared and textProtocol name the protocol with and without prepared statements.
const prepared = "prepared"

func textProtocol(e suite.Engine) string {
	if e == suite.PostgreSQL || e == "" {
		return "simple"
	}
	return "text"
}

func experimentName(kind string, clients int, latency time.Duration) string {
	name := fmt.Sprintf("%s-%d", kind, clients)
	if latency > 0 {
		name += "-fsync" + latency.String()
	}
	return name
}

// inserts repeats reference report 1 for one number of clients.
func (r *run) inserts(ctx context.Context, clients int) error {
	ways, err := r.plainJoined()
	if err != nil {
		return err
	}
	if r.bouncer != nil && r.pooledStatements() {
		ways = append(ways, r.pgbouncer())
	}
	ways = append(ways, r.hinted()...)
	if r.solo != nil {
		ways = append(ways, weirWay(r.solo, r.engine.ungrouped, "/* batch */", bench.NotApplicable))
	}
	e := r.experiment("inserts", clients, fmt.Sprintf("Single-row INSERTs, %s%s", clientsName(clients), latencyNote(r.latency)))
	e.Sweep, e.Adaptive, e.SweepUnit = "window", "auto", "ms"
	for _, w := range ways {
		e.Sides = append(e.Sides, r.side(w, clients, r.insert(w.hint), false))
	}
	if err := r.measure(ctx, e); err != nil {
		return err
	}
	if clients != r.o.Plan.profiled() || r.latency != 0 {
		return nil
	}
	auto := ways[slices.IndexFunc(ways, func(w way) bool { return w.name == "weir auto" })]
	for _, w := range []way{ways[0], auto} {
		if err := r.profile(ctx, w, clients); ctx.Err() != nil {
			return err
		} else if err != nil {
			// Measured rounds stay valid without a profile.
			r.Leave("the CPU profile of %s: %v", w.name, err)
		}
	}
	if err := r.heap(ctx, auto, clients); ctx.Err() != nil {
		return err
	} else if err != nil {
		r.Leave("the heap of %s: %v", auto.name, err)
	}
	return nil
}

// hinted are the ways through weir with each hint.
func (r *run) hinted() []way {
	var ways []way
	if len(r.o.Plan.Windows) > 0 {
		ways = append(ways, weirWay(r.weir, "weir 0", "/* batch:off */", "0"))
	}
	for _, w := range r.o.Plan.Windows {
		if w == 0 {
			continue // without a window: see above
		}
		n := strconv.FormatInt(w.Milliseconds(), 10)
		ways = append(ways, weirWay(r.weir, "weir "+n, "/* batch:"+n+" */", n))
	}
	return append(ways, weirWay(r.weir, "weir auto", "/* batch */", "auto"))
}

// literals compares inserts that are not prepared.
func (r *run) literals(ctx context.Context, clients int) error {
	e := r.experiment("literals", clients, fmt.Sprintf("Single-row INSERTs with literals, %s protocol, %s", textProtocol(r.o.Engine), clientsName(clients)))
	e.Factors["protocol"] = textProtocol(r.o.Engine)
	ways, err := r.plainJoined()
	if err != nil {
		return err
	}
	for _, w := range append(ways, weirWay(r.weir, "weir auto", "/* batch */", "auto")) {
		e.Sides = append(e.Sides, r.side(w, clients, r.insert(w.hint), true))
	}
	return r.measure(ctx, e)
}

// updates compares UPDATEs by key.
func (r *run) updates(ctx context.Context, clients int) error {
	e := r.experiment("updates", clients, fmt.Sprintf("UPDATEs by key, %s", clientsName(clients)))
	ways, err := r.plain()
	if r.engine.joins == joinsPostgres {
		ways, err = r.plainJoined()
	}
	if err != nil {
		return err
	}
	for _, w := range append(ways, weirWay(r.weir, "weir auto", "/* batch */", "auto")) {
		e.Sides = append(e.Sides, r.side(w, clients, r.update(w.hint), false))
	}
	return r.measure(ctx, e)
}

// reads compares key lookups.
func (r *run) reads(ctx context.Context, clients int, protocol string) error {
	text := protocol != prepared
	e := r.experiment("reads-"+protocol, clients, fmt.Sprintf("Key lookups, %s protocol, %s", protocol, clientsName(clients)))
	e.Factors["protocol"] = protocol
	ways, err := r.plain()
	if err != nil {
		return err
	}
	if r.bouncer != nil && (text || r.pooledStatements()) {
		ways = append(ways, r.pgbouncer())
	}
	ways = append(ways, weirWay(r.weir, "weir", "", bench.NotApplicable))
	for _, w := range ways {
		e.Sides = append(e.Sides, r.side(w, clients, r.lookup(), text))
	}
	return r.measure(ctx, e)
}

// cachedKeys is how many keys the cached lookups choose from: all of them fit into the cache,
// so that a round fetches each once.
const cachedKeys = 10_000

// cached compares key lookups that the cache may answer with those that it may not.
func (r *run) cached(ctx context.Context, clients int, protocol string) error {
	e := r.experiment("cached-"+protocol, clients, fmt.Sprintf("Key lookups that may be a minute old, %d keys, %s protocol, %s", cachedKeys, protocol, clientsName(clients)))
	e.Factors["protocol"], e.Factors["keys"] = protocol, strconv.Itoa(cachedKeys)
	for _, w := range []way{
		r.direct(), weirWay(r.weir, "weir", "", bench.NotApplicable), weirWay(r.weir, "weir ttl", "/* ttl:60 */", bench.NotApplicable),
	} {
		work := r.lookup()
		work.Keys, work.Hint = cachedKeys, w.hint
		e.Sides = append(e.Sides, r.side(w, clients, work, protocol != prepared))
	}
	return r.measure(ctx, e)
}

// failing compares groups in which one insert of a hundred violates a constraint with groups in
// which none does. Every answer is checked.
func (r *run) failing(ctx context.Context, clients int) error {
	e := r.experiment("failing", clients, fmt.Sprintf("Grouped INSERTs of which 1 %% fail, %s", clientsName(clients)))
	e.Baseline = "none fail"
	for _, pct := range []float64{0, 1} {
		w := weirWay(r.weir, "none fail", "/* batch */", "auto")
		if pct > 0 {
			w.name = "1 % fail"
		}
		work := r.insert(w.hint)
		work.FailPercent, work.Guarded = pct, true // both sides use the same kind of table
		e.Sides = append(e.Sides, r.side(w, clients, work, false))
	}
	return r.measure(ctx, e)
}

// measure runs an experiment and keeps its samples and result.
func (r *run) measure(ctx context.Context, e bench.Experiment) error {
	env := measure.ReadEnvironment()
	env.Durability = r.durability()
	env.Servers = []measure.Server{r.info}
	if slices.ContainsFunc(e.Sides, func(s bench.Side) bool { return s.Factors["via"] == "pgbouncer" }) {
		env.Servers = append(env.Servers, bouncerInfo(r.bouncer))
	}
	_, err := r.Measure(ctx, e, env, r.o.Out)
	return err
}

func (r *rig) experiment(kind string, clients int, title string) bench.Experiment {
	e := r.o.experiment(kind, clients, title)
	e.Name = experimentName(kind, clients, r.latency)
	e.Factors["fsync_latency"], e.Factors["durability"] = r.latency.String(), r.durability()
	return e
}

func (o *Options) experiment(kind string, clients int, title string) bench.Experiment {
	return bench.Experiment{Description: bench.Description{
		Name: experimentName(kind, clients, 0), Title: title, Rounds: o.Plan.Rounds, Warmup: 0, Loop: "closed", Baseline: "direct",
		Factors: map[string]string{
			"clients": strconv.Itoa(clients), "seconds": o.Plan.Duration.String(), "engine": string(o.Engine),
		},
	}}
}
