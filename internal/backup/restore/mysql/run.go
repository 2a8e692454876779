// Package mysql restores MySQL and MariaDB databases from an archive.
//
// It creates the definitions that rows need one after the other; everything else is one graph
// of jobs on several sessions, in which the indexes of a table wait only for its own rows:
//
//	before    databases, sequences, tables without secondary indexes
//	together  rows (largest first) -> all indexes of a table at once
//	after     foreign keys -> routines -> views -> triggers -> statistics, comparison -> grants -> events
//
// For a cluster, each of the steps after rows is done in all databases before the next one
// begins: keys, views and triggers may refer to other databases.
//
// A transaction loads a chunk and also records it in the target (table weir_restore), so that
// an interrupted restore can be resumed without doing anything twice. These servers do not run
// DDL in transactions: if the journal does not record an object, weir checks for it before it
// creates it.
package mysql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Run restores what opts select of the backup that r reads. The result is not nil if the
// restore came far enough to have one, even with an error.
func Run(ctx context.Context, opts restore.Options, r *archive.Reader) (*restore.Result, error) {
	defer bulk.BoundMemory().Close()
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	cfg, err := mywire.ParseClientDSN(opts.DSN)
	if err != nil {
		return nil, err
	}
	run := &runner{opts: opts, cfg: cfg, archive: r, manifest: r.Manifest()}
	if run.Account, err = restore.Begin(ctx, &run.opts, r, "MySQL or MariaDB", archive.MySQL, archive.MariaDB); err != nil {
		return nil, err
	}
	return run.End(run.all(ctx))
}

// runner is one run over one or more databases.
type runner struct {
	*restore.Account
	opts     restore.Options
	cfg      mywire.ConnectConfig
	archive  *archive.Reader
	manifest *archive.Manifest

	maria     bool
	local     bool  // LOAD DATA LOCAL is allowed
	folds     bool  // the server does not tell upper and lower case of tables' names apart
	packet    int64 // the server's max_allowed_packet
	flushMode string
	noHistory string   // why the server does not accept earlier row versions
	grants    []string // statements that wait for their tables
}

// failed handles an error about an object: it records the error, unless other objects would
// fail as well.
func (r *runner) failed(err error) error {
	return r.Failed(err, func(err error) bool { return hopeless(my.ErrorCode(err)) })
}

// hopeless reports whether an error concerns the server, not the object.
func hopeless(code uint16) bool {
	switch code {
	case mywire.ErrServerShutdown, mywire.ErrMariaConnectionKilled, mywire.ErrQueryInterrupted, mywire.ErrOptionPrevents, mywire.ErrTooManyConnections,
		1021, 1030, 1114, 3675, 14: // disk full, error of the engine, table full, disk full, errno
		return true
	}
	return false
}

// all restores all selected databases. What may refer to other databases comes after all tables
// of all of them: foreign keys, routines, views, triggers.
func (r *runner) all(ctx context.Context) error {
	s, err := my.Connect(ctx, r.cfg, "")
	if err != nil {
		return err
	}
	existing, err := r.ask(ctx, s)
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	names, err := r.Names()
	if err != nil {
		return err
	}
	var all []*database
	for _, name := range names {
		d := &database{runner: r, source: name}
		if d.target, d.create, err = r.target(name); err != nil {
			return err
		}
		all = append(all, d)
	}
	if r.opts.Resume && !r.opts.DryRun {
		there := slices.DeleteFunc(slices.Clone(all), func(d *database) bool { return !existing[r.fold(d.target)] })
		// All journals are checked first: the sessions of another restore are not ended.
		for _, step := range []func(*database, context.Context) error{
			func(d *database, ctx context.Context) error {
				b, err := openJournal(ctx, d)
				d.begun = b.Begun()
				return err
			},
			func(d *database, ctx context.Context) error { return loader{d}.takeOver(ctx) },
		} {
			if err := r.each(ctx, there, step); err != nil {
				return err
			}
		}
	}
	ending, err := r.ending(ctx, all, existing)
	if err != nil {
		return err
	}
	if !ending {
		err = r.restore(ctx, all, existing)
	} else if !r.opts.DryRun && r.opts.Verify == restore.VerifyRows { // the run that has restored it may not have compared
		err = compareRestored(ctx, r, all)
	}
	if err != nil || r.opts.DryRun {
		return err
	}
	return r.each(ctx, all, (*database).finish)
}

