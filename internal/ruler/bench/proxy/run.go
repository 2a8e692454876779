// Package proxybench is the benchmark of weir proxy: what is started,
// which sides are compared, what is verified. The measuring itself is package
// bench, the load packages below it.
package proxybench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Options is how the scenario is run.
type Options struct {
	// Engine is what weir stands before. Default: PostgreSQL.
	Engine Engine
	// DSN is a URL that names a server and a database to use. Tables called
	// weir_bench_test and weir_bench_keys are made there and dropped. Default: a
	// server of our own.
	DSN    string
	Plan   Plan
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

// Outcome is everything that the scenario measured.
type Outcome struct {
	Engine   Engine
	Results  []*bench.Result
	Profiles []CPUProfile
	Idle     *Idle
	Left     []string // what is missing, and why
}

// leave notes what is left out.
func (o *Outcome) leave(say func(string, ...any), format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	o.Left = append(o.Left, text)
	say("left out: %s", text)
}

// CPUProfile is where one process's CPU time went in one case.
type CPUProfile struct {
	Case      string                `json:"case"`
	Role      string                `json:"role"`
	Breakdown *measure.CPUBreakdown `json:"breakdown"`
}

// Run runs the scenario.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	o.Engine = cmp.Or(o.Engine, PostgreSQL)
	out := &Outcome{Engine: o.Engine}
	rig, err := startRig(ctx, o, 0)
	if err != nil {
		return nil, err
	}
	err = rig.fastDisk(ctx, out)
	if err := errors.Join(err, rig.stop()); err != nil {
		return out, err
	}
	if o.DSN != "" && len(o.Plan.SlowFsync) > 0 {
		o.Say("a slow disk needs a server of our own: it is left out")
		return out, nil
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

// fastDisk runs everything but the slow-disk experiments.
func (r *rig) fastDisk(ctx context.Context, out *Outcome) error {
	for _, n := range r.o.Plan.Inserts {
		if err := r.inserts(ctx, out, n); err != nil {
			return err
		}
	}
	for _, n := range r.o.Plan.Literals {
		if err := r.literals(ctx, out, n); err != nil {
			return err
		}
	}
	for _, n := range r.o.Plan.Reads {
		for _, text := range []bool{false, true} {
			if err := r.reads(ctx, out, n, text); err != nil {
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

// inserts is reference report 1 for one number of clients.
func (r *rig) inserts(ctx context.Context, out *Outcome, clients int) error {
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
		ways = append(ways, weirWay(r.solo, r.engine.ungrouped, "/* batch */", bench.NotApplicable))
	}
	e := r.experiment("inserts", clients, fmt.Sprintf("Single-row INSERTs, %s%s", clientsName(clients), latencyNote(r.latency)))
	e.Sweep, e.Adaptive, e.SweepUnit = "window", "auto", "ms"
	for _, w := range ways {
		e.Sides = append(e.Sides, r.side(w, clients, r.insert(w.hint), false))
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
		if err := r.profile(ctx, out, w, clients); ctx.Err() != nil {
			return err
		} else if err != nil {
			// Rounds that were measured do not depend on a profile taken afterwards.
			out.leave(r.o.Say, "the CPU profile of %s: %v", w.name, err)
		}
	}
	return nil
}

// literals compares inserts that are not prepared.
func (r *rig) literals(ctx context.Context, out *Outcome, clients int) error {
	e := r.experiment("literals", clients, fmt.Sprintf("Single-row INSERTs with literals, %s protocol, %s", r.engine.text, clientsName(clients)))
	e.Factors["protocol"] = r.engine.text
	for _, w := range []way{r.direct(), weirWay(r.weir, "weir auto", "/* batch */", "auto")} {
		e.Sides = append(e.Sides, r.side(w, clients, r.insert(w.hint), true))
	}
	res, err := r.run(ctx, e)
	if err != nil {
		return err
	}
	out.Results = append(out.Results, res)
	return nil
}

// reads compares key lookups.
func (r *rig) reads(ctx context.Context, out *Outcome, clients int, text bool) error {
	protocol := "prepared"
	if text {
		protocol = r.engine.text
	}
	e := r.experiment("reads-"+protocol, clients, fmt.Sprintf("Key lookups, %s protocol, %s", protocol, clientsName(clients)))
	e.Factors["protocol"] = protocol
	ways := []way{r.direct()}
	if r.bouncer != nil && (text || r.pooledStatements()) {
		ways = append(ways, r.pgbouncer())
	}
	ways = append(ways, weirWay(r.weir, "weir", "", bench.NotApplicable))
	for _, w := range ways {
		e.Sides = append(e.Sides, r.side(w, clients, r.lookup(), text))
	}
	res, err := r.run(ctx, e)
	if err != nil {
		return err
	}
	out.Results = append(out.Results, res)
	return nil
}

// failing compares groups in which one insert of a hundred violates a
// constraint with groups in which none does. Every answer is checked.
func (r *rig) failing(ctx context.Context, out *Outcome, clients int) error {
	e := r.experiment("failing", clients, fmt.Sprintf("Grouped INSERTs of which 1 %% fail, %s", clientsName(clients)))
	e.Baseline = "none fail"
	for _, pct := range []float64{0, 1} {
		w := weirWay(r.weir, "none fail", "/* batch */", "auto")
		if pct > 0 {
			w.name = "1 % fail"
		}
		work := r.insert(w.hint)
		work.FailPercent, work.Guarded = pct, true // both sides on the same kind of table
		e.Sides = append(e.Sides, r.side(w, clients, work, false))
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
			"clients": strconv.Itoa(clients), "fsync_latency": r.latency.String(), "durability": r.durability(),
			"seconds": r.o.Plan.Duration.String(), "engine": string(r.o.Engine),
		},
	}}
}
