package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirdb/weir/internal/backup/archive"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// database is the restore of one database.
type database struct {
	*runner
	source  string // its name in the backup
	target  string // its name on the server
	create  bool
	version int // of the server

	toc     *pg.TOC
	entries []*pg.Entry // the selected ones, in their order
	tables  []*target   // tables whose rows are restored
	byTable map[[2]string]*target
	main    *pg.Session
	journal *restore.Journal

	moved atomic.Int64 // bytes of rows, for the number of workers

	// lost says that the database could not be created.
	lost bool

	failedMu sync.Mutex   // guards missing
	missing  map[int]bool // entries that could not be created

	// guarded says that triggers and foreign keys of the target are active while only rows are
	// loaded. It is set before the workers start.
	guarded bool

	// escapes says that the definitions were written for sessions in which a backslash escapes,
	// which older versions of weir may have done. What weir itself writes means the same in
	// both cases.
	escapes bool
}

// target is a table whose rows are restored.
type target struct {
	archive.Table
	chunks []*archive.Chunk // of the manifest
	entry  bool             // the definitions have it; false: it belongs to an extension
	ours   bool             // created by this restore, or by the one that it resumes
	root   string           // as SQL: the partitioned table through which the rows are loaded; "": itself
	whole  bool             // all its chunks are loaded in one transaction
	second bool             // it may be loaded a second time, when foreign keys exist
}

func (t *target) sql() string  { return pg.Qualified(t.Schema, t.Name) }
func (t *target) name() string { return t.Schema + "." + t.Name }

// restore restores the database except for the end, which follows when all databases are
// restored: until then the journal remains, so that a resumed restore of several databases knows
// which are done.
func (d *database) restore(ctx context.Context, exists bool) (err error) {
	if d.toc, err = d.readTOC(ctx, d.source); err != nil {
		return err
	}
	d.escapes = slices.ContainsFunc(d.toc.Entries, func(e pg.Entry) bool {
		return e.Desc == "STDSTRINGS" && strings.Contains(e.Create, "'off'")
	})
	if err := d.choose(); err != nil {
		return err
	}
	journal, err := d.prepare(ctx, exists)
	if d.main != nil {
		defer func() { err = errors.Join(err, d.main.Close()) }()
	}
	if err != nil {
		return err
	}
	d.journal = journal
	if d.opts.Resume && !d.opts.DryRun {
		if err := (resumer{d}).reloadEmptied(ctx); err != nil {
			return fmt.Errorf("look for unlogged tables that a crash has emptied: %w", err)
		}
	}
	d.describe()
	defer func() { // until the end, keep only what is needed for it
		d.entries, d.toc, d.tables, d.byTable, d.journal = d.of("", pg.PassLast), nil, nil, nil, nil
	}()
	if d.opts.DryRun {
		return nil
	}
	if d.journal.Has(restore.StepRestored) { // the run that has restored it may not have compared
		return withWorkers(d, func(workers []worker) error { return compareRestored(ctx, d, workers) })
	}
	if err := d.steps(ctx); err != nil {
		return err
	}
	return d.main.Exec(ctx, note(restore.StepRestored))
}

var errExists = restore.Refuse("the database exists already (--clean drops it first, --resume continues an interrupted restore)")

// prepare creates the database, connects to it and checks its state: empty, cleaned, or with an
// interrupted restore.
func (d *database) prepare(ctx context.Context, exists bool) (*restore.Journal, error) {
	end := d.Phase("prepare")
	defer end()
	again := false // to set the properties of the database itself
	if d.create && (!exists || d.opts.Clean) {
		if d.opts.DryRun {
			return nil, nil //nolint:nilnil // there are none
		}
		if err := d.make(ctx, exists); err != nil {
			return nil, err
		}
	} else if d.create && !d.opts.Resume {
		return nil, errExists
	} else {
		again = d.create && !d.opts.DryRun // the earlier run may have been interrupted before them
	}
	var err error
	if d.main, err = d.connect(ctx); err != nil {
		return nil, err
	}
	journal, err := openJournal(ctx, d.main, d)
	if err == nil && !journal.Begun() {
		err = d.fit(ctx)
	}
	if err == nil && d.opts.Resume && !d.opts.DryRun { // the sessions of another restore are not ended
		begun := journal.Begun()
		if err = takeOver(ctx, d.main); err == nil {
			journal, err = openJournal(ctx, d.main, d)
		}
		if err == nil && begun && !journal.Begun() {
			err = restore.ErrEnded
		}
	}
	if err != nil {
		return nil, err
	}
	if again && !journal.Has(restore.StepRestored) {
		if err := reset(ctx, d); err != nil {
			return nil, err
		}
	}
	if journal.Begun() || d.opts.DryRun {
		return journal, nil
	}
	if d.opts.Clean && !d.create {
		if err := d.clean(ctx); err != nil {
			return nil, err
		}
	}
	if d.create && attributes(d)[pg.AttrNoPublic] != "" && !d.opts.Filter.Selective() {
		err := d.main.Exec(ctx, "DROP SCHEMA IF EXISTS public")
		if pg.ErrorCode(err) == "42501" { // insufficient_privilege
			d.Warn("database %s: the schema public, which it does not have at the source, stays: only its owner can drop it", d.target)
		} else if err != nil {
			return nil, fmt.Errorf("drop schema public, as at the source: %w", err)
		}
	}
	if err := createJournal(ctx, d); err != nil || d.sandbox == nil {
		return journal, err
	}
	return journal, d.admit(ctx)
}

