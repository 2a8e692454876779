package mysql_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
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

// TestResumedRowsSetOffNoTriggers that their table has by then, and the books of another restore,
// which the source holds, are not restored.
func TestResumedRowsSetOffNoTriggers(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), `CREATE TABLE t (a int); INSERT INTO t VALUES (1);
CREATE TABLE weir_restore (step varbinary(100) PRIMARY KEY); INSERT INTO weir_restore VALUES ('of the source');`)
	r.backup(backup.Options{}, archive.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	plain := r.repo
	repo, g := archivetest.NewGate(t, plain, "data/t/", 0)
	r.repo = repo
	ctx, stop := context.WithCancel(t.Context())
	o := restore.Options{DSN: r.m.DSN(target)}
	done := begin(func() error {
		_, err := r.restoreCtx(ctx, o)
		return err
	})
	g.Wait(t)
	stop()
	g.Release()
	if err := finished(t, done); err == nil {
		t.Fatal("a restore that was interrupted succeeded")
	}
	part := restore.Options{DSN: r.m.DSN(target), Resume: true, SchemaOnly: true}
	r.repo = plain
	if _, err := r.restoreCtx(t.Context(), part); err == nil || !strings.Contains(err.Error(), "another part") {
		t.Errorf("a part of it is resumed: %v", err)
	}
	r.client(target, "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 7")
	o.Resume, o.Stop = true, true
	if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "has triggers already") {
		t.Errorf("resumed beside a trigger: %v", err)
	}
	r.client(target, "DROP TRIGGER tr; INSERT INTO t VALUES (5)")
	if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "they are somebody else's") {
		t.Errorf("resumed beside rows: %v", err)
	}
	if got := r.client(target, "SELECT a FROM t; DELETE FROM t"); got != "5" {
		t.Errorf("of somebody's rows there is %q", got)
	}
	if _, err := r.restoreCtx(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := r.client(target, "SELECT a FROM t; SHOW TABLES"); got != "1\nt" {
		t.Errorf("the table and its rows: %q", got)
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
