package mysql_test

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
	"github.com/weirdb/weir/internal/backup/bulk"
	dump "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// numbers yields 3000 rows.
const numbers = `(SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS g FROM
 (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) a,
 (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) b,
 (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) c,
 (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2) d) numbers`

// three creates three tables of several chunks each, with keys of three kinds, an index and a
// foreign key.
const three = `
CREATE TABLE a (id bigint unsigned NOT NULL PRIMARY KEY, x varchar(300), one int DEFAULT 1);
INSERT INTO a (id, x) SELECT g * 3, repeat(sha2(g, 256), 4) FROM ` + numbers + `;
CREATE TABLE b (k varchar(40) COLLATE utf8mb4_general_ci NOT NULL, id int NOT NULL, a_id bigint unsigned, x varchar(300), PRIMARY KEY (k, id), KEY by_x (x),
  CONSTRAINT b_a FOREIGN KEY (a_id) REFERENCES a (id)) DEFAULT CHARSET=utf8mb4;
INSERT INTO b SELECT concat(IF(g % 2, 'É', 'e'), g % 7, '\\'), g, g * 3, repeat(sha2(g, 256), 4) FROM ` + numbers + `;
CREATE TABLE c (id binary(16) NOT NULL PRIMARY KEY, x varchar(300));
INSERT INTO c SELECT unhex(left(sha2(g, 256), 32)), repeat(sha2(g, 256), 4) FROM ` + numbers + `;
ANALYZE TABLE a, b, c;
`

// begin runs f beside the test.
func begin(f func() error) <-chan error {
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

// TestRanges splits tables by integers, by a composite key of strings, and by bytes, and
// restores them.
func TestRanges(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, three)
		res := r.backup(backup.Options{ChunkBytes: backup.MinChunkBytes, Checksums: true}, archive.Options{})
		for _, table := range res.Tables {
			if table.Chunks < 4 || table.Rows != 3000 {
				t.Errorf("table %s: %d rows in %d chunks", table.Table, table.Rows, table.Chunks)
			}
		}
		r.compare(r.native(r.db), r.restored(restore.Options{Jobs: 4}))
	})
}

// TestWritersDoNotShow keeps moving money between tables: the sum in the backup must be the
// constant one, and after a replay of the log from the backup's position the copy must equal the
// source.
func TestWritersDoNotShow(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, `
CREATE TABLE one (id int NOT NULL PRIMARY KEY, money int, filler varchar(300));
CREATE TABLE two (id int NOT NULL PRIMARY KEY, money int, filler varchar(300));
INSERT INTO one SELECT g, 100, repeat('x', 300) FROM `+numbers+`;
INSERT INTO two SELECT g, 100, repeat('y', 300) FROM `+numbers+`;
ANALYZE TABLE one, two;`)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var wg sync.WaitGroup
		moved := make(chan struct{}, 1)
		for w := range 2 {
			s := r.session(r.db)
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					for _, sql := range []string{
						"START TRANSACTION", fmt.Sprintf("UPDATE one SET money = money - 1 WHERE id = %d", (i*7)%1500*2+w),
						fmt.Sprintf("UPDATE two SET money = money + 1 WHERE id = %d", (i*13)%1500*2+w), "COMMIT",
					} {
						// Not ctx: a statement that is interrupted ends the session.
						if err := s.Exec(t.Context(), sql); err != nil && t.Context().Err() == nil {
							t.Errorf("move money: %v", err)
							return
						}
					}
					select {
					case moved <- struct{}{}:
					default:
					}
				}
			})
		}
		<-moved
		plain := r.repo
		repo, g := archivetest.NewGate(t, r.repo, "data/", 2)
		r.repo = repo
		var res *backup.Result
		done := begin(func() (err error) {
			res, err = r.backupCtx(t.Context(), backup.Options{ChunkBytes: backup.MinChunkBytes, Jobs: 3}, archive.Options{})
			return err
		})
		g.Wait(t)
		for range 4 { // one may be left over, and each writer may still report an earlier transaction
			<-moved
		}
		stop() // enough was written
		wg.Wait()
		g.Release()
		if err := finished(t, done); err != nil {
			t.Fatal(err)
		}
		if res.LockHeld <= 0 || res.Lock == "" || res.Lock == "none" {
			t.Errorf("locked by %q for %v", res.Lock, res.LockHeld)
		}
		r.repo = plain
		to := r.into(other(t, m))
		sum := "SELECT (SELECT sum(money) FROM " + r.db + ".one) + (SELECT sum(money) FROM " + r.db + ".two)"
		if got := to.number(sum); got != 600000 {
			t.Errorf("the copy has %d, which is always 600000", got)
		}
		logs := r.logs()
		from := start(res.Manifest)
		r.stream(logs, from)
		played, err := load.Replay(t.Context(), load.ReplayOptions{DSN: to.m.DSN(""), Storage: logs, From: from, Databases: []string{r.db}})
		if err != nil {
			t.Fatal(err)
		}
		if played.Transactions == 0 {
			t.Error("nothing was written during the backup")
		}
		if to.native(r.db) != r.native(r.db) {
			t.Error("the copy is not what the source has become")
		}
	})
}

