package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/bulk/postgres/pgtest"
	dump "github.com/weirdb/weir/internal/backup/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/postgres"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// shared is one server for all tests that do not harm it.
var shared struct {
	once  sync.Once
	p     *lab.Postgres
	err   error
	zoo   bool           // is there
	admin *pgconn.PgConn // of the database postgres
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range kept {
		_ = os.RemoveAll(dir)
	}
	if shared.p != nil {
		if err := shared.p.Discard(context.Background()); err != nil && code == 0 {
			code = 1
		}
	}
	os.Exit(code)
}

// server returns the shared server. It is durable in nothing: what is tested on
// it is not crashes.
func server(t *testing.T) *lab.Postgres {
	t.Helper()
	labtest.RequirePostgres(t)
	shared.once.Do(func() {
		shared.p, shared.err = lab.StartPostgres(context.Background(), lab.PostgresConfig{
			Durability: lab.Fast, Preload: []string{}, Settings: map[string]string{"max_locks_per_transaction": "256", "wal_level": "logical", "autovacuum": "off"},
		})
		if shared.err == nil {
			shared.err = undescribe(shared.p)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.p
}

// undescribe removes the descriptions of the server's own objects, of which pg_dump reads 5,000 in
// each database.
func undescribe(p *lab.Postgres) error {
	ctx := context.Background()
	for _, step := range []struct{ database, sql string }{
		{"postgres", "ALTER DATABASE template0 ALLOW_CONNECTIONS true"},
		{"template0", "DELETE FROM pg_description WHERE objoid < 16384 AND classoid <> 'pg_namespace'::regclass"},
		{"template0", "VACUUM FULL pg_description"},
		{"postgres", "ALTER DATABASE template0 ALLOW_CONNECTIONS false"},
	} {
		conn, err := pgconn.Connect(ctx, p.DSN(step.database))
		if err != nil {
			return err
		}
		err = conn.Exec(ctx, step.sql).Close()
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return fmt.Errorf("%s: %w", step.sql, err)
		}
	}
	return nil
}

// ownServer returns a server of the test's own.
func ownServer(t *testing.T) *lab.Postgres {
	t.Helper()
	return labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Preload: []string{}})
}

// rig is a source database on a server, and a repository.
type rig struct {
	t      *testing.T
	p      *lab.Postgres
	db     string
	script string // made it
	repo   *archive.Repository
}

// newRig makes a database called after the test and runs a script in it.
func newRig(t *testing.T, p *lab.Postgres, script string) *rig {
	t.Helper()
	r := &rig{t: t, p: p, script: script, db: strings.ToLower(strings.NewReplacer("/", "_", "-", "_").Replace(t.Name()))}
	switch {
	case script == zoo && p == shared.p:
		r.createDBFrom(r.zoo(), r.db)
	case script != "":
		r.createDB(r.db)
		r.exec(r.db, script)
	default:
		r.createDB(r.db)
	}
	r.repo = openRepo(t, t.TempDir())
	return r
}

// zoo returns a database of the shared server with one of everything, of which copies are
// cheaper than to make it anew.
func (r *rig) zoo() string {
	r.t.Helper()
	const name = "zoo"
	if !shared.zoo {
		r.admin("DROP DATABASE IF EXISTS "+name, r.p.CreateDatabase(name)+" TEMPLATE template0")
		r.exec(name, zoo)
		shared.zoo = true
	}
	return name
}

