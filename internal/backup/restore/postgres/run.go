// Package postgres restores PostgreSQL databases from an archive.
//
// Definitions that rows need are created one after the other; then everything else is one graph
// of jobs over several sessions, in which an index waits only for the rows of its own table:
//
//	before    types, tables, functions, …        one after the other
//	together  rows -> indexes, keys -> foreign keys, triggers, rules -> ANALYZE
//	after     sequences -> grants -> materialized views, ANALYZE -> event triggers
//
// The job with the longest path of work goes first. A job that would wait on the server for
// another job's lock does not start before that one has ended.
//
// Each step is a transaction that also records itself in the target (schema weir_restore), so
// that an interrupted restore can be resumed without repeating steps. Commits are asynchronous
// except the last one; since PostgreSQL flushes its log in order, all are durable when the last
// one is.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Run restores what opts select from the backup that r reads. Even with an error, the result is
// not nil if the restore came far enough to have one.
func Run(ctx context.Context, opts restore.Options, r *archive.Reader) (*restore.Result, error) {
	defer bulk.BoundMemory().Close()
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	cfg, err := pgwire.ParseDSN(opts.DSN)
	if err != nil {
		return nil, err
	}
	run := &runner{opts: opts, cfg: cfg, archive: r, manifest: r.Manifest()}
	if run.Account, err = restore.Begin(ctx, &run.opts, r, "PostgreSQL", archive.PostgreSQL); err != nil {
		return nil, err
	}
	if opts.Sandbox {
		if run.sandbox, err = newSandbox(ctx, &run.cfg); err != nil {
			return nil, err
		}
	}
	err = run.all(ctx)
	return run.End(errors.Join(err, run.sandbox.close()))
}

// runner is one run over one or more databases.
type runner struct {
	*restore.Account
	opts     restore.Options
	cfg      pgwire.ConnectConfig
	archive  *archive.Reader
	manifest *archive.Manifest
	sandbox  *sandbox // nil: not in a sandbox

	// globalsDone says that roles and tablespaces were created and set without a failure. The
	// journal of each database records it, so that a resumed restore does not undo later changes.
	globalsDone bool
}

// failed records an error about an object and returns nil, unless the error will affect other
// objects as well.
func (r *runner) failed(err error) error {
	return r.Failed(err, func(err error) bool {
		var server *pgwire.Error
		timeout := r.opts.IndexTimeout > 0 && pg.ErrorCode(err) == pgwire.CodeQueryCanceled // affects this object only
		return errors.As(err, &server) && !timeout && (server.Fatal() || hopeless(server.Code))
	})
}

// hopeless reports whether an error code is about the server and not the object: insufficient
// resources, operator intervention, system errors. A library that is not installed is not one
// of these.
func hopeless(code string) bool {
	return strings.HasPrefix(code, "53") || strings.HasPrefix(code, "57") || code == "58000" || code == "58030"
}

// all restores all selected databases, one after the other: the jobs of each use the whole
// machine.
func (r *runner) all(ctx context.Context) error {
	s, err := r.reach(ctx)
	if err != nil {
		return err
	}
	version, text, existing := s.Version(), s.VersionText(), map[string]bool{}
	err = s.Query(ctx, "SELECT datname FROM pg_catalog.pg_database", func(row []string) error {
		existing[row[0]] = true
		return nil
	})
	if err = errors.Join(err, s.Close()); err != nil {
		return fmt.Errorf("list databases: %w", err)
	}
	if source := r.manifest.Server.Number; version/10000 < source/10000 && !r.opts.Force {
		return fmt.Errorf("the server is PostgreSQL %s and the backup one of PostgreSQL %s: an older server may not understand it (--force tries)",
			text, r.manifest.Server.Version)
	}
	names, err := r.Names()
	if err != nil {
		return err
	}
	cluster := r.Cluster()
	var all []*database
	for _, name := range names {
		d := &database{runner: r, source: name, version: version}
		d.target, d.create = r.target(name, s.Database(), cluster)
		all = append(all, d)
	}
	ending, err := r.ending(ctx, all, existing)
	if err != nil {
		return err
	}
	if cluster && !r.opts.NoGlobals && !ending {
		if r.globalsDone, err = r.fit(ctx, all, existing); err != nil {
			return err
		}
		if !r.globalsDone {
			if err := r.globals(ctx); err != nil {
				return err
			}
			r.globalsDone = r.sandbox == nil && !r.FailedIn("")
		}
	}
	for _, d := range all {
		if ending {
			if err := compareEnding(ctx, d); err != nil {
				return fmt.Errorf("restore database %s: %w", d.target, err)
			}
			continue
		}
		err := d.restore(ctx, existing[d.target])
		if err != nil && cluster { // the other databases may not need it
			if d.lost = true; r.failed(err) == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("restore database %s: %w", d.target, err)
		}
	}
	if r.opts.DryRun {
		return nil
	}
	for _, d := range all {
		if d.lost {
			continue
		}
		if err := d.end(ctx, ending); err != nil {
			return fmt.Errorf("restore database %s: %w", d.target, err)
		}
	}
	return nil
}