// TestAlterWaitsForBackup alters and drops tables that the backup has not read yet: these
// statements must wait for the backup, and not the other way round.
func TestAlterWaitsForBackup(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, three)
		before := r.native(r.db)
		plain := r.repo
		repo, g := archivetest.NewGate(t, r.repo, "data/b/", 0)
		r.repo = repo
		done := begin(func() error {
			_, err := r.backupCtx(t.Context(), backup.Options{Jobs: 1}, archive.Options{})
			return err
		})
		g.Wait(t)
		dropper, alterer := r.session(r.db), r.session(r.db)
		dropped := begin(func() error { return dropper.Exec(t.Context(), "DROP TABLE c") })
		altered := begin(func() error { return alterer.Exec(t.Context(), "ALTER TABLE a DROP COLUMN one") })
		r.until("SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock'", "2")
		g.Release()
		for _, c := range []<-chan error{done, dropped, altered} {
			if err := finished(t, c); err != nil {
				t.Fatal(err)
			}
		}
		r.repo = plain
		r.compare(before, r.restored(restore.Options{}))
	})
}

// TestTablesWithoutTransactions checks that tables without transactions are locked until they
// are copied, or copied without a lock, and that the manifest says which.
func TestTablesWithoutTransactions(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		script := ""
		if m.Flavor() == lab.FlavorMySQL || m.Exec(t.Context(), "INSTALL PLUGIN IF NOT EXISTS archive SONAME 'ha_archive'") == nil {
			script = "CREATE TABLE arch (id int) ENGINE=ARCHIVE; INSERT INTO arch VALUES (1), (2);"
		}
		r := newRig(t, m, script+three+"CREATE TABLE plain (id int NOT NULL PRIMARY KEY, x int, KEY x (x)) ENGINE=MyISAM; INSERT INTO plain VALUES (1, 1), (2, 2);"+
			"CREATE TABLE mem (id int) ENGINE=MEMORY; INSERT INTO mem VALUES (1); CREATE TABLE csv (a int NOT NULL, b varchar(20) NOT NULL) ENGINE=CSV; INSERT INTO csv VALUES (1, 'a\"b,c');")
		res := r.backup(backup.Options{NoLockTables: true}, archive.Options{Label: "unlocked"})
		if text := strings.Join(res.Manifest.Warnings, "\n"); !strings.Contains(text, "unlocked") || !strings.Contains(text, r.db+".plain (MyISAM)") {
			t.Errorf("warnings: %s", text)
		}
		r.compare(r.native(r.db), r.restored(restore.Options{}))
		plain := r.repo
		repo, g := archivetest.NewGate(t, r.repo, "data/plain/", 0)
		r.repo = repo
		done := begin(func() error {
			_, err := r.backupCtx(t.Context(), backup.Options{Checksums: true}, archive.Options{})
			return err
		})
		g.Wait(t)
		s := r.session(r.db)
		wrote := begin(func() error { return s.Exec(t.Context(), "INSERT INTO plain VALUES (3, 3)") })
		r.until("SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'INSERT INTO plain%' AND state LIKE 'Waiting for table%lock'", "1")
		g.Release()
		for _, c := range []<-chan error{done, wrote} {
			if err := finished(t, c); err != nil {
				t.Fatal(err)
			}
		}
		r.repo = plain
		target := r.restored(restore.Options{})
		if got := r.number("SELECT count(*) FROM " + target + ".plain"); got != 2 {
			t.Errorf("%d rows of a table that was locked", got)
		}
	})
}

