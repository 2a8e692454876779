package mysql_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
)

// TestFailedObjectsAreResumed restores where objects fail: of that restore, --resume does what
// is left, again and again, until nothing is.
func TestFailedObjectsAreResumed(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "")
		other := r.db + "_other"
		r.createDB(other)
		function := "CREATE FUNCTION " + other + ".f(a int) RETURNS int DETERMINISTIC NO SQL RETURN a"
		r.admin(function)
		r.client(r.db, `CREATE TABLE t (a int PRIMARY KEY, b int, KEY (b)); INSERT INTO t VALUES (1, 1); CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.b = 7;
CREATE TABLE u (a int PRIMARY KEY, b int); INSERT INTO u VALUES (1, 1); CREATE TRIGGER tu BEFORE INSERT ON u FOR EACH ROW SET NEW.b = 7;
CREATE VIEW v AS SELECT `+other+`.f(a) AS x FROM t; CREATE VIEW w AS SELECT x FROM v;
CREATE EVENT e ON SCHEDULE EVERY 1 DAY STARTS '2037-01-01' DO DELETE FROM t;`)
		dir := t.TempDir()
		r.repo = openRepo(t, dir)
		res := r.backup(backup.Options{Checksums: true}, archive.Options{})
		want := r.native(r.db)
		r.admin("DROP FUNCTION " + other + ".f")
		files, err := filepath.Glob(filepath.Join(dir, res.Manifest.ID, "db", "*", "data", "t", "*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("files of table t: %v, %v", files, err)
		}
		if err := os.Rename(files[0], files[0]+".away"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(files[0], []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		target := r.db + "_copy"
		r.createDB(target)
		o := restore.Options{DSN: m.DSN(target), Jobs: 2}
		for range 2 {
			res, err := r.restoreCtx(t.Context(), o)
			if err == nil || !res.Ended || res.Books != "DROP TABLE weir_restore" {
				t.Fatalf("resume %v: ended %v, books %q, %v", o.Resume, res.Ended, res.Books, err)
			}
			var failed []string
			for _, f := range res.Failed {
				failed = append(failed, strings.SplitN(f.Object, " (", 2)[0])
			}
			if got := strings.Join(slices.Sorted(slices.Values(failed)), ", "); got != "TRIGGER tr, VIEW v, VIEW w, rows of table t" {
				t.Errorf("resume %v: there failed %s", o.Resume, got)
			}
			o.Resume = true
		}
		if _, err := r.restoreCtx(t.Context(), restore.Options{DSN: m.DSN(target), DryRun: true, Clean: true}); err != nil {
			t.Errorf("a dry run: %v", err)
		}
		if err := os.Rename(files[0]+".away", files[0]); err != nil {
			t.Fatal(err)
		}
		r.admin(function)
		o.Verify = restore.VerifyRows
		if res, err := r.restoreCtx(t.Context(), o); err != nil || res.Books != "" || res.Resumed == 0 {
			t.Fatalf("resumed: %v (%v), %d steps done before", err, res.Failed, res.Resumed)
		}
		r.compare(want, target)
	})
}
