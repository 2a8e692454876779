package backupcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func TestBinlogCommandLines(t *testing.T) {
	program.Script(t, "testdata/binlog.txt")
}

// stall is a MariaDB server with a binary log.
type stall struct {
	t *testing.T
	m *lab.MySQL
}

func newStall(t *testing.T) *stall {
	t.Helper()
	clitest.ClearEnvironment(t)
	return &stall{t, labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, Settings: map[string]string{"local-infile": "1"}})}
}

func (s *stall) sql(db, script string) string {
	s.t.Helper()
	cmd := exec.Command(s.m.Client(), "--no-defaults", "-u", s.m.User(), "-h", s.m.Host(), "-P", fmt.Sprint(s.m.Port()), "-N", "-B", "--password="+s.m.Password(), db)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// stock is a source database.
func (s *stall) stock() {
	s.sql("", `CREATE DATABASE shop; USE shop;
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT seq, md5(seq) FROM seq_1_to_1000;`)
}

func (s *stall) add(id int) {
	s.t.Helper()
	s.sql("shop", fmt.Sprintf("INSERT INTO orders VALUES (%d, 'step')", id))
}

// print is what the database holds.
func (s *stall) print() string {
	s.t.Helper()
	return s.sql("shop", "SELECT id, note FROM orders ORDER BY id; SHOW CREATE TABLE orders")
}

// position is where the server's log ends, and its last GTID.
func (s *stall) position() (pos, gtid string) {
	s.t.Helper()
	f := strings.Fields(s.sql("", "SHOW MASTER STATUS"))
	return f[0] + ":" + f[1], s.sql("", "SELECT @@gtid_binlog_pos")
}

// rotate begins another file of the log, and waits until the server has recorded in it that the
// older ones are no longer needed. It does so when its engine has flushed what is in them; until
// then the log may grow by itself.
func (s *stall) rotate() {
	s.t.Helper()
	s.sql("", "FLUSH BINARY LOGS")
	file := strings.Fields(s.sql("", "SHOW MASTER STATUS"))[0]
	testkit.Eventually(s.t, "older logs are needed no more", func() bool {
		for line := range strings.Lines(s.sql("", "SHOW BINLOG EVENTS IN '"+file+"'")) {
			if e := strings.Fields(line); len(e) == 6 && e[2] == "Binlog_checkpoint" && e[5] == file {
				return true
			}
		}
		return false
	})
}

// tick waits until the server's clock is in another second, for servers note
// commits to the second. It returns the end of the last one.
func (s *stall) tick() string {
	s.t.Helper()
	was := s.sql("", "SELECT UNIX_TIMESTAMP()")
	testkit.Eventually(s.t, "the server's clock goes on", func() bool { return s.sql("", "SELECT UNIX_TIMESTAMP()") != was })
	var n int64
	if _, err := fmt.Sscan(was, &n); err != nil {
		s.t.Fatal(err)
	}
	return time.Unix(n, 999_999_000).UTC().Format(time.RFC3339Nano)
}

// TestBinlogIsArchivedAndReplayed kills a receiver, resumes it, and restores to
// moments that are compared with what the source was then.
func TestBinlogIsArchivedAndReplayed(t *testing.T) {
	s := newStall(t)
	s.stock()
	repo := filepath.Join(t.TempDir(), "repo")
	out := clitest.Decode[notice.Outcome](t, program.Must(t, "backup", s.m.DSN("shop"), "--to", repo, "--json"))
	logs := func() catalogue {
		return clitest.Decode[catalogue](t, program.Must(t, "backup", "list", repo, "--json"))
	}

	args := []string{"backup", "binlog", s.m.DSN(""), "--to", repo, "--flush-interval", "20ms"}
	p := start(t, args...)
	testkit.Eventually(t, "log is kept", func() bool { return len(logs().Binlogs) == 1 })
	s.add(2001)
	end, _ := s.position()
	testkit.Eventually(t, "the first step is kept", func() bool { return logs().Binlogs[0].End == end })
	if code := p.end(os.Kill); code != -1 {
		t.Errorf("exit code %d", code)
	}
	s.rotate()
	s.sql("shop", "ALTER TABLE orders ADD COLUMN extra int DEFAULT 7")
	s.add2(2002)
	positionOf2, gtidOf2 := s.position()
	want2 := s.print()
	p = start(t, args...)
	s.add2(2003)
	end, _ = s.position()
	testkit.Eventually(t, "what came meanwhile is kept", func() bool { return logs().Binlogs[0].End == end })
	if code := p.end(syscall.SIGTERM); code != cli.ExitFine {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	want3, moment3 := s.print(), s.tick()
	s.sql("shop", "BEGIN; DELETE FROM orders WHERE id < 500; UPDATE orders SET note = 'neu'; COMMIT")
	metrics := filepath.Join(t.TempDir(), "binlog.prom")
	b := clitest.Decode[binlogOutcome](t, program.Must(t, "backup", "binlog", s.m.DSN(""), "--to", repo, "--until-now", "--json", "-q", "--metrics-file", metrics))
	if now, _ := s.position(); b.Position != now || b.Segments == 0 || b.Log == "" {
		t.Errorf("outcome %+v, and the server is at %s", b, now)
	}
	if n, err := notice.ReadMetric(metrics, fmt.Sprintf("weir_binlog_segments_total{log=%q}", b.Log)); n == 0 || err != nil {
		t.Errorf("metrics: %v, %v", n, err)
	}
	wantEnd := s.print()

	c := logs()
	if len(c.Backups) != 1 || len(c.Binlogs) != 1 || c.Binlogs[0].Name != b.Log || c.Binlogs[0].Server == "" || !strings.Contains(program.Must(t, "backup", "list", repo), "binlog "+b.Log) {
		t.Errorf("catalogue: %+v", c)
	}
	v := clitest.Decode[verifyReport](t, program.Must(t, "backup", "verify", repo, "--log", "--json"))
	if !v.OK || v.Binlog == nil || v.Binlog.Transactions != 5 || v.Binlog.Segments < 4 || v.Binlog.Segments > c.Binlogs[0].Segments || v.Binlog.End != b.Position {
		t.Errorf("verification: %+v", v.Binlog)
	}

	target := &stall{t, labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, Settings: map[string]string{"local-infile": "1"}})}
	restore := func(flags ...string) []string {
		return append([]string{"restore", repo, "--to", target.m.DSN(""), "--create", "--clean", "--if-exists"}, flags...)
	}
	for _, c := range []struct {
		flag, at, want string
	}{
		{"--target-time", moment3, want3},
		{"--target-gtid", gtidOf2, want2},
		{"--target-position", positionOf2, want2},
		{"--target-position", c.Backups[0].Summary.Position.Binlog + ":" + fmt.Sprint(c.Backups[0].Summary.Position.Offset), ""},
	} {
		text := program.Must(t, restore(c.flag, c.at)...)
		if !strings.Contains(text, "replayed binary log "+b.Log) {
			t.Errorf("%s: it says %s", c.flag, text)
		}
		if c.want == "" {
			if n := target.sql("shop", "SELECT count(*) FROM orders"); n != "1000" {
				t.Errorf("%s %s: %s rows", c.flag, c.at, n)
			}
		} else if got := target.print(); got != c.want {
			t.Errorf("%s %s: the copy is not what the source was", c.flag, c.at)
		}
	}
	r := clitest.Decode[restoreOutcome](t, program.Must(t, restore("--target-latest", "--json")...))
	if r.Replay == nil || r.Replay.Transactions != 5 || r.ID != out.ID || target.print() != wantEnd {
		t.Errorf("to the end: %+v", r.Replay)
	}

	// Targets that cannot be reached are errors before anything changes.
	for _, c := range []struct{ words, flag, at string }{
		{"no complete backup from which", "--target-time", "2020-01-01T00:00:00Z"},
		{"is not in the archived log", "--target-gtid", "0-1-999999"},
		{"no end of a transaction", "--target-position", positionOf2 + "9"},
	} {
		program.Refuse(t, cli.ExitFailed, []string{c.words}, restore(c.flag, c.at)...)
	}
	program.Refuse(t, cli.ExitFailed, []string{"no binary log of the server"}, restore("--target-latest", "--log", "other")...)
	program.Refuse(t, cli.ExitFailed, []string{"another server"}, "backup", "binlog", withBinlog(t).DSN(""), "--to", repo, "--log", b.Log)
	if target.print() != wantEnd {
		t.Error("a restore that was refused has changed the target")
	}
	program.Must(t, "backup", s.m.DSN("shop"), "--to", repo, "--id", "part", "-t", "orders", "-q")
	program.Refuse(t, cli.ExitFailed, []string{"some tables"}, "restore", repo, "part", "--to", target.m.DSN(""), "--create", "--clean", "--target-latest")
	program.Must(t, restore("--target-latest", "-q")...) // on the older one, which is whole
	program.Must(t, "backup", s.m.DSN("shop"), "--to", repo, "--id", "all", "-q")
	program.Refuse(t, cli.ExitUsage, []string{"under the original name"}, "restore", repo, "all", "--to", target.m.DSN("other"), "--target-latest")
	all := s.segments(repo, b.Log)
	last := all[len(all)-1]
	if err := os.Rename(last, last+".away"); err != nil {
		t.Fatal(err)
	}
	program.Refuse(t, cli.ExitFailed, []string{"gap", "archived up to " + b.Position, "nothing was restored"},
		"restore", repo, out.ID, "--to", target.m.DSN(""), "--create", "--clean", "--target-latest")
	program.Refuse(t, cli.ExitShortfall, []string{"archived up to " + b.Position}, "backup", "verify", repo, out.ID, "--log")
	program.Must(t, "restore", repo, out.ID, "--to", target.m.DSN(""), "--create", "--clean", "--target-position", positionOf2)
	if got := target.print(); got != want2 {
		t.Error("to a target before what is lost: the copy is not what the source was")
	}
	if err := os.Rename(last+".away", last); err != nil {
		t.Fatal(err)
	}
	s.loseSegment(repo, b.Log)
	program.Refuse(t, cli.ExitFailed, []string{"gap", "nothing was restored"}, "restore", repo, out.ID, "--to", target.m.DSN(""), "--create", "--clean", "--target-latest")
	program.Refuse(t, cli.ExitShortfall, []string{"gap"}, "backup", "verify", repo, out.ID, "--log")
}

