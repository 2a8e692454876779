package lab_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestPostgresSettings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  lab.PostgresConfig
		want map[string]string
	}{
		{
			"prod flushes",
			lab.PostgresConfig{},
			map[string]string{
				"fsync": "on", "synchronous_commit": "on", "wal_sync_method": "fdatasync",
				"max_connections": "300", "shared_buffers": "128MB", "full_page_writes": "on",
			},
		},
		{
			"fast does not",
			lab.PostgresConfig{
				Durability: lab.Fast, MaxConnections: 40, SharedBuffers: "16MB",
				Settings: map[string]string{"wal_level": "logical", "application_name": `a'b\c`},
				Preload:  []string{},
			},
			map[string]string{
				"fsync": "off", "max_connections": "40", "shared_buffers": "16MB", "wal_level": "logical",
				"application_name": `a'b\c`, "shared_preload_libraries": "",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := labtest.Postgres(t, tt.cfg)
			conn := connect(t, p.DSN("postgres"))
			for name, want := range tt.want {
				if got := query[string](t, conn, "SELECT current_setting('"+name+"')"); got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestPostgresStopLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*lab.Postgres, context.Context) error{
		"Stop": (*lab.Postgres).Stop, "Discard": (*lab.Postgres).Discard,
	} {
		p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
		conn := connect(t, p.DSN("postgres"))
		if err := stop(p, t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := conn.Ping(t.Context()); err == nil {
			t.Errorf("a session lives on after %s", name)
		}
		if _, err := os.Stat(p.DataDir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("data directory after %s: %v, want it gone", name, err)
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID())); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("postmaster after %s: %v, want it gone", name, err)
		}
		if err := p.Stop(t.Context()); err != nil {
			t.Errorf("Stop after %s: %v", name, err)
		}
		if err := p.Restart(t.Context()); err == nil {
			t.Errorf("Restart after %s succeeded", name)
		}
	}
}

func TestPostgresAuth(t *testing.T) {
	t.Parallel()
	for _, auth := range []lab.Auth{lab.Password, lab.MD5, lab.SCRAM} {
		t.Run(string(auth), func(t *testing.T) {
			t.Parallel()
			p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Auth: auth, Password: `it's "quoted"\`})
			conn := connect(t, p.DSN("postgres"))
			if got := query[string](t, conn, "SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'"); auth == lab.MD5 != strings.HasPrefix(got, "md5") {
				t.Errorf("stored password %q does not fit %s", got, auth)
			}
			_, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://postgres:wrong@%s/postgres?sslmode=disable", p.Addr()))
			if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "28P01" {
				t.Errorf("wrong password: %v, want error 28P01", err)
			}
		})
	}
}

func TestPostgresTLS(t *testing.T) {
	t.Parallel()
	tests := []struct {
		mode      lab.TLSMode
		plainFine bool
	}{
		{lab.TLSOptional, true},
		{lab.TLSRequired, false},
		{lab.TLSMutual, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.mode), func(t *testing.T) {
			t.Parallel()
			p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, TLS: tt.mode, Auth: lab.SCRAM})
			conn := connect(t, p.DSN("postgres"))
			if !query[bool](t, conn, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") {
				t.Error("session is not encrypted")
			}
			plain, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://postgres:%s@%s/postgres?sslmode=disable", p.Password(), p.Addr()))
			if err == nil {
				_ = plain.Close(t.Context())
			}
			if (err == nil) != tt.plainFine {
				t.Errorf("connection in clear: error %v, want success %v", err, tt.plainFine)
			}
			if tt.mode != lab.TLSMutual {
				return
			}
			if _, err := conn.Exec(t.Context(), "CREATE ROLE alice LOGIN PASSWORD 'a'"); err != nil {
				t.Fatal(err)
			}
			pair, err := p.ClientCert("alice")
			if err != nil {
				t.Fatal(err)
			}
			connect(t, fmt.Sprintf("postgres://alice:a@%s/postgres?sslmode=verify-full&sslrootcert=%s&sslcert=%s&sslkey=%s",
				p.Addr(), p.CACert(), pair.Cert, pair.Key))
		})
	}
}

func TestPostgresKillAndRestartRecovers(t *testing.T) {
	t.Parallel()
	p := labtest.Postgres(t, lab.PostgresConfig{})
	conn := connect(t, p.DSN("postgres"))
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)"); err != nil {
		t.Fatal(err)
	}
	backend := query[int](t, conn, "SELECT pg_backend_pid()")
	postmaster, port := p.PID(), p.Port()
	p.Kill()
	for _, pid := range []int{postmaster, backend} {
		if runs(pid) {
			t.Errorf("process %d still runs after Kill", pid)
		}
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("session survived the crash")
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.Port() != port {
		t.Errorf("port %d after Restart, want %d", p.Port(), port)
	}
	if got := query[int](t, connect(t, p.DSN("postgres")), "SELECT n FROM kept"); got != 42 {
		t.Errorf("recovered %d, want 42", got)
	}
	if !strings.Contains(p.LogTail(100), "was not properly shut down") {
		t.Errorf("log does not speak of a crash:\n%s", p.LogTail(100))
	}
}

// runs reports whether a process exists and is no zombie.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestPostgresPauseHangsUntilResume(t *testing.T) {
	t.Parallel()
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	conn := connect(t, p.DSN("postgres"))
	backend := query[int](t, conn, "SELECT pg_backend_pid()")
	p.Pause()
	for _, pid := range []int{p.PID(), backend} {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || !strings.Contains(string(stat), ") T ") {
			t.Errorf("process %d is not stopped: %s (%v)", pid, stat, err)
		}
	}
	p.Resume()
	if got := query[int](t, conn, "SELECT 7"); got != 7 {
		t.Errorf("after Resume: %d", got)
	}
	p.Pause()
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("stop a paused server: %v", err)
	}
}

func TestPostgresRestartOfRunningServerKeepsData(t *testing.T) {
	t.Parallel()
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	if _, err := connect(t, p.DSN("postgres")).Exec(t.Context(), "CREATE DATABASE kept"); err != nil {
		t.Fatal(err)
	}
	before := p.Done()
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-before // the first process has ended
	connect(t, p.DSN("kept"))
}

func TestPostgresFsyncLatencySlowsCommits(t *testing.T) {
	t.Parallel()
	const latency, commits = 5 * time.Millisecond, 20
	p := labtest.Postgres(t, lab.PostgresConfig{FsyncLatency: latency})
	conn := connect(t, p.DSN("postgres"))
	if got := query[string](t, conn, "SHOW wal_sync_method"); got != "fdatasync" {
		t.Errorf("wal_sync_method = %s, want fdatasync", got)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE t (n int)"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for n := range commits {
		if _, err := conn.Exec(t.Context(), "INSERT INTO t VALUES ($1)", n); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took < commits*latency {
		t.Errorf("%d commits took %v, want at least %v", commits, took, commits*latency)
	}
}

func TestPostgresConfigRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		cfg  lab.PostgresConfig
		want string
	}{
		{lab.PostgresConfig{Durability: lab.Fast, FsyncLatency: time.Millisecond}, "fast server never flushes"},
		{lab.PostgresConfig{FsyncLatency: time.Millisecond, Settings: map[string]string{"wal_sync_method": "open_datasync"}}, "open_datasync"},
		{lab.PostgresConfig{FsyncLatency: time.Nanosecond}, "at least 1µs"},
		{lab.PostgresConfig{Auth: "ident"}, `auth "ident"`},
		{lab.PostgresConfig{Settings: map[string]string{"a b": ""}}, `setting "a b"`},
		{lab.PostgresConfig{Port: -1}, "port -1"},
		{lab.PostgresConfig{MaxConnections: -1}, "max connections -1"},
		{lab.PostgresConfig{Auth: lab.SCRAM, Password: "a\nb"}, "one line"},
		{lab.PostgresConfig{BinDir: "/nonexistent"}, "/nonexistent does not hold postgres"},
	}
	for _, tt := range tests {
		p, err := lab.StartPostgres(t.Context(), tt.cfg)
		if err == nil {
			_ = p.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one with %q", tt.cfg, err, tt.want)
		}
	}
}

func TestPostgresFailedStartShowsLogAndLeavesNothing(t *testing.T) {
	dir := labDir(t)
	labtest.RequirePostgres(t)
	_, err := lab.StartPostgres(t.Context(), lab.PostgresConfig{
		Durability: lab.Fast, Settings: map[string]string{"no_such_setting": "1"},
	})
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("error %v, want the server's own words", err)
	}
	if left := list(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPostgresFreshHasOwnIdentity(t *testing.T) {
	t.Parallel()
	const id = "SELECT system_identifier::text FROM pg_control_system()"
	a := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	b := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Fresh: true})
	if x, y := query[string](t, connect(t, a.DSN("postgres")), id), query[string](t, connect(t, b.DSN("postgres")), id); x == y {
		t.Errorf("both servers are cluster %s", x)
	}
}

func TestPostgresCancelledStartLeavesNothing(t *testing.T) {
	dir := labDir(t)
	labtest.RequirePostgres(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("changed my mind")
	var process string
	p, err := lab.StartPostgres(ctx, lab.PostgresConfig{
		Durability: lab.Fast,
		Log:        writerFunc(func(b []byte) { process += string(b); cancel(reason) }), // at its first word
	})
	if err == nil { // it was ready before anybody looked
		err = errors.Join(reason, p.Stop(t.Context()))
	}
	if !errors.Is(err, reason) {
		t.Errorf("error %v, want the cause of the cancellation", err)
	}
	if !strings.Contains(process, "starting PostgreSQL") {
		t.Errorf("cancelled before the server ran: log %q", process)
	}
	if left := list(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// writerFunc is a writer that is told of each write and never fails.
type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// labDir makes this test's run directories go to a place of their own.
func labDir(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	t.Setenv("WEIR_LAB_DIR", dir)
	return dir
}

// list returns the run directories that a test with the given lab directory has.
func list(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "weir-lab-*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// shortDir returns a directory that every user may enter, with a path short enough for a Unix
// socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "labtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPostgresRestartAfterPostmasterDied is about a session that is too busy to
// notice that its postmaster has died: it must not keep the next one out.
func TestPostgresRestartAfterPostmasterDied(t *testing.T) {
	t.Parallel()
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	busy, witness := connect(t, p.DSN("postgres")), connect(t, p.DSN("postgres"))
	backend := query[int](t, busy, "SELECT pg_backend_pid()")
	ended := make(chan error, 1)
	go func() {
		_, err := busy.Exec(context.Background(), "SELECT count(*) FROM (SELECT generate_series(1, 1000000000000)) s")
		ended <- err
	}()
	for query[string](t, witness, fmt.Sprintf("SELECT state FROM pg_stat_activity WHERE pid = %d", backend)) != "active" {
		continue // each round is a round trip; the query runs until it is killed
	}
	died := p.Done()
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-died
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the busy session's query came to its end")
	}
	connect(t, p.DSN("postgres"))
}
