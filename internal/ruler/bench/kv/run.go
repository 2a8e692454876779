package kvbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Options is how the scenarios are run.
type Options struct {
	Plan   Plan
	Out    string // directory for results; required
	Resume bool
	// Binary is the weir program that the replicas run. Required.
	Binary string
	// Version is what the program calls itself. Default: "this program".
	Version string
	// Preset is the protocol of all that does not compare protocols. Default:
	// "raft-ht".
	Preset string
	// Client is the protocol by which weir is driven. Default: Native.
	Client Client
	// Path is when the native client tries the fast path. Default: PathAuto.
	Path Path
	// Procs is how many processors each replica may use at once, as GOMAXPROCS
	// says. Default: SharedProcs.
	Procs int
	// Etcd is the etcd program. Default: the one that is found; none if there is
	// none.
	Etcd string
	// Reference holds figures of another system to be placed beside; may be nil.
	Reference *Reference
	// Progress and Say tell how it goes; both may be nil.
	Progress func(bench.Progress)
	Say      func(format string, args ...any)

	// start starts a cluster. Default: real ones.
	start func(context.Context, cluster) (store, error)
	// servers are what takes part, for the environment.
	servers []measure.Server
	// etcd tells whether there is one.
	etcd bool
}

// Outcome is everything that the scenarios measured.
type Outcome struct {
	Results   []*bench.Result
	Reference *Reference
	// Left is what was left out, and why.
	Left []string
}

// SharedProcs is the share of each of three replicas and the client in the
// processors of this machine, at least one.
func SharedProcs() int { return max(1, runtime.NumCPU()/4) }

// run is the state of one Run.
type run struct {
	*rig
	out *Outcome
	// best is the fixed delay with the highest rate in the sweep, in microseconds.
	best int
}

// Run runs the scenarios of the plan. With an error it returns what was measured
// until then.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	o.Preset, o.Client = cmp.Or(o.Preset, "raft-ht"), cmp.Or(o.Client, Native)
	o.Path, o.Procs = cmp.Or(o.Path, PathAuto), cmp.Or(o.Procs, SharedProcs())
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make result directory: %w", err)
	}
	r := &run{out: &Outcome{Reference: o.Reference}, best: reportBest}
	if err := o.prepare(ctx, r); err != nil {
		return nil, err
	}
	r.rig = &rig{o: o}
	defer func() { err = errors.Join(err, r.stop()) }()
	for _, s := range []struct {
		name Scenario
		run  func(context.Context) error
	}{
		{Delay, r.delay},
		{Validate, r.validate},
		{Pendings, r.pendings},
		{Threads, r.threads},
		{Conflicts, r.conflicts},
		{Length, r.length},
		{Presets, r.presets},
		{WAN, r.wan},
		{Etcd, r.besideEtcd},
		{Cells, r.cells},
		{Single, r.single},
	} {
		if !o.Plan.has(s.name) {
			continue
		}
		if err := s.run(ctx); err != nil {
			return r.out, err
		}
	}
	return r.out, nil
}

// prepare finds what is to be started.
func (o *Options) prepare(ctx context.Context, r *run) error {
	if o.start != nil {
		return nil // by a test
	}
	o.start = func(ctx context.Context, c cluster) (store, error) {
		if c.system == SystemEtcd {
			return startEtcd(ctx, o.Etcd, c)
		}
		return startWeir(ctx, o.Binary, c)
	}
	o.servers = []measure.Server{{Name: "weir kv", Version: cmp.Or(o.Version, "this program")}}
	if !o.Plan.has(Etcd) && !o.Plan.has(Single) {
		return nil
	}
	_, version, err := lab.FindEtcd(ctx, o.Etcd)
	switch {
	case err == nil:
		o.etcd = true
		o.servers = append(o.servers, measure.Server{Name: "etcd", Version: version})
		o.Say("etcd %s is there to be compared with", version)
	case lab.NotInstalled(err) && o.Etcd == "":
		text := "etcd: " + err.Error()
		r.out.Left = append(r.out.Left, text)
		o.Say("left out: %s", text)
	default:
		return err
	}
	return nil
}

// do runs an experiment and keeps its result, also that of one that ended early.
func (r *run) do(ctx context.Context, e bench.Experiment) (*bench.Result, error) {
	res, err := r.rig.run(ctx, e)
	if res != nil {
		r.out.Results = append(r.out.Results, res)
	}
	return res, err
}

// Invalid lists the rounds in which answers were wrong.
func (o *Outcome) Invalid() []string {
	var out []string
	for _, r := range o.Results {
		for i := range r.Cases {
			for _, s := range r.Cases[i].Samples {
				for _, text := range s.Invalid {
					out = append(out, fmt.Sprintf("%s, %s, round %d: %s", r.Experiment.Name, r.Cases[i].Name, s.Round, text))
				}
			}
		}
	}
	return out
}