// TestKilledBackupResumes kills a backup at several places, changes one table and resumes: only
// chunks of unchanged tables are kept.
func TestKilledBackupResumes(t *testing.T) {
	places := []int{1, 45}
	if testkit.All() {
		places = append(places, 15)
	}
	for _, n := range places {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			dir := t.TempDir()
			r := newRig(t, server(t, lab.FlavorMariaDB), three)
			r.repo = openRepo(t, dir)
			archivetest.KillAt(r.t, "backup", r.m.DSN(r.db), dir, "data/", n)
			r.client(r.db, "UPDATE a SET x = 'changed' WHERE id = 1500; DROP TABLE c; CREATE TABLE d AS SELECT 1 AS one; INSERT INTO a VALUES (1, 'new', 2), (100000, 'new', 2)")
			res := r.backup(backup.Options{ChunkBytes: backup.MinChunkBytes, Checksums: true}, archive.Options{ID: archivetest.KilledID, Resume: true})
			kept := 0
			for _, table := range res.Tables {
				kept += table.Kept
			}
			if n > 15 && kept == 0 {
				t.Error("nothing of the killed backup was kept")
			}
			for _, c := range res.Manifest.Chunks {
				if c.Table == "c" {
					t.Errorf("chunk %s of a table that is gone", c.Path)
				}
			}
			r.compare(r.native(r.db), r.restored(restore.Options{}))
		})
	}
}

// TestKilledRestoreResumes kills a restore at several places and resumes it, at the last places
// with a database that has every kind of object.
func TestKilledRestoreResumes(t *testing.T) {
	type place struct {
		part string
		n    int
	}
	rows := []place{{"data/b/", 5}}
	if testkit.All() { // more places like it
		rows = append(rows, place{"data/", 0}, place{"data/a/", 2})
	}
	const isam = "CREATE TABLE isam (id int, KEY (id)) ENGINE=MyISAM; INSERT INTO isam VALUES (1);"
	for name, c := range map[string]struct {
		script string
		places []place
	}{
		"three": {three + isam, rows},
		"zoo":   {zoo(t, server(t, lab.FlavorMariaDB)) + isam, []place{{"data/isam", 0}, {"sequences", 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := newRig(t, server(t, lab.FlavorMariaDB), c.script)
			r.repo = openRepo(t, dir)
			r.backup(backup.Options{ChunkBytes: backup.MinChunkBytes, Checksums: true}, archive.Options{})
			want := r.native(r.db)
			for _, c := range c.places {
				t.Run(strings.ReplaceAll(c.part, "/", "_"), func(t *testing.T) {
					r := &rig{t: t, m: r.m, db: r.db, repo: r.repo}
					target := r.db + "_again"
					r.createDB(target)
					archivetest.KillAt(r.t, "restore", r.m.DSN(target), dir, c.part, c.n)
					// The server ends the killed process's sessions some time later.
					r.until("SELECT count(*) FROM information_schema.processlist WHERE db = '"+target+"'", "0")
					o := restore.Options{DSN: r.m.DSN(target)}
					if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--resume") {
						t.Errorf("without --resume: %v", err)
					}
					o.Resume, o.Verify = true, restore.VerifyRows
					res, err := r.restoreCtx(t.Context(), o)
					if err != nil {
						t.Fatal(err)
					}
					if res.Resumed == 0 {
						t.Error("nothing was done before")
					}
					r.compare(want, target)
				})
			}
		})
	}
}

