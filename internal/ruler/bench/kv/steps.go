package kvbench

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/ruler/bench"
	kvload "github.com/weirdb/weir/internal/ruler/bench/kv/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// usual is the cluster wherever clusters are not compared.
func (r *run) usual() cluster {
	return cluster{system: Weir, replicas: 3, preset: r.o.Preset, durability: onDisk, delay: "auto", procs: r.o.Procs}
}

// at returns the cluster with a fixed delay.
func (c cluster) at(us int) cluster {
	c.delay = (time.Duration(us) * time.Microsecond).String()
	return c
}

// of returns the cluster with a protocol.
func (c cluster) of(preset string) cluster {
	c.preset = preset
	return c
}

const auto = "auto"

func usName(us int) string { return strconv.Itoa(us) + " us" }

// reportLoad describes the load of reference report 2 in titles.
var reportLoad = fmt.Sprintf("%d sessions x %d, %d %% weak, %d %% writes", reportStreams, reportPendings, reportWeak, reportWrites)

// Steps are the steps of a plan, in order.
func Steps(o Options) []suite.Step { return (&run{rig: &rig{o: o}}).steps() }

func (r *run) steps() []suite.Step {
	var out []suite.Step
	add := func(group, name string, run func(context.Context) error) {
		out = append(out, suite.Step{Group: group, Names: []string{name}, Run: run})
	}
	p := r.o.Plan
	for i, preset := range r.presetsAsked() {
		suffix := ""
		if i > 0 {
			suffix = "-" + preset
		}
		best := reportBest // in microseconds: the fixed delay with the highest rate in the sweep
		add(Delay, Delay+suffix, func(ctx context.Context) error { return r.delay(ctx, Delay+suffix, preset, &best) })
		add(Validate, Validate+suffix, func(ctx context.Context) error { return r.validate(ctx, Validate+suffix, preset, best) })
		add(Tunings, Tunings+suffix, func(ctx context.Context) error { return r.tunings(ctx, Tunings+suffix, preset) })
	}
	add(Grid, Grid, r.grid)
	add(Writer, Writer, r.writers)
	add(CPU, CPU, r.cpu)
	add(Pendings, "pendings", r.pendings)
	add(Threads, "threads", r.threads)
	add(Length, "length", r.length)
	add(Presets, "presets", r.presets)
	for _, size := range p.Sizes {
		for _, rtt := range p.RTTs {
			name := fmt.Sprintf("wan-%d-%s", size, rtt)
			add(WAN, name, func(ctx context.Context) error { return r.wan(ctx, name, size, rtt) })
		}
	}
	for _, n := range p.Clients {
		add(Etcd, fmt.Sprintf("etcd-%d", n), func(ctx context.Context) error { return r.besideEtcd(ctx, n) })
	}
	durabilities := []string{onDisk}
	if p.CellMemory {
		durabilities = append(durabilities, inMemory)
	}
	for _, durability := range durabilities {
		for _, rtt := range p.CellRTTs {
			for _, n := range p.CellClients {
				name := fmt.Sprintf("cell-%s-%s-%d", durability, rtt, n)
				add(Cells, name, func(ctx context.Context) error { return r.cell(ctx, name, durability, rtt, n) })
			}
		}
	}
	add(Single, "single-put", func(ctx context.Context) error { return r.single(ctx, "put", 100) })
	add(Single, "single-get", func(ctx context.Context) error { return r.single(ctx, "get", 0) })
	return out
}

// presetsAsked are the protocols of the experiments of report 2.
func (r *run) presetsAsked() []string {
	if len(r.o.Presets) > 0 {
		return r.o.Presets
	}
	return []string{r.o.Preset}
}

// titled is a title, with the protocol if there are several.
func (r *run) titled(title, preset string) string {
	if len(r.o.Presets) > 1 {
		return title + ", " + preset
	}
	return title
}

// limits are those that a case must keep to be recommended.
func (r *run) limits() []bench.Constraint {
	if len(r.o.Limits) > 0 {
		return r.o.Limits
	}
	return reportLimits()
}

// delay is the sweep of reference report 2. In weir kv a delay of 0 is the same as none: the
// difference between the two is that of the machine. best is set to the fixed delay with the
// highest rate.
func (r *run) delay(ctx context.Context, name, preset string, best *int) error {
	c := r.usual().of(preset)
	var sides []side
	for _, us := range r.o.Plan.Delays {
		sides = append(sides, side{name: usName(us), cluster: c.at(us), shape: r.reportShape()})
	}
	sides = append(sides, side{name: auto, cluster: c, shape: r.reportShape()})
	e := r.experiment(Delay, name, r.titled("Delay of batches, "+reportLoad, preset), r.o.Plan.SweepRounds, sides...)
	e.Sweep, e.Adaptive, e.SweepUnit = "delay", auto, "us"
	e.Constraints = r.limits()
	res, err := r.do(ctx, e)
	if err != nil || res == nil {
		return err
	}
	most := math.Inf(-1)
	for _, c := range res.Cases {
		us, err := strconv.Atoi(c.Factors["delay"])
		if rate := c.Summary["rate"].Median; err == nil && us > 0 && rate > most {
			*best, most = us, rate
		}
	}
	return nil
}

