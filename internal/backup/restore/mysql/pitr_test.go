package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	dump "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/binlog"
)

// other starts a server of the same engine as m, for this test alone.
func other(t *testing.T, m *lab.MySQL) *lab.MySQL {
	t.Helper()
	if m.Flavor() == lab.FlavorMySQL {
		return labtest.MySQL(t, config(m.Flavor()))
	}
	return labtest.MariaDB(t, config(m.Flavor()))
}

// logs returns the storage in which a test archives binary logs.
func (r *rig) logs() archive.Storage {
	r.t.Helper()
	s, err := archive.NewLocal(r.t.TempDir())
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func start(m *archive.Manifest) binlog.Position {
	return binlog.Position{File: m.Position.Binlog, Pos: uint64(m.Position.Offset)}
}

// stream archives the server's whole binary log from a position, and returns where it ends.
func (r *rig) stream(s archive.Storage, from binlog.Position) binlog.Position {
	r.t.Helper()
	end, err := dump.StreamBinlog(r.t.Context(), dump.BinlogOptions{DSN: r.m.DSN(""), Storage: s, Start: from, UntilEnd: true, SegmentBytes: 2000})
	if err != nil {
		r.t.Fatal(err)
	}
	return end
}

// into restores the latest backup into another server, under the same name, and returns a rig
// for it.
func (r *rig) into(m *lab.MySQL) *rig {
	r.t.Helper()
	to := &rig{t: r.t, m: m, db: r.db, repo: r.repo}
	if _, err := to.restoreCtx(r.t.Context(), restore.Options{Create: true, Clean: true}); err != nil {
		r.t.Fatal(err)
	}
	return to
}

// TestReplay restores a backup and replays the log from there: to the end, to a position, to a
// GTID, to a time.
func TestReplay(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, zoo(t, m)+"CREATE TABLE steps (id int NOT NULL PRIMARY KEY, at timestamp(6) NULL) ENGINE=InnoDB; INSERT INTO steps VALUES (0, NULL);")
		res := r.backup(backup.Options{}, archive.Options{})
		from := start(res.Manifest)
		logs := r.logs()
		s := r.session(r.db)
		var gtid binlog.GTID
		var moment time.Time
		var middle binlog.Position
		for i := 1; i <= 6; i++ {
			r.exec(s, fmt.Sprintf("INSERT INTO steps (id, at) VALUES (%d, now(6))", i))
			switch i {
			case 2:
				r.rotate()
				middle = r.stream(logs, from)
			case 3:
				gtid = r.lastGTID(s)
			case 4:
				r.client("", "SET sql_mode = 'ANSI_QUOTES', time_zone = '+05:00'; USE "+r.db+`; ALTER TABLE "steps" ADD COLUMN "extra" varchar(30) DEFAULT 'ü'; CREATE TABLE stamped (t timestamp DEFAULT '2020-02-02 02:02:02');`)
			case 5:
				// Servers record the time of a commit to the second.
				r.until("SELECT now(6) > at + INTERVAL 1100000 MICROSECOND FROM "+r.db+".steps WHERE id = 5", "1")
				moment = time.Unix(r.number("SELECT FLOOR(UNIX_TIMESTAMP(at)) + 1 FROM "+r.db+".steps WHERE id = 5"), 0).Add(-time.Microsecond)
			}
		}
		r.exec(s, "START TRANSACTION", "UPDATE strings SET lb = repeat(x'01', 900000), u = 'neu 😀' WHERE id = 5", "DELETE FROM numbers WHERE id = 2",
			"UPDATE numbers SET f = 0.1, d = -5 WHERE id < 9", "INSERT INTO docs VALUES (50, '{\"x\": 1}')", "COMMIT",
			"INSERT INTO child SELECT id + 100, 1, 1 FROM zz_parent", "UPDATE zz_parent SET id = 77 WHERE id = 1",
			"START TRANSACTION", "INSERT INTO bare VALUES (999)", "ROLLBACK", "DROP VIEW a_top")
		r.stream(logs, from)

		target := other(t, m)
		replay := func(o load.ReplayOptions) *rig {
			to := r.into(target)
			o.DSN, o.Storage, o.From, o.Databases = target.DSN(""), logs, from, []string{r.db}
			if _, err := load.Replay(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			return to
		}
		if got := replay(load.ReplayOptions{}).native(r.db); got != r.native(r.db) {
			t.Error("the copy and the source differ after all of the log has been replayed")
		}
		for _, c := range []struct {
			name string
			o    load.ReplayOptions
			want int64
		}{
			{"position", load.ReplayOptions{UntilPosition: middle}, 2},
			{"GTID", load.ReplayOptions{UntilGTID: gtid}, 3},
			{"moment", load.ReplayOptions{Until: moment}, 5},
		} {
			if got := replay(c.o).number("SELECT max(id) FROM " + r.db + ".steps"); got != c.want {
				t.Errorf("until a %s: the last step is %d instead of %d", c.name, got, c.want)
			}
		}
		// A lost segment is noticed.
		all, err := my.ListLogs(t.Context(), logs, "")
		if err != nil || len(all) < 4 {
			t.Fatalf("%d segments, %v", len(all), err)
		}
		if err := logs.Delete(t.Context(), all[2].Name); err != nil {
			t.Fatal(err)
		}
		r.into(target)
		_, err = load.Replay(t.Context(), load.ReplayOptions{DSN: target.DSN(""), Storage: logs, From: from})
		if !errors.Is(err, my.ErrLogGap) {
			t.Errorf("a log with a gap: %v", err)
		}
	})
}

