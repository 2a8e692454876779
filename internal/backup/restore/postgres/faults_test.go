package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	dump "github.com/weirdb/weir/internal/backup/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/postgres"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// three creates three tables of several chunks each, with an index and a foreign key.
const three = `
CREATE TABLE a (id int PRIMARY KEY, x text);
INSERT INTO a SELECT g, repeat(md5(g::text), 8) FROM generate_series(1, 1000) g;
CREATE TABLE b (id int PRIMARY KEY, a_id int REFERENCES a, x text);
INSERT INTO b SELECT g, g, repeat(md5(g::text), 8) FROM generate_series(1, 1000) g;
CREATE INDEX ON b (x);
CREATE TABLE c (id int PRIMARY KEY, x text);
INSERT INTO c SELECT g, repeat(md5(g::text), 8) FROM generate_series(1, 1000) g;
CREATE SEQUENCE s; SELECT nextval('s');
`

// start runs f beside the test.
func start(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func finished(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("it does not end")
		return nil
	}
}

// until polls a query until it returns want. It uses one connection, because starting psql each
// time would take most of the CPU.
func (r *rig) until(db, query, want string) {
	r.t.Helper()
	ask := r.asker(db)
	var got string
	testkit.Await(r.t, func() bool {
		got = ask(query)
		return got == want
	}, func() string { return fmt.Sprintf("%s is %q and never %q", query, got, want) })
}

// TestWritersDoNotShow keeps moving money between accounts in two tables: the sum in the backup
// must be the constant one.
func TestWritersDoNotShow(t *testing.T) {
	r := newRig(t, server(t), `
CREATE TABLE one (id int PRIMARY KEY, money int, filler text);
CREATE TABLE two (LIKE one INCLUDING ALL);
INSERT INTO one SELECT g, 100, repeat('x', 300) FROM generate_series(1, 2000) g;
INSERT INTO two SELECT g, 100, repeat('y', 300) FROM generate_series(1, 2000) g;`)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	moved := make(chan struct{}, 1)
	for w := range 2 {
		s := connect(t, r.p.DSN(r.db))
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				from, to := 1+(i*7+w)%2000, 1+(i*13+w)%2000
				// Not ctx: a statement that is interrupted ends the session.
				err := s.Exec(t.Context(), fmt.Sprintf("UPDATE public.one SET money = money - 1 WHERE id = %d; UPDATE public.two SET money = money + 1 WHERE id = %d", from, to))
				if err != nil && t.Context().Err() == nil {
					t.Errorf("move money: %v", err)
					return
				}
				select {
				case moved <- struct{}{}:
				default:
				}
			}
		})
	}
	<-moved
	repo, g := archivetest.NewGate(t, r.repo, "data/", 2)
	r.repo = repo
	done := start(func() error {
		_, err := r.backup(backup.Options{ChunkBytes: backup.MinChunkBytes, Jobs: 3}, archive.Options{})
		return err
	})
	g.Wait(t)
	before := r.psql(r.db, "SELECT sum(money) FROM one")
	for range 4 { // one may be left over, and each writer may still report an earlier transaction
		<-moved
	}
	g.Release()
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	stop()
	wg.Wait()
	if after := r.psql(r.db, "SELECT sum(money) FROM one"); after == before {
		t.Fatalf("nothing was written in the middle of the backup (%s)", after)
	}
	target := r.restored(restore.Options{})
	const sum = "SELECT (SELECT sum(money) FROM one) + (SELECT sum(money) FROM two)"
	if got := r.psql(target, sum); got != "400000" {
		t.Errorf("the copy has %s, the source %s, which is always 400000", got, r.psql(r.db, sum))
	}
}

// TestAlterWaitsForBackup drops a table that the backup has not read yet. The drop waits for the
// main session's lock, and a worker would wait for the drop, so the main session must read the
// table itself.
func TestAlterWaitsForBackup(t *testing.T) {
	r := newRig(t, server(t), three)
	plain := r.repo
	repo, g := archivetest.NewGate(t, r.repo, "public.a/", 0)
	r.repo = repo
	done := start(func() error {
		_, err := r.backup(backup.Options{Jobs: 1}, archive.Options{ID: "x"})
		return err
	})
	g.Wait(t)
	// Definitions and rows are read concurrently; here the definitions must come first.
	r.awaitContents(plain, "x")
	before := r.state(r.db)
	s := connect(t, r.p.DSN(r.db))
	dropped := start(func() error { return s.Exec(t.Context(), "DROP TABLE public.c") })
	r.until(r.db, "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = 'c'::regclass", "1")
	g.Release()
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	if err := finished(t, dropped); err != nil {
		t.Fatal(err)
	}
	r.repo = plain
	r.alike(before, r.restored(restore.Options{}))
}