// restore does everything except the end.
func (r *runner) restore(ctx context.Context, all []*database, existing map[string]bool) error {
	// All databases are checked, also for objects that no database can take, before one is changed.
	for _, d := range all {
		toc, err := r.readTOC(ctx, d.source)
		if err == nil {
			d.toc = toc
			err = d.choose()
		}
		if err == nil && d.create && existing[r.fold(d.target)] && !r.opts.Clean && !r.opts.Resume {
			err = restore.Refuse("the database exists already (--clean drops it first, --resume continues an interrupted restore)")
		}
		if err != nil {
			return fmt.Errorf("restore database %s: %w", d.target, err)
		}
	}
	globals, err := r.globals(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if err := d.begin(ctx, existing[r.fold(d.target)]); err != nil {
			return fmt.Errorf("restore database %s: %w", d.target, err)
		}
	}
	if r.opts.DryRun {
		return nil
	}
	if err := r.accounts(ctx, all, globals); err != nil {
		return err
	}
	for _, step := range []func(*database, context.Context) error{
		(*database).makeSequences, (*database).load, (*database).foreignKeys, (*database).sequences, (*database).routines,
	} {
		if err := r.each(ctx, all, step); err != nil {
			return err
		}
	}
	if err := r.views(ctx, all); err != nil {
		return err
	}
	for _, step := range []func(*database, context.Context) error{(*database).triggers, (*database).compare} {
		if err := r.each(ctx, all, step); err != nil {
			return err
		}
	}
	if err := r.grant(ctx); err != nil {
		return err
	}
	// Events run as soon as they exist; by now their changes affect no further step.
	if err := r.each(ctx, all, (*database).events); err != nil {
		return err
	}
	return r.each(ctx, all, func(d *database, ctx context.Context) error { return d.main.Exec(ctx, note(restore.StepRestored)) })
}

// each runs a step in all databases, one after the other: the jobs of each use the whole
// machine.
func (r *runner) each(ctx context.Context, all []*database, step func(*database, context.Context) error) error {
	for _, d := range all {
		if err := d.with(ctx, step); err != nil {
			return fmt.Errorf("restore database %s: %w", d.target, err)
		}
	}
	return nil
}

// ending reports whether an interrupted restore had begun to drop its journals. It drops them in
// the order of the databases, so the last one shows it.
func (r *runner) ending(ctx context.Context, all []*database, existing map[string]bool) (bool, error) {
	if !r.opts.Resume || len(all) == 0 {
		return false, nil
	}
	last := all[len(all)-1]
	if !existing[r.fold(last.target)] {
		return false, nil
	}
	ending := false
	err := last.with(ctx, func(d *database, ctx context.Context) error {
		b, err := openJournal(ctx, d)
		if err == nil {
			ending = b.Has(restore.StepRestored)
		}
		return err
	})
	return ending, err
}

// compareRestored compares databases that an earlier run has restored with the backup, except those
// whose journal is dropped already: others may use them.
func compareRestored(ctx context.Context, r *runner, all []*database) error {
	var ours []*database
	for _, d := range all {
		if !d.begun {
			r.Uncompared(d.target)
			continue
		}
		ours = append(ours, d)
		var err error
		if d.toc, err = r.readTOC(ctx, d.source); err == nil {
			err = d.choose()
		}
		if err != nil {
			return fmt.Errorf("restore database %s: %w", d.target, err)
		}
	}
	if err := r.each(ctx, ours, (*database).compare); err != nil {
		return err
	}
	return r.each(ctx, ours, func(d *database, ctx context.Context) error { return compareEvents(ctx, d) })
}