func openRepo(t *testing.T, dir string) *archive.Repository {
	t.Helper()
	repo, err := archive.OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

func connect(t *testing.T, dsn string) *pg.Session {
	t.Helper()
	cfg, err := pgwire.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := pg.Connect(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// createDB makes a database that is gone after the test.
func (r *rig) createDB(name string) {
	r.t.Helper()
	r.createDBFrom("template0", name)
}

func (r *rig) createDBFrom(template, name string) {
	r.t.Helper()
	r.admin("DROP DATABASE IF EXISTS "+pg.Ident(name)+" WITH (FORCE)", r.p.CreateDatabase(pg.Ident(name))+" TEMPLATE "+template)
	r.dropAfter(name)
}

func (r *rig) dropAfter(name string) {
	r.t.Cleanup(func() { r.admin("DROP DATABASE IF EXISTS " + pg.Ident(name) + " WITH (FORCE)") })
}

// admin runs statements in the database postgres, on one connection of the shared server,
// or one of their own: psql for each would be much of what these tests cost.
func (r *rig) admin(statements ...string) {
	r.t.Helper()
	ctx := context.Background() // a cleanup's, too
	conn := shared.admin
	if r.p != shared.p || conn == nil {
		var err error
		if conn, err = pgconn.Connect(ctx, r.p.DSN("postgres")); err != nil {
			r.t.Fatal(err)
		}
		if r.p == shared.p {
			shared.admin = conn
		} else {
			defer conn.Close(ctx)
		}
	}
	for _, sql := range statements {
		if err := conn.Exec(ctx, sql).Close(); err != nil {
			r.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// asker returns what asks queries for one value on a connection of its own, which lasts
// until the test ends.
func (r *rig) asker(db string) func(query string) string {
	r.t.Helper()
	conn, err := pgconn.Connect(r.t.Context(), r.p.DSN(db))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return func(query string) string {
		r.t.Helper()
		results, err := conn.Exec(r.t.Context(), query).ReadAll()
		if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
			r.t.Fatalf("%s: %d results, %v", query, len(results), err)
		}
		return string(results[0].Rows[0][0])
	}
}

// exec runs a script.
func (r *rig) exec(db, sql string) {
	r.t.Helper()
	r.psql(db, sql)
}

// psql runs a script and returns what it prints.
func (r *rig) psql(db, script string) string {
	r.t.Helper()
	out, err := pgtest.Psql(r.p, db, script)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// kept are the directories of backups that several tests read, by the scripts of their
// databases.
var kept = map[string]string{}

// backedUp makes a backup of the source, in which nothing has changed since it was made, or
// takes that which another test has made.
func (r *rig) backedUp() {
	r.t.Helper()
	if dir := kept[r.script]; dir != "" {
		r.repo = openRepo(r.t, dir)
		return
	}
	dir, err := os.MkdirTemp("", "weir-kept-")
	if err != nil {
		r.t.Fatal(err)
	}
	r.repo = openRepo(r.t, dir)
	r.mustBackup(backup.Options{Checksums: true})
	kept[r.script] = dir
}

// sources are what native makes of databases, by the scripts that made them.
var sources = map[string]string{}

// source is what native makes of the source, in which nothing has changed since it was made.
func (r *rig) source() string {
	r.t.Helper()
	if sources[r.script] == "" {
		sources[r.script] = r.native(r.db)
	}
	return sources[r.script]
}

// native is what pg_dump makes of a database, without what differs each time, and
// with the rows of each table in order: chunks that are loaded side by side end
// up in any.
func (r *rig) native(db string) string {
	r.t.Helper()
	cmd := exec.Command(filepath.Join(r.p.BinDir(), "pg_dump"), "-d", r.p.DSN(db))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("pg_dump: %v\n%s", err, stderr.String())
	}
	var kept []string
	rows := -1 // where those of a table begin
	for line := range strings.Lines(string(out)) {
		switch {
		case strings.HasPrefix(line, `\restrict `), strings.HasPrefix(line, `\unrestrict `):
			continue
		case rows < 0 && strings.HasPrefix(line, "COPY ") && strings.HasSuffix(line, " FROM stdin;\n"):
			rows = len(kept) + 1
		case rows >= 0 && line == "\\.\n":
			slices.Sort(kept[rows:])
			rows = -1
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, "")
}

// same fails unless native dumps of two databases are equal.
func (r *rig) same(a, b string) {
	r.t.Helper()
	r.sameAs(r.native(a), b)
}

// sameAs is same with the native dump of a source that does not change.
func (r *rig) sameAs(x, b string) {
	r.t.Helper()
	y := r.native(b)
	if x == y {
		return
	}
	dir, err := os.MkdirTemp("", "weir-differs-")
	if err != nil {
		r.t.Fatal(err)
	}
	fa, fb := filepath.Join(dir, "source.sql"), filepath.Join(dir, "copy.sql")
	for f, s := range map[string]string{fa: x, fb: y} {
		if err := os.WriteFile(f, []byte(s), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	out, _ := exec.Command("diff", "-u", fa, fb).Output() // it ends with 1: they differ
	if len(out) > 8000 {
		out = out[:8000]
	}
	r.t.Fatalf("native dumps of source and copy differ (kept in %s):\n%s", dir, out)
}

// state is what a database holds: relations with their columns and a checksum of their rows,
// indexes, constraints, sequences, functions and event triggers. It costs a tenth of what
// native does, which says more.
func (r *rig) state(db string) string {
	r.t.Helper()
	return r.psql(db, `
SELECT 'relation', c.oid::regclass, c.relkind, c.relpersistence, c.relowner::regrole,
  (SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
  CASE WHEN c.relkind = 'r' THEN query_to_xml(format('SELECT count(*) AS n, sum(hashtextextended(t::text, 0)) AS h FROM ONLY %s t', c.oid::regclass), true, true, '')::text END
  FROM pg_class c WHERE c.relkind IN ('r', 'v', 'm', 'p') AND c.relnamespace = 'public'::regnamespace ORDER BY c.relname;
SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexdef;
SELECT conrelid::regclass, conname, pg_get_constraintdef(oid), convalidated FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY conname;
SELECT sequencename, last_value FROM pg_sequences ORDER BY sequencename;
SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1;
SELECT evtname, evtevent, evtenabled FROM pg_event_trigger ORDER BY evtname`)
}

// alike fails unless a database has the state of another one.
func (r *rig) alike(want, db string) {
	r.t.Helper()
	if got := r.state(db); got != want {
		r.t.Errorf("there was\n%s\nand the copy has\n%s", want, got)
	}
}

// backup backs the source up.
func (r *rig) backup(opts backup.Options, archiveOptions archive.Options) (*backup.Result, error) {
	r.t.Helper()
	if opts.DSN == "" {
		opts.DSN = r.p.DSN(r.db)
	}
	if opts.Jobs == 0 {
		opts.Jobs = 2
	}
	if archiveOptions.Parallel == 0 {
		archiveOptions.Parallel = 4
	}
	w, err := archive.Create(r.t.Context(), r.repo, archiveOptions)
	if err != nil {
		return nil, err
	}
	return dump.Run(r.t.Context(), opts, w)
}

func (r *rig) mustBackup(opts backup.Options) *backup.Result {
	r.t.Helper()
	res, err := r.backup(opts, archive.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// restore restores the newest backup.
func (r *rig) restore(opts restore.Options) (*restore.Result, error) {
	r.t.Helper()
	if opts.DSN == "" {
		opts.DSN = r.p.DSN("postgres")
	}
	if opts.Jobs == 0 {
		opts.Jobs = 2
	}
	reader, err := archive.Open(r.t.Context(), r.repo, archive.Latest, archive.ReadOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() {
		if err := reader.Close(); err != nil {
			r.t.Error(err)
		}
	}()
	return load.Run(r.t.Context(), opts, reader)
}

// restored restores the newest backup into a new database and returns its name.
func (r *rig) restored(opts restore.Options) string {
	r.t.Helper()
	target := r.db + "_copy"
	r.admin("DROP DATABASE IF EXISTS " + pg.Ident(target) + " WITH (FORCE)")
	r.dropAfter(target)
	opts.Create, opts.Target = true, target
	res, err := r.restore(opts)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(res.Failed) > 0 {
		r.t.Fatalf("failed: %v", res.Failed)
	}
	return target
}

// text reads a chunk of the newest backup.
func (r *rig) text(path string) string {
	r.t.Helper()
	reader, err := archive.Open(r.t.Context(), r.repo, archive.Latest, archive.ReadOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer reader.Close()
	in, err := reader.Chunk(r.t.Context(), path)
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := io.ReadAll(in)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}
