package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
)

// An Account collects what a restore of any engine reports: its plan, its phases, and what
// failed. It also looks up parts of the archive. Its methods are safe for concurrent use.
type Account struct {
	opts     *Options // of the engine's run, which may still set Target
	archive  *archive.Reader
	manifest *archive.Manifest
	begun    time.Time

	mu     sync.Mutex // guards the fields below
	result Result
}

// Begin returns the account of a restore of the backup that r reads, which must be of one of
// the given engines; server is their common name. Unless NoCheck is set, it verifies everything
// but rows.
func Begin(ctx context.Context, opts *Options, r *archive.Reader, server string, engines ...archive.Engine) (*Account, error) {
	a := &Account{opts: opts, archive: r, manifest: r.Manifest(), begun: time.Now()}
	if !slices.Contains(engines, a.manifest.Engine) {
		return nil, fmt.Errorf("the backup is one of %s, not of %s", a.manifest.Engine, server)
	}
	if !opts.NoCheck {
		if err := r.CheckDefinitions(ctx); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// End returns the result of a run that ended with err. If err is nil, the error is about the
// objects that failed.
func (a *Account) End(err error) (*Result, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Elapsed = time.Since(a.begun)
	if a.result.Ended = err == nil; err == nil {
		err = a.result.Err()
	}
	return &a.result, err
}

// Warn records something that is worth knowing but no failure.
func (a *Account) Warn(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Warnings = append(a.result.Warnings, fmt.Sprintf(format, args...))
}

// Uncompared warns that a resumed restore does not compare a database whose restore has ended: its
// users may have changed it since.
func (a *Account) Uncompared(database string) {
	a.Warn("database %s is not compared with the backup: an earlier run has ended its restore, and it may have changed since", database)
}

// Failed handles an error. If it is about an object, it records it and returns nil, and the
// restore continues. It returns any other error, an error that hopeless says will affect the
// next object as well, and, with Options.Stop, every error.
func (a *Account) Failed(err error, hopeless func(error) bool) error {
	var object *ObjectError
	if err == nil || a.opts.Stop || !Independent(err) || !errors.As(err, &object) || hopeless(err) {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Failed = append(a.result.Failed, object)
	return nil
}

// FailedIn reports whether an object of a database has failed.
func (a *Account) FailedIn(database string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.result.Failed, func(e *ObjectError) bool { return e.Database == database })
}

// Broken records an object that was unusable at the source and is not created.
func (a *Account) Broken(object *ObjectError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Broken = append(a.result.Broken, object)
}

// Phase begins a phase; the function that it returns ends it.
func (a *Account) Phase(name string) (end func()) {
	a.opts.Progress.Phase(name)
	started := time.Now()
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.result.AddPhase(name, time.Since(started))
	}
}

// Plan records a step.
func (a *Account) Plan(s Step) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Plan = append(a.result.Plan, s)
	if s.Done {
		a.result.Resumed++
	}
}

// PlanTarget records that a database is created, or cleaned, before anything else.
func (a *Account) PlanTarget(database string, create, clean bool) {
	if create {
		a.Plan(Step{Database: database, Phase: "prepare", Object: "create database " + database})
	} else if clean {
		a.Plan(Step{Database: database, Phase: "prepare", Object: "drop what the backup contains"})
	}
}

// Expect records a step that progress counts. c is the chunk that it loads, or nil.
func (a *Account) Expect(s Step, c *archive.Chunk) {
	if c != nil {
		s.Bytes, s.Rows = c.PlainBytes, c.Rows
	}
	a.Plan(s)
	if !s.Done {
		a.opts.Progress.Expect(s.Bytes, 1)
	}
}

// Loaded counts the rows of a chunk that are in the database.
func (a *Account) Loaded(c *archive.Chunk) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Rows += c.Rows
	a.result.Bytes += c.PlainBytes
	if c.Part <= 1 {
		a.result.Tables++
	}
}

// Load runs the jobs that load a database's rows, and those that depend on them, as one graph.
// moved returns the bytes of rows moved so far, and rest releases the resources of a worker:
// see [bulk.WorkerPool].
func (a *Account) Load(ctx context.Context, database string, moved func() int64, rest func(worker int) error, jobs []bulk.Job) error {
	defer a.Phase("data and indexes")()
	stats := bulk.WorkerPoolStats{Name: database}
	pool := a.opts.Adapt.WorkerPool(a.opts.Jobs, 1)
	pool.Moved, pool.Rest, pool.Stats = moved, rest, &stats
	err := pool.Run(ctx, jobs)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Workers = append(a.result.Workers, stats)
	return err
}

// Workers returns the maximum number of concurrent jobs.
func (a *Account) Workers() int { return max(1, a.opts.Adapt.Most(a.opts.Jobs)) }

// Names returns the databases of the backup that are selected.
func (a *Account) Names() ([]string, error) {
	var names []string
	for _, d := range a.manifest.Databases {
		names = append(names, d.Name)
	}
	if a.opts.Database != "" {
		if !slices.Contains(names, a.opts.Database) {
			return nil, fmt.Errorf("the backup holds no database %q, only %s", a.opts.Database, strings.Join(names, ", "))
		}
		return []string{a.opts.Database}, nil
	}
	if len(names) > 1 && a.opts.Target != "" {
		return nil, fmt.Errorf("--target names one database, and the backup holds %d: --database says which one is meant", len(names))
	}
	return names, nil
}

// Cluster reports whether a whole cluster is restored.
func (a *Account) Cluster() bool { return a.manifest.Scope == "cluster" && a.opts.Database == "" }

// Has reports whether the backup has a chunk.
func (a *Account) Has(chunk string) bool {
	return slices.ContainsFunc(a.manifest.Chunks, func(c archive.Chunk) bool { return c.Path == chunk })
}

// Text reads a whole chunk.
func (a *Account) Text(ctx context.Context, chunk string) (string, error) {
	in, err := a.archive.Chunk(ctx, chunk)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(in)
	if err = errors.Join(err, in.Close()); err != nil {
		return "", fmt.Errorf("read %s: %w", chunk, err)
	}
	return string(text), nil
}
