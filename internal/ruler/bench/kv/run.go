package kvbench

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Options is how the benchmark is run.
type Options struct {
	suite.Options
	Plan Plan
	// Binary is the weir program that the replicas run. Required.
	Binary string
	// Version is the program's version. Default: "this program".
	Version string
	// Preset is the protocol wherever protocols are not compared. Default: "raft-ht".
	Preset string
	// Presets are the protocols of the sweep of delays, its validation and the tunings,
	// separately for each. Default: only Preset.
	Presets []string
	// Limits must be kept by a case to be recommended. Default: those of report 2.
	Limits []bench.Constraint
	// Client is the protocol through which weir is driven. Default: Native.
	Client Client
	// Path is when the native client tries the fast path. Default: PathAuto.
	Path Path
	// Procs is how many processors each replica may use, as GOMAXPROCS. Default: SharedProcs.
	Procs int
	// Etcd is the etcd program. Default: the installed one, if there is one.
	Etcd string
	// Floor adds the floor to the experiments on presets, under etcd's load, and on single
	// operations.
	Floor bool

	// start starts a cluster. Default: real ones.
	start func(context.Context, cluster) (store, error)
	// servers are the systems that take part, for the environment.
	servers []measure.Server
	// etcd reports whether etcd was found.
	etcd bool
}

// Outcome is everything that the benchmark measured.
type Outcome struct {
	suite.Outcome `json:"-"`
	Profiles      []suite.CPUProfile `json:"profiles,omitempty"`
}

// SharedProcs is the share of each of three replicas and the client of this machine's
// processors, at least one.
func SharedProcs() int { return max(1, runtime.NumCPU()/4) }

// run is the state of one Run.
type run struct {
	*suite.Runner
	*rig
	out *Outcome
}

// ProfileFiles are the profiles whose flame graphs are at the end of the report.
func (o *Outcome) ProfileFiles() []string { return suite.ProfileFiles(o.Profiles) }

// Run runs the steps of the plan. With an error it returns what was measured until then.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	out := &Outcome{}
	r := &run{out: out}
	if r.Runner, err = suite.NewRunner(o.Options, &out.Outcome); err != nil {
		return nil, err
	}
	o.Options = r.Options
	o.Preset, o.Client = cmp.Or(o.Preset, "raft-ht"), cmp.Or(o.Client, Native)
	o.Path, o.Procs = cmp.Or(o.Path, PathAuto), cmp.Or(o.Procs, SharedProcs())
	if err := o.prepare(ctx, r); err != nil {
		return nil, err
	}
	r.rig = &rig{o: o}
	defer func() { err = errors.Join(err, r.stop()) }()
	return out, r.Run(ctx, r.steps())
}

// prepare finds the programs to start.
func (o *Options) prepare(ctx context.Context, r *run) error {
	if o.start != nil {
		return nil // set by a test
	}
	o.start = func(ctx context.Context, c cluster) (store, error) {
		switch c.system {
		case SystemEtcd:
			return startEtcd(ctx, o.Etcd, c)
		case SystemFloor:
			return startFloor(ctx, o.Binary, o.Out, c)
		}
		return startWeir(ctx, o.Binary, c)
	}
	o.servers = []measure.Server{{Name: "weir kv", Version: cmp.Or(o.Version, "this program")}}
	chosen, _, err := suite.Choose(Steps(*o), o.Experiments)
	if err != nil || !slices.ContainsFunc(chosen, func(s suite.Step) bool { return s.Group == Etcd || s.Group == Single }) {
		return err
	}
	_, version, err := lab.FindEtcd(ctx, o.Etcd)
	switch {
	case err == nil:
		o.etcd = true
		o.servers = append(o.servers, measure.Server{Name: "etcd", Version: version})
		o.Say("comparing with etcd %s", version)
	case lab.NotInstalled(err) && o.Etcd == "":
		r.Leave("etcd: %v", err)
	default:
		return err
	}
	return nil
}