// attributes returns the database's attributes in the manifest.
func attributes(d *database) map[string]string {
	for _, m := range d.manifest.Databases {
		if m.Name == d.source {
			return m.Attributes
		}
	}
	return nil
}

// admit lets a sandbox's login record its steps, and create indexes in schemas of the
// database's owner.
func (d *database) admit(ctx context.Context) error {
	user := d.sandbox.user
	sql := "GRANT USAGE ON SCHEMA " + journalSchema + " TO " + user + "; GRANT INSERT ON " + journalSchema + ".done TO " + user
	if !d.create {
		sql += "; ALTER DATABASE " + pg.Ident(d.target) + " OWNER TO " + user
	}
	return d.main.Exec(ctx, sql)
}

// connect opens a session for restoring.
func (d *database) connect(ctx context.Context) (*pg.Session, error) {
	return d.connectAs(ctx, d.cfg)
}

// connectAs is connect with another login.
func (d *database) connectAs(ctx context.Context, cfg pgwire.ConnectConfig) (*pg.Session, error) {
	s, err := pg.Connect(ctx, cfg, d.target)
	if err != nil {
		return nil, err
	}
	settings := "SET synchronous_commit = off; SET check_function_bodies = off; SET default_tablespace = ''; " +
		fmt.Sprintf("SET maintenance_work_mem = '%dkB'; ", d.opts.MaintenanceBytes>>10) + holdLock
	if d.manifest.Attributes[pg.AttrMoney] != "" {
		settings += "; " + pg.MoneySetting
	}
	for _, set := range d.opts.Tuning {
		name, value, _ := strings.Cut(set, "=")
		settings += "; SET " + name + " = " + pg.Literal(value)
	}
	if d.escapes {
		settings += "; SET standard_conforming_strings = off"
	}
	if err := s.Exec(ctx, settings); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare session: %w", err), s.Close())
	}
	if d.opts.DataOnly && !d.guarded {
		// Rows are loaded as they were: they already contain the effects of triggers and
		// foreign keys. Only a superuser can disable these.
		err := s.Exec(ctx, "SET session_replication_role = replica")
		if pg.ErrorCode(err) == "42501" { // insufficient_privilege
			d.guarded = true // set by the main session, which is the first
			d.Warn("triggers and foreign keys of the target are active while rows are loaded: only a superuser can disable them")
		} else if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// make creates the database with its original definition.
func (d *database) make(ctx context.Context, exists bool) error {
	s, err := pg.Connect(ctx, d.cfg, "")
	if err != nil {
		return err
	}
	defer s.Close()
	if s.Database() == d.target && exists {
		return errors.New("a database cannot be dropped by a connection to it: name another one in the DSN")
	}
	if exists {
		if err := s.Exec(ctx, "DROP DATABASE "+pg.Ident(d.target)); err != nil {
			return fmt.Errorf("drop it: %w", err)
		}
	}
	for i := range d.toc.Entries {
		if e := &d.toc.Entries[i]; e.Desc == "DATABASE" {
			sql := renameDatabase(e.Create, d.target)
			if d.sandbox != nil { // in which there are no tablespaces
				sql = inDefaultTablespace(sql)
			}
			err := s.Exec(ctx, sql)
			if err != nil && !(d.opts.Resume && justMade(err)) {
				return &restore.ObjectError{Database: d.target, Object: e.Name(), Statement: restore.First(sql, 200), Err: err}
			}
		}
	}
	return d.properties(ctx)
}

// justMade reports whether an error says that a database has just been created: a server may
// continue a statement of a restore that was killed.
func justMade(err error) bool {
	code := pg.ErrorCode(err)
	return code == "42P04" || code == "23505" // duplicate_database; unique_violation if both were created at once
}

// reset sets the properties of a database that an interrupted run has created, and reconnects,
// so that its settings apply to the session.
func reset(ctx context.Context, d *database) error {
	if err := d.properties(ctx); err != nil {
		return err
	}
	before := d.main
	var err error
	d.main, err = d.connect(ctx)
	return errors.Join(err, before.Close())
}

// properties sets the properties of the database itself: owner, settings, comment, grants. They
// can be set repeatedly. It does so from within the database: servers store text about a
// database in the encoding of the session's own database. A name that is not ASCII, which another
// database's session has given it, may read differently there.
func (d *database) properties(ctx context.Context) error {
	s, err := pg.Connect(ctx, d.cfg, d.target)
	if err != nil {
		return err
	}
	defer s.Close()
	row, err := s.Row(ctx, "SELECT pg_catalog.current_database()")
	if err != nil {
		return fmt.Errorf("ask for the name of the database: %w", err)
	}
	name := row[0]
	for i := range d.toc.Entries {
		e := &d.toc.Entries[i]
		if !e.OfDatabase() || e.Desc == "ACL" && d.opts.NoPrivileges {
			continue
		}
		var all []string
		if e.Desc != "DATABASE" {
			all = append(all, renameDatabase(e.Create, name))
		}
		if !d.opts.NoOwner {
			all = append(all, renameDatabase(e.OwnerSQL(), name))
		}
		for _, sql := range all {
			if sql == "" {
				continue
			}
			if err := d.exec(ctx, s, sql); err != nil {
				err = d.failed(&restore.ObjectError{Database: d.target, Object: e.Name(), Statement: restore.First(sql, 200), Rest: sql + ";", Err: err})
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// renameDatabase replaces the name in statements about a database.
func renameDatabase(script, name string) string {
	var out []string
	for sql, err := range pg.Statements(strings.NewReader(script)) {
		if err != nil {
			return script // the server will report what is wrong
		}
		for _, prefix := range []string{"CREATE DATABASE ", "ALTER DATABASE ", "COMMENT ON DATABASE ", "SECURITY LABEL ON DATABASE "} {
			if rest, ok := strings.CutPrefix(sql, prefix); ok {
				sql = prefix + pg.Ident(name) + skipIdent(rest)
			}
		}
		if strings.HasPrefix(sql, "GRANT ") || strings.HasPrefix(sql, "REVOKE ") {
			if before, rest, ok := strings.Cut(sql, " ON DATABASE "); ok {
				sql = before + " ON DATABASE " + pg.Ident(name) + skipIdent(rest)
			}
		}
		if rest, ok := strings.CutPrefix(sql, "ALTER ROLE "); ok {
			if of, ok := strings.CutPrefix(skipIdent(rest), " IN DATABASE "); ok {
				role := rest[:len(rest)-len(skipIdent(rest))]
				sql = "ALTER ROLE " + role + " IN DATABASE " + pg.Ident(name) + skipIdent(of)
			}
		}
		out = append(out, sql)
	}
	return strings.Join(out, ";\n")
}

// inDefaultTablespace removes the tablespace from a CREATE DATABASE statement.
func inDefaultTablespace(sql string) string {
	const option = " TABLESPACE = "
	i := strings.LastIndex(sql, option)
	if i < 0 || !strings.HasPrefix(sql, "CREATE DATABASE ") || strings.Count(sql[i:], `"`)%2 != 0 || strings.Count(sql[i:], "'") > 0 {
		return sql
	}
	return sql[:i] + skipIdent(sql[i+len(option):])
}

// skipIdent returns what follows a name, quoted or not.
func skipIdent(s string) string {
	if !strings.HasPrefix(s, `"`) {
		if i := strings.IndexAny(s, " \n\t;"); i >= 0 {
			return s[i:]
		}
		return ""
	}
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			i++
			continue
		}
		return s[i+1:]
	}
	return ""
}

// fit refuses a target that is not empty.
func (d *database) fit(ctx context.Context) error {
	if d.opts.Clean && !d.create {
		return nil
	}
	if d.opts.DataOnly {
		return d.fitRows(ctx)
	}
	if d.opts.Filter.Selective() {
		return nil // existing objects may stay; conflicts are errors of their own
	}
	blobs := ""
	if len(d.blobs()) > 0 {
		blobs = "UNION ALL SELECT 'large object ' || oid FROM pg_catalog.pg_largeobject_metadata"
	}
	row, err := d.main.Row(ctx, `
WITH own AS (
  SELECT oid, nspname FROM pg_catalog.pg_namespace n
  WHERE nspname <> 'information_schema' AND nspname OPERATOR(pg_catalog.!~) '^pg_' AND nspname <> '`+journalSchema+`'
), member AS (
  SELECT objid FROM pg_catalog.pg_depend WHERE deptype = 'e'
), things AS (
  SELECT nspname || '.' || relname AS name FROM pg_catalog.pg_class c JOIN own ON own.oid = relnamespace WHERE c.oid NOT IN (SELECT objid FROM member)
  UNION ALL SELECT nspname || '.' || proname FROM pg_catalog.pg_proc p JOIN own ON own.oid = pronamespace WHERE p.oid NOT IN (SELECT objid FROM member)
  UNION ALL SELECT nspname || '.' || typname FROM pg_catalog.pg_type t JOIN own ON own.oid = typnamespace
    WHERE typrelid = 0 AND typelem = 0 AND t.oid NOT IN (SELECT objid FROM member)
  `+blobs+`
  UNION ALL SELECT 'schema ' || nspname FROM own WHERE nspname <> 'public' AND oid NOT IN (SELECT objid FROM member)
)
SELECT count(*), coalesce(min(name), '') FROM things`)
	if err != nil {
		return fmt.Errorf("see whether the target is empty: %w", err)
	}
	return d.opts.Empty(row[0], row[1])
}

// fitRows refuses to load rows into tables that have some.
func (d *database) fitRows(ctx context.Context) error {
	for _, t := range d.tables {
		row, err := d.main.Row(ctx, "SELECT EXISTS (SELECT FROM ONLY "+t.sql()+")")
		switch {
		case pg.ErrorCode(err) == pgwire.CodeUndefinedTable:
			return restore.Refuse("--data-only needs the tables, and %s does not exist", t.name())
		case err != nil:
			return fmt.Errorf("see whether table %s is empty: %w", t.name(), err)
		case row[0] == "t":
			return restore.Refuse("table %s is not empty, and its rows would be there twice (truncate it first)", t.name())
		}
	}
	return nil
}

// clean drops what the backup contains, in reverse order.
func (d *database) clean(ctx context.Context) error {
	end := d.Phase("clean")
	defer end()
	for i := len(d.entries) - 1; i >= 0; i-- {
		e := d.entries[i]
		if e.Drop == "" || e.OfDatabase() {
			continue
		}
		err := d.main.Exec(ctx, e.Drop)
		if err == nil || d.opts.IfExists && missing(err) {
			continue
		}
		err = d.failed(&restore.ObjectError{Database: d.target, Object: e.Name(), Statement: restore.First(e.Drop, 200), Err: err})
		if err != nil {
			return err
		}
	}
	return cleanBlobs(ctx, d)
}

// missing reports whether an error says that an object does not exist.
func missing(err error) bool {
	switch pg.ErrorCode(err) {
	case pgwire.CodeUndefinedTable, "42704", "42883", "3F000", "42703":
		return true
	}
	return false
}

// steps runs everything, in the order that the package comment shows.
func (d *database) steps(ctx context.Context) error {
	if err := d.makeTables(ctx); err != nil {
		return err
	}
	return withWorkers(d, func(workers []worker) error { return d.parallel(ctx, workers) })
}

// withWorkers runs f with the workers, and ends their sessions.
func withWorkers(d *database, f func([]worker) error) error {
	workers := make([]worker, d.Workers())
	for i := range workers {
		workers[i].d = d
	}
	err := f(workers)
	for i := range workers {
		err = errors.Join(err, workers[i].close())
	}
	return err
}

func (d *database) parallel(ctx context.Context, workers []worker) error {
	before, err := d.references(ctx)
	if err != nil {
		return err
	}
	parts, err := partitions(ctx, d)
	if err != nil {
		return err
	}
	if d.opts.Resume {
		if err := (resumer{d}).checkTables(ctx); err != nil {
			return err
		}
	}
	err = d.Load(ctx, d.target, d.moved.Load, func(n int) error { return workers[n].close() }, d.graph(workers, before, parts))
	if err != nil {
		return err
	}
	if !d.opts.SchemaOnly {
		if err := d.script(ctx, "sequences", sequences, d.main.Exec); err != nil {
			return err
		}
	}
	if err := d.serially(ctx, "grants", d.of("", pg.PassACL)); err != nil {
		return err
	}
	if !d.opts.SchemaOnly && !d.opts.DataOnly {
		s := d.main
		if d.sandbox != nil {
			if s, err = workers[0].session(ctx); err != nil {
				return err
			}
		}
		if err := d.script(ctx, "materialized views", "/state/refresh.sql", refresher{d, s}.refresh); err != nil {
			return err
		}
	}
	if !d.opts.SchemaOnly && !d.opts.NoAnalyze {
		if err := d.analyzeViews(ctx, workers); err != nil {
			return err
		}
	}
	return compareRestored(ctx, d, workers)
}
