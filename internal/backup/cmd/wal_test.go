package backupcmd

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestBaseBackupAndLogInS3 takes them there and brings them back. That servers
// start on what comes back is tested with package wal.
func TestBaseBackupAndLogInS3(t *testing.T) {
	s := newOwnShop(t, lab.PostgresConfig{Settings: map[string]string{"wal_level": "replica", "synchronous_commit": "on"}})
	store := labtest.S3(t, lab.BrokerConfig{})
	for _, kv := range store.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	place := strings.Replace(store.URL(), "?", "/pitr?", 1)
	metrics := filepath.Join(t.TempDir(), "wal.prom")
	got := clitest.Decode[walOutcome](t, program.Must(t, "backup", "wal", s.dsn("postgres"), "--to", place, "--until-now", "--json"))
	if got.System == "" || got.Timeline != 1 || !strings.Contains(got.Position, "/") || !strings.HasPrefix(got.Location, "s3://") {
		t.Errorf("outcome of the log: %+v", got)
	}
	out := clitest.Decode[notice.Outcome](t, program.Must(t, "backup", "base", s.dsn("postgres"), "--to", place, "--json"))
	if !out.OK || out.Label != "base" || out.PlainBytes < 10<<20 {
		t.Errorf("outcome: %+v", out)
	}
	s.psql("shop", "INSERT INTO orders VALUES (0, 'late'); SELECT pg_switch_wal(); INSERT INTO orders VALUES (-1, 'later')")
	if text := program.Must(t, "backup", "wal", s.dsn("postgres"), "--to", place, "--until-now", "--metrics-file", metrics); !strings.Contains(text, "kept up to") {
		t.Errorf("it says %s", text)
	}
	if v, err := notice.ReadMetric(metrics, "weir_wal_flushed_bytes"); err != nil || v == 0 {
		t.Errorf("flushed %v, %v", v, err)
	}
	c := clitest.Decode[catalogue](t, program.Must(t, "backup", "list", place, "--json"))
	if len(c.Backups) != 1 || len(c.Logs) != 1 || !c.Logs[0].Partial || !strings.Contains(program.Must(t, "backup", "list", place), "log of cluster") {
		t.Fatalf("catalogue: %+v", c)
	}
	v := clitest.Decode[verifyReport](t, program.Must(t, "backup", "verify", place, "--log", "--json"))
	if !v.OK || v.Log == nil || v.Log.Files == 0 {
		t.Errorf("verification: %+v", v)
	}
	program.Refuse(t, cli.ExitUsage, []string{"--to-dir"}, "restore", place, "--to", s.dsn("postgres"))

	data := filepath.Join(t.TempDir(), "data")
	program.Refuse(t, cli.ExitFailed, []string{"cannot be reached", "ends at " + v.Log.End}, "restore", place, "--to-dir", data, "--target-lsn", v.Log.End)
	program.Refuse(t, cli.ExitFailed, []string{"cannot be reached", "its last transaction ended at"}, "restore", place, "--to-dir", data, "--target-time", "2999-01-01 00:00:00+00")
	program.Refuse(t, cli.ExitFailed, []string{"cannot be reached", `restore point "x" is not in it`}, "restore", place, out.ID, "--to-dir", data, "--target-name", "x")
	if _, err := os.Stat(data); err == nil {
		t.Error("a directory was made for a target that cannot be reached")
	}
	last := s.psql("shop", "SELECT '"+v.Log.End+"'::pg_lsn - 1")
	if text := program.Must(t, "restore", place, "--to-dir", data, "--target-lsn", last, "--program", "/opt/we ir"); !strings.Contains(text, out.ID) {
		t.Errorf("it says %s", text)
	}
	conf, err := os.ReadFile(filepath.Join(data, "postgresql.auto.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`restore_command = '''/opt/we ir'' wal-fetch --system ` + c.Logs[0].SystemID, `http%%3A%%2F%%2F`, `"%f" "%p"'`,
		"recovery_target_lsn = '" + last + "'", "recovery_target_action = 'promote'",
	} {
		if !strings.Contains(string(conf), want) {
			t.Errorf("settings lack %s:\n%s", want, conf)
		}
	}
	program.Refuse(t, cli.ExitFailed, []string{"not empty"}, "restore", place, "--to-dir", data)
	program.Refuse(t, cli.ExitFailed, []string{"not consistent before"}, "restore", place, "--to-dir", data+"2", "--target-lsn", "0/1")

	segment := filepath.Join(t.TempDir(), "segment")
	program.Must(t, "wal-fetch", "--system", c.Logs[0].SystemID, place, c.Logs[0].Last, segment)
	if info, err := os.Stat(segment); err != nil || info.Size() != 16<<20 {
		t.Errorf("segment: %v, %v", info, err)
	}
	program.Refuse(t, cli.ExitFailed, []string{"not in the archive"}, "wal-fetch", "--system", c.Logs[0].SystemID, place, "00000009.history", segment)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "not it")
	program.Refuse(t, exitAbortRecovery, []string{"AWS_SECRET_ACCESS_KEY"}, "wal-fetch", "--system", c.Logs[0].SystemID, place, c.Logs[0].Last, segment)
	if _, err := os.Stat(segment + ".weir"); err == nil {
		t.Error("it has left a part")
	}
}

// TestWALReceiverEndsAndGoesOn stops a receiver in both ways.
func TestWALReceiverEndsAndGoesOn(t *testing.T) {
	s := newOwnShop(t, lab.PostgresConfig{Settings: map[string]string{"wal_level": "replica", "synchronous_commit": "on"}})
	repo := t.TempDir()
	logs := func() catalogue {
		return clitest.Decode[catalogue](t, program.Must(t, "backup", "list", repo, "--json"))
	}
	args := []string{"backup", "wal", s.dsn("postgres"), "--to", repo, "--flush-interval", "50ms"}
	p := start(t, args...)
	testkit.Eventually(t, "log is kept", func() bool { return len(logs().Logs) == 1 })
	if code := p.end(os.Kill); code != -1 {
		t.Errorf("exit code %d", code)
	}
	s.psql("shop", "INSERT INTO orders VALUES (0, 'late'); SELECT pg_switch_wal(); INSERT INTO orders VALUES (-1, 'later')")
	before := logs().Logs[0].Files
	p = start(t, args...)
	testkit.Eventually(t, "more log is kept", func() bool { return logs().Logs[0].Files > before })
	if code := p.end(syscall.SIGTERM); code != cli.ExitFine {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	if l := logs().Logs; len(l) != 1 {
		t.Errorf("a gap: %+v", l)
	}
	// The server may not have noticed yet that the receiver is gone.
	testkit.Eventually(t, "the slot is free", func() bool { return s.psql("postgres", "SELECT active FROM pg_replication_slots") == "f" })
	program.Must(t, "backup", "wal", s.dsn("postgres"), "--drop-slot")
	if n := s.psql("postgres", "SELECT count(*) FROM pg_replication_slots"); n != "0" {
		t.Errorf("%s slots are left", n)
	}
}