// ask queries what the server is, what it allows, and which databases it has, by their folded
// names.
func (r *runner) ask(ctx context.Context, s *my.Session) (existing map[string]bool, err error) {
	r.maria = s.IsMariaDB()
	if r.maria != (r.manifest.Engine == archive.MariaDB) && !r.opts.Force {
		return nil, fmt.Errorf("the server is %s and the backup one of %s: their definitions differ (--force tries)", s.VersionText(), r.manifest.Engine)
	}
	if r.maria == (r.manifest.Engine == archive.MariaDB) && s.Version()/100 < r.manifest.Server.Number/100 && !r.opts.Force {
		return nil, fmt.Errorf("the server is %s and the backup one of %s: an older server may not understand it (--force tries)",
			s.VersionText(), r.manifest.Server.Version)
	}
	if r.noHistory, err = refusesHistory(ctx, s); err != nil {
		return nil, err
	}
	row, err := s.Row(ctx, "SELECT @@local_infile, @@max_allowed_packet, @@innodb_flush_log_at_trx_commit, @@lower_case_table_names")
	if err != nil {
		return nil, fmt.Errorf("ask for settings: %w", err)
	}
	r.local, r.flushMode, r.folds = row[0] == "1" && !r.opts.NoLocal, row[2], row[3] != "0"
	if _, err := fmt.Sscan(row[1], &r.packet); err != nil {
		return nil, fmt.Errorf("ask for settings: max_allowed_packet %q: %w", row[1], err)
	}
	existing = map[string]bool{}
	err = s.Query(ctx, "SELECT schema_name FROM information_schema.schemata", func(row []string) error {
		existing[r.fold(row[0])] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list databases: %w", err)
	}
	return existing, nil
}

// fold returns the name of a table or a database as a key.
func (r *runner) fold(name string) string {
	if r.folds {
		return strings.ToLower(name)
	}
	return name
}

// refusesHistory returns why a server does not accept earlier row versions of system-versioned
// tables; "" if it does.
func refusesHistory(ctx context.Context, s *my.Session) (string, error) {
	if !s.IsMariaDB() || s.Version() < 101100 {
		return "only MariaDB takes that, from 10.11 on", nil
	}
	row, err := s.Row(ctx, "SELECT @@secure_timestamp")
	if err != nil {
		return "", fmt.Errorf("ask for settings: %w", err)
	}
	if row[0] == "YES" {
		return "no server takes that which runs with secure_timestamp=YES: start it without", nil
	}
	return "", nil
}

// target returns the database into which one of the backup is restored, and whether it is
// created. For a cluster all are.
func (r *runner) target(name string) (target string, create bool, err error) {
	switch {
	case r.opts.Target != "":
		return r.opts.Target, r.opts.Create, nil
	case r.Cluster(), r.opts.Create && r.cfg.Database == "":
		return name, true, nil
	case r.opts.Create:
		return r.cfg.Database, true, nil
	case r.cfg.Database == "":
		return "", false, errors.New("the DSN names no database (--create makes the one of the backup, --target names one)")
	}
	return r.cfg.Database, false, nil
}

// readTOC reads the table of contents of a database.
func (r *runner) readTOC(ctx context.Context, database string) (*my.TOC, error) {
	name := path.Dir(archive.SchemaPath(database, "x")) + "/toc.json"
	text, err := r.Text(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read definitions of database %s: %w", database, err)
	}
	toc := &my.TOC{}
	if err := json.Unmarshal([]byte(text), toc); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return toc, nil
}

// connect opens a session for restoring. It switches checks off: the rows have passed foreign
// keys, checks and unique keys at the source.
func (r *runner) connect(ctx context.Context, database string) (*my.Session, error) {
	s, err := my.Connect(ctx, r.cfg, database)
	if err != nil {
		return nil, err
	}
	settings := waitForLocks + ", foreign_key_checks = 0, unique_checks = 0"
	if r.maria {
		settings += ", check_constraint_checks = 0"
	}
	if r.maria && s.Version() >= 101100 {
		settings += ", system_versioning_insert_history = 1, system_versioning_alter_history = KEEP"
	}
	err = s.Exec(ctx, settings)
	if err == nil {
		err = logRows(ctx, s)
	}
	if err == nil && database != "" {
		err = hold(ctx, s, r.fold(database))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare session: %w", err), s.Close())
	}
	return s, nil
}

// logRows makes the server log changes of the session as rows if it would log them as
// statements: it refuses changes that it cannot log so, such as creating a sequence. An account
// that may not set that continues without.
func logRows(ctx context.Context, s *my.Session) error {
	row, err := s.Row(ctx, "SELECT @@binlog_format")
	if unknown := uint16(1193); my.ErrorCode(err) == unknown {
		return nil
	}
	if err != nil || row[0] != "STATEMENT" {
		return err
	}
	if err := s.Exec(ctx, "SET binlog_format = ROW"); !my.Denied(err) {
		return err
	}
	return nil
}

// unlogged adds advice to an error that says that a change cannot be logged as a statement.
func unlogged(err error) error {
	switch my.ErrorCode(err) {
	case 1665, 1666:
		return fmt.Errorf("%w (set binlog_format=ROW on the server, or grant the account BINLOG ADMIN; in MySQL SESSION_VARIABLES_ADMIN)", err)
	}
	return err
}
