package mysql_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestResumeDropsNothingOfOthers that a restore met on its way, or will meet.
func TestResumeDropsNothingOfOthers(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 7; CREATE PROCEDURE p() SELECT 1;")
		r.backup(backup.Options{}, archive.Options{})
		target := r.db + "_copy"
		r.createDB(target)
		plain := r.repo
		repo, g := archivetest.NewGate(t, plain, "data/", 0)
		r.repo = repo
		o := restore.Options{DSN: m.DSN(target), Stop: true}
		done := begin(func() error {
			_, err := r.restoreCtx(t.Context(), o)
			return err
		})
		g.Wait(t)
		r.client(target, "CREATE PROCEDURE p() SELECT 'theirs'; CREATE TABLE own (a int); CREATE TRIGGER tr BEFORE INSERT ON own FOR EACH ROW SET NEW.a = 8")
		g.Release()
		if err := finished(t, done); err == nil || !strings.Contains(err.Error(), "PROCEDURE p") {
			t.Fatalf("beside somebody's procedure: %v", err)
		}
		r.repo, o.Resume = plain, true
		if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "PROCEDURE p") {
			t.Errorf("resumed beside somebody's procedure: %v", err)
		}
		if got := r.client(target, "CALL p()"); got != "theirs" {
			t.Errorf("somebody's procedure says %q", got)
		}
		r.client(target, "DROP PROCEDURE p")
		if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "TRIGGER tr") {
			t.Errorf("resumed beside somebody's trigger: %v", err)
		}
		if got := r.client(target, "INSERT INTO own VALUES (1); SELECT a FROM own"); got != "8" {
			t.Errorf("somebody's trigger makes %q of 1", got)
		}
		r.client(target, "DROP TABLE own")
		if _, err := r.restoreCtx(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		r.compare(r.native(r.db), target)
	})
}

