package lab_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// eachFlavor runs a test with MariaDB and with MySQL, side by side.
func eachFlavor(t *testing.T, f func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL)) {
	t.Parallel()
	for flavor, start := range map[lab.Flavor]func(testing.TB, lab.MySQLConfig) *lab.MySQL{
		lab.FlavorMariaDB: labtest.MariaDB, lab.FlavorMySQL: labtest.MySQL,
	} {
		t.Run(string(flavor), func(t *testing.T) {
			t.Parallel()
			f(t, func(cfg lab.MySQLConfig) *lab.MySQL {
				t.Helper()
				m := start(t, cfg)
				if m.Flavor() != flavor {
					t.Errorf("flavor %s, want %s", m.Flavor(), flavor)
				}
				return m
			})
		})
	}
}

// clientConfig translates a server's URL into the driver's configuration.
func clientConfig(t *testing.T, dsn string) *mysql.Config {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	cfg.Passwd, _ = u.User.Password()
	cfg.Logger = &mysql.NopLogger{}
	q := u.Query()
	if q.Get("ssl-ca") == "" {
		return cfg
	}
	ca, err := os.ReadFile(q.Get("ssl-ca"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: u.Hostname()}
	if !cfg.TLS.RootCAs.AppendCertsFromPEM(ca) {
		t.Fatal("the CA's certificate is none")
	}
	if q.Get("ssl-cert") != "" {
		pair, err := tls.LoadX509KeyPair(q.Get("ssl-cert"), q.Get("ssl-key"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.TLS.Certificates = []tls.Certificate{pair}
	}
	return cfg
}

// mysqlSession is one session, for tests whose statements belong together.
type mysqlSession struct{ *sql.Conn }

// tryMySQL opens a session, or says why not.
func tryMySQL(t *testing.T, cfg *mysql.Config) (mysqlSession, error) {
	t.Helper()
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	conn, err := db.Conn(ctx)
	for errors.Is(err, mysql.ErrMalformPkt) { // the driver loses the last byte of one in 256 challenges for client_ed25519
		conn, err = db.Conn(ctx)
	}
	return mysqlSession{conn}, err
}

func openMySQL(t *testing.T, m *lab.MySQL) mysqlSession {
	t.Helper()
	s, err := tryMySQL(t, clientConfig(t, m.DSN("")))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return s
}

func (s mysqlSession) exec(t *testing.T, statements ...string) {
	t.Helper()
	for _, q := range statements {
		if _, err := s.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func (s mysqlSession) text(t *testing.T, q string) string {
	t.Helper()
	var v string
	if err := s.QueryRowContext(t.Context(), q).Scan(&v); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return v
}

func TestMySQLSettings(t *testing.T) {
	tests := []struct {
		name string
		cfg  lab.MySQLConfig
		want map[string]string
	}{
		{
			"prod flushes",
			lab.MySQLConfig{},
			map[string]string{
				"innodb_flush_log_at_trx_commit": "1", "innodb_flush_method": "O_DIRECT", "innodb_doublewrite": "1|ON",
				"sync_binlog": "1", "max_connections": "300",
				"innodb_buffer_pool_size": strconv.Itoa(128 << 20),
			},
		},
		{
			"without what costs memory and flushes",
			lab.MySQLConfig{NoBinlog: true, NoPerformanceSchema: true},
			map[string]string{"log_bin": "0", "performance_schema": "0"},
		},
		{
			"fast does not",
			lab.MySQLConfig{
				Durability: lab.Fast, Light: true, MaxConnections: 40, BufferPool: "32M",
				Settings: map[string]string{"init-connect": "SET @a = 'b\"c\\\\d'", "innodb_lock_wait_timeout": "7"},
			},
			map[string]string{
				"innodb_flush_log_at_trx_commit": "2", "innodb_doublewrite": "0|OFF", "max_connections": "40",
				"innodb_buffer_pool_size": strconv.Itoa(32 << 20), "init_connect": "SET @a = 'b\"c\\\\d'",
				"innodb_lock_wait_timeout": "7",
			},
		},
	}
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		for _, tt := range tests {
			s := openMySQL(t, start(tt.cfg))
			for name, want := range tt.want {
				got := s.text(t, "SELECT @@global."+name)
				if one, other, two := strings.Cut(want, "|"); got != one && (!two || got != other) {
					t.Errorf("%s: %s = %q, want %q", tt.name, name, got, want)
				}
			}
		}
	})
}

func TestLightMariaDB(t *testing.T) {
	for _, light := range []bool{false, true} {
		s := openMySQL(t, labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: light}))
		if got := s.text(t, "SELECT @@global.performance_schema"); got != map[bool]string{false: "1", true: "0"}[light] {
			t.Errorf("light %t: performance_schema = %s", light, got)
		}
		if small := s.text(t, "SELECT @@global.innodb_log_file_size = 16 << 20"); small != map[bool]string{false: "0", true: "1"}[light] {
			t.Errorf("light %t: the log has its size in the cached directory: %s", light, small)
		}
	}
}

func TestMySQLStopLeavesNothing(t *testing.T) {
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		for name, stop := range map[string]func(*lab.MySQL, context.Context) error{
			"Stop": (*lab.MySQL).Stop, "Discard": (*lab.MySQL).Discard,
		} {
			m := start(lab.MySQLConfig{Durability: lab.Fast, Light: true})
			if err := stop(m, t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{m.DataDir(), m.Socket(), fmt.Sprintf("/proc/%d", m.PID())} {
				if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s after %s: %v, want it gone", path, name, err)
				}
			}
			if err := m.Stop(t.Context()); err != nil {
				t.Errorf("Stop after %s: %v", name, err)
			}
			if err := m.Restart(t.Context()); err == nil {
				t.Errorf("Restart after %s succeeded", name)
			}
		}
	})
}