func (r *rig) number(sql string) int64 {
	r.t.Helper()
	var n int64
	if _, err := fmt.Sscan(r.client("", sql), &n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// until polls a query until it returns want. It uses one session, because starting a client each
// time would take most of the CPU.
func (r *rig) until(sql, want string) {
	r.t.Helper()
	s := r.session("")
	var got string
	testkit.Await(r.t, func() bool {
		row, err := s.Row(r.t.Context(), sql)
		if err != nil {
			r.t.Fatalf("%s: %v", sql, err)
		}
		got = row[0]
		return got == want
	}, func() string { return fmt.Sprintf("%s is %q and never %q", sql, got, want) })
}

// lastGTID returns the GTID of the server's last transaction.
func (r *rig) lastGTID(s *my.Session) binlog.GTID {
	r.t.Helper()
	if r.maria() {
		row, err := s.Row(r.t.Context(), "SELECT @@last_gtid")
		if err != nil {
			r.t.Fatal(err)
		}
		var g binlog.GTID
		if _, err := fmt.Sscanf(row[0], "%d-%d-%d", &g.Domain, &g.Server, &g.Seq); err != nil {
			r.t.Fatal(err)
		}
		return g
	}
	row, err := s.Row(r.t.Context(), "SELECT @@server_uuid, REGEXP_SUBSTR(@@gtid_executed, '[0-9]+$')")
	if err != nil {
		r.t.Fatal(err)
	}
	var g binlog.GTID
	digits := strings.ReplaceAll(row[0], "-", "")
	for i := range g.UUID {
		if _, err := fmt.Sscanf(digits[2*i:2*i+2], "%02x", &g.UUID[i]); err != nil {
			r.t.Fatal(err)
		}
	}
	if _, err := fmt.Sscan(row[1], &g.Seq); err != nil {
		r.t.Fatal(err)
	}
	return g
}

// rotate begins another file of the binary log. When MariaDB's engine has flushed what is in the
// older files, the server writes a checkpoint event into the new one. rotate waits for that,
// because until then the log may grow by itself.
func (r *rig) rotate() {
	r.t.Helper()
	r.client("", "FLUSH BINARY LOGS")
	if !r.maria() {
		return
	}
	file, _, _ := strings.Cut(r.client("", "SHOW MASTER STATUS"), "\t")
	events := ""
	testkit.Await(r.t, func() bool {
		events = r.client("", "SHOW BINLOG EVENTS IN '"+file+"'")
		for line := range strings.Lines(events) {
			if e := strings.Split(strings.TrimSpace(line), "\t"); len(e) == 6 && e[2] == "Binlog_checkpoint" && e[5] == file {
				return true
			}
		}
		return false
	}, func() string { return fmt.Sprintf("the server still needs logs before %s:\n%s", file, events) })
}

// TestReplayOfOneDatabase replays what changes that database, whatever the client's default
// database was, and nothing that changes others.
func TestReplayOfOneDatabase(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE x (id int PRIMARY KEY); CREATE TABLE old (id int);")
		beside := r.db + "_b"
		r.createDB(beside)
		const victim = "CREATE TABLE victim (id int PRIMARY KEY); INSERT INTO victim VALUES (1)"
		r.client(beside, victim)
		from := start(r.backup(backup.Options{}, archive.Options{}).Manifest)
		a, b := my.Ident(r.db), my.Ident(beside)
		r.client(beside, "CREATE TABLE "+a+".made (id int PRIMARY KEY, n int); INSERT INTO "+a+".made VALUES (1, 2); CREATE INDEX n ON "+a+".made (n); DROP TABLE "+a+".old; CREATE TABLE own (id int)")
		r.client(r.db, "CREATE TABLE "+b+".other (id int); INSERT INTO "+b+".other VALUES (1); DROP TABLE "+b+".victim; CREATE VIEW v AS SELECT * FROM x; INSERT INTO x VALUES (7); CREATE USER replayed_nowhere; DROP USER replayed_nowhere")
		want := r.native(r.db)
		logs := r.logs()
		r.stream(logs, from)
		to := r.into(other(t, m))
		to.createDB(beside)
		to.client(beside, victim)
		o := load.ReplayOptions{DSN: to.m.DSN(""), Storage: logs, From: from, Databases: []string{r.db}}
		if _, err := load.PlanReplay(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if _, err := load.Replay(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if got := to.native(r.db); got != want {
			t.Errorf("the copy:\n%s\nthe source:\n%s", got, want)
		}
		if got := to.client("", "SELECT table_name FROM information_schema.tables WHERE table_schema = '"+beside+"'"); got != "victim" {
			t.Errorf("another database has %q", got)
		}
		// A statement that changes both databases cannot be replayed for one.
		r.client(beside, "RENAME TABLE "+a+".made TO "+b+".moved")
		r.stream(logs, from)
		if _, err := load.PlanReplay(t.Context(), o); err == nil || !strings.Contains(err.Error(), "changes database "+beside+", too") || !strings.Contains(err.Error(), "RENAME TABLE") {
			t.Errorf("a plan with a table that moves to another database: %v", err)
		}
		if got := to.native(r.db); got != want {
			t.Errorf("the plan changed the database:\n%s", got)
		}
		r.into(to.m)
		if _, err := load.Replay(t.Context(), o); err == nil || !strings.Contains(err.Error(), "changes database "+beside+", too") {
			t.Errorf("a table that moves to another database: %v", err)
		}
	})
}

// TestReplayTwice recovers twice into one server, so that accounts that the log creates exist
// the second time. Those with the same definition stay; any other definition is an error before
// anything is restored.
func TestReplayTwice(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, other(t, m), "CREATE TABLE x (id int PRIMARY KEY);")
		from := start(r.backup(backup.Options{}, archive.Options{}).Manifest)
		r.client("", "CREATE USER one@'%' IDENTIFIED BY 'Sesame-1', `tw'o`@localhost IDENTIFIED BY 'Sesame-2' REQUIRE SSL; CREATE ROLE reader; CREATE USER IF NOT EXISTS three; "+
			"GRANT SELECT ON *.* TO one@'%'; CREATE USER gone; DROP USER gone; CREATE USER gone; RENAME USER gone TO found; INSERT INTO "+r.db+".x VALUES (1)")
		logs := r.logs()
		r.stream(logs, from)
		target := other(t, m)
		o := load.ReplayOptions{DSN: target.DSN(""), Storage: logs, From: from}
		to := r.into(target)
		const who = "SELECT concat(user, '@', host) FROM mysql.user WHERE user IN ('one', 'reader', 'three', 'gone', 'found') OR user LIKE 'tw%' OR user LIKE 'weir%' ORDER BY 1"
		plan := func() ([]string, error) { return load.PlanReplay(t.Context(), o) }
		if warnings, err := plan(); err != nil || len(warnings) > 0 {
			t.Fatal(warnings, err)
		}
		if _, err := load.Replay(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		want := to.client("", who)
		to.client("", "DROP USER found")
		warnings, err := plan()
		if err != nil || len(warnings) != 3 {
			t.Fatalf("the same once more: %q, %v", warnings, err)
		}
		r.into(target)
		if _, err := load.Replay(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if got := to.client("", who); got != want {
			t.Errorf("accounts %q, after the first time %q", got, want)
		}
		password := "'Sesame-3'"
		if r.maria() {
			password = "PASSWORD('Sesame-3')"
		}
		for _, change := range []string{
			"DROP USER found; CREATE USER found",
			"DROP USER found; ALTER USER `tw'o`@localhost REQUIRE NONE",
			"ALTER USER `tw'o`@localhost REQUIRE SSL; SET PASSWORD FOR one@'%' = " + password,
		} {
			to.client("", change)
			if _, err := plan(); err == nil || !strings.Contains(err.Error(), "exists on the server") || strings.Contains(err.Error(), "Sesame") {
				t.Errorf("after %s: %v", change, err)
			}
		}
		if got := to.client("", "SELECT count(*) FROM mysql.user WHERE user LIKE 'weir%'"); got != "0" {
			t.Errorf("%s accounts are left from the comparison", got)
		}
	})
}

// TestReplayOfTheServersOwnTwice does the same with library functions, accounts that the log
// drops, and privileges that it revokes.
func TestReplayOfTheServersOwnTwice(t *testing.T) {
	r := newRig(t, other(t, server(t, lab.FlavorMariaDB)), "CREATE TABLE x (id int PRIMARY KEY); CREATE USER old; CREATE USER older; GRANT SELECT ON *.* TO old; CREATE ROLE desk; GRANT desk TO old")
	from := start(r.backup(backup.Options{Cluster: true, DSN: r.m.DSN("")}, archive.Options{}).Manifest)
	r.client("", "REVOKE SELECT ON *.* FROM old; REVOKE desk FROM old; GRANT SELECT ON "+r.db+".x TO old; REVOKE SELECT ON "+r.db+".x FROM old; DROP USER older; CREATE USER gone; DROP USER gone")
	// A library of MariaDB's own packages has functions.
	const library = "ha_sphinx.so"
	if _, err := os.Stat(filepath.Join(r.client("", "SELECT @@plugin_dir"), library)); err != nil {
		t.Fatal(err)
	}
	r.client("", "CREATE FUNCTION sphinx_snippets RETURNS STRING SONAME '"+library+"'; INSERT INTO "+r.db+".x VALUES (1)")
	logs := r.logs()
	r.stream(logs, from)
	target := other(t, r.m)
	o := load.ReplayOptions{DSN: target.DSN(""), Storage: logs, From: from}
	to := &rig{t: t, m: target, db: r.db, repo: r.repo}
	const what = "SELECT concat(name, ' ', dl) FROM mysql.func; SHOW GRANTS FOR old; SELECT count(*) FROM mysql.user WHERE user = 'older'"
	want := r.client("", what)
	var warnings []string
	for round := range 3 {
		switch round {
		case 1:
			to.client("", "DROP DATABASE "+r.db)
		case 2: // a backup of the database alone, without accounts and functions of the server
			to.client("", "DROP DATABASE "+r.db+"; CREATE DATABASE "+r.db)
		}
		var err error
		if warnings, err = load.PlanReplay(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if _, err := to.restoreCtx(t.Context(), restore.Options{NoGlobals: round == 2, Clean: round == 2}); err != nil {
			t.Fatal(err)
		}
		if _, err := load.Replay(t.Context(), o); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if got := to.client("", what); got != want {
			t.Errorf("round %d:\n%s\nthe source has\n%s", round, got, want)
		}
	}
	if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "function sphinx_snippets of library "+library) }) {
		t.Errorf("warnings: %q", warnings)
	}
	to.client("", "UPDATE mysql.func SET dl = 'another.so'")
	if _, err := load.PlanReplay(t.Context(), o); err == nil || !strings.Contains(err.Error(), "DROP FUNCTION `sphinx_snippets`") {
		t.Errorf("a function of another library: %v", err)
	}
}

