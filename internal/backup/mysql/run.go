// Package mysql backs up MySQL and MariaDB databases into an archive.
//
// Several sessions read the state of the server at one moment, for which it is locked briefly:
//
//	main     BEGIN, pin all tables |        | view | .. definitions ..
//	worker 1 BEGIN, pin all tables |        | view | rows of big, first part | …
//	worker 2 BEGIN, pin all tables |        | view | rows of big, next part  | …
//	locker                         | lock   |      | unlock
//	                               ^ writers wait from here to there
//
// To pin a table is to read none of its rows in a transaction: the server then keeps its
// definition until that transaction ends, so that ALTER and DROP wait for the backup. Every
// session pins every table itself, because otherwise it would queue behind an ALTER that waits
// for another session of the backup. A session's view of the rows begins with its first read,
// which happens while the lock blocks commits, so all views are the same.
//
// The lock is MariaDB's BACKUP STAGE, FLUSH TABLES WITH READ LOCK, or, for an account that may
// use neither, LOCK TABLES. Definitions are the output of SHOW CREATE: no tool has to match the
// server's version.
package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// system are the databases that belong to the server.
var system = []string{"information_schema", "mysql", "performance_schema", "sys"}

// Run backs up what opts select into w and completes it. If it fails, it aborts w, and what is
// complete stays for a resumed run; if nothing is complete, nothing stays. The writer cannot be
// used again in either case.
//
// All databases of a cluster show the same moment.
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
	cfg, err := mywire.ParseClientDSN(opts.DSN)
	if err != nil {
		return nil, err
	}
	r := &runner{opts: opts, cfg: cfg, w: w, result: &backup.Result{}, paths: map[string]bool{}}
	if r.match, err = opts.Filter.Compile(); err != nil {
		return nil, err
	}
	err = r.all(ctx)
	if err = errors.Join(err, r.close()); err != nil {
		return nil, err
	}
	opts.Progress.Phase("manifest")
	if r.result.Manifest, err = w.Finish(ctx, r.manifest()); err != nil {
		return nil, err
	}
	r.result.Elapsed, r.result.Pipeline = time.Since(started), w.Stats().Pipeline
	return r.result, nil
}

// runner is one run over one or more databases.
type runner struct {
	opts   backup.Options
	cfg    mywire.ConnectConfig
	w      *archive.Writer
	match  *bulk.Matcher
	server archive.Server
	maria  bool

	databases []*database // in the order of the manifest
	position  archive.Position
	settled   binlog.Position // of the definitions; zero if unknown
	main      *my.Session
	workers   []*my.Session
	tables    *tableLocks // of tables without transactions
	starting  starting    // how the start takes its locks
	hidden    bool        // the account may not see everything

	moved atomic.Int64 // bytes of rows, to adapt the number of workers

	mu       sync.Mutex // guards what follows
	result   *backup.Result
	warnings []string
	paths    map[string]bool // chunks of this backup
}

// database is one database of the run.
type database struct {
	name   string
	toc    my.TOC
	tables []*table // with rows
	views  []string
	seqs   []string
	attrs  map[string]string
}