// holdDump makes backups run a pg_dump that waits before it connects. wait returns when one
// waits, and release lets that one and all later ones go on.
func (r *rig) holdDump() (wait, release func()) {
	r.t.Helper()
	bin := r.t.TempDir()
	begun, may := filepath.Join(bin, "begun"), filepath.Join(bin, "may")
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" != --version ]; then touch %[1]s; while [ ! -e %[2]s ]; do sleep 0.05; done; fi\nexec %[3]s/pg_dump \"$@\"\n",
		begun, may, r.p.BinDir())
	if err := os.WriteFile(filepath.Join(bin, "pg_dump"), []byte(script), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(r.p.BinDir(), "pg_restore"), filepath.Join(bin, "pg_restore")); err != nil {
		r.t.Fatal(err)
	}
	r.t.Setenv("WEIR_PG_BIN", bin)
	wait = func() {
		r.t.Helper()
		testkit.Eventually(r.t, "pg_dump is run", func() bool {
			_, err := os.Stat(begun)
			return err == nil
		})
	}
	release = func() {
		r.t.Helper()
		if err := os.WriteFile(may, nil, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	return wait, release
}

// TestDropOfFunctions drops functions, which no lock protects, between the snapshot and pg_dump,
// which would write incomplete definitions: the backup must start again.
func TestDropOfFunctions(t *testing.T) {
	r := newRig(t, server(t), three+`; CREATE FUNCTION f(a int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE PROCEDURE p(a int) LANGUAGE sql AS 'SELECT 1';
CREATE DOMAIN d1 AS int; CREATE DOMAIN d2 AS d1; CREATE VIEW kept AS SELECT 1 AS a`)
	wait, release := r.holdDump()
	done := start(func() error {
		_, err := r.backup(backup.Options{Jobs: 2}, archive.Options{})
		return err
	})
	wait()
	r.exec(r.db, "DROP FUNCTION f; DROP PROCEDURE p; DROP DOMAIN d2; DROP DOMAIN d1")
	after := r.native(r.db)
	release()
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	if got := r.native(r.restored(restore.Options{})); got != after {
		t.Errorf("the copy is not what the source was after the drops:\n%s", got)
	}
}

// TestDropOfAView commits the drop of a view while its definition is read, which is an error of
// the server: the backup must start again, and a restore of it can be verified.
func TestDropOfAView(t *testing.T) {
	r := newRig(t, server(t), three+"; CREATE VIEW gone AS SELECT 1 AS a")
	s := connect(t, r.p.DSN(r.db))
	for _, sql := range []string{"BEGIN", "DROP VIEW public.gone"} {
		if err := s.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var res *backup.Result
	done := start(func() (err error) {
		res, err = r.backup(backup.Options{Jobs: 2, Checksums: true}, archive.Options{})
		return err
	})
	r.until(r.db, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL AND mode = 'AccessShareLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", "1")
	if err := s.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	if len(res.Manifest.Warnings) > 0 {
		t.Errorf("warnings: %v", res.Manifest.Warnings)
	}
	after := r.native(r.db)
	if got := r.native(r.restored(restore.Options{Verify: restore.VerifyRows})); got != after {
		t.Errorf("the copy is not what the source was after the drop:\n%s", got)
	}
}

// TestDropBeforeDefinitions lets a session wait to drop a table before pg_dump reads it: pg_dump
// shares the locks of the backup's main session, so the drop waits.
func TestDropBeforeDefinitions(t *testing.T) {
	r := newRig(t, server(t), three)
	before := r.state(r.db)
	waitForDump, release := r.holdDump()
	done := start(func() error {
		_, err := r.backup(backup.Options{Jobs: 2, LockWait: patience}, archive.Options{})
		return err
	})
	waitForDump()
	s := connect(t, r.p.DSN(r.db))
	dropped := start(func() error { return s.Exec(t.Context(), "DROP TABLE public.c") })
	r.until(r.db, "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = 'c'::regclass", "1")
	release()
	for _, c := range []<-chan error{done, dropped} {
		if err := finished(t, c); err != nil {
			t.Fatal(err)
		}
	}
	r.alike(before, r.restored(restore.Options{}))
}

// TestLocksLost ends the session that holds the locks, and truncates a table that was not read
// yet, which the snapshot then shows as empty: the backup must fail.
func TestLocksLost(t *testing.T) {
	r := newRig(t, server(t), three)
	plain := r.repo
	repo, g := archivetest.NewGate(t, r.repo, "data/", 1)
	r.repo = repo
	done := start(func() error {
		_, err := r.backup(backup.Options{Jobs: 1}, archive.Options{ID: "x"})
		return err
	})
	g.Wait(t)
	// pg_dump has its own locks until it ends, and its session until the server notices.
	r.awaitContents(plain, "x")
	r.until(r.db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_dump' AND datname = current_database()", "0")
	// So far only the main session has locked the second and the third table. The last one by
	// name is truncated, because truncating a would have to wait for b.
	const lockers = "FROM pg_locks WHERE relation = %s AND mode = 'AccessShareLock' AND granted"
	table := r.psql(r.db, "SELECT max(relname) FROM pg_class c WHERE relname IN ('a', 'b', 'c') AND (SELECT count(*) "+fmt.Sprintf(lockers, "c.oid")+") = 1")
	if got := r.psql(r.db, "SELECT count(pg_terminate_backend(pid)) "+fmt.Sprintf(lockers, "'"+table+"'::regclass")); got != "1" {
		t.Fatalf("%s sessions hold a lock of table %q, want the main one", got, table)
	}
	r.exec(r.db, "TRUNCATE "+table+" CASCADE")
	g.Release()
	if err := finished(t, done); err == nil || !strings.Contains(err.Error(), "hold the locks") {
		t.Errorf("error: %v", err)
	}
}

// TestLockedTable gives up after --lock-wait-timeout, and says why.
func TestLockedTable(t *testing.T) {
	r := newRig(t, server(t), three)
	s := connect(t, r.p.DSN(r.db))
	if err := s.Exec(t.Context(), "BEGIN; LOCK TABLE public.b IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	_, err := r.backup(backup.Options{LockWait: 200 * time.Millisecond}, archive.Options{})
	if err == nil || !strings.Contains(err.Error(), "--lock-wait-timeout") {
		t.Errorf("error: %v", err)
	}
}

// TestKilledBackupResumes kills a backup at several places, changes one table and resumes: only
// chunks of unchanged tables are kept.
func TestKilledBackupResumes(t *testing.T) {
	places := []int{1, 9}
	if testkit.All() {
		places = append(places, 4)
	}
	for _, n := range places {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			dir := t.TempDir()
			r := newRig(t, server(t), three)
			r.repo = openRepo(t, dir)
			archivetest.KillAt(r.t, "backup", r.p.DSN(r.db), dir, "data/", n)
			r.exec(r.db, "UPDATE b SET x = 'changed' WHERE id = 500; DROP TABLE c; CREATE TABLE d AS SELECT 1 AS one")
			res, err := r.backup(backup.Options{ChunkBytes: backup.MinChunkBytes, Jobs: 2, Checksums: true}, archive.Options{ID: archivetest.KilledID, Resume: true})
			if err != nil {
				t.Fatal(err)
			}
			kept := 0
			for _, table := range res.Tables {
				kept += table.Kept
			}
			if n > 4 && kept == 0 {
				t.Error("nothing of the killed backup was kept")
			}
			for _, c := range res.Manifest.Chunks {
				if c.Table == "c" {
					t.Errorf("chunk %s of a table that is gone", c.Path)
				}
			}
			r.alike(r.state(r.db), r.restored(restore.Options{Verify: restore.VerifyRows}))
		})
	}
}

// TestKilledRestoreResumes kills a restore at several places and resumes it, at the first and
// the last place with a database that has every kind of object.
func TestKilledRestoreResumes(t *testing.T) {
	type place struct {
		part string
		n    int
	}
	all := []place{{"plain.large/", 5}, {"refresh", 1}}
	if testkit.All() { // more places like the first
		all = append(all, place{"data/", 0}, place{"plain.types/", 2})
	}
	three, ofThree := three+"; SELECT lo_from_bytea(42, 'blob'); CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM a", []place{{"blobs/", 0}}
	if testkit.All() { // a script of statements, like that which refreshes views
		ofThree = append(ofThree, place{"sequences", 1})
	}
	for name, c := range map[string]struct {
		script string
		places []place
	}{
		"zoo":   {zoo, all},
		"three": {three, ofThree},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := newRig(t, server(t), c.script)
			r.repo = openRepo(t, dir)
			r.mustBackup(backup.Options{ChunkBytes: backup.MinChunkBytes, Checksums: true})
			want := r.source()
			for _, c := range c.places {
				t.Run(c.part, func(t *testing.T) {
					r := &rig{t: t, p: r.p, db: r.db, repo: r.repo}
					target := r.db + "_again"
					r.createDB(target)
					archivetest.KillAt(r.t, "restore", r.p.DSN(target), dir, c.part, c.n)
					// The server ends the killed process's sessions some time later.
					r.until("postgres", "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'weir' AND datname = '"+target+"'", "0")
					if _, err := r.restore(restore.Options{DSN: r.p.DSN(target)}); err == nil || !strings.Contains(err.Error(), "--resume") {
						t.Errorf("without --resume: %v", err)
					}
					res, err := r.restore(restore.Options{DSN: r.p.DSN(target), Resume: true, Verify: restore.VerifyRows})
					if err != nil {
						t.Fatal(err)
					}
					if res.Resumed == 0 {
						t.Error("nothing was done before")
					}
					r.sameAs(want, target)
				})
			}
		})
	}
}

// TestConnectionCut drops all connections of a backup and of a restore in the middle of rows.
// Both must report it, and can be resumed.
func TestConnectionCut(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, server(t), three)
	r.repo = openRepo(t, dir)
	relay := labtest.Relay(t, r.p.Addr())
	through := func(db string) string { return strings.Replace(r.p.DSN(db), r.p.Addr(), relay.Addr(), 1) }

	plain := r.repo
	repo, g := archivetest.NewGate(t, plain, "public.b/", 0)
	r.repo = repo
	done := start(func() error {
		_, err := r.backup(backup.Options{DSN: through(r.db), Jobs: 1}, archive.Options{ID: "cut"})
		return err
	})
	g.Wait(t)
	relay.Cut()
	g.Release()
	if err := finished(t, done); err == nil {
		t.Fatal("a backup whose connection was cut succeeded")
	}
	r.repo = plain
	if _, err := archive.Open(t.Context(), r.repo, "cut", archive.ReadOptions{}); err == nil {
		t.Fatal("half a backup looks whole")
	}
	if _, err := r.backup(backup.Options{DSN: through(r.db), Jobs: 1}, archive.Options{ID: "cut", Resume: true}); err != nil {
		t.Fatal(err)
	}

	target := r.db + "_copy"
	r.createDB(target)
	relay.CutAfter(lab.ToServer, 400_000)
	if _, err := r.restore(restore.Options{DSN: through(target), Jobs: 1}); err == nil {
		t.Fatal("a restore whose connection was cut succeeded")
	}
	if _, err := r.restore(restore.Options{DSN: through(target), Jobs: 2, Resume: true, Verify: restore.VerifyRows}); err != nil {
		t.Fatal(err)
	}
	r.alike(r.state(r.db), target)
}

