package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/lab"
)

// tangled are databases whose names say nothing of which one needs which: each looks
// into one that is restored before it, and into one that is restored after it.
const tangled = `
CREATE DATABASE tangled_a; CREATE DATABASE tangled_b; CREATE DATABASE tangled_c;
CREATE TABLE tangled_a.t (id int PRIMARY KEY, b int, KEY b (b));
CREATE TABLE tangled_b.t (id int PRIMARY KEY, c int, KEY c (c));
CREATE TABLE tangled_c.t (id int PRIMARY KEY, a int, KEY a (a), CONSTRAINT ca FOREIGN KEY (a) REFERENCES tangled_a.t (id));
ALTER TABLE tangled_a.t ADD CONSTRAINT ab FOREIGN KEY (b) REFERENCES tangled_b.t (id);
ALTER TABLE tangled_b.t ADD CONSTRAINT bc FOREIGN KEY (c) REFERENCES tangled_c.t (id);
SET foreign_key_checks = 0;
INSERT INTO tangled_a.t VALUES (1, 2), (2, 1); INSERT INTO tangled_b.t VALUES (1, 2), (2, 1); INSERT INTO tangled_c.t VALUES (1, 2), (2, 1);
CREATE FUNCTION tangled_c.f() RETURNS int DETERMINISTIC READS SQL DATA RETURN (SELECT count(*) FROM tangled_a.t);
CREATE VIEW tangled_b.v AS SELECT * FROM tangled_c.t;
CREATE VIEW tangled_a.v AS SELECT v.id, tangled_c.f() AS n FROM tangled_b.v AS v;
CREATE VIEW tangled_c.v AS SELECT * FROM tangled_a.v;
CREATE TRIGGER tangled_a.tr AFTER INSERT ON tangled_a.t FOR EACH ROW UPDATE tangled_c.t SET a = 1 WHERE id = 1;
`

// TestDatabasesThatNeedEachOther restores a cluster whose views, triggers and keys
// look into other databases. A view of a table that is gone is kept as text and
// stops nothing.
func TestDatabasesThatNeedEachOther(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := &rig{t: t, m: m, repo: openRepo(t, t.TempDir())}
		names := []string{"tangled_a", "tangled_b", "tangled_c"}
		t.Cleanup(func() {
			r.client("", "SET foreign_key_checks = 0; DROP DATABASE IF EXISTS tangled_a; DROP DATABASE IF EXISTS tangled_b; DROP DATABASE IF EXISTS tangled_c")
		})
		r.client("", "SET foreign_key_checks = 0; DROP DATABASE IF EXISTS tangled_a; DROP DATABASE IF EXISTS tangled_b; DROP DATABASE IF EXISTS tangled_c;"+tangled)
		want := map[string]string{}
		for _, name := range names {
			want[name] = r.native(name)
		}
		r.client("", "CREATE TABLE tangled_a.gone (one int); CREATE VIEW tangled_a.broken AS SELECT * FROM tangled_a.gone; DROP TABLE tangled_a.gone")
		o := backup.Options{DSN: m.DSN(""), Cluster: true, Databases: names, NoGlobals: true, Checksums: true}
		res := r.backup(o, archive.Options{})
		if text := strings.Join(res.Manifest.Warnings, "\n"); !strings.Contains(text, "tangled_a.broken") {
			t.Errorf("nothing is said of a view that cannot be read: %s", text)
		}
		drop := "SET foreign_key_checks = 0"
		for _, name := range names {
			drop += "; DROP DATABASE " + my.Ident(name)
		}
		r.client("", drop+"; CREATE DATABASE tangled_c")
		if _, err := r.restoreCtx(t.Context(), restore.Options{}); err == nil || !strings.Contains(err.Error(), "tangled_c: the database exists already") {
			t.Errorf("beside one of the databases: %v", err)
		}
		if got := r.client("", "SHOW DATABASES LIKE 'tangled%'; DROP DATABASE tangled_c"); got != "tangled_c" {
			t.Errorf("a restore that is refused has created databases: %s", got)
		}
		back, err := r.restoreCtx(t.Context(), restore.Options{Verify: restore.VerifyRows})
		if err != nil {
			t.Fatal(err)
		}
		if len(back.Broken) != 1 || back.Broken[0].Object != "VIEW broken" || !strings.Contains(back.Broken[0].Rest, "gone") {
			t.Errorf("of the view that cannot be read: %+v", back.Broken)
		}
		for _, name := range names {
			in := *r
			in.db = name
			in.compare(want[name], name)
		}
		if got := r.client("", "SELECT count(*) FROM tangled_c.v"); got != "2" {
			t.Errorf("a view through all databases has %s rows", got)
		}
	})
}

