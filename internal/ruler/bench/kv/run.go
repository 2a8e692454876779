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
	// Version is what the program calls itself. Default: "this program".
	Version string
	// Preset is the protocol of all that does not compare protocols. Default:
	// "raft-ht".
	Preset string
	// Presets are the protocols of the sweep of delays, its validation and the tunings,
	// each for itself. Default: Preset alone.
	Presets []string
	// Limits must be kept by a case to be recommended. Default: those of report 2.
	Limits []bench.Constraint
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
	// Floor adds the least that a durable store needs to the experiments of the
	// presets, of etcd's load and of single operations.
	Floor bool
	// Reference holds figures of another system to be placed beside; may be nil.
	Reference *Reference

	// start starts a cluster. Default: real ones.
	start func(context.Context, cluster) (store, error)
	// servers are what takes part, for the environment.
	servers []measure.Server
	// etcd reports whether there is one.
	etcd bool
}

// Outcome is everything that the benchmark measured.
type Outcome struct {
	suite.Outcome `json:"-"`
	Reference     *Reference         `json:"reference,omitempty"` // not measured in this run
	Profiles      []suite.CPUProfile `json:"profiles,omitempty"`
}

// SharedProcs is the share of each of three replicas and the client in the
// processors of this machine, at least one.
func SharedProcs() int { return max(1, runtime.NumCPU()/4) }

// run is the state of one Run.
type run struct {
	*suite.Runner
	*rig
	out *Outcome
}

// ProfileFiles are those whose flame graphs stand behind the report.
func (o *Outcome) ProfileFiles() []string { return suite.ProfileFiles(o.Profiles) }

// Run runs the steps of the plan. With an error it returns what was measured until
// then.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	out := &Outcome{Reference: o.Reference}
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

// prepare finds what is to be started.
func (o *Options) prepare(ctx context.Context, r *run) error {
	if o.start != nil {
		return nil // by a test
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
		o.Say("etcd %s is there to be compared with", version)
	case lab.NotInstalled(err) && o.Etcd == "":
		r.Leave("etcd: %v", err)
	default:
		return err
	}
	return nil
}