// TestServerStops stops the server in the middle of a backup and of a restore.
func TestServerStops(t *testing.T) {
	p := ownServer(t)
	r := newRig(t, p, three)
	plain := r.repo
	r.mustBackup(backup.Options{})
	before := r.state(r.db) // a crash moves sequences on
	repo, g := archivetest.NewGate(t, plain, "public.b/", 0)
	r.repo = repo
	done := start(func() error {
		_, err := r.backup(backup.Options{Jobs: 1}, archive.Options{ID: "stopped"})
		return err
	})
	g.Wait(t)
	p.Kill()
	g.Release()
	if err := finished(t, done); err == nil {
		t.Error("a backup whose server was killed succeeded")
	} else {
		t.Log(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	target := r.db + "_copy"
	r.createDB(target)
	repo, g = archivetest.NewGate(t, plain, "public.b/", 0)
	done = start(func() error {
		reader, err := archive.Open(t.Context(), repo, archive.Latest, archive.ReadOptions{})
		if err != nil {
			return err
		}
		_, err = load.Run(t.Context(), restore.Options{DSN: p.DSN(target), Jobs: 1}, reader)
		return errors.Join(err, reader.Close())
	})
	g.Wait(t)
	p.Kill()
	g.Release()
	if err := finished(t, done); err == nil {
		t.Error("a restore whose server was killed succeeded")
	} else {
		t.Log(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.repo = plain
	if _, err := r.restore(restore.Options{DSN: p.DSN(target), Resume: true, Verify: restore.VerifyRows}); err != nil {
		t.Fatal(err)
	}
	r.alike(before, target)
}

// TestResumeBesideTheMaking resumes a restore while the server still creates the database for
// the killed run: it appears only after the resumed run has looked for it.
func TestResumeBesideTheMaking(t *testing.T) {
	r := newRig(t, server(t), "CREATE TABLE t AS SELECT 1 AS a")
	r.backedUp()
	target := r.db + "_copy"
	r.dropAfter(target)
	plain := r.repo
	repo, g := archivetest.NewGate(t, plain, "toc.jsonl", 1) // the check of the backup reads it first
	r.repo = repo
	done := start(func() error {
		_, err := r.restore(restore.Options{Create: true, Target: target, Resume: true})
		return err
	})
	g.Wait(t)
	r.createDB(target)
	g.Release()
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	r.alike(r.state(r.db), target)
}

// TestResumeOfAReadOnlyDatabase resumes a restore that was killed while it applied the settings
// of the database, one of which makes transactions read-only.
func TestResumeOfAReadOnlyDatabase(t *testing.T) {
	r := newRig(t, server(t), "CREATE TABLE t AS SELECT 1 AS a")
	target := r.db + "_copy"
	r.createDB(target)
	const readOnly = " SET default_transaction_read_only = on"
	r.admin("ALTER DATABASE "+pg.Ident(r.db)+readOnly, "ALTER DATABASE "+pg.Ident(target)+readOnly)
	r.mustBackup(backup.Options{})
	if _, err := r.restore(restore.Options{Create: true, Target: target, Resume: true}); err != nil {
		t.Fatal(err)
	}
	r.alike(r.state(r.db), target)
}

// TestDiskFull backs up into a file system of a quarter of a megabyte.
func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	r := newRig(t, server(t), `CREATE TABLE noise AS SELECT g, gen_random_uuid() AS a, gen_random_uuid() AS b, gen_random_uuid() AS c FROM generate_series(1, 10000) g`)
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256k", "weir-test", dir).CombinedOutput(); err != nil {
		t.Skipf("no small file system: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	r.repo = openRepo(t, dir)
	_, err := r.backup(backup.Options{}, archive.Options{ID: "full"})
	if !errors.Is(err, archive.ErrFull) {
		t.Errorf("error: %v", err)
	}
	if _, err := archive.Open(t.Context(), r.repo, "full", archive.ReadOptions{}); err == nil {
		t.Error("half a backup looks whole")
	}
	// The same backup succeeds when there is room.
	if out, err := exec.Command("mount", "-o", "remount,size=64m", dir).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	w, err := archive.Create(t.Context(), r.repo, archive.Options{ID: "full", Resume: true})
	if errors.Is(err, archive.ErrNotExist) { // no chunk was whole before the disk was full, so nothing was kept
		w, err = archive.Create(t.Context(), r.repo, archive.Options{ID: "full"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dump.Run(t.Context(), backup.Options{DSN: r.p.DSN(r.db)}, w); err != nil {
		t.Fatal(err)
	}
	r.alike(r.state(r.db), r.restored(restore.Options{}))
}

// awaitContents waits until the definitions of a backup under way are in place.
func (r *rig) awaitContents(repo *archive.Repository, id string) {
	r.t.Helper()
	var err error
	testkit.Await(r.t, func() bool {
		_, err = repo.Storage().Stat(r.t.Context(), id+"/db/"+r.db+"/schema/toc.jsonl.zst")
		return err == nil
	}, func() string { return fmt.Sprintf("no table of contents: %v", err) })
}

// TestDatabaseDroppedMeanwhile checks that a backup of all databases does not fail because one
// was dropped before its turn.
func TestDatabaseDroppedMeanwhile(t *testing.T) {
	r := newRig(t, server(t), "CREATE TABLE dropping AS SELECT 1 AS one")
	gone := r.db + "_gone"
	r.createDB(gone)
	repo, g := archivetest.NewGate(t, r.repo, "public.dropping/", 0)
	r.repo = repo
	var res *backup.Result
	done := start(func() (err error) {
		res, err = r.backup(backup.Options{Cluster: true, ClusterParallelism: 1}, archive.Options{})
		return err
	})
	g.Wait(t)
	r.admin("DROP DATABASE " + pg.Ident(gone))
	g.Release()
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(res.Manifest.Warnings, "\n"); !strings.Contains(text, "database "+gone+" was dropped") {
		t.Errorf("warnings: %s", text)
	}
	for _, d := range res.Manifest.Databases {
		if d.Name == gone {
			t.Errorf("it is in the manifest: %+v", d)
		}
	}
}