func TestMySQLKillAndRestartRecovers(t *testing.T) {
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		m := start(lab.MySQLConfig{})
		s := openMySQL(t, m)
		s.exec(t, "CREATE DATABASE d", "CREATE TABLE d.kept (n int)", "INSERT INTO d.kept VALUES (42)",
			"BEGIN", "INSERT INTO d.kept VALUES (43)") // not committed
		pid, port, version := m.PID(), m.Port(), s.text(t, "SELECT version()")
		if !strings.HasPrefix(version, m.Version()) {
			t.Errorf("Version %s, the server says %s", m.Version(), version)
		}
		m.Kill()
		if runs(pid) {
			t.Errorf("process %d still runs after Kill", pid)
		}
		if _, err := s.ExecContext(t.Context(), "SELECT 1"); err == nil {
			t.Error("session survived the crash")
		}
		if err := m.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m.Port() != port {
			t.Errorf("port %d after Restart, want %d", m.Port(), port)
		}
		if got := openMySQL(t, m).text(t, "SELECT group_concat(n) FROM d.kept"); got != "42" {
			t.Errorf("recovered %s, want 42", got)
		}
		if !strings.Contains(m.LogTail(200), "crash recovery") {
			t.Errorf("log does not speak of a crash:\n%s", m.LogTail(100))
		}
	})
}

func TestMySQLRestartKeepsDataAndAccounts(t *testing.T) {
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		m := start(lab.MySQLConfig{Durability: lab.Fast, Light: true, Password: "first"})
		s := openMySQL(t, m)
		s.exec(t, "CREATE DATABASE kept", "ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY 'second'")
		before := m.Done()
		if err := m.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-before // the first process has ended
		cfg := clientConfig(t, m.DSN("kept"))
		cfg.Passwd = "second"
		if _, err := tryMySQL(t, cfg); err != nil {
			t.Errorf("with the password that was set before the restart: %v", err)
		}
	})
}

func TestMySQLPauseHangsUntilResume(t *testing.T) {
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		m := start(lab.MySQLConfig{Durability: lab.Fast, Light: true})
		s := openMySQL(t, m)
		m.Pause()
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID()))
		if err != nil || !strings.Contains(string(stat), ") T ") {
			t.Errorf("process %d is not stopped: %s (%v)", m.PID(), stat, err)
		}
		m.Resume()
		if got := s.text(t, "SELECT 7"); got != "7" {
			t.Errorf("after Resume: %s", got)
		}
		m.Pause()
		if err := m.Stop(t.Context()); err != nil {
			t.Errorf("stop a paused server: %v", err)
		}
	})
}

// TestMySQLFlushes compares the count of flushes with what must have happened. With Prod, each
// commit of one client flushes the redo log once, and the binary log if there is one. With Fast
// commits flush nothing, but the server may do so by itself.
func TestMySQLFlushes(t *testing.T) {
	const commits = 50
	tests := []struct {
		name     string
		cfg      lab.MySQLConfig
		min, max uint64
	}{
		{"prod", lab.MySQLConfig{NoBinlog: true}, commits, 2*commits - 1},
		{"prod with a binary log", lab.MySQLConfig{}, 2 * commits, 4 * commits},
		{"fast", lab.MySQLConfig{Durability: lab.Fast}, 0, commits - 1},
	}
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		for _, tt := range tests {
			tt.cfg.CountFlushes = true
			m := start(tt.cfg)
			s := openMySQL(t, m)
			s.exec(t, "CREATE DATABASE d", "CREATE TABLE d.t (n int)")
			before, err := m.Flushes()
			if err != nil {
				t.Fatal(err)
			}
			for n := range commits {
				s.exec(t, fmt.Sprintf("INSERT INTO d.t VALUES (%d)", n))
			}
			after, err := m.Flushes()
			if err != nil {
				t.Fatal(err)
			}
			if got := after - before; got < tt.min || got > tt.max {
				t.Errorf("%s: %d commits were counted as %d flushes, want %d to %d", tt.name, commits, got, tt.min, tt.max)
			}
		}
	})
}