// maintenance are databases to connect to while another one is created.
var maintenance = []string{"postgres", "template1"}

// reach opens a session from which databases can be created. If the DSN names the database to
// create, it cannot connect to that one.
func (r *runner) reach(ctx context.Context) (*pg.Session, error) {
	if !r.opts.Create || r.Cluster() {
		return pg.Connect(ctx, r.cfg, "")
	}
	params, err := pgwire.DSNParams(r.opts.DSN)
	if err != nil {
		return nil, err
	}
	named := params["dbname"]
	if slices.Contains(maintenance, named) {
		named = ""
	}
	if r.opts.Target == "" && len(r.manifest.Databases) <= 1 {
		r.opts.Target = named
	}
	places := []string{r.cfg.Database}
	if named != "" && named == r.opts.Target {
		places = nil
	}
	for _, place := range append(places, maintenance...) {
		r.cfg.Database = place
		var s *pg.Session
		if s, err = pg.Connect(ctx, r.cfg, ""); pg.ErrorCode(err) != "3D000" { // invalid_catalog_name
			return s, err
		}
	}
	return nil, err
}

// fit refuses existing databases in an unsuitable state, before roles are changed. It reports
// whether the restore that is resumed has set them.
func (r *runner) fit(ctx context.Context, all []*database, existing map[string]bool) (done bool, err error) {
	for _, d := range all {
		if !existing[d.target] || d.create && r.opts.Clean {
			continue
		}
		journal, err := fitAlone(ctx, d)
		if err != nil {
			return false, fmt.Errorf("restore database %s: %w", d.target, err)
		}
		done = done || r.sandbox == nil && journal.Has(stepGlobals)
	}
	return done, nil
}

// fitAlone refuses an existing database that is neither empty nor one whose restore is resumed.
func fitAlone(ctx context.Context, d *database) (journal *restore.Journal, err error) {
	if d.create && !d.opts.Resume {
		return nil, errExists
	}
	if d.main, err = pg.Connect(ctx, d.cfg, d.target); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, d.main.Close())
		d.main = nil
	}()
	journal, err = openJournal(ctx, d.main, d)
	if err != nil || journal.Begun() || d.opts.DataOnly {
		return journal, err
	}
	return journal, d.fit(ctx)
}

// ending reports whether an interrupted restore of several databases had begun to drop their
// journals, which it does in order: that of the last database tells.
func (r *runner) ending(ctx context.Context, all []*database, existing map[string]bool) (_ bool, err error) {
	if !r.opts.Resume || len(all) < 2 {
		return false, nil
	}
	last := all[len(all)-1]
	if !existing[last.target] {
		return false, nil
	}
	s, err := pg.Connect(ctx, r.cfg, last.target)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	journal, err := openJournal(ctx, s, last)
	if err != nil {
		return false, fmt.Errorf("restore database %s: %w", last.target, err)
	}
	return journal.Has(restore.StepRestored), nil
}

