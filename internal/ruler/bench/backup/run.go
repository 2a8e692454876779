package backupbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/weirdb/weir/internal/measure"
	backupdata "github.com/weirdb/weir/internal/ruler/bench/backup/data"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Options is how the benchmark is run.
type Options struct {
	suite.Options
	// Engine is the database system to back up. Default: PostgreSQL.
	Engine suite.Engine
	// DSN is a URL of a server to use. Databases called weir_bench_source and weir_bench_copy
	// are created there and dropped. Default: a private server.
	DSN string
	// BinDir holds the programs of a private server. Default: the installed ones.
	BinDir string
	Plan   Plan
	// Seed is the seed of the rows. Default: 1.
	Seed uint64
	// Binary is the weir program. Required.
	Binary string
	// Tools are directories to search for other programs first.
	Tools []string
	// Sides are patterns of names, as in path.Match: only ways that match one of them are
	// compared. Default: all.
	Sides []string
	// Floor adds a program that only copies rows to the comparisons of backups. PostgreSQL
	// only.
	Floor bool
	// Verb runs a command line of weir in this process, so that it can be profiled. Nil: no
	// profiles.
	Verb func(ctx context.Context, args []string) error
}

// withDefaults fills in defaults.
func (o Options) withDefaults() Options {
	o.Engine = cmp.Or(o.Engine, suite.PostgreSQL)
	o.Seed = cmp.Or(o.Seed, 1)
	return o
}

// validate returns an error that names the flag.
func (o *Options) validate() error {
	switch {
	case !slices.Contains(Engines(), o.Engine):
		return fmt.Errorf("--engine %q: want postgres or mariadb", o.Engine)
	case o.Out == "" || o.Binary == "":
		return errors.New("want a directory for results and the weir program")
	case o.DSN != "" && suite.EngineOfDSN(o.DSN, Engines()) != o.Engine:
		return fmt.Errorf("--db names a server of another kind than --engine %s", o.Engine)
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

// Outcome is everything that the benchmark measured.
type Outcome struct {
	suite.Outcome `json:"-"`
	// Profiles are the files of CPU profiles, below the directory of results.
	Profiles []string `json:"profiles,omitempty"`
}

// ProfileFiles are shown at the end of the report.
func (o *Outcome) ProfileFiles() []string { return o.Profiles }

// The databases that the benchmark creates.
const (
	sourceDatabase = "weir_bench_source"
	copyDatabase   = "weir_bench_copy"
)

// rig is what the experiments share.
type rig struct {
	*suite.Runner
	o      Options
	out    *Outcome
	engine engine // nil while not needed
	ways   []way  // of the engine, those that work
	src    *source
	env    measure.Environment
	jobs   int
	bucket *bucket // nil while not needed
}

// Run runs the steps of the plan. With an error, the outcome has what was measured until then,
// and --resume continues from there.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Out, err = filepath.Abs(o.Out); err != nil {
		return nil, fmt.Errorf("find directory of results: %w", err)
	}
	r, err := newRig(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close(context.WithoutCancel(ctx))) }()
	return r.out, r.Run(ctx, r.steps())
}

func newRig(o Options) (*rig, error) {
	r := &rig{o: o, out: &Outcome{Outcome: suite.Outcome{Engine: o.Engine}}, env: measure.ReadEnvironment(), jobs: o.Plan.jobs()}
	var err error
	if r.Runner, err = suite.NewRunner(o.Options, &r.out.Outcome); err != nil {
		return nil, err
	}
	r.o.Options = r.Options
	return r, nil
}

// Steps are the steps of a plan, in order.
func Steps(o Options) []suite.Step { return (&rig{o: o}).steps() }