func TestMySQLFsyncLatencySlowsCommits(t *testing.T) {
	const latency, commits = 5 * time.Millisecond, 20
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		s := openMySQL(t, start(lab.MySQLConfig{FsyncLatency: latency}))
		s.exec(t, "CREATE DATABASE d", "CREATE TABLE d.t (n int)")
		began := time.Now()
		for n := range commits {
			s.exec(t, fmt.Sprintf("INSERT INTO d.t VALUES (%d)", n))
		}
		if took := time.Since(began); took < commits*latency {
			t.Errorf("%d commits took %v, want at least %v", commits, took, commits*latency)
		}
	})
}

func TestMySQLAccounts(t *testing.T) {
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		m := start(lab.MySQLConfig{Durability: lab.Fast, Light: true, TLS: lab.TLSOptional, Password: `it's "quoted"\`})
		for _, plugin := range append(m.AuthPlugins(), "") {
			u := lab.MySQLUser{Name: "u_" + plugin, Password: `p'w"\`, Plugin: plugin, RequireTLS: plugin == m.AuthPlugins()[0]}
			if strings.Contains(plugin, "socket") {
				u.Name = "nobody"
			}
			if err := m.CreateUser(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			cfg := clientConfig(t, m.DSN(""))
			cfg.User, cfg.Passwd = u.Name, u.Password
			s, err := tryMySQL(t, cfg)
			if u.Name == "nobody" {
				if err == nil {
					t.Errorf("%s: let in over TCP", plugin)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", plugin, err)
				continue
			}
			if got := s.text(t, "SELECT current_user()"); got != u.Name+"@%" {
				t.Errorf("%s: logged in as %s", plugin, got)
			}
			wrong := cfg.Clone()
			wrong.Passwd = "wrong"
			plain := cfg.Clone()
			plain.TLS = nil
			if _, err := tryMySQL(t, wrong); err == nil {
				t.Errorf("%s: let in with a wrong password", plugin)
			}
			if _, err := tryMySQL(t, plain); (err != nil) != u.RequireTLS {
				t.Errorf("%s: connection in clear: %v", plugin, err)
			}
		}
		if err := m.CreateUser(t.Context(), lab.MySQLUser{Name: "x", Plugin: "magic"}); err == nil || !strings.Contains(err.Error(), `"magic"`) {
			t.Errorf("unknown plugin: %v", err)
		}
		// A second account with a plugin that is already loaded.
		if err := m.CreateUser(t.Context(), lab.MySQLUser{Name: "again", Plugin: m.AuthPlugins()[1]}); err != nil {
			t.Error(err)
		}
		err := m.Exec(t.Context(), "SET PASSWORD secret syntax error")
		if e := (*mysql.MySQLError)(nil); !errors.As(err, &e) || !strings.HasPrefix(err.Error(), "run SET PASSWORD: ") {
			t.Errorf("error %v, want the server's, without the statement", err)
		}
	})
}

func TestMySQLTLS(t *testing.T) {
	tests := []struct {
		mode      lab.TLSMode
		plainFine bool
		certless  bool // a client without a certificate is accepted
	}{
		{lab.TLSOptional, true, true},
		{lab.TLSRequired, false, true},
		{lab.TLSMutual, false, false},
	}
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		for _, tt := range tests {
			m := start(lab.MySQLConfig{Durability: lab.Fast, Light: true, TLS: tt.mode, Password: "secret"})
			var name, cipher string
			row := openMySQL(t, m).QueryRowContext(t.Context(), "SHOW STATUS LIKE 'Ssl_cipher'")
			if err := row.Scan(&name, &cipher); err != nil || cipher == "" {
				t.Errorf("mode %d: session is not encrypted: %v", tt.mode, err)
			}
			plain, certless := clientConfig(t, m.DSN("")), clientConfig(t, m.DSN(""))
			plain.TLS = nil
			certless.TLS.Certificates = nil
			if _, err := tryMySQL(t, plain); (err == nil) != tt.plainFine {
				t.Errorf("mode %d: connection in clear: error %v, want success %v", tt.mode, err, tt.plainFine)
			}
			if _, err := tryMySQL(t, certless); (err == nil) != tt.certless {
				t.Errorf("mode %d: without certificate: error %v, want success %v", tt.mode, err, tt.certless)
			}
		}
		off := start(lab.MySQLConfig{Durability: lab.Fast, Light: true, TLS: lab.TLSOff})
		cfg := clientConfig(t, off.DSN(""))
		cfg.TLSConfig = "skip-verify"
		if _, err := tryMySQL(t, cfg); err == nil {
			t.Error("TLSOff: let in with TLS")
		}
	})
}

