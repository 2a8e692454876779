// Package postgres backs up PostgreSQL databases into an archive.
//
// One session takes the locks and the snapshot; all others use its snapshot, so that the backup
// shows the database at one moment:
//
//	main     LOCK TABLE … | export snapshot | ........ idle, or a fallback ......... | end
//	worker 1                | import | COPY big (0,9999) | COPY small | …
//	worker 2                | import | COPY big (10000,…) | COPY other | …
//	pg_dump  ........... on main: definitions ...........
//
// Locks are taken before the snapshot, all of them at the start: a table that is rewritten
// between the two would look empty. A worker whose lock would have to wait, behind a session
// that waits for one of our locks, leaves its table to the main session. weir reads the rows
// itself; the server's own pg_dump reads the definitions, on the main session. Its table of
// contents is stored beside plain SQL, so that a restore can run it object by object.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// oldestServer is the oldest version that can be backed up: the catalog queries need it.
const oldestServer = 120000

// Run backs up what opts select into w and completes it. If it fails, it aborts w; complete
// chunks, if any, are kept for a resumed run. In both cases the writer cannot be used any more.
func Run(ctx context.Context, opts backup.Options, w *archive.Writer) (*backup.Result, error) {
	r, err := run(ctx, opts, w)
	if err != nil {
		return nil, w.Fail(err)
	}
	return r, nil
}

func run(ctx context.Context, opts backup.Options, w *archive.Writer) (*backup.Result, error) {
	started := time.Now()
	defer bulk.BoundMemory().Close()
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	cfg, err := pgwire.ParseDSN(opts.DSN)
	if err != nil {
		return nil, err
	}
	r := &runner{opts: opts, cfg: cfg, w: w, result: &backup.Result{}}
	defer r.close()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	if opts.Cluster && !opts.NoGlobals {
		if err := r.globals(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.databases(ctx); err != nil {
		return nil, ofReplay(r.standby, err)
	}
	if err := r.sweep(ctx); err != nil {
		return nil, err
	}
	opts.Progress.Phase("manifest")
	if r.result.Manifest, err = w.Finish(ctx, r.manifest()); err != nil {
		return nil, err
	}
	r.result.Elapsed, r.result.Pipeline = time.Since(started), w.Stats().Pipeline
	return r.result, nil
}

// replayConflict is the error code when a standby's replay cancels a statement:
// serialization_failure, which no other read gets.
const replayConflict = "40001"

// ofReplay adds what to do to an error caused by a standby's replay, which has ended a session
// or a statement.
func ofReplay(standby bool, err error) error {
	if !standby || pg.ErrorCode(err) != replayConflict {
		return err
	}
	return fmt.Errorf("%w (the standby went on with its replay, which needed what the backup had locked or still saw: set max_standby_streaming_delay and max_standby_archive_delay to -1 there during the backup, or back up the primary)", err)
}

// runner is one run over one or more databases.
type runner struct {
	opts     backup.Options
	cfg      pgwire.ConnectConfig
	w        *archive.Writer
	dump     pg.Tool
	reload   pg.Tool // pg_restore, which writes plain SQL
	server   archive.Server
	encoding string   // of sessions to the DSN's own database
	names    []string // of the databases, in the order of the manifest
	standby  bool     // the server is in recovery

	// tools waits for the search for dump and reload, which runs in the background.
	tools func() error

	mu       sync.Mutex  // guards the fields below
	first    *pg.Session // in the only database, whose main session it becomes; nil: it has become that
	result   *backup.Result
	done     map[string]*database
	warnings []string
	paths    map[string]string // chunks of this backup, with their database
	stale    []string          // chunks of attempts that were started over
}

// warn records a deviation from what was requested.
func (r *runner) warn(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// heard records a message of one of the server's programs, once.
func (r *runner) heard(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.warnings, line) {
		r.warnings = append(r.warnings, line)
	}
}

// claim records that a path belongs to this backup.
func (r *runner) claim(database, path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paths == nil {
		r.paths = map[string]string{}
	}
	r.paths[path] = database
}

// disclaim records that the chunks that a database has written so far may not be needed.
func (r *runner) disclaim(database string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, db := range r.paths {
		if db == database {
			delete(r.paths, path)
			r.stale = append(r.stale, path)
		}
	}
}

// prepare identifies the server, and starts the search for tools that fit it.
func (r *runner) prepare(ctx context.Context) error {
	r.opts.Progress.Phase("connect")
	s, err := r.connect(ctx, "")
	if err != nil {
		return err
	}
	r.first = s
	r.server = archive.Server{Version: s.VersionText(), Number: s.Version()}
	r.lookForTools(ctx)
	// Not every role may query this; the identifier only distinguishes clusters.
	if row, err := s.Row(ctx, "SELECT system_identifier FROM pg_catalog.pg_control_system()"); err == nil {
		r.server.SystemID = row[0]
	} else if s.Broken() != nil {
		return err
	}
	row, err := s.Row(ctx, "SELECT pg_catalog.pg_is_in_recovery()")
	if err != nil {
		return fmt.Errorf("ask whether the server is a standby: %w", err)
	}
	r.standby = row[0] == "t"
	r.encoding = s.Encoding()
	r.names = []string{s.Database()}
	if r.opts.Cluster {
		if r.names, err = r.connectable(ctx, s); err != nil {
			return err
		}
	}
	if len(r.names) > 1 || !slices.Contains(r.names, s.Database()) {
		r.first = nil // it would wait for its turn, and might be lost by then
		_ = s.Close() // it has served its purpose
	}
	return nil
}

// lookForTools starts the search for tools that fit the server, which takes as long as listing
// some tables.
func (r *runner) lookForTools(ctx context.Context) {
	found := make(chan error, 1)
	go func() {
		var err error
		if r.dump, err = pg.FindTool(ctx, "pg_dump", r.server.Number); err == nil {
			r.dump.Warn = r.heard // about subscriptions that it may not see, for example
			// pg_restore of the same installation: it can read that pg_dump's output.
			r.reload = pg.Tool{Path: strings.TrimSuffix(r.dump.Path, "pg_dump") + "pg_restore", Major: r.dump.Major}
		}
		found <- err
	}()
	r.tools = sync.OnceValue(func() error { return <-found })
}

// connect opens a session for reading, in the DSN's own database unless another is given.
func (r *runner) connect(ctx context.Context, database string) (*pg.Session, error) {
	s, err := pg.Connect(ctx, r.cfg, database)
	if err != nil {
		return nil, err
	}
	if s.Version() < oldestServer {
		return nil, errors.Join(fmt.Errorf("the server is PostgreSQL %s, and %d is the oldest that can be backed up", s.VersionText(), oldestServer/10000), s.Close())
	}
	if err := s.Exec(ctx, pg.MoneySetting+"; "+pg.NoJIT); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare session: %w", err), s.Close())
	}
	return s, nil
}

// firstIn returns the session that prepare has opened, if it is in that database and still
// available.
func (r *runner) firstIn(database string) *pg.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.first
	if s == nil || s.Database() != database {
		return nil
	}
	r.first = nil
	return s
}