// withBinlog is another server.
func withBinlog(t *testing.T) *lab.MySQL {
	t.Helper()
	return labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true})
}

// add2 adds a row to the table with three columns.
func (s *stall) add2(id int) {
	s.t.Helper()
	s.sql("shop", fmt.Sprintf("INSERT INTO orders VALUES (%d, 'step', %d)", id, id))
}

// segments are the files of a log, in its order.
func (s *stall) segments(repo, log string) []string {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(repo, "binlog", log, "*", "*.zst"))
	if err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// loseSegment removes one in the middle.
func (s *stall) loseSegment(repo, log string) {
	s.t.Helper()
	all := s.segments(repo, log)
	if len(all) < 4 {
		s.t.Fatalf("%d segments", len(all))
	}
	if err := os.Remove(all[len(all)-2]); err != nil {
		s.t.Fatal(err)
	}
}

// TestPruneKeepsTheBinlogOfBackups removes a backup, and with it the log that no
// other needs.
func TestPruneKeepsTheBinlogOfBackups(t *testing.T) {
	s := newStall(t)
	s.stock()
	repo := filepath.Join(t.TempDir(), "repo")
	// One segment a run, however long it takes.
	follow := []string{"backup", "binlog", s.m.DSN(""), "--to", repo, "--until-now", "--flush-interval", "1h"}
	log := clitest.Decode[binlogOutcome](t, program.Must(t, append(follow, "--json")...)).Log
	step := func(id int) {
		program.Must(t, "backup", s.m.DSN("shop"), "--to", repo, "--id", fmt.Sprintf("b%d", id), "-q")
		s.add(id)
		program.Must(t, append(follow, "-q")...)
	}
	for id := 3001; id <= 3003; id++ {
		step(id)
	}
	before := len(s.segments(repo, log))
	for _, keep := range []string{"3", "2", "1"} {
		planned := clitest.Decode[pruneReport](t, program.Must(t, "backup", "prune", repo, "--keep-last", keep, "--dry-run", "--json"))
		done := clitest.Decode[pruneReport](t, program.Must(t, "backup", "prune", repo, "--keep-last", keep, "--json"))
		if planned.Segments != done.Segments || done.Segments != 1 || len(s.segments(repo, log)) != before-1 {
			t.Errorf("keep %s: planned %d, removed %d, of %d segments %d are left", keep, planned.Segments, done.Segments, before, len(s.segments(repo, log)))
		}
		before = len(s.segments(repo, log))
		for _, e := range clitest.Decode[catalogue](t, program.Must(t, "backup", "list", repo, "--json")).Backups {
			program.Must(t, "backup", "verify", repo, e.ID, "--log", "-q")
		}
	}
	program.Must(t, append(follow, "-q")...)
}