// TestStreamKeepsWhatHasCome cuts the connection: all complete transactions that have arrived
// are archived, those before and those after one that is too large for memory.
func TestStreamKeepsWhatHasCome(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, other(t, m), "CREATE TABLE x (id int PRIMARY KEY, b longblob)")
		storage := r.logs()
		from := start(r.backup(backup.Options{}, archive.Options{}).Manifest)
		s := r.session(r.db)
		r.exec(s, "INSERT INTO x VALUES (1, NULL)", "START TRANSACTION")
		for i := range 10 {
			r.exec(s, fmt.Sprintf("INSERT INTO x VALUES (%d, repeat('x', 1000000))", 10+i))
		}
		r.exec(s, "COMMIT", "INSERT INTO x VALUES (2, NULL)")
		files := strings.Split(r.client("", "SHOW BINARY LOGS"), "\n") // MySQL 8.4 knows no MASTER STATUS
		want := strings.Join(strings.Fields(files[len(files)-1])[:2], ":")
		done := begin(func() error {
			_, err := dump.StreamBinlog(t.Context(), dump.BinlogOptions{DSN: r.m.DSN(""), Storage: storage, Start: from, Every: time.Hour})
			return err
		})
		id := ""
		testkit.Await(t, func() bool {
			id = r.client("", "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%' AND state LIKE '%has sent all binlog%'")
			return id != ""
		}, func() string { return "the server never sends all: " + r.client("", "SHOW PROCESSLIST") })
		r.client("", "KILL "+id)
		if err := finished(t, done); err == nil {
			t.Fatal("a connection that is killed is no error")
		}
		end, err := my.LogEnd(t.Context(), storage, "")
		if err != nil || end.String() != want {
			t.Errorf("archived up to %s, and the server had sent all up to %s: %v", end, want, err)
		}
		logs, err := my.OpenLogs(t.Context(), storage, "", from)
		if err != nil {
			t.Fatal(err)
		}
		var tracker binlog.Tracker
		transactions := 0
		for {
			e, err := logs.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			step, err := tracker.Observe(e)
			if err != nil {
				t.Fatal(err)
			}
			if step == binlog.StepCommit {
				transactions++
			}
		}
		if transactions != 3 {
			t.Errorf("%d transactions are archived, not 3", transactions)
		}
	})
}

