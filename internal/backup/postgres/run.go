// Package postgres backs up PostgreSQL databases into an archive.
//
// One session takes the locks and the snapshot; all others read by that
// snapshot, so that the backup shows one moment of the database:
//
//	main     LOCK TABLE … | export snapshot | ........ idle, or a fallback ......... | end
//	worker 1                | import | COPY big (0,9999) | COPY small | …
//	worker 2                | import | COPY big (10000,…) | COPY other | …
//	pg_dump  ........... on main: definitions ...........
//
// Locks come before the snapshot, and all of them at the start: a table that
// could be rewritten between the two would look empty. A worker whose lock would
// have to wait, behind a session that waits for one of ours, leaves its table to the
// main session. weir reads the rows itself; the server's own pg_dump reads the
// definitions, on the main session. Its table of contents is kept beside plain SQL, so
// that a restore can run it object by object.
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

// oldestServer is the oldest server that is backed up: what is asked of the
// catalogues exists from it on.
const oldestServer = 120000

// Run backs up what opts say into w and completes it. When it fails, w is aborted
// and what is complete stays for a resumed run; nothing stays where nothing is. Either way the writer is used up.
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

// replayConflict is the code of what a standby's replay ends: serialization_failure, which
// nothing else that reads gets.
const replayConflict = "40001"

// ofReplay says what to do when the replay of a standby has ended a session, or a statement of one.
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
	reload   pg.Tool // pg_restore, which writes the plain SQL
	server   archive.Server
	encoding string   // of sessions to the DSN's own database
	names    []string // of the databases, in the order of the manifest
	standby  bool     // the server is in recovery

	// tools waits for the search of dump and reload, which runs beside the start.
	tools func() error

	mu       sync.Mutex  // guards what follows
	first    *pg.Session // in the only database, whose main session it becomes; nil: it has
	result   *backup.Result
	done     map[string]*database
	warnings []string
	paths    map[string]string // chunks of this backup, and of which database
	stale    []string          // chunks of attempts that were begun anew
}

// warn notes what went otherwise than asked for.
func (r *runner) warn(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// heard notes what one of the server's programs had to say, once.
func (r *runner) heard(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.warnings, line) {
		r.warnings = append(r.warnings, line)
	}
}

// claim notes that a path belongs to this backup.
func (r *runner) claim(database, path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paths == nil {
		r.paths = map[string]string{}
	}
	r.paths[path] = database
}

// disclaim says that what a database has written so far may be of no use.
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

// prepare asks the server who it is, and has tools looked for that fit it.
func (r *runner) prepare(ctx context.Context) error {
	r.opts.Progress.Phase("connect")
	s, err := r.connect(ctx, "")
	if err != nil {
		return err
	}
	r.first = s
	r.server = archive.Server{Version: s.VersionText(), Number: s.Version()}
	r.lookForTools(ctx)
	// Not everybody may ask; the number only tells clusters apart.
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
		_ = s.Close() // it has told what it was opened for
	}
	return nil
}

// lookForTools begins to look for tools that fit the server, which takes as long as
// listing some tables does.
func (r *runner) lookForTools(ctx context.Context) {
	found := make(chan error, 1)
	go func() {
		var err error
		if r.dump, err = pg.FindTool(ctx, "pg_dump", r.server.Number); err == nil {
			r.dump.Warn = r.heard // such as of subscriptions that it may not see
			// pg_restore of the same installation: it reads what that pg_dump wrote.
			r.reload = pg.Tool{Path: strings.TrimSuffix(r.dump.Path, "pg_dump") + "pg_restore", Major: r.dump.Major}
		}
		found <- err
	}()
	r.tools = sync.OnceValue(func() error { return <-found })
}

// connect opens a session for reading, in the DSN's own database unless another is named.
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

// firstIn returns the session that prepare has opened if it is in that database and nobody
// has taken it.
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

// close ends what prepare has begun and what nothing has taken over.
func (r *runner) close() {
	if r.tools != nil {
		_ = r.tools() // what needs one has asked
	}
	if r.first != nil {
		_ = r.first.Close() // the backup has failed before its first statement, for a reason of its own
	}
}

// connectable lists the databases of a cluster.
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

// globals writes what belongs to no database.
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

// databases backs up all databases, the largest first, so many side by side as
// the options say; they share the jobs.
func (r *runner) databases(ctx context.Context) error {
	side := min(r.opts.ClusterParallelism, len(r.names))
	var jobs []bulk.Job
	for _, name := range r.names {
		jobs = append(jobs, bulk.Job{ID: name, Do: func(ctx context.Context, _ int) error {
			d := &database{runner: r, name: name, crew: r.opts.Adapt.Crew(r.opts.Jobs, side)}
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

// sweep removes chunks that an earlier run left and that belong to this backup no
// more, such as those of a table that has been dropped since.
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