// TestConnectionCut drops a connection of a backup and of a restore in the middle of rows. Both
// must report it, and can be resumed.
func TestConnectionCut(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), three)
	relay := labtest.Relay(t, r.m.Addr())
	through := func(db string) string { return strings.Replace(r.m.DSN(db), r.m.Addr(), relay.Addr(), 1) }
	plain := r.repo
	repo, g := archivetest.NewGate(t, plain, "data/b/", 0)
	r.repo = repo
	done := begin(func() error {
		_, err := r.backupCtx(t.Context(), backup.Options{DSN: through(r.db), Jobs: 1}, archive.Options{ID: "cut"})
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
	r.backup(backup.Options{Jobs: 1}, archive.Options{ID: "cut", Resume: true})
	target := r.db + "_copy"
	r.createDB(target)
	relay.CutAfter(lab.ToServer, 900_000)
	if _, err := r.restoreCtx(t.Context(), restore.Options{DSN: through(target), Jobs: 1}); err == nil {
		t.Fatal("a restore whose connection was cut succeeded")
	}
	if _, err := r.restoreCtx(t.Context(), restore.Options{DSN: r.m.DSN(target), Resume: true, Verify: restore.VerifyRows}); err != nil {
		t.Fatal(err)
	}
	r.compare(r.native(r.db), target)
}

// TestServerKilled kills the server in the middle of a backup and of a restore.
func TestServerKilled(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		m = other(t, m)
		r := newRig(t, m, three)
		plain := r.repo
		before := r.native(r.db)
		r.backup(backup.Options{}, archive.Options{})
		killed := func(what string, f func() error) {
			repo, g := archivetest.NewGate(t, plain, "data/b/", 0)
			r.repo = repo
			done := begin(f)
			g.Wait(t)
			m.Kill()
			g.Release()
			if err := finished(t, done); err == nil {
				t.Errorf("a %s whose server was killed succeeded", what)
			}
			r.repo = plain
			if err := m.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		killed("backup", func() error {
			_, err := r.backupCtx(t.Context(), backup.Options{Jobs: 1}, archive.Options{ID: "stopped"})
			return err
		})
		target := r.db + "_copy"
		r.createDB(target)
		killed("restore", func() error {
			_, err := r.restoreCtx(t.Context(), restore.Options{DSN: m.DSN(target), Jobs: 1})
			return err
		})
		if _, err := r.restoreCtx(t.Context(), restore.Options{DSN: m.DSN(target), Resume: true, Verify: restore.VerifyRows}); err != nil {
			t.Fatal(err)
		}
		r.compare(before, target)
	})
}

// TestTablesInMemoryAfterACrash restarts a server during a restore: the journal survives, but
// the MEMORY tables whose rows it records as loaded are empty, and must be loaded again.
func TestTablesInMemoryAfterACrash(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		m = other(t, m)
		r := newRig(t, m, `CREATE TABLE early (id int PRIMARY KEY) ENGINE=MEMORY;
INSERT INTO early VALUES (1), (2), (3);
CREATE TABLE later (id int PRIMARY KEY, x varchar(300)); INSERT INTO later SELECT g, repeat(sha2(g, 256), 4) FROM `+numbers)
		plain := r.repo
		r.backup(backup.Options{}, archive.Options{})
		target := r.db + "_copy"
		r.createDB(target)
		repo, g := archivetest.NewGate(t, plain, "data/later/", 0)
		r.repo = repo
		done := begin(func() error {
			_, err := r.restoreCtx(t.Context(), restore.Options{DSN: m.DSN(target), Jobs: 2})
			return err
		})
		g.Wait(t)
		s := r.session(target)
		testkit.Eventually(t, "the journal records the rows of the table in memory", func() bool {
			row, err := s.Row(t.Context(), "SELECT COUNT(*) FROM weir_restore WHERE step = 'rows of early'")
			return err == nil && row[0] == "1"
		})
		r.exec(s, "FLUSH ENGINE LOGS")
		m.Kill()
		g.Release()
		if err := finished(t, done); err == nil {
			t.Error("a restore whose server was killed succeeded")
		}
		r.repo = plain
		if err := m.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.restoreCtx(t.Context(), restore.Options{DSN: m.DSN(target), Resume: true}); err != nil {
			t.Fatal(err)
		}
		if row, err := r.session(target).Row(t.Context(), "SELECT COUNT(*) FROM early"); err != nil || row[0] != "3" {
			t.Errorf("the table in memory has %v rows, %v", row, err)
		}
	})
}