// TestBinlogGapIsAnError asks for what the server has thrown away.
func TestBinlogGapIsAnError(t *testing.T) {
	s := newStall(t)
	s.stock()
	repo := filepath.Join(t.TempDir(), "repo")
	follow := []string{"backup", "binlog", s.m.DSN(""), "--to", repo}
	program.Must(t, append(follow, "--until-now")...)
	s.sql("shop", "INSERT INTO orders VALUES (0, ''); FLUSH BINARY LOGS; FLUSH BINARY LOGS")
	now := strings.Fields(s.sql("", "SHOW MASTER STATUS"))[0]
	// A log goes when the engine has written all of it down.
	testkit.Eventually(t, "the server throws log away", func() bool {
		return strings.HasPrefix(s.sql("", "PURGE BINARY LOGS TO '"+now+"'; SHOW BINARY LOGS"), now)
	})
	program.Refuse(t, cli.ExitFailed, []string{"a gap", "--log NAME"}, follow...)
	program.Must(t, "backup", s.m.DSN("shop"), "--to", repo, "-q")
	program.Refuse(t, cli.ExitFailed, []string{"gap"}, "restore", repo, "--to", s.m.DSN(""), "--create", "--clean", "--target-latest")
	program.Must(t, append(follow, "--until-now", "--log", "later", "--start", now+":4")...)
	if v := clitest.Decode[verifyReport](t, program.Must(t, "backup", "verify", repo, "--log", "--json")); v.Binlog == nil || v.Binlog.Name != "later" {
		t.Errorf("verification: %+v", v.Binlog)
	}
}

