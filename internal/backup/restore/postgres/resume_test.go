package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/postgres"
)

// TestUnloggedTablesAfterACrash: a server that crashes keeps the journal of a restore,
// and empties unlogged tables whose rows the journal records.
func TestUnloggedTablesAfterACrash(t *testing.T) {
	p := ownServer(t)
	r := newRig(t, p, `CREATE UNLOGGED TABLE early AS SELECT g FROM generate_series(1, 5000) g;
CREATE UNLOGGED TABLE wide AS SELECT g, repeat(md5(g::text), 30) AS filling FROM generate_series(1, 2000) g; -- to be frozen
ALTER TABLE wide ADD PRIMARY KEY (g);
CREATE UNLOGGED TABLE refers AS SELECT g, repeat(md5(g::text), 40) AS filling FROM generate_series(1, 2000) g; -- would come first
ALTER TABLE refers ADD FOREIGN KEY (g) REFERENCES wide;
CREATE UNLOGGED TABLE numbered (n int GENERATED ALWAYS AS IDENTITY, g int); INSERT INTO numbered (g) SELECT generate_series(1, 7);
CREATE UNLOGGED TABLE watched AS SELECT g FROM generate_series(1, 4000) g;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER nothing BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE TABLE last AS SELECT g FROM generate_series(1, 10) g;
CREATE MATERIALIZED VIEW view AS SELECT 1 AS one`)
	r.mustBackup(backup.Options{Checksums: true})
	target := r.db + "_copy"
	r.createDB(target)
	for _, resume := range []bool{false, true} { // the resumed restore meets a crash, too
		r.interrupted(restore.Options{DSN: p.DSN(target), Resume: resume, Jobs: 1}, func(func()) {
			r.admin("CHECKPOINT") // the journal is on the disk
			p.Kill()
		})
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := r.psql(target, "SELECT (SELECT count(*) FROM early), (SELECT count(*) FROM wide), (SELECT count(*) FROM watched), (SELECT count(*) FROM last)"); got != "0|0|0|10" {
			t.Fatalf("after the crash there are %s rows", got)
		}
	}
	res, err := r.restore(restore.Options{DSN: p.DSN(target), Resume: true, Jobs: 1})
	if err == nil || len(res.Failed) != 1 || !strings.Contains(err.Error(), "rows of table public.watched") {
		t.Errorf("resumed: %v", err)
	}
	if got := r.psql(target, "SELECT (SELECT count(*) FROM early), (SELECT count(*) FROM wide), (SELECT count(*) FROM refers), (SELECT count(*) FROM last), nextval('numbered_n_seq')"); got != "5000|2000|2000|10|8" {
		t.Errorf("there are %s rows, and the next number", got)
	}
}

