package backupbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	backupdata "github.com/weirdb/weir/internal/ruler/bench/backup/data"
)

// Options is how the scenario is run.
type Options struct {
	// Engine is what is backed up. Default: PostgreSQL.
	Engine Engine
	// DSN is a URL of a server to use. Databases called weir_bench_source and
	// weir_bench_copy are made there and dropped. Default: a server of our own.
	DSN string
	// BinDir holds the programs of a server of our own. Default: the installed one.
	BinDir string
	Plan   Plan
	Out    string // directory for results; required
	Resume bool
	// Seed is that of the rows. Default: 1.
	Seed uint64
	// Binary is the weir program. Required.
	Binary string
	// Tools are directories to look for other programs in, before all others.
	Tools []string
	// Verb runs a command line of weir in this process, so that it can be
	// profiled. Nil: nothing is.
	Verb func(ctx context.Context, args []string) error
	// Progress and Say tell how it goes; both may be nil.
	Progress func(bench.Progress)
	Say      func(format string, args ...any)
}

// withDefaults fills in what is left open.
func (o Options) withDefaults() Options {
	o.Engine = cmp.Or(o.Engine, PostgreSQL)
	o.Seed = cmp.Or(o.Seed, 1)
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	return o
}

// validate names the flag that is wrong.
func (o *Options) validate() error {
	switch {
	case !slices.Contains(Engines(), o.Engine):
		return fmt.Errorf("--engine %q: want postgres or mariadb", o.Engine)
	case o.Out == "" || o.Binary == "":
		return errors.New("a directory for results and the weir program are needed")
	case o.DSN != "" && EngineOfDSN(o.DSN) != o.Engine:
		return fmt.Errorf("--dsn names a server that --engine %s does not speak to", o.Engine)
	}
	for _, s := range o.Plan.Shapes {
		if _, err := backupdata.ByName(s.Shape); err != nil {
			return fmt.Errorf("--shapes: %w", err)
		}
		if s.Bytes < 1 {
			return fmt.Errorf("--size: %s would be empty", s.Shape)
		}
	}
	if o.DSN != "" {
		_, _, err := withoutPassword(o.DSN, "")
		return err
	}
	return nil
}

// Outcome is everything that the scenario measured.
type Outcome struct {
	Engine  Engine
	Results []*bench.Result
	// Notes say what was left out, and why.
	Notes []string
	// Profiles are the files of CPU profiles, below the directory of results.
	Profiles []string
}

// The databases that the scenario makes.
const (
	sourceDatabase = "weir_bench_source"
	copyDatabase   = "weir_bench_copy"
)

// rig is what the experiments share.
type rig struct {
	o      Options
	out    *Outcome
	engine engine // nil while none is needed
	env    measure.Environment
	jobs   int
}

// Run runs the scenario. With an error, what was measured until then is in the
// outcome, and --resume goes on from there.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Out, err = filepath.Abs(o.Out); err != nil {
		return nil, fmt.Errorf("find directory of results: %w", err)
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of results: %w", err)
	}
	r := &rig{o: o, out: &Outcome{Engine: o.Engine}, env: measure.ReadEnvironment(), jobs: runtime.NumCPU()}
	if err := r.micro(ctx); err != nil {
		return r.out, err
	}
	if len(o.Plan.Shapes) == 0 {
		return r.out, nil
	}
	open := openPostgres
	if o.Engine == MariaDB {
		open = openMySQL
	}
	if r.engine, err = open(ctx, &o); err != nil {
		return r.out, err
	}
	defer func() { err = errors.Join(err, r.close(context.WithoutCancel(ctx))) }()
	r.env.Servers = []measure.Server{r.engine.info()}
	r.env.Durability = r.engine.durability()
	return r.out, r.whole(ctx)
}

// close drops what was made and ends the server.
func (r *rig) close(ctx context.Context) error {
	var errs []error
	if r.o.DSN != "" {
		errs = append(errs, r.engine.drop(ctx, copyDatabase), r.engine.drop(ctx, sourceDatabase))
	}
	return errors.Join(append(errs, r.engine.close(ctx), os.RemoveAll(r.archives()))...)
}

// archives is where archives lie while they are needed.
func (r *rig) archives() string { return filepath.Join(r.o.Out, "archives") }

// note says once what was left out.
func (r *rig) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(r.out.Notes, text) {
		r.out.Notes = append(r.out.Notes, text)
		r.o.Say("%s", text)
	}
}

// measure runs an experiment and keeps its samples and result.
func (r *rig) measure(ctx context.Context, e bench.Experiment, env *measure.Environment, flushDir string) error {
	if len(e.Sides) < 2 && e.Baseline == "" {
		e.Baseline = e.Sides[0].Name
	}
	store, err := bench.OpenStore(filepath.Join(r.o.Out, e.Name), r.o.Resume)
	if err != nil {
		return err
	}
	r.o.Say("%s", e.Title)
	res, err := bench.Run(ctx, e, bench.Options{Store: store, Env: env, FlushDir: flushDir, Progress: r.o.Progress})
	if res != nil {
		r.out.Results = append(r.out.Results, res)
	}
	return errors.Join(err, store.Close())
}