// TestBinlogReceiverConnectsAgain cuts its connection.
func TestBinlogReceiverConnectsAgain(t *testing.T) {
	s := newStall(t)
	s.stock()
	relay, err := lab.StartRelay(fmt.Sprintf("%s:%d", s.m.Host(), s.m.Port()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := relay.Close(); err != nil {
			t.Error(err)
		}
	})
	repo := filepath.Join(t.TempDir(), "repo")
	dsn := strings.Replace(s.m.DSN(""), fmt.Sprintf(":%d", s.m.Port()), fmt.Sprintf(":%d", relay.Port()), 1)
	p := start(t, "backup", "binlog", dsn, "--to", repo, "--flush-interval", "20ms")
	kept := func() bool {
		// The repository is there only once the receiver has made it.
		if _, err := os.Stat(repo); errors.Is(err, fs.ErrNotExist) {
			return false
		}
		end, _ := s.position()
		logs := clitest.Decode[catalogue](t, program.Must(t, "backup", "list", repo, "--json")).Binlogs
		return len(logs) == 1 && logs[0].End == end
	}
	testkit.Eventually(t, "log is kept", kept)
	relay.Cut()
	s.add(4001)
	testkit.Eventually(t, "what came after the cut is kept", kept)
	if code := p.end(syscall.SIGTERM); code != cli.ExitFine || !strings.Contains(p.stderr.String(), "trying again") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}