// compareEnding compares a database whose restore an earlier run has completed, unless its journal
// is dropped already: then others may use the database.
func compareEnding(ctx context.Context, d *database) (err error) {
	if d.opts.Verify != restore.VerifyRows || d.opts.DryRun {
		return nil
	}
	if d.main, err = d.connect(ctx); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, d.main.Close())
		d.main, d.toc, d.entries, d.tables, d.byTable = nil, nil, nil, nil, nil
	}()
	journal, err := openJournal(ctx, d.main, d)
	if err != nil {
		return err
	}
	if !journal.Begun() {
		d.Uncompared(d.target)
		return nil
	}
	if d.toc, err = d.readTOC(ctx, d.source); err != nil {
		return err
	}
	if err := d.choose(); err != nil {
		return err
	}
	return withWorkers(d, func(workers []worker) error { return compareRestored(ctx, d, workers) })
}

// end drops the journal of a database, unless an earlier run has done that.
func (d *database) end(ctx context.Context, ending bool) error {
	if !ending {
		return d.finish(ctx)
	}
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	journal, err := openJournal(ctx, s, d)
	if err = errors.Join(err, s.Close()); err != nil || !journal.Begun() {
		return err
	}
	if d.toc, err = d.readTOC(ctx, d.source); err != nil {
		return err
	}
	if err := d.choose(); err != nil {
		return err
	}
	return d.finish(ctx)
}

// target returns into which database one of the backup is restored, and whether that is
// created. For a cluster all are created, except those that every server has.
func (r *runner) target(name, connected string, cluster bool) (target string, create bool) {
	switch {
	case r.opts.Target != "":
		return r.opts.Target, r.opts.Create
	case cluster:
		return name, name != "postgres" && name != "template1"
	case r.opts.Create:
		return name, true
	}
	return connected, false
}

// globals runs the statements about roles and tablespaces. Existing ones are kept, but the
// statements' settings are applied to them.
func (r *runner) globals(ctx context.Context) (err error) {
	end := r.Phase("globals")
	defer end()
	const name = "globals.sql"
	if !r.Has(name) {
		return nil
	}
	r.Plan(restore.Step{Phase: "globals", Object: "roles and tablespaces"})
	if r.opts.DryRun {
		return nil
	}
	s, err := pg.Connect(ctx, r.cfg, "")
	if err != nil {
		return err
	}
	defer s.Close()
	if r.sandbox != nil {
		defer func() { err = errors.Join(err, r.sandbox.admit(ctx)) }()
	}
	return r.statements(ctx, name, func(sql string) error {
		if r.sandbox != nil {
			if sql = tame(sql); sql == "" {
				return nil
			}
		}
		err := r.exec(ctx, s, sql)
		if code := pg.ErrorCode(err); code == "42710" && strings.HasPrefix(sql, "CREATE ") { // duplicate_object
			r.Warn("%s: it exists already", restore.First(sql, 80))
			return nil
		}
		if err != nil {
			return r.failed(&restore.ObjectError{Object: "globals", Statement: restore.First(sql, 200), Rest: restore.Unsecret(sql) + ";", Err: err})
		}
		return nil
	})
}

// exec runs statements as one transaction; in a sandbox, again after it has created a missing
// role.
func (r *runner) exec(ctx context.Context, s *pg.Session, sql string) error {
	err := s.Exec(ctx, sql)
	for r.sandbox.provide(ctx, err) {
		err = s.Exec(ctx, sql)
	}
	return err
}

// statements calls f with each statement of a chunk.
func (r *runner) statements(ctx context.Context, chunk string, f func(string) error) error {
	in, err := r.archive.Chunk(ctx, chunk)
	if err != nil {
		return err
	}
	for sql, err := range pg.Statements(in) {
		if err == nil {
			err = f(sql)
		}
		if err != nil {
			return errors.Join(err, in.Close())
		}
	}
	return in.Close()
}

// readTOC reads the table of contents of a database.
func (r *runner) readTOC(ctx context.Context, database string) (*pg.TOC, error) {
	name := path.Dir(archive.SchemaPath(database, "x")) + "/toc.jsonl"
	in, err := r.archive.Chunk(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read definitions of database %s: %w", database, err)
	}
	toc, err := pg.DecodeTOC(in)
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return toc, nil
}