// slow is a storage that does not complete an object before the run is interrupted, as one
// that throttles requests.
type slow struct {
	archive.Storage
	begun chan struct{} // closed when an object is begun
}

type slowObject struct {
	archive.ObjectWriter
	ctx context.Context
}

func (s slow) Create(ctx context.Context, name string) (archive.ObjectWriter, error) {
	w, err := s.Storage.Create(ctx, name)
	close(s.begun)
	return slowObject{w, ctx}, err
}

func (o slowObject) Commit() (archive.ObjectInfo, error) {
	<-o.ctx.Done()
	return archive.ObjectInfo{}, o.ctx.Err()
}

// TestStreamEndsWhileStorageIsSlow interrupts a receiver whose storage does not respond: it ends
// soon, reports what is not archived, and another one archives that.
func TestStreamEndsWhileStorageIsSlow(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE x (id int PRIMARY KEY)")
	from := start(r.backup(backup.Options{}, archive.Options{}).Manifest)
	r.client(r.db, "INSERT INTO x VALUES (1)")
	storage := slow{r.logs(), make(chan struct{})}
	ctx, interrupt := context.WithCancel(t.Context())
	done := begin(func() error {
		_, err := dump.StreamBinlog(ctx, dump.BinlogOptions{DSN: r.m.DSN(""), Storage: storage, Start: from, Every: time.Hour, Grace: time.Millisecond})
		return err
	})
	<-storage.begun
	interrupt()
	if err := finished(t, done); err == nil || !strings.Contains(err.Error(), "another run continues after "+from.String()) {
		t.Errorf("interrupted: %v", err)
	}
	if end := r.stream(storage.Storage, from); !dump.Before(from, end) {
		t.Errorf("another run ends at %s", end)
	}
}