// validate runs the best fixed delay again, as the report does, and no delay with it.
func (r *run) validate(ctx context.Context, name, preset string, best int) error {
	c := r.usual().of(preset)
	e := r.experiment(Validate, name, r.titled(fmt.Sprintf("Validation: %s and no delay, round by round", usName(best)), preset), r.o.Plan.ValidationRounds,
		side{name: usName(best), cluster: c.at(best), shape: r.reportShape()}, side{name: auto, cluster: c, shape: r.reportShape()})
	e.Constraints = r.limits()
	return r.measure(ctx, e)
}

// tunings runs the report's settings in turn.
func (r *run) tunings(ctx context.Context, name, preset string) error {
	c := r.usual().of(preset)
	var sides []side
	for _, t := range tunings {
		s := r.reportShape()
		s.pendings = t.pendings
		sides = append(sides, side{name: fmt.Sprintf("%d pending, %s", t.pendings, usName(t.delay)), cluster: c.at(t.delay), shape: s})
	}
	e := r.experiment(Tunings, name, r.titled("The settings of report 2", preset), r.o.Plan.SweepRounds, sides...)
	e.Constraints = r.limits()
	return r.measure(ctx, e)
}

// grid runs every number of operations in flight with every delay.
func (r *run) grid(ctx context.Context) error {
	var sides []side
	for _, n := range r.o.Plan.GridPendings {
		for _, us := range r.o.Plan.GridDelays {
			s := r.reportShape()
			s.pendings = n
			sides = append(sides, side{name: fmt.Sprintf("%d pending, %s", n, usName(us)), cluster: r.usual().at(us), shape: s})
		}
	}
	e := r.experiment(Grid, Grid, fmt.Sprintf("Operations in flight in each of %d sessions, by delay of batches", reportStreams), r.o.Plan.Rounds, sides...)
	e.Constraints = r.limits()
	return r.measure(ctx, e)
}

// writers sweeps the delay of messages between replicas, which is changed while the same
// cluster runs.
func (r *run) writers(ctx context.Context) error {
	var sides []side
	for _, us := range append([]int{0}, r.o.Plan.PeerDelays...) {
		sides = append(sides, side{name: usName(us), cluster: r.usual(), shape: r.reportShape(), writer: true, peerDelay: us})
	}
	e := r.experiment(Writer, Writer, "Delay at the writers between replicas, changed while they run, "+reportLoad, r.o.Plan.Rounds, sides...)
	e.Sweep, e.SweepUnit = "peer_delay", "us"
	e.Constraints = r.limits()
	return r.measure(ctx, e)
}

// cpu profiles the replicas, without a delay and with that of the report, while a round is
// measured.
func (r *run) cpu(ctx context.Context) error {
	var sides []side
	for _, us := range []int{0, reportBest} {
		sides = append(sides, side{name: usName(us), cluster: r.usual().at(us), shape: r.reportShape(), profiled: true})
	}
	res, err := r.do(ctx, r.experiment(CPU, CPU, "CPU time of the replicas, "+reportLoad, 1, sides...))
	if res == nil {
		return err
	}
	for _, s := range sides {
		p, perr := suite.ReadProfile(r.o.Out, s.name, bench.RoleReplica)
		if perr != nil {
			r.Leave("a CPU profile of the replicas at %s: %v", s.name, perr)
			continue
		}
		r.out.Profiles = append(r.out.Profiles, p)
	}
	return err
}

// pendings sweeps the operations in flight per session.
func (r *run) pendings(ctx context.Context) error {
	var sides []side
	for _, n := range r.o.Plan.Pendings {
		s := r.reportShape()
		s.pendings = n
		sides = append(sides, side{name: fmt.Sprintf("%d pending", n), cluster: r.usual(), shape: s})
	}
	e := r.experiment(Pendings, "pendings", fmt.Sprintf("Operations in flight in each of %d sessions", reportStreams), r.o.Plan.Rounds, sides...)
	e.Sweep = "pendings"
	return r.measure(ctx, e)
}

// threads sweeps the sessions.
func (r *run) threads(ctx context.Context) error {
	var sides []side
	for _, n := range r.o.Plan.Threads {
		s := r.reportShape()
		s.streams = n
		sides = append(sides, side{name: sessions(n), cluster: r.usual(), shape: s})
	}
	e := r.experiment(Threads, "threads", fmt.Sprintf("Sessions with %d operations in flight", reportPendings), r.o.Plan.Rounds, sides...)
	e.Sweep = "streams"
	return r.measure(ctx, e)
}