// TestUnloggedSequencesAfterACrash checks that --resume sets unlogged sequences again, which a
// crash of the server resets although the journal records their positions, whether or not a
// table owns them.
func TestUnloggedSequencesAfterACrash(t *testing.T) {
	p := ownServer(t)
	r := newRig(t, p, "")
	if r.asker(r.db)("SHOW server_version_num") < "150000" {
		t.Skip("there are unlogged sequences from PostgreSQL 15 on")
	}
	r.psql(r.db, `CREATE UNLOGGED SEQUENCE alone; SELECT nextval('alone'), nextval('alone'); CREATE SEQUENCE logged; SELECT nextval('logged');
CREATE UNLOGGED TABLE drained (n int GENERATED ALWAYS AS IDENTITY, g int); INSERT INTO drained (g) VALUES (1), (2), (3); DELETE FROM drained;
CREATE MATERIALIZED VIEW view AS SELECT 1 AS one`)
	r.mustBackup(backup.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	r.interrupted(restore.Options{DSN: p.DSN(target), Jobs: 1}, func(func()) {
		r.admin("CHECKPOINT") // the journal is on the disk
		p.Kill()
	})
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.psql(target, "SELECT count(*) FROM weir_restore.done WHERE step LIKE '%/state/sequences.sql'"); got != "1" {
		t.Fatalf("the journal records %s times that sequences are set", got)
	}
	r.psql(target, "SELECT setval('logged', 1000)") // somebody uses what is there
	if _, err := r.restore(restore.Options{DSN: p.DSN(target), Resume: true}); err != nil {
		t.Fatal(err)
	}
	if got := r.psql(target, "SELECT nextval('alone'), nextval('drained_n_seq'), nextval('logged')"); got != "3|4|1001" {
		t.Errorf("the next numbers are %s", got)
	}
}

// TestResumeBesideRowSecurity resumes a restore by a user who cannot count the rows of their own
// unlogged table because of row security, nor end the sessions of others.
func TestResumeBesideRowSecurity(t *testing.T) {
	r := newRig(t, server(t), `CREATE UNLOGGED TABLE secret AS SELECT g FROM generate_series(1, 100) g;
ALTER TABLE secret ENABLE ROW LEVEL SECURITY; ALTER TABLE secret FORCE ROW LEVEL SECURITY; CREATE MATERIALIZED VIEW view AS SELECT 1 AS one`)
	r.mustBackup(backup.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	r.admin("DROP ROLE IF EXISTS keeper", "CREATE ROLE keeper LOGIN", "ALTER DATABASE "+pg.Ident(target)+" OWNER TO keeper")
	dsn := strings.Replace(r.p.DSN(target), "postgres@", "keeper@", 1)
	r.interrupted(restore.Options{DSN: dsn, NoOwner: true, Jobs: 1}, func(stop func()) { stop() })

	// A session that keeper may not end finishes the restore meanwhile.
	other := connect(t, r.p.DSN(target))
	run := func(sql string) {
		t.Helper()
		if err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run(load.HoldLock)
	done := start(func() error {
		_, err := r.restore(restore.Options{DSN: dsn, NoOwner: true, Resume: true})
		return err
	})
	r.until(target, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'", "t")
	run("ALTER SCHEMA weir_restore RENAME TO kept")
	run("SELECT pg_advisory_unlock_all()")
	if err := finished(t, done); !errors.Is(err, restore.ErrEnded) {
		t.Errorf("the journal has gone: %v", err)
	}
	if got := r.psql(target, "SELECT to_regnamespace('weir_restore') IS NULL"); got != "t" {
		t.Error("there is a new journal")
	}
	run("ALTER SCHEMA kept RENAME TO weir_restore")
	if _, err := r.restore(restore.Options{DSN: dsn, NoOwner: true, Resume: true}); err != nil {
		t.Fatal(err)
	}
	if got := r.psql(target, "SELECT count(*) FROM secret"); got != "100" {
		t.Errorf("there are %s rows", got)
	}
}

// TestResumeBesideMovedRows resumes a restore whose rows came into other partitions than at
// the source, which leaves some empty: no row comes twice.
func TestResumeBesideMovedRows(t *testing.T) {
	r := newRig(t, server(t), `CREATE TYPE mood AS ENUM ('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'); CREATE TABLE root (m mood) PARTITION BY HASH (m);
SELECT format('CREATE UNLOGGED TABLE p%s PARTITION OF root FOR VALUES WITH (MODULUS 16, REMAINDER %s)', n, n) FROM generate_series(0, 15) n \gexec
INSERT INTO root SELECT unnest(enum_range(NULL::mood)); CREATE MATERIALIZED VIEW view AS SELECT 1 AS one`)
	r.mustBackup(backup.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	o := restore.Options{DSN: r.p.DSN(target), Jobs: 1}
	r.interrupted(o, func(stop func()) { stop() })
	o.Resume = true
	if _, err := r.restore(o); err != nil {
		t.Fatal(err)
	}
	if got := r.psql(target, "SELECT string_agg(m::text, '' ORDER BY m) FROM root"); got != "abcdefgh" {
		t.Errorf("the rows are %s", got)
	}
}

// TestResumeBesideOpenTransactions resumes a restore while another transaction inserts rows into
// a table that it is about to truncate, or while the killed run drops its journal.
func TestResumeBesideOpenTransactions(t *testing.T) {
	r := newRig(t, server(t), "CREATE TABLE wide AS SELECT g, repeat(md5(g::text), 40) AS filling FROM generate_series(1, 1000) g") // to be frozen
	r.mustBackup(backup.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	o := restore.Options{DSN: r.p.DSN(target), Jobs: 1}
	r.interruptedAt("public.wide", 0, o, func(stop func()) { stop() })
	o.Resume = true
	resume := func() error {
		_, err := r.restore(o)
		return err
	}
	other := connect(t, r.p.DSN(target))
	run := func(sql string) {
		t.Helper()
		if err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = "

	run("BEGIN; INSERT INTO public.wide VALUES (0, 'theirs')")
	done := start(resume)
	r.until(target, waits+"'wide'::regclass", "t")
	run("COMMIT")
	if err := finished(t, done); !errors.Is(err, restore.ErrBeside) {
		t.Errorf("beside rows that came at the last moment: %v", err)
	}
	if got := r.psql(target, "SELECT filling FROM wide; DELETE FROM wide"); got != "theirs" {
		t.Errorf("of somebody's rows there is %q", got)
	}

	run("BEGIN; DROP SCHEMA weir_restore CASCADE")
	undo := load.SetJournalPatience(time.Millisecond)
	if err := resume(); err == nil || !strings.Contains(err.Error(), "process ids: "+fmt.Sprint(other.PID())+")") {
		t.Errorf("beside a drop of the journal: %v", err)
	}
	undo()
	done = start(resume)
	r.until(target, waits+"to_regclass('weir_restore.done')", "t")
	run("COMMIT")
	if err := finished(t, done); err == nil || !strings.Contains(err.Error(), "nothing to continue") {
		t.Errorf("the journal is dropped: %v", err)
	}
}

// interrupted begins a restore, and has it interrupted when all is done but to fill
// materialized views.
func (r *rig) interrupted(o restore.Options, interrupt func(stop func())) {
	r.t.Helper()
	r.interruptedAt("refresh", 1, o, interrupt) // it is read first when the backup is checked
}

// interruptedAt begins a restore, and has it interrupted when it reads the n-th object whose name
// contains part.
func (r *rig) interruptedAt(part string, n int, o restore.Options, interrupt func(stop func())) {
	r.t.Helper()
	repo, g := archivetest.NewGate(r.t, r.repo, part, n)
	ctx, stop := context.WithCancel(r.t.Context())
	defer stop()
	done := start(func() error {
		reader, err := archive.Open(ctx, repo, archive.Latest, archive.ReadOptions{})
		if err != nil {
			return err
		}
		_, err = load.Run(ctx, o, reader)
		return errors.Join(err, reader.Close())
	})
	g.Wait(r.t)
	interrupt(stop)
	g.Release()
	if err := finished(r.t, done); err == nil {
		r.t.Fatal("a restore that was interrupted succeeded")
	}
}

// TestResumeAtTheEndCompares resumes, with --verify, restores that were interrupted while they
// dropped their journals: rows that have changed are found where there is still one. Where there is
// none, others may have changed them.
func TestResumeAtTheEndCompares(t *testing.T) {
	r := &rig{t: t, p: server(t), repo: openRepo(t, t.TempDir())}
	names := []string{"end_a", "end_b"}
	for _, db := range names {
		r.createDB(db)
		r.psql(db, "CREATE TABLE t AS SELECT g AS id FROM generate_series(1, 100) g")
	}
	m := r.mustBackup(backup.Options{DSN: r.p.DSN("postgres"), Cluster: true, Databases: names, Checksums: true}).Manifest
	for _, in := range [][]string{{"end_b"}, names} {
		o := restore.Options{DSN: r.p.DSN("postgres"), NoGlobals: true}
		if len(in) == 1 {
			o.Database, o.Target, o.Create = in[0], in[0], true
		}
		restored := func(o restore.Options) {
			t.Helper()
			r.admin("DROP DATABASE IF EXISTS end_a", "DROP DATABASE IF EXISTS end_b")
			if _, err := r.restore(o); err != nil {
				t.Fatal(err)
			}
		}
		undropped := func(db string) {
			t.Helper()
			r.psql(db, fmt.Sprintf("CREATE SCHEMA weir_restore; CREATE TABLE weir_restore.done (step text PRIMARY KEY); INSERT INTO weir_restore.done VALUES ('%s'), ('%s')",
				o.Identity(m.ID, db), restore.StepRestored))
		}
		again := o
		again.Resume, again.Verify = true, restore.VerifyRows
		for _, db := range in {
			restored(o)
			for _, name := range in {
				undropped(name)
			}
			r.psql(db, "UPDATE t SET id = 0 WHERE id = 7")
			if _, err := r.restore(again); !errors.Is(err, load.ErrDiffers) {
				t.Errorf("%v, a row of %s differs: %v", in, db, err)
			}
		}
		restored(o)
		undropped("end_b")
		if len(in) > 1 {
			r.psql("end_a", "DROP TABLE t")
		}
		got, err := r.restore(again)
		if err != nil {
			t.Errorf("%v, nothing differs where there is a journal: %v", in, err)
		} else if len(in) > 1 && (len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "end_a is not compared")) {
			t.Errorf("%v: warnings %q", in, got.Warnings)
		}
		if got := r.psql("end_b", "SELECT to_regnamespace('weir_restore') IS NULL"); got != "t" {
			t.Errorf("%v: the journal is left", in)
		}
	}
}