// TestPositionWithoutLock backs up with one job and an account that may not lock tables, while
// others commit: the position must be that of the rows.
func TestPositionWithoutLock(t *testing.T) {
	m := other(t, server(t, lab.FlavorMariaDB))
	r := newRig(t, m, "CREATE TABLE x (id int PRIMARY KEY AUTO_INCREMENT); CREATE TABLE more (id int PRIMARY KEY); INSERT INTO more VALUES (1); CREATE TRIGGER tr BEFORE INSERT ON more FOR EACH ROW SET NEW.id = 1;")
	r.client("", "CREATE USER reader IDENTIFIED BY 'r'; GRANT SELECT ON "+r.db+".* TO reader")
	seq := func(text string) int64 {
		var d, s, n int64
		if _, err := fmt.Sscanf(text, "%d-%d-%d", &d, &s, &n); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return n
	}
	s := r.session(r.db)
	base := seq(r.client("", "SELECT @@gtid_binlog_pos"))
	stop, inserted := make(chan struct{}), make(chan struct{}, 1)
	writing := begin(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			if err := s.Exec(t.Context(), "INSERT INTO x VALUES ()"); err != nil {
				return err
			}
			select {
			case inserted <- struct{}{}:
			default:
			}
		}
	})
	for range 5 {
		<-inserted
		res := r.backup(backup.Options{DSN: strings.Replace(m.DSN(r.db), "root@", "reader:r@", 1), Jobs: 1}, archive.Options{})
		p := res.Manifest.Position
		for _, table := range res.Tables {
			if want := seq(p.GTID) - base; table.Table == "x" && table.Rows != want {
				t.Errorf("%d rows at %s, where there are %d", table.Rows, p.GTID, want)
			}
		}
		if p.Binlog == "" || p.Offset == 0 {
			t.Errorf("position %+v", p)
		}
		// Objects that the user may not see are reported as missing.
		if text := strings.Join(res.Manifest.Warnings, "\n"); !res.Manifest.Partial || !strings.Contains(text, "triggers, events, routines") {
			t.Errorf("partial %v, warnings %q", res.Manifest.Partial, text)
		}
	}
	close(stop)
	if err := finished(t, writing); err != nil {
		t.Fatal(err)
	}
}