// TestObjectsThatFail restores into a server where one account is missing that owns
// nothing else, and one table's name is taken: all that needs neither comes back.
func TestObjectsThatFail(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), `
CREATE TABLE a (id int PRIMARY KEY, t text, FULLTEXT KEY (t)); INSERT INTO a VALUES (1, 'x');
CREATE TABLE b (id int PRIMARY KEY, x int, KEY (x), CONSTRAINT b_a FOREIGN KEY (x) REFERENCES a (id)); INSERT INTO b VALUES (1, 1);
CREATE VIEW v AS SELECT * FROM b; CREATE PROCEDURE p() SELECT 1;
CREATE TRIGGER tr BEFORE INSERT ON b FOR EACH ROW SET NEW.x = 1;`)
	r.backup(backup.Options{}, archive.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	r.client(target, "CREATE VIEW a AS SELECT 1 AS id")
	o := restore.Options{DSN: r.m.DSN(target), Clean: true, IfExists: true, Stop: true}
	// --clean drops a table a, and this is a view.
	if _, err := r.restoreCtx(t.Context(), o); err == nil {
		t.Fatal("nothing stopped the restore")
	}
	o.Stop = false
	r.client("", "DROP TABLE IF EXISTS "+my.Ident(target)+".weir_restore")
	res, err := r.restoreCtx(t.Context(), o)
	if err == nil || !res.Ended {
		t.Fatalf("ended %v, error: %v", res.Ended, err)
	}
	if got := r.client(target, "SELECT count(*) FROM b; SELECT count(*) FROM v; CALL p(); SELECT count(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE()"); got != "1\n1\n1\n1" {
		t.Errorf("what needs no table a: %q", got)
	}
	var rest strings.Builder
	if err := res.WriteRest(&rest, "/backups", "ID"); err != nil {
		t.Fatal(err)
	}
	if text := rest.String(); !strings.Contains(text, "CREATE TABLE `a`") || !strings.Contains(text, "/data/a/0001.tsv") {
		t.Errorf("what is left to do: %s", text)
	}
}

// TestResumeAtTheEndCompares resumes, with --verify, a restore that was interrupted while it dropped
// its journals: rows that have changed are found where there is still one. Where there is none,
// others may have changed them.
func TestResumeAtTheEndCompares(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := &rig{t: t, m: m, repo: openRepo(t, t.TempDir())}
		names := []string{"end_a", "end_b"}
		const drop = "DROP DATABASE IF EXISTS end_a; DROP DATABASE IF EXISTS end_b; "
		t.Cleanup(func() { r.client("", drop) })
		r.client("", drop+"CREATE DATABASE end_a; CREATE DATABASE end_b; CREATE TABLE end_a.t (id int PRIMARY KEY); INSERT INTO end_a.t VALUES (1), (7); "+
			"CREATE TABLE end_b.t AS SELECT * FROM end_a.t; CREATE EVENT end_b.e ON SCHEDULE EVERY 1 DAY DISABLE DO SET @x = 1")
		res := r.backup(backup.Options{DSN: m.DSN(""), Cluster: true, Databases: names, NoGlobals: true, Checksums: true}, archive.Options{})
		restored := func() {
			t.Helper()
			r.client("", drop)
			if _, err := r.restoreCtx(t.Context(), restore.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		undropped := func(name string) {
			t.Helper()
			r.client(name, fmt.Sprintf("CREATE TABLE weir_restore (step VARBINARY(3000) NOT NULL PRIMARY KEY) ENGINE=InnoDB; INSERT INTO weir_restore VALUES ('%s'), ('%s')",
				new(restore.Options).Identity(res.Manifest.ID, name), restore.StepRestored))
		}
		again := restore.Options{Resume: true, Verify: restore.VerifyRows}
		for _, change := range []string{"UPDATE end_a.t SET id = 0 WHERE id = 7", "UPDATE end_b.t SET id = 0 WHERE id = 7", "DROP EVENT end_b.e"} {
			restored()
			undropped("end_a")
			undropped("end_b")
			r.client("", change)
			if _, err := r.restoreCtx(t.Context(), again); !errors.Is(err, load.ErrDiffers) {
				t.Errorf("after %s: %v", change, err)
			}
		}
		restored()
		undropped("end_b")
		r.client("", "DROP TABLE end_a.t")
		got, err := r.restoreCtx(t.Context(), again)
		if err != nil || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "end_a is not compared") {
			t.Errorf("only a database differs whose restore had ended: %v, %+v", err, got)
		}
		if got := r.client("end_b", "SHOW TABLES LIKE 'weir%'"); got != "" {
			t.Errorf("the journal is left: %s", got)
		}
	})
}