// TestResumedRowsSetOffNoTriggers that their table has by then, and the journal of another
// restore, which the source holds, is not restored.
func TestResumedRowsSetOffNoTriggers(t *testing.T) {
	const trigger = "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 7;"
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE t (a int); INSERT INTO t VALUES (1);"+trigger+`
CREATE TABLE weir_restore (step varbinary(100) PRIMARY KEY); INSERT INTO weir_restore VALUES ('of the source');`)
	r.backup(backup.Options{}, archive.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	o := restore.Options{DSN: r.m.DSN(target)}
	r.interrupted(o, "data/t/")
	part := restore.Options{DSN: r.m.DSN(target), Resume: true, SchemaOnly: true}
	if _, err := r.restoreCtx(t.Context(), part); err == nil || !strings.Contains(err.Error(), "another part") {
		t.Errorf("a part of it is resumed: %v", err)
	}
	r.client(target, trigger+"INSERT INTO weir_restore VALUES ('TRIGGER tr')") // as a run in which rows fail does
	o.Resume, o.Verify = true, restore.VerifyRows
	if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "has triggers already") {
		t.Errorf("resumed beside a trigger: %v", err)
	}
	r.client(target, "DROP TRIGGER tr; INSERT INTO t VALUES (5)")
	if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "has rows that the restore has not loaded") {
		t.Errorf("resumed beside rows: %v", err)
	}
	if got := r.client(target, "SELECT a FROM t; DELETE FROM t"); got != "5" {
		t.Errorf("of somebody's rows there is %q", got)
	}
	if _, err := r.restoreCtx(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := r.client(target, "SELECT a FROM t; SHOW TABLES; SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()"); got != "1\nt\ntr" {
		t.Errorf("the table and its rows: %q", got)
	}
}

// interrupted begins a restore, and interrupts it when it reads a chunk.
func (r *rig) interrupted(o restore.Options, chunk string) {
	r.t.Helper()
	plain := r.repo
	defer func() { r.repo = plain }()
	repo, g := archivetest.NewGate(r.t, plain, chunk, 0)
	r.repo = repo
	ctx, stop := context.WithCancel(r.t.Context())
	defer stop()
	done := begin(func() error {
		_, err := r.restoreCtx(ctx, o)
		return err
	})
	g.Wait(r.t)
	stop()
	g.Release()
	if err := finished(r.t, done); err == nil {
		r.t.Fatal("a restore that was interrupted succeeded")
	}
}

// TestResumeKeepsRowsOfOthers in tables that the interrupted run had not made or not filled yet,
// and their views; what is as in the backup is no matter.
func TestResumeKeepsRowsOfOthers(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, `CREATE TABLE a (x varchar(300)); INSERT INTO a SELECT repeat('x', 300) FROM `+numbers+`; CREATE TABLE orders (x int); CREATE TABLE plain (x int) ENGINE=MyISAM; INSERT INTO plain VALUES (1);
CREATE PROCEDURE p() SELECT 1; CREATE VIEW v AS SELECT 'ours'`)
		r.backup(backup.Options{}, archive.Options{})
		target := r.db + "_copy"
		r.createDB(target)
		o := restore.Options{DSN: m.DSN(target), Jobs: 1}
		r.interrupted(o, "data/a/")
		r.client(target, `DELETE FROM weir_restore WHERE step = 'TABLE orders'; INSERT INTO orders VALUES (5); INSERT INTO plain VALUES (6);
CREATE PROCEDURE p() SELECT 1; CREATE VIEW v AS SELECT 'theirs'`)
		o.Resume = true
		for _, of := range []struct{ table, row string }{{"orders", "5"}, {"plain", "6"}} {
			if _, err := r.restoreCtx(t.Context(), o); !errors.Is(err, restore.ErrBeside) || !strings.Contains(err.Error(), of.table) || strings.Contains(err.Error(), "look for") {
				t.Errorf("beside rows of %s: %v", of.table, err)
			}
			if got := r.client(target, "SELECT x FROM "+of.table+"; DELETE FROM "+of.table); got != of.row {
				t.Errorf("of somebody's rows in %s there is %q", of.table, got)
			}
		}
		o.Stop = true
		if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "VIEW v") {
			t.Errorf("beside somebody's view: %v", err)
		}
		if got := r.client(target, "SELECT * FROM v; DROP VIEW v"); got != "theirs" {
			t.Errorf("somebody's view says %q", got)
		}
		if _, err := r.restoreCtx(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		r.compare(r.native(r.db), target)
	})
}

// TestResumeBesideOpenTransactions resumes a restore while other transactions have inserted rows
// into tables that it is about to drop or fill, or have read the journal that the killed run
// drops.
func TestResumeBesideOpenTransactions(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE a (x varchar(300)); INSERT INTO a SELECT repeat('x', 300) FROM "+numbers+`;
CREATE TABLE orders (x int); CREATE TABLE plain (x int) ENGINE=MyISAM; INSERT INTO plain VALUES (1)`)
		r.backup(backup.Options{}, archive.Options{})
		target := r.db + "_copy"
		r.createDB(target)
		o := restore.Options{DSN: m.DSN(target), Jobs: 1, NoAnalyze: true}
		r.interrupted(o, "data/a/")
		r.client(target, "DELETE FROM weir_restore WHERE step = 'TABLE orders'")
		o.Resume = true
		resume := func() error {
			_, err := r.restoreCtx(t.Context(), o)
			return err
		}
		other, asker := r.session(target), r.session("")
		one := func(s *my.Session, sql string) string {
			row, err := s.Row(t.Context(), sql)
			if err != nil {
				t.Fatal(err)
			}
			return row[0]
		}
		waits := func() bool {
			return one(asker, "SELECT count(*) FROM information_schema.processlist WHERE db = '"+target+"' AND state = 'Waiting for table metadata lock'") != "0"
		}

		r.exec(other, "START TRANSACTION", "INSERT INTO orders VALUES (5)")
		done := begin(resume)
		testkit.Eventually(t, "the restore waits for table orders", waits)
		r.exec(other, "COMMIT")
		if err := finished(t, done); !errors.Is(err, restore.ErrBeside) {
			t.Errorf("beside rows that came at the last moment: %v", err)
		}
		if got := r.client(target, "SELECT x FROM orders; DELETE FROM orders"); got != "5" {
			t.Errorf("of somebody's rows there is %q", got)
		}

		killed := r.session(target)
		id := one(killed, "SELECT CONNECTION_ID()")
		r.exec(other, "START TRANSACTION", "SELECT count(*) FROM weir_restore")
		drop := begin(func() error { return killed.Exec(t.Context(), "DROP TABLE weir_restore") })
		testkit.Eventually(t, "the drop of the journal waits", waits)
		undo := load.SetJournalPatience(time.Second)
		if err := resume(); err == nil || !strings.Contains(err.Error(), "SHOW PROCESSLIST") {
			t.Errorf("beside a drop of the journal: %v", err)
		}
		undo()
		r.admin("KILL " + id)
		if err := finished(t, drop); err == nil {
			t.Error("the drop of the journal was not killed")
		}
		testkit.Eventually(t, "the killed session has ended", func() bool {
			return one(asker, "SELECT count(*) FROM information_schema.processlist WHERE id = "+id) == "0"
		})
		r.exec(other, "COMMIT")

		r.exec(other, "START TRANSACTION", "SELECT x FROM plain FOR UPDATE")
		done = begin(resume)
		testkit.Eventually(t, "the restore has ended, or waits for table plain", func() bool { return len(done) > 0 || waits() })
		r.exec(other, "INSERT INTO plain VALUES (6)", "COMMIT")
		if err := finished(t, done); err != nil {
			t.Error(err)
		}
		if got := r.client(target, "SELECT x FROM plain ORDER BY x"); got != "1\n6" {
			t.Errorf("table plain has %q", got)
		}
	})
}

// TestResumeCleans what an interrupted run with --clean had not dropped yet.
func TestResumeCleans(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE a (x int); INSERT INTO a VALUES (1)")
	res := r.backup(backup.Options{}, archive.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	r.client(target, "CREATE TABLE a (x int); INSERT INTO a VALUES (7)")
	o := restore.Options{DSN: r.m.DSN(target), Clean: true}
	r.interrupted(o, "data/a/")
	if got := r.client(target, "SELECT count(*) FROM weir_restore WHERE step = 'cleaning'"); got != "0" {
		t.Errorf("all is dropped, and the journal has %s steps that say it is not", got)
	}
	r.client(target, "DELETE FROM weir_restore WHERE step <> "+my.Literal(o.Identity(res.Manifest.ID, r.db))+"; INSERT INTO weir_restore VALUES ('cleaning'); INSERT INTO a VALUES (7)")
	o.Resume, o.Clean = true, false
	if _, err := r.restoreCtx(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.compare(r.native(r.db), target)
}

// TestResumeWhereNamesFold compares tables as the server does.
func TestResumeWhereNamesFold(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE Upper (a int); INSERT INTO Upper VALUES (1)")
	r.backup(backup.Options{}, archive.Options{})
	cfg := config(lab.FlavorMariaDB)
	cfg.Settings["lower-case-table-names"] = "1"
	to := &rig{t: t, m: labtest.MariaDB(t, cfg), db: r.db, repo: r.repo}
	to.createDB(r.db)
	o := restore.Options{DSN: to.m.DSN(strings.ToUpper(r.db))}
	to.interrupted(o, "data/")
	to.client(r.db, "CREATE TRIGGER tr BEFORE INSERT ON upper FOR EACH ROW SET NEW.a = 7")
	o.Resume = true
	if _, err := to.restoreCtx(t.Context(), o); !errors.Is(err, restore.ErrTriggered) {
		t.Errorf("resumed beside a trigger: %v", err)
	}
	to.client(r.db, "DROP TRIGGER tr")
	if _, err := to.restoreCtx(t.Context(), o); err != nil {
		t.Error(err)
	}
	o.Resume, o.Filter.Tables = false, []string{"?pper"}
	if _, err := to.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--clean") {
		t.Errorf("a part beside a table of the same name: %v", err)
	}
}

// TestEngineWithoutTransactions: where a table has one, rows of a run that was interrupted are not
// there twice after --resume.
func TestEngineWithoutTransactions(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE n (x varchar(300)); INSERT INTO n SELECT repeat(sha2(g, 256), 4) FROM "+numbers)
	dir := t.TempDir()
	r.repo = openRepo(t, dir)
	res := r.backup(backup.Options{}, archive.Options{})
	files, err := filepath.Glob(filepath.Join(dir, res.Manifest.ID, "db", "*", "data", "n", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files of table n: %v, %v", files, err)
	}
	flip := func() { // the end, which comes after rows
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)-2] ^= 1
		if err := os.WriteFile(files[0], text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	target := r.db + "_copy"
	r.createDB(target)
	r.client(target, "CREATE TABLE n (x varchar(300)) ENGINE=MyISAM")
	o := restore.Options{DSN: r.m.DSN(target), DataOnly: true, Stop: true}
	flip()
	if _, err := r.restoreCtx(t.Context(), o); err == nil {
		t.Fatal("a damaged chunk is restored")
	}
	if n := r.number("SELECT count(*) FROM " + target + ".n"); n == 0 {
		t.Error("there are no rows of the chunk that failed")
	}
	flip()
	o.Resume = true
	if _, err := r.restoreCtx(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got, want := r.number("SELECT count(*) FROM "+target+".n"), r.number("SELECT count(*) FROM "+r.db+".n"); got != want || want == 0 {
		t.Errorf("there are %d rows instead of %d", got, want)
	}
}

// TestResumeEndsTheSessionsOfAKilledRun: the server has not noticed yet that their client is
// gone, and goes on with what they do.
func TestResumeEndsTheSessionsOfAKilledRun(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)")
		r.backup(backup.Options{}, archive.Options{})
		target := r.db + "_copy"
		r.createDB(target)
		o := restore.Options{DSN: m.DSN(target)}
		r.interrupted(o, "data/t/")
		killed := r.session(target)
		if err := load.Hold(t.Context(), killed, target); err != nil {
			t.Fatal(err)
		}
		o.Resume, o.Verify = true, restore.VerifyRows

		// An account that may not end this session waits until it has finished the restore.
		r.client("", "CREATE USER own; GRANT ALL ON "+target+".* TO own")
		t.Cleanup(func() { r.admin("DROP USER own") })
		waiting := o
		waiting.DSN = strings.Replace(o.DSN, "root@", "own@", 1)
		done := begin(func() error {
			_, err := r.restoreCtx(t.Context(), waiting)
			return err
		})
		testkit.Eventually(t, "the restore waits for the session's lock", func() bool {
			row, err := killed.Row(t.Context(), "SELECT count(*) FROM information_schema.processlist WHERE user = 'own' AND info LIKE 'SELECT GET_LOCK(%' AND info NOT LIKE '%, 0)'")
			return len(done) > 0 || err == nil && row[0] != "0"
		})
		r.exec(killed, "RENAME TABLE weir_restore TO kept", "DO RELEASE_ALL_LOCKS()")
		if err := finished(t, done); !errors.Is(err, restore.ErrEnded) {
			t.Errorf("the journal has gone: %v", err)
		}
		r.exec(killed, "RENAME TABLE kept TO weir_restore")
		if err := load.Hold(t.Context(), killed, target); err != nil {
			t.Fatal(err)
		}

		r.exec(killed, "START TRANSACTION", "INSERT INTO t VALUES (1)", "INSERT INTO weir_restore VALUES ('it will not end')")
		another := o
		another.SchemaOnly = true
		if _, err := r.restoreCtx(t.Context(), another); err == nil || !strings.Contains(err.Error(), "another part") {
			t.Errorf("another part is resumed: %v", err)
		}
		r.exec(killed, "DO 1") // the refused restore has not ended it
		done = begin(func() error {
			_, err := r.restoreCtx(t.Context(), o)
			return err
		})
		if err := finished(t, done); err != nil {
			t.Fatal(err)
		}
		r.compare(r.native(r.db), target)
	})
}

// TestResumeLeavesSequencesOfOthers where they are.
func TestResumeLeavesSequencesOfOthers(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE SEQUENCE s START WITH 500; SELECT NEXTVAL(s); CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
	r.backup(backup.Options{}, archive.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	o := restore.Options{DSN: r.m.DSN(target)}
	r.interrupted(o, "data/t/")
	r.client(target, "DELETE FROM weir_restore WHERE step = 'SEQUENCE s'; DROP SEQUENCE s; CREATE SEQUENCE s START WITH 7 INCREMENT BY 3")
	o.Resume = true
	res, err := r.restoreCtx(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "SEQUENCE s") {
		t.Fatalf("resumed beside somebody's sequence: %v", err)
	}
	var rest strings.Builder
	if err := res.WriteRest(&rest, "/backups", "ID"); err != nil || !strings.Contains(rest.String(), "SELECT SETVAL(`s`, ") {
		t.Errorf("%v, what is left to do does not set the sequence:\n%s", err, rest.String())
	}
	if got := r.client(target, "SELECT NEXTVAL(s)"); got != "7" {
		t.Errorf("somebody's sequence gives %s", got)
	}
}