// close ends what prepare has started and what was not used.
func (r *runner) close() {
	if r.tools != nil {
		_ = r.tools() // its error was returned where tools were needed
	}
	if r.first != nil {
		_ = r.first.Close() // the backup has failed before its first statement, for another reason
	}
}

// connectable lists the databases of a cluster that allow connections.
func (r *runner) connectable(ctx context.Context, s *pg.Session) ([]string, error) {
	var all []string
	err := s.Query(ctx, `SELECT datname FROM pg_catalog.pg_database WHERE datallowconn AND datname <> 'template0' AND datconnlimit <> -2 ORDER BY datname`,
		func(row []string) error {
			all = append(all, row[0])
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("list databases: %w", err)
	}
	if len(r.opts.Databases) == 0 {
		return all, nil
	}
	for _, name := range r.opts.Databases {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("database %q does not exist or takes no connections", name)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(r.opts.Databases))), nil
}

// globals writes the objects outside of databases.
func (r *runner) globals(ctx context.Context) error {
	if err := r.tools(); err != nil { // before there is anything to keep
		return err
	}
	tool, err := pg.FindTool(ctx, "pg_dumpall", r.server.Number)
	if err != nil {
		return err
	}
	tool.Warn = r.heard
	args := []string{"--globals-only", "--no-password", "--encoding=" + r.encoding}
	if r.opts.NoRolePasswords {
		args = append(args, "--no-role-passwords")
	}
	return r.writeTool(ctx, archive.ChunkInfo{Path: "globals.sql", Kind: archive.KindGlobals, Content: "sql"}, tool, "", args, nil)
}

// databases backs up all databases, the largest first, as many concurrently as the options say;
// they share the jobs.
func (r *runner) databases(ctx context.Context) error {
	side := min(r.opts.ClusterParallelism, len(r.names))
	var jobs []bulk.Job
	for _, name := range r.names {
		jobs = append(jobs, bulk.Job{ID: name, Do: func(ctx context.Context, _ int) error {
			d := &database{runner: r, name: name, pool: r.opts.Adapt.WorkerPool(r.opts.Jobs, side)}
			err := d.backup(ctx)
			if invalidCatalogName := "3D000"; r.opts.Cluster && len(r.opts.Databases) == 0 && pg.ErrorCode(err) == invalidCatalogName {
				r.disclaim(name)
				r.warn("database %s was dropped while the backup was taken, and is not in it", name)
				return nil
			}
			if err != nil {
				return fmt.Errorf("back up database %s: %w", name, err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.done == nil {
				r.done = map[string]*database{}
			}
			r.done[name] = d
			return nil
		}})
	}
	return bulk.Run(ctx, side, jobs)
}

// sweep removes chunks of earlier runs that do not belong to this backup any more, such as
// those of a table that was dropped since.
func (r *runner) sweep(ctx context.Context) error {
	return r.w.Sweep(ctx, r.stale, func(path string) bool {
		_, used := r.paths[path]
		return used
	})
}

// manifest describes what was backed up.
func (r *runner) manifest() archive.Manifest {
	m := archive.Manifest{
		Summary:  archive.Summary{Engine: archive.PostgreSQL, Server: r.server, Scope: "database", Partial: r.opts.Partial()},
		Options:  r.opts.Settings,
		Warnings: r.warnings,
		Attributes: map[string]string{
			"pg_dump":    strconv.Itoa(r.dump.Major),
			pg.AttrMoney: "C",
		},
	}
	if r.opts.Cluster {
		m.Scope = "cluster"
	}
	for _, name := range r.names {
		d := r.done[name]
		if d == nil {
			continue // it was dropped
		}
		if len(m.Databases) == 0 {
			m.Position = d.position
		}
		m.Databases = append(m.Databases, d.describe())
		r.result.Tables = append(r.result.Tables, d.stats()...)
		delete(r.done, name)
	}
	return m
}