func sessions(n int) string { return report.Plural(n, "session", "sessions") }

// length compares a run with one of ten times as many operations, each on a new cluster.
func (r *run) length(ctx context.Context) error {
	var sides []side
	for _, n := range []int64{r.o.Plan.ShortOps, r.o.Plan.LongOps} {
		s := r.reportShape()
		s.count = n
		sides = append(sides, side{name: fmt.Sprintf("%d ops", n), cluster: r.usual(), shape: s})
	}
	e := r.experiment(Length, "length", fmt.Sprintf("Operations of each of %d sessions", reportStreams), r.o.Plan.Rounds, sides...)
	return r.measure(ctx, e)
}

// presetNames are the protocols. The plain one comes first: it is the baseline.
var presetNames = []string{"raft", "raft-ht", "curp", "curp-ht", "curp-ho"}

// presets compares the protocols on one machine.
func (r *run) presets(ctx context.Context) error {
	var sides []side
	for _, p := range presetNames {
		sides = append(sides, side{name: p, cluster: r.usual().of(p), shape: r.reportShape()})
	}
	sides = append(sides, r.floors(r.reportShape())...)
	return r.measure(ctx, r.experiment(Presets, "presets", "Presets side by side, "+reportLoad, r.o.Plan.Rounds, sides...))
}

// wan compares the protocols at a distance. Each replica has a session close to it, as when
// clients are served by the nearest one. Keys are uniform, so that operations hardly conflict.
func (r *run) wan(ctx context.Context, name string, size int, rtt time.Duration) error {
	var sides []side
	for _, p := range presetNames {
		c := r.usual()
		c.preset, c.replicas, c.rtt = p, size, rtt
		s := r.reportShape()
		s.streams, s.write, s.skew, s.place = size, 50, 0, kvload.Spread
		sides = append(sides, side{name: p, cluster: c, shape: s})
	}
	title := fmt.Sprintf("%d replicas, round trip of %s, a session close to each, half of the operations writes", size, rtt)
	return r.measure(ctx, r.experiment(WAN, name, title, r.o.Plan.Rounds, sides...))
}

// besideEtcd compares weir with etcd: only strong operations, half of them writes, one in
// flight per client.
func (r *run) besideEtcd(ctx context.Context, n int) error {
	if !r.o.etcd {
		return nil
	}
	s := r.strongShape(n)
	sides := []side{{name: string(SystemEtcd), cluster: r.etcd(), shape: s}, {name: string(Weir), cluster: r.usual(), shape: s}}
	sides = append(sides, r.floors(s)...)
	return r.measure(ctx, r.experiment(Etcd, fmt.Sprintf("etcd-%d", n), fmt.Sprintf("Strong operations of %s, half of them writes", clients(n)), r.o.Plan.Rounds, sides...))
}

func (r *run) etcd() cluster {
	return cluster{system: SystemEtcd, replicas: 3, durability: onDisk, procs: r.o.Procs}
}

func clients(n int) string { return report.Plural(n, "client", "clients") }

// cell compares no delay with fixed ones where a delay might pay.
func (r *run) cell(ctx context.Context, name, durability string, rtt time.Duration, n int) error {
	c := r.usual()
	c.durability, c.rtt = durability, rtt
	s := r.strongShape(n)
	var sides []side
	for _, us := range r.o.Plan.CellDelays {
		sides = append(sides, side{name: usName(us), cluster: c.at(us), shape: s})
	}
	sides = append(sides, side{name: auto, cluster: c, shape: s})
	e := r.experiment(Cells, name, fmt.Sprintf("No delay against fixed ones: %s, round trip of %s, %s", clients(n), rtt, durability), r.o.Plan.Rounds, sides...)
	e.Sweep, e.Adaptive, e.SweepUnit = "delay", auto, "us"
	return r.measure(ctx, e)
}

// single measures one client with one operation in flight.
func (r *run) single(ctx context.Context, name string, write float64) error {
	s := r.strongShape(1)
	s.write = write
	redis := s
	redis.client = Redis
	memory := r.usual()
	memory.durability = inMemory
	sides := []side{{name: "weir, disk", cluster: r.usual(), shape: s}, {name: "weir, memory", cluster: memory, shape: s}}
	if r.o.Client != Redis {
		sides = append(sides, side{name: "weir, disk, Redis protocol", cluster: r.usual(), shape: redis})
	}
	if r.o.etcd {
		sides = append(sides, side{name: "etcd, disk", cluster: r.etcd(), shape: s})
	}
	sides = append(sides, r.floors(s)...)
	return r.measure(ctx, r.experiment(Single, "single-"+name, "One client, one strong "+name+" at a time", r.o.Plan.Rounds, sides...))
}
