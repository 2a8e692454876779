package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/sijms/go-ora/v2/network"
	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

func TestClassify(t *testing.T) {
	for want, err := range map[string]error{
		"40001":                     fmt.Errorf("run: %w", &pgconn.PgError{Code: "40001"}),
		"23505":                     &pq.Error{Code: "23505"},
		"1213 (40001)":              &mysql.MySQLError{Number: 1213, SQLState: [5]byte{'4', '0', '0', '0', '1'}},
		"1040":                      &mysql.MySQLError{Number: 1040},
		"ORA-12514":                 &network.OracleError{ErrCode: 12514},
		"connection refused":        &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		"connection lost":           fmt.Errorf("read: %w", io.ErrUnexpectedEOF),
		"timeout":                   fmt.Errorf("wait: %w", context.DeadlineExceeded),
		"asked for":                 errInjected,
		"other: row ### is strange": errors.New("row 123 is strange"),
	} {
		if got := classify(err); got != want {
			t.Errorf("%v is of class %q, want %q", err, got, want)
		}
	}
	if got := classify(errors.New(strings.Repeat("é", 200))); len(got) > 100 {
		t.Errorf("a class of %d bytes", len(got))
	}
}

func TestTargetsThatMakeNoSense(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                                     "want a URL",
		"redis://h":                            "want a URL",
		"postgres://u:secret@h:port/db":        "invalid port",
		"mysql://u:secret@h/db?ssl-mode=MAYBE": `ssl-mode "MAYBE"`,
		"mysql://u:secret@h/db?ssl-ca=/x":      "need an ssl-mode",
		"mysql://u@h/db?ssl-mode=REQUIRED&ssl-ca=/does/not/exist": "read ssl-ca",
		"oracle://u:secret@/service":                              "no host",
		"oracle://u:secret@h:1521":                                "no service name",
		"sleep://?latency=soon":                                   `latency "soon"`,
		"sleep://?pause=1s":                                       `no parameter "pause"`,
		"sleep://?error-rate=2":                                   "a share from 0 to 1",
		"sleep://?latency=1ms&jitter=2ms":                         "longer than latency",
	} {
		_, err := ParseTarget(dsn)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want mention of %q", dsn, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds the password: %v", dsn, err)
		}
	}
	for _, dsn := range []string{"postgres:///", "host=h dbname=x user=y", "mariadb://u:p@h/db?socket=/s", "oracle://u:p@h:1521/S", "sleep:"} {
		if _, err := ParseTarget(dsn); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func TestConfigurationsThatMakeNoSense(t *testing.T) {
	target := connected(t, "sleep:")
	for want, c := range map[string]Config{
		"mode":           {Mode: "parallel", Requests: 1},
		"concurrency -1": {Concurrency: -1, Requests: 1},
		"pool of -2":     {Concurrency: 1, PoolMax: -2, Requests: 1},
		"negative":       {Requests: -5},
		`driver "pgx"`:   {Driver: DriverPgx, Requests: 1},
		"no transport":   {Transport: Transport{Kind: "unix"}, Requests: 1},
	} {
		if err := target.Validate(c.WithDefaults(target.Engine)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want mention of %q", c, err, want)
		}
	}
	if err := target.Validate(Config{Mode: Async, Concurrency: 1, PoolMax: 1, Driver: DriverSleep}); err == nil || !strings.Contains(err.Error(), "nothing to do") {
		t.Errorf("neither requests nor duration: %v", err)
	}
	for _, s := range []string{"", "udp", "rtt:", "rtt:-1ms", "rtt:1h", "rtt:fast"} {
		if _, err := ParseTransport(s); err == nil {
			t.Errorf("transport %q was accepted", s)
		}
	}
	if _, err := target.Prepare(t.Context(), "tpce", 10); err == nil || !strings.Contains(err.Error(), "tpcb") {
		t.Errorf("an unknown workload: %v", err)
	}
	if _, err := target.Prepare(t.Context(), "ping", 0); err == nil {
		t.Error("a table of no rows was accepted")
	}
}

// refused returns an address on which no process listens. A bound socket that does not listen
// reserves it.
func refused(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

func TestUnreachableServers(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:secret@" + refused(t) + "/db?sslmode=disable",
		"mysql://u:secret@" + refused(t) + "/db",
		"oracle://u:secret@" + refused(t) + "/FREEPDB1",
	} {
		target, err := ParseTarget(dsn)
		if err != nil {
			t.Fatal(err)
		}
		err = target.Connect(t.Context())
		if err == nil {
			t.Fatalf("%s was reached", dsn)
		}
		if !strings.Contains(err.Error(), "reach "+target.Engine) || !errors.Is(err, syscall.ECONNREFUSED) && !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func TestWrongPasswords(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Auth: lab.SCRAM, Password: "right"})
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Password: "right"})
	for dsn, class := range map[string]string{
		strings.Replace(pg.DSN("postgres"), "right", "wrong", 1): "28P01",
		strings.Replace(m.DSN(""), "right", "wrong", 1):          "1045 (28000)",
	} {
		target, err := ParseTarget(dsn)
		if err != nil {
			t.Fatal(err)
		}
		err = target.Connect(t.Context())
		if err == nil || classify(err) != class || strings.Contains(err.Error(), "wrong") {
			t.Errorf("%v (%s), want class %s and no password", err, classify(err), class)
		}
	}
}