// warn records a deviation from what was requested.
func (r *runner) warn(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// claim records that a path belongs to this backup.
func (r *runner) claim(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths[path] = true
}

func (r *runner) all(ctx context.Context) error {
	r.opts.Progress.Phase("connect")
	if err := r.prepare(ctx); err != nil {
		return err
	}
	r.opts.Progress.Phase("snapshot")
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.look(ctx); err != nil {
		return err
	}
	r.opts.Progress.Phase("definitions")
	if err := (definer{r}).definitions(ctx); err != nil {
		return err
	}
	if r.opts.Cluster && !r.opts.NoGlobals {
		if err := r.globals(ctx); err != nil {
			return err
		}
	}
	if !r.opts.SchemaOnly {
		if err := r.rows(ctx); err != nil {
			return err
		}
		if err := r.sequences(ctx); err != nil {
			return err
		}
	}
	return r.sweep(ctx)
}

// close ends all sessions, and with them their locks.
func (r *runner) close() error {
	var errs []error
	for _, s := range append(slices.Clone(r.workers), r.main) {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(append(errs, r.tables.release())...)
}

// prepare queries what the server is, and determines the databases.
func (r *runner) prepare(ctx context.Context) (err error) {
	if r.main, err = my.Connect(ctx, r.cfg, ""); err != nil {
		return err
	}
	r.maria = r.main.IsMariaDB()
	r.server = archive.Server{Version: r.main.VersionText(), Number: r.main.Version()}
	if r.server.SystemID, err = serverID(ctx, r.main); err != nil {
		return err
	}
	all, err := (chooser{r}).schemata(ctx)
	if err != nil {
		return err
	}
	wanted := r.opts.Databases
	switch {
	case !r.opts.Cluster && r.cfg.Database == "":
		return errors.New("the DSN names no database, and without --cluster one is needed")
	case !r.opts.Cluster:
		wanted = []string{r.cfg.Database}
	case len(wanted) == 0:
		wanted = all
	}
	for _, name := range wanted {
		if !slices.Contains(all, name) {
			return fmt.Errorf("database %q does not exist, or is the server's own", name)
		}
	}
	chooser{r}.choose(wanted)
	return nil
}

// A chooser determines the databases of the backup.
type chooser struct{ *runner }

// schemata lists the databases that are not the server's own.
func (r chooser) schemata(ctx context.Context) ([]string, error) {
	var all []string
	err := r.main.Query(ctx, "SELECT schema_name FROM information_schema.schemata ORDER BY schema_name", func(row []string) error {
		if !slices.Contains(system, strings.ToLower(row[0])) {
			all = append(all, row[0])
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list databases: %w", err)
	}
	return all, nil
}

// choose sets the databases of the backup.
func (r chooser) choose(names []string) {
	r.databases = nil
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		r.databases = append(r.databases, &database{name: name})
	}
}

// others sets the current databases for a backup of all, and reports whether they have changed.
func (r chooser) others(ctx context.Context) (bool, error) {
	if !r.opts.Cluster || len(r.opts.Databases) > 0 {
		return false, nil
	}
	all, err := r.schemata(ctx)
	if err != nil {
		return false, err
	}
	before := r.databases
	r.choose(all)
	return !slices.EqualFunc(before, r.databases, func(a, b *database) bool { return a.name == b.name }), nil
}

// sweep removes chunks of an earlier run that no longer belong to this backup, such as those of
// a table that has been dropped since.
func (r *runner) sweep(ctx context.Context) error {
	return r.w.Sweep(ctx, nil, func(path string) bool { return r.paths[path] })
}

// Attributes of a manifest with the value "selected" if not all databases of a cluster, or not
// all of each database, were backed up. A replay of a log needs to know.
const (
	AttrDatabases = "databases"
	AttrTables    = "tables"
)

// attrSettled of a manifest is the position in the binary log at which all definitions had been
// read: statements before it may be part of the backup.
const attrSettled = "definitions_until"

// manifest describes the backup.
func (r *runner) manifest() archive.Manifest {
	m := archive.Manifest{
		Summary:  archive.Summary{Engine: archive.MySQL, Server: r.server, Scope: "database", Partial: r.opts.Partial() || r.hidden, Position: r.position},
		Options:  r.opts.Settings,
		Warnings: r.warnings,
		Attributes: map[string]string{
			"lock": r.result.Lock, "lock_held": r.result.LockHeld.String(),
		},
	}
	if r.maria {
		m.Engine = archive.MariaDB
	}
	if r.opts.Cluster {
		m.Scope = "cluster"
	}
	if len(r.opts.Databases) > 0 {
		m.Attributes[AttrDatabases] = "selected"
	}
	if !r.opts.Filter.Empty() || r.opts.SchemaOnly {
		m.Attributes[AttrTables] = "selected"
	}
	if !r.settled.IsZero() {
		m.Attributes[attrSettled] = r.settled.String()
	}
	for _, d := range r.databases {
		db := archive.Database{Name: d.name, Attributes: d.attrs}
		if !r.opts.SchemaOnly {
			for _, t := range d.tables {
				if !t.withRows {
					continue
				}
				db.Tables = append(db.Tables, t.describe())
				r.result.Tables = append(r.result.Tables, t.stats())
			}
		}
		m.Databases = append(m.Databases, db)
	}
	return m
}