// TestTablesDroppedBeforeResume checks that a resumed restore recreates tables that were dropped
// after they had been restored, with rows, indexes and triggers.
func TestTablesDroppedBeforeResume(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, three+`CREATE TABLE plain (id int NOT NULL PRIMARY KEY, x int, KEY by_x (x)) ENGINE=MyISAM; INSERT INTO plain VALUES (1, 1), (2, 2);
CREATE TRIGGER watch BEFORE INSERT ON plain FOR EACH ROW SET NEW.x = 7;
CREATE TRIGGER zzz BEFORE INSERT ON c FOR EACH ROW SET NEW.x = 'y';`)
		r.backup(backup.Options{}, archive.Options{})
		target := r.db + "_copy"
		r.createDB(target)
		plain := r.repo
		repo, g := archivetest.NewGate(t, plain, "data/c/", 0)
		r.repo = repo
		ctx, stop := context.WithCancel(t.Context())
		done := begin(func() error {
			_, err := r.restoreCtx(ctx, restore.Options{DSN: m.DSN(target), Jobs: 2})
			return err
		})
		g.Wait(t)
		s := r.session(target)
		testkit.Eventually(t, "the journal records all tables but the one that waits", func() bool {
			row, err := s.Row(t.Context(), "SELECT COUNT(*) FROM weir_restore WHERE step = 'rows of plain' OR step LIKE '%/data/b/%'")
			return err == nil && row[0] == "2"
		})
		stop()
		g.Release()
		if err := finished(t, done); err == nil {
			t.Fatal("a restore that was interrupted succeeded")
		}
		r.repo = plain
		r.exec(s, "DROP TABLE plain", "DROP TABLE b")
		again := restore.Options{DSN: m.DSN(target), Resume: true, Verify: restore.VerifyRows}
		if _, err := r.restoreCtx(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		r.compare(r.native(r.db), target)
		if _, err := r.restoreCtx(t.Context(), again); err == nil || !strings.Contains(err.Error(), "nothing to continue") {
			t.Errorf("when it is finished: %v", err)
		}
	})
}

// TestDiskFull backs up into a file system of one megabyte.
func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE noise AS SELECT g, random_bytes(600) AS n FROM "+numbers)
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "weir-test", dir).CombinedOutput(); err != nil {
		t.Skipf("no small file system: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	r.repo = openRepo(t, dir)
	if _, err := r.backupCtx(t.Context(), backup.Options{}, archive.Options{ID: "full"}); !errors.Is(err, archive.ErrFull) {
		t.Errorf("error: %v", err)
	}
	// The same backup succeeds when there is room.
	if out, err := exec.Command("mount", "-o", "remount,size=64m", dir).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "full", "journal-*"))
	if err != nil {
		t.Fatal(err)
	}
	// Nothing is kept when no chunk was whole before the disk was full.
	r.backup(backup.Options{}, archive.Options{ID: "full", Resume: len(kept) > 0})
	r.restored(restore.Options{})
}

// TestEmptyAndMany backs up an empty database, and one with 500 tables, or as many as
// WEIR_TEST_TABLES says, which make torture sets.
func TestEmptyAndMany(t *testing.T) {
	testkit.Long(t, "backs up hundreds of tables")
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "")
		r.backup(backup.Options{}, archive.Options{})
		r.compare(r.native(r.db), r.restored(restore.Options{}))
		tables := 500
		if s := os.Getenv("WEIR_TEST_TABLES"); s != "" {
			var err error
			if tables, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		if testing.Short() || !r.maria() { // once takes half a minute
			tables = 200
		}
		var b strings.Builder
		for i := range tables {
			fmt.Fprintf(&b, "CREATE TABLE t%d (id int NOT NULL PRIMARY KEY, x int, KEY x (x)); INSERT INTO t%d VALUES (1, %d);\n", i, i, i)
		}
		r.client(r.db, b.String())
		res := r.backup(backup.Options{}, archive.Options{Label: "many"})
		if len(res.Tables) != tables {
			t.Errorf("%d tables", len(res.Tables))
		}
		target := r.restored(restore.Options{NoAnalyze: true, Verify: restore.VerifyCounts})
		if got := r.number("SELECT count(*) FROM information_schema.tables WHERE table_schema = '" + target + "'"); got != int64(tables) {
			t.Errorf("%d tables in the copy", got)
		}
	})
}