func (r *rig) steps() []suite.Step {
	p := r.o.Plan
	var out []suite.Step
	add := func(group string, run func(context.Context) error, names ...string) {
		out = append(out, suite.Step{Group: group, Names: names, Run: run})
	}
	if p.Buffers {
		for _, size := range bufferSizes {
			name := fmt.Sprintf("buffers-%dk", size>>10)
			add("buffers", func(ctx context.Context) error { return r.buffers(ctx, name, size) }, name)
		}
		if len(p.Compress) > 0 {
			name := "classes-" + p.Compress[0]
			add("buffers", func(ctx context.Context) error { return r.classes(ctx, name, p.Compress[0]) }, name)
		}
	}
	for _, shape := range p.Compress {
		add("compression", func(ctx context.Context) error { return r.compressions(ctx, shape) }, "compress-"+shape, "decompress-"+shape)
	}
	if len(p.Compress) > 0 && len(p.Blocks) > 0 {
		name := "blocks-" + p.Compress[0]
		add("gzip", func(ctx context.Context) error { return r.gzipBlocks(ctx, name, p.Compress[0]) }, name)
	}
	if len(p.Compress) > 0 && len(p.Workers) > 0 {
		name := "workers-" + p.Compress[0]
		add("gzip", func(ctx context.Context) error { return r.gzipWorkers(ctx, name, p.Compress[0]) }, name)
	}
	if p.Copy > 0 {
		add("direct", r.direct, "direct-io")
		add("copy", func(ctx context.Context) error { return r.copies(ctx, "copy-memory", "nowhere") }, "copy-memory")
		add("copy", func(ctx context.Context) error { return r.copies(ctx, "copy-file", "a file") }, "copy-file")
	}
	for i, size := range p.Shapes {
		beside := func(prefix string, ways func() []way) {
			for _, kind := range []string{dumps, restores} {
				add(prefix+size.Shape, r.whole(size, func(ctx context.Context, src *source) error {
					return r.sideBySide(ctx, src, prefix, kind, ways())
				}), prefix+kind+"-"+size.Shape)
			}
		}
		beside("", r.sides)
		if i > 0 {
			continue
		}
		if len(p.Profiles) > 0 {
			beside("profiles-", func() []way { return profileWays(r.o.Binary, p.Profiles) })
		}
		if len(p.Jobs) > 1 {
			beside("jobs-", func() []way { return jobsWays(r.o.Binary, p.Jobs) })
		}
		if p.Adaptive {
			beside("adaptive-", func() []way { return adaptiveWays(r.o.Binary, r.jobs) })
		}
		if p.Settings && (r.o.Engine == "" || r.o.Engine == suite.PostgreSQL) {
			add("settings-"+size.Shape, r.whole(size, func(ctx context.Context, src *source) error {
				return r.sideBySide(ctx, src, "settings-", restores, settingWays(r.o.Binary, r.jobs, p.Slow))
			}), "settings-"+restores+"-"+size.Shape)
		}
		if slices.Contains(p.Storage, storageS3) {
			for _, kind := range []string{dumps, restores} {
				add("storage-"+size.Shape, r.compareStorage(size, kind), "storage-"+kind+"-"+size.Shape)
			}
		}
		if p.CPU {
			add("", r.whole(size, r.profile), "cpu")
		}
		if p.Memory {
			add("", r.whole(size, r.memory), "memory-"+size.Shape)
		}
	}
	return out
}

// whole is a step that needs the server with a source database.
func (r *rig) whole(size Size, step func(context.Context, *source) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := r.open(ctx); err != nil {
			return err
		}
		src, err := r.source(ctx, size)
		if err != nil {
			return err
		}
		return step(ctx, src)
	}
}

// open starts the server, unless it runs, and finds the tools.
func (r *rig) open(ctx context.Context) (err error) {
	if r.engine != nil {
		return nil
	}
	open := openPostgres
	if r.o.Engine == suite.MariaDB {
		open = openMySQL
	}
	if r.engine, err = open(ctx, &r.o); err != nil {
		return err
	}
	r.env.Servers = []measure.Server{r.engine.info()}
	r.env.Durability = r.engine.durability()
	ways, missing := r.engine.ways(ctx, &r.o, r.jobs)
	for _, m := range missing {
		r.Leave("%s", m)
	}
	r.ways, err = r.able(ctx, ways)
	return err
}

// close drops the databases and stops the server.
func (r *rig) close(ctx context.Context) error {
	if r.engine == nil {
		return nil
	}
	var errs []error
	if r.bucket != nil {
		errs = append(errs, r.bucket.server.Stop(ctx))
	}
	if r.o.DSN != "" {
		errs = append(errs, r.engine.drop(ctx, copyDatabase), r.engine.drop(ctx, sourceDatabase))
	}
	return errors.Join(append(errs, r.engine.close(ctx), os.RemoveAll(r.archives()))...)
}

// archives is the directory for archives.
func (r *rig) archives() string { return filepath.Join(r.o.Out, "archives") }