// TestStreamPurged asks for log that the server has purged.
func TestStreamPurged(t *testing.T) {
	m := server(t, lab.FlavorMariaDB)
	r := newRig(t, other(t, m), "CREATE TABLE x (id int)")
	res := r.backup(backup.Options{}, archive.Options{})
	r.client(r.db, "INSERT INTO x VALUES (1); FLUSH BINARY LOGS; FLUSH BINARY LOGS;")
	now, _, _ := strings.Cut(r.client("", "SHOW MASTER STATUS"), "\t")
	// A file can be purged when the engine has flushed all of it.
	testkit.Eventually(t, "the server no longer keeps its logs", func() bool {
		return strings.HasPrefix(r.client("", "PURGE BINARY LOGS TO '"+now+"'; SHOW BINARY LOGS"), now)
	})
	_, err := dump.StreamBinlog(t.Context(), dump.BinlogOptions{DSN: r.m.DSN(""), Storage: r.logs(), Start: start(res.Manifest), UntilEnd: true})
	if !errors.Is(err, binlog.ErrPurged) || !strings.Contains(err.Error(), res.Manifest.Position.Binlog) {
		t.Errorf("from %s: error: %v", start(res.Manifest), err)
	}
}

// ends returns where an archive ends.
func (r *rig) ends(s archive.Storage) binlog.Position {
	r.t.Helper()
	end, err := my.LogEnd(r.t.Context(), s, "")
	if err != nil {
		r.t.Fatal(err)
	}
	return end
}

// events lists the places of all events of an archive.
func (r *rig) events(s archive.Storage, from binlog.Position) string {
	r.t.Helper()
	l, err := my.OpenLogs(r.t.Context(), s, "", from)
	if err != nil {
		r.t.Fatal(err)
	}
	var b strings.Builder
	for {
		e, err := l.Next(r.t.Context())
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			r.t.Fatal(err)
		}
		if e.Type != binlog.FormatDescriptionEvent {
			fmt.Fprintf(&b, "%s:%d %s %d\n", e.File, e.End, e.Type, e.Size)
		}
	}
}