func TestSQLThatFails(t *testing.T) {
	_, target := postgresTarget(t)
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast})
	maria := connected(t, m.DSN("mysql"))
	for _, tt := range []struct {
		target *Target
		all    string // fails always
		some   string // fails for one value of ten
		class  string
	}{
		{target, "BEGIN; SELECT nothing FROM nowhere; COMMIT", "-- param n = int(0, 9)\nBEGIN; SELECT 1 / (:n::int); COMMIT", "22012"},
		{maria, "BEGIN; SELECT nothing FROM nowhere; COMMIT", "-- param n = int(0, 9)\nBEGIN; SELECT IF(:n = 0, (SELECT 1 UNION SELECT 2), 1); COMMIT", "1242 (21000)"},
	} {
		w, err := tt.target.ScriptWorkload("all", tt.all)
		if err != nil {
			t.Fatal(err)
		}
		s, err := tt.target.Measure(t.Context(), w, Config{Concurrency: 2, Requests: 50, Cold: true})
		if !errors.Is(err, ErrNothing) && !errors.Is(err, errHopeless) || s.Ops != 0 {
			t.Errorf("%s: all fail: %d operations, %v", tt.target.Engine, s.Ops, err)
		}
		if w, err = tt.target.ScriptWorkload("some", tt.some); err != nil {
			t.Fatal(err)
		}
		s, err = tt.target.Measure(t.Context(), w, Config{Concurrency: 2, Requests: 400, Cold: true})
		if err != nil {
			t.Fatalf("%s: some fail: %v", tt.target.Engine, err)
		}
		checkSample(t, &s) // the failed ones are in no segment and in no percentile
		if n := s.Errors[tt.class]; n == 0 || n != s.Failed() || s.FailedLatency.Count() != uint64(n) {
			t.Errorf("%s: errors %v, want class %s alone", tt.target.Engine, s.Errors, tt.class)
		}
	}
}

func TestAPoolThatTheServerDoesNotAllow(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, MaxConnections: 20})
	target := connected(t, pg.DSN("postgres"))
	w := prepared(t, target, "ping")
	_, err := target.Measure(t.Context(), w, Config{Concurrency: 50, Requests: 1})
	if !errors.Is(err, ErrTooManyConnections) {
		t.Errorf("error = %v", err)
	}
	if _, err := target.Measure(t.Context(), w, Config{Concurrency: 50, PoolMax: 10, Requests: 50}); err != nil {
		t.Errorf("a pool that fits: %v", err)
	}
}

// napping returns a workload that counts its operations in the server, and a
// function that waits until there have been some.
func napping(t *testing.T, target *Target) (*Workload, func() error) {
	t.Helper()
	if _, err := target.admin.ExecContext(t.Context(), "CREATE SEQUENCE naps"); err != nil {
		t.Fatal(err)
	}
	w, err := target.ScriptWorkload("nap", "SELECT nextval('naps'), pg_sleep(0.002)")
	if err != nil {
		t.Fatal(err)
	}
	return w, func() error {
		for n := 0; n < 10; {
			if err := target.admin.QueryRowContext(t.Context(), "SELECT last_value FROM naps").Scan(&n); err != nil {
				return err
			}
		}
		return nil
	}
}

// A run that is cut short ends, also when the server has stopped answering, and
// what it yields is valid.
func TestInterruptedRuns(t *testing.T) {
	for _, hang := range []bool{false, true} {
		pg, target := postgresTarget(t)
		w, busy := napping(t, target)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			defer cancel()
			err := busy()
			if hang {
				pg.Pause()
			}
			ended <- err
		}()
		s, err := target.Measure(ctx, w, Config{Concurrency: 2, Duration: time.Hour, Cold: true})
		if hang {
			pg.Resume()
		}
		if busy := <-ended; busy != nil {
			t.Fatal(busy)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("hang %v: error = %v, want that of the context", hang, err)
		}
		checkSample(t, &s)
		if len(s.Warnings) == 0 {
			t.Errorf("%d operations, warnings %q; want what was measured, marked", s.Ops, s.Warnings)
		}
	}
}

func TestAServerThatGoesAway(t *testing.T) {
	pg, target := postgresTarget(t)
	w, busy := napping(t, target)
	ended := make(chan error, 1)
	go func() {
		err := busy()
		pg.Kill()
		ended <- err
	}()
	_, err := target.Measure(t.Context(), w, Config{Concurrency: 2, Duration: time.Hour, Cold: true})
	if busy := <-ended; busy != nil {
		t.Fatal(busy)
	}
	if !errors.Is(err, errHopeless) || !connectionLost(err) {
		t.Errorf("error = %v, want that nothing succeeds any more", err)
	}
}

func TestParseNetem(t *testing.T) {
	for text, want := range map[string]string{
		"delay=10ms,jitter=2ms,loss=1%": "netem:delay=10ms,jitter=2ms,loss=1%",
		"loss=0.25":                     "netem:delay=0s,jitter=0s,loss=25%",
		"delay=1ms":                     "rtt:1ms",
	} {
		if got, err := ParseNetem(text); err != nil || got.String() != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":           "want delay=, jitter= and loss=",
		"delay=10":   "want delay=",
		"delay=0s":   "changes nothing",
		"delay=-1ms": "delay and jitter want 0 to 1m",
		"loss=60%":   "loss wants 0 to 0.5",
		"rate=1mbit": "want delay=",
	} {
		if got, err := ParseNetem(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v; want an error that says %q", text, got, err, want)
		}
	}
}