func TestMySQLServersAreApart(t *testing.T) {
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		a, b := start(lab.MySQLConfig{Durability: lab.Fast, Light: true}), start(lab.MySQLConfig{Durability: lab.Fast, Light: true, Fresh: true})
		x, y := openMySQL(t, a), openMySQL(t, b)
		x.exec(t, "CREATE DATABASE only_here")
		if got := y.text(t, "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'only_here'"); got != "0" {
			t.Error("one server's database is in the other")
		}
		id := "SELECT @@global.server_uuid"
		if a.Flavor() == lab.FlavorMariaDB {
			id = "SELECT @@global.server_uid"
		}
		if x.text(t, id) == y.text(t, id) {
			t.Error("both servers have one identity")
		}
		y.exec(t, "DO 1")
		a.Kill()
		y.exec(t, "DO 1")
	})
}

func TestMySQLConfigRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		cfg  lab.MySQLConfig
		want string
	}{
		{lab.MySQLConfig{Durability: lab.Fast, FsyncLatency: time.Millisecond}, "fast server never flushes"},
		{lab.MySQLConfig{FsyncLatency: time.Millisecond, Settings: map[string]string{"innodb-flush-method": "O_DSYNC"}}, "O_DSYNC"},
		{lab.MySQLConfig{FsyncLatency: time.Nanosecond}, "at least 1µs"},
		{lab.MySQLConfig{Settings: map[string]string{"a b": ""}}, `setting "a b"`},
		{lab.MySQLConfig{Settings: map[string]string{"a]\n[client": ""}}, `not an option's name`},
		{lab.MySQLConfig{Port: -1}, "port -1"},
		{lab.MySQLConfig{MaxConnections: -1}, "max connections -1"},
		{lab.MySQLConfig{Password: "a\nb"}, "one line"},
		{lab.MySQLConfig{BinDir: "/nonexistent"}, "/nonexistent does not hold mariadbd or mysqld"},
	}
	for _, tt := range tests {
		m, err := lab.StartMariaDB(t.Context(), tt.cfg)
		if err == nil {
			_ = m.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one with %q", tt.cfg, err, tt.want)
		}
	}
}

func TestMySQLFailedStartShowsLogAndLeavesNothing(t *testing.T) {
	dir := labDir(t)
	labtest.RequireMariaDB(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tests := []struct {
		cfg  lab.MySQLConfig
		want string
	}{
		{lab.MySQLConfig{Durability: lab.Fast, Light: true, Settings: map[string]string{"no_such_setting": "1"}}, "unknown variable 'no_such_setting=1'"},
		{lab.MySQLConfig{Durability: lab.Fast, Light: true, Port: l.Addr().(*net.TCPAddr).Port}, "Address already in use"},
	}
	for _, tt := range tests {
		m, err := lab.StartMariaDB(t.Context(), tt.cfg)
		if err == nil {
			_ = m.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want the server's own words %q", err, tt.want)
		}
		if left := list(t, dir); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestMySQLCancelledStartLeavesNothing(t *testing.T) {
	dir := labDir(t)
	labtest.RequireMariaDB(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("changed my mind")
	said := false
	m, err := lab.StartMariaDB(ctx, lab.MySQLConfig{
		Durability: lab.Fast, Light: true,
		Log: writerFunc(func([]byte) { said = true; cancel(reason) }), // at its first word
	})
	if err == nil { // it was ready before the start could be cancelled
		err = errors.Join(reason, m.Stop(t.Context()))
	}
	if !errors.Is(err, reason) {
		t.Errorf("error %v, want the cause of the cancellation", err)
	}
	if !said {
		t.Error("cancelled before the server ran")
	}
	if left := list(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLabDirectoryThatCannotBe(t *testing.T) {
	t.Setenv("WEIR_LAB_DIR", "/proc/self")
	labtest.RequireMariaDB(t)
	m, err := lab.StartMariaDB(t.Context(), lab.MySQLConfig{Durability: lab.Fast, Light: true})
	if err == nil {
		_ = m.Stop(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "create lab directory: mkdir /proc/self/weir-lab-") {
		t.Errorf("error %v, want to hear of the directory", err)
	}
}