// TestParts restores one table, plans without changing anything, cleans, and
// restores rows alone.
func TestParts(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, three+"CREATE VIEW v AS SELECT id FROM a; CREATE TRIGGER tr BEFORE INSERT ON a FOR EACH ROW SET NEW.one = 5;")
		r.backup(backup.Options{Checksums: true}, archive.Options{})
		target := r.db + "_part"
		r.createDB(target)
		o := restore.Options{DSN: m.DSN(target), Filter: bulk.Filter{Tables: []string{"c"}}, DryRun: true}
		res, err := r.restoreCtx(t.Context(), o)
		if err != nil || len(res.Plan) != 2 {
			t.Fatalf("plan %v, %v", res.Plan, err)
		}
		tables := "SELECT coalesce(group_concat(table_name ORDER BY 1), '') FROM information_schema.tables WHERE table_schema = '" + target + "'"
		if got := r.client("", tables); got != "" {
			t.Errorf("a dry run made %s", got)
		}
		o.DryRun = false
		if _, err := r.restoreCtx(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if got := r.client("", tables); got != "c" {
			t.Errorf("of one table: %s", got)
		}
		o.Filter = bulk.Filter{}
		if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not empty") {
			t.Errorf("into what is not empty: %v", err)
		}
		o.Clean, o.Stop = true, true
		if _, err := r.restoreCtx(t.Context(), o); err == nil {
			t.Error("--clean without --if-exists of what does not exist succeeded")
		}
		r.client(target, "DROP TABLE weir_restore") // so that the next restore starts from the beginning
		o.IfExists, o.Stop = true, false
		if _, err := r.restoreCtx(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		r.compare(r.native(r.db), target)
		own := r.restored(restore.Options{Target: r.db + "_own", NoOwner: true})
		me, err := r.session("").Row(t.Context(), "SELECT current_user()")
		if err != nil {
			t.Fatal(err)
		}
		if got := r.client("", "SELECT definer FROM information_schema.triggers WHERE trigger_schema = '"+own+"' UNION SELECT definer FROM information_schema.views WHERE table_schema = '"+own+"'"); got != me[0] {
			t.Errorf("without owners, things belong to %s and not to %s", got, me[0])
		}
		r.client(target, "DROP TRIGGER tr; SET foreign_key_checks = 0; TRUNCATE a; TRUNCATE b; TRUNCATE c")
		o = restore.Options{DSN: m.DSN(target), DataOnly: true, Verify: restore.VerifyRows}
		if _, err := r.restoreCtx(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "twice") {
			t.Errorf("rows beside rows: %v", err)
		}
	})
}

// TestPartBesideOwn restores one table where another table has its name: neither the restore nor
// its --resume may drop that table.
func TestPartBesideOwn(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1), (2);")
		r.backup(backup.Options{}, archive.Options{})
		target := r.db + "_own"
		r.createDB(target)
		r.client(target, "CREATE TABLE a (own int PRIMARY KEY); INSERT INTO a VALUES (7)")
		o := restore.Options{DSN: m.DSN(target), Filter: bulk.Filter{Tables: []string{"a"}}}
		for _, o.Resume = range []bool{false, true} {
			for _, o.Stop = range []bool{false, true} {
				if _, err := r.restoreCtx(t.Context(), o); err == nil || !strings.Contains(err.Error(), "exists already") {
					t.Errorf("resume %v, stop %v: %v", o.Resume, o.Stop, err)
				}
			}
		}
		if got := r.client(target, "SELECT group_concat(own) FROM a"); got != "7" {
			t.Errorf("the table that was there holds %s", got)
		}
	})
}

// TestAccounts restores users and grants of a cluster into another server, and backs up with
// accounts of few privileges.
func TestAccounts(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		m = other(t, m)
		r := newRig(t, m, three)
		r.client("", "CREATE DATABASE `se``cond`; CREATE TABLE `se``cond`.t (id int PRIMARY KEY); CREATE USER 'o''brien'@'localhost' IDENTIFIED BY 'geheim'; GRANT SELECT ON "+r.db+".a TO 'o''brien'@'localhost'; "+
			"CREATE ROLE readers; GRANT SELECT ON "+r.db+".* TO readers; GRANT readers TO 'o''brien'@'localhost'")
		r.backup(backup.Options{Cluster: true}, archive.Options{})
		to := &rig{t: t, m: other(t, m), db: r.db, repo: r.repo}
		if _, err := to.restoreCtx(t.Context(), restore.Options{}); err != nil {
			t.Fatal(err)
		}
		r.compare(r.native(r.db), r.db)
		for _, sql := range []string{"SHOW GRANTS FOR 'o''brien'@'localhost'", "SELECT count(*) FROM `se``cond`.t"} {
			if got, want := to.client("", sql), r.client("", sql); got != want {
				t.Errorf("%s\ncopy   %s\nsource %s", sql, got, want)
			}
		}
		// Without RELOAD, LOCK TABLES suffices; without that, a single session.
		r.client("", "CREATE USER 'small'@'%' IDENTIFIED BY ''; GRANT SELECT, SHOW VIEW, TRIGGER, LOCK TABLES ON "+r.db+".* TO 'small'@'%'")
		dsn := strings.Replace(m.DSN(r.db), "root@", "small@", 1)
		if res := r.backup(backup.Options{DSN: dsn}, archive.Options{Label: "small"}); res.Lock != "lock tables" {
			t.Errorf("locked by %q", res.Lock)
		}
		r.client("", "REVOKE LOCK TABLES ON "+r.db+".* FROM 'small'@'%'")
		if _, err := r.backupCtx(t.Context(), backup.Options{DSN: dsn}, archive.Options{Label: "none"}); err == nil || !strings.Contains(err.Error(), "--jobs 1") {
			t.Errorf("error: %v", err)
		}
		if res := r.backup(backup.Options{DSN: dsn, Jobs: 1}, archive.Options{Label: "alone"}); len(res.Manifest.Warnings) == 0 {
			t.Error("no warning")
		}
	})
}

// TestStreamResumes archives a growing log in several runs, and by one continuous run, and
// compares the two.
func TestStreamResumes(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE x (id int NOT NULL PRIMARY KEY, t text)")
		res := r.backup(backup.Options{}, archive.Options{})
		from := start(res.Manifest)
		pieces, live := r.logs(), r.logs()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := begin(func() error {
			_, err := dump.StreamBinlog(ctx, dump.BinlogOptions{DSN: m.DSN(""), Storage: live, Start: from, Every: time.Millisecond})
			return err
		})
		s := r.session(r.db)
		for i := range 5 {
			r.exec(s, "START TRANSACTION", fmt.Sprintf("INSERT INTO x VALUES (%d, repeat('t', 3000))", 2*i), fmt.Sprintf("INSERT INTO x VALUES (%d, 'u')", 2*i+1), "COMMIT")
			if i == 2 {
				r.rotate()
			}
			r.stream(pieces, from)
		}
		r.exec(s, "DROP TABLE x")
		end := r.stream(pieces, from)
		again := r.stream(pieces, from)
		if end != again {
			t.Errorf("nothing has happened, and the end moved from %s to %s", end, again)
		}
		testkit.Await(t, func() bool { return r.ends(live) == end }, func() string {
			return fmt.Sprintf("the stream is at %s and never at %s", r.ends(live), end)
		})
		stop()
		if err := finished(t, done); err != nil {
			t.Fatal(err)
		}
		a, b := r.events(pieces, from), r.events(live, from)
		if a == "" || a != b {
			t.Errorf("two archives of one log differ:\n%s\n%s", a, b)
		}
	})
}
