package process_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// startProxy runs `weir proxy` within the test; stop ends it as the first
// signal would and returns its exit code.
func startProxy(t *testing.T, args ...string) (log *clitest.Log, stop func() int) {
	t.Helper()
	clitest.ClearEnvironment(t)
	return program.Serve(t, append([]string{"proxy", "--listen-postgres", "127.0.0.1:0", "--listen-mysql", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--trust-loopback"}, args...)...)
}

// dial connects through the proxy as a user and returns whether that worked.
func dial(t *testing.T, address, user, password, database string) (*pgx.Conn, error) {
	t.Helper()
	cfg, err := pgx.ParseConfig(fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", user, password, address, database))
	if err != nil {
		t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

func TestProxyServesReloadsAndStops(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	dir := t.TempDir()
	config, users := filepath.Join(dir, "weir.yaml"), filepath.Join(dir, "userlist.txt")
	settings := func(poolSize int, level string) {
		clitest.Write(t, config, fmt.Sprintf("postgres: %s\nauth: scram-sha-256\nauth_file: %s\nadmin_users: [%s]\npool_size: %d\nlog_level: %s\n",
			pg.DSN("postgres"), users, pg.User(), poolSize, level))
	}
	settings(3, "info")
	clitest.Write(t, users, fmt.Sprintf("%q \"first\"\n", pg.User()))
	log, stop := startProxy(t, "-c", config)
	listens := log.Await("weir proxy listens")
	address, admin := listens["address"].(string), listens["admin"].(string)
	if listens["pool_size"] != 3.0 || listens["server"] != pg.Addr() {
		t.Errorf("listens: %v", listens)
	}

	conn, err := dial(t, address, pg.User(), "first", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE t (a int); "); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "/* batch */ INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, address, pg.User(), "second", "postgres"); err == nil {
		t.Error("a wrong password was let in")
	}

	t.Run("admin server", func(t *testing.T) {
		if code, body := clitest.Get(t, admin+"readyz"); code != 200 {
			t.Errorf("readyz: %d %s", code, body)
		}
		if _, body := clitest.Get(t, admin); !strings.Contains(body, "weir proxy") {
			t.Errorf("the page: %.200s", body)
		}
		_, body := clitest.Get(t, admin+"snapshot.json")
		var state struct {
			Clients int
			Pools   []struct {
				Database   string
				Alone      uint64
				LatencyNs  struct{ Count, P50 uint64 } `json:"latency_ns"`
				Statements int
			}
			Statements []struct{ Text string }
		}
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatal(err)
		}
		if state.Clients != 1 || len(state.Pools) != 1 || state.Pools[0].LatencyNs.Count == 0 || len(state.Statements) == 0 {
			t.Errorf("snapshot: %s", body)
		}
	})
	t.Run("every metric is documented", func(t *testing.T) {
		_, body := clitest.Get(t, admin+"metrics")
		docs, err := os.ReadFile("../../../docs/proxy.md")
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`(?m)^# TYPE (weir_\w+)`).FindAllStringSubmatch(body, -1)
		if len(names) < 15 || !strings.Contains(body, "\ngo_goroutines ") || !strings.Contains(body, "\nprocess_open_fds ") {
			t.Errorf("metrics:\n%s", body)
		}
		for _, m := range names {
			if !strings.Contains(string(docs), "`"+m[1]+"`") {
				t.Errorf("docs/proxy.md does not mention %s", m[1])
			}
		}
	})
	t.Run("admin console", func(t *testing.T) {
		console, err := dial(t, address, pg.User(), "first", "weir")
		if err != nil {
			t.Fatal(err)
		}
		rows, err := console.Query(t.Context(), "SHOW POOLS")
		if err != nil {
			t.Fatal(err)
		}
		rows.Close()
		if rows.Err() != nil || rows.CommandTag().String() != "SHOW" {
			t.Errorf("SHOW POOLS: %v, %v", rows.CommandTag(), rows.Err())
		}
	})
	t.Run("reload", func(t *testing.T) {
		hup := func() {
			t.Helper()
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}
		clitest.Write(t, users, "not a user list")
		hup()
		if e := log.Await("reload refused"); !strings.Contains(fmt.Sprint(e["error"]), "userlist.txt:1") {
			t.Errorf("reload of a bad file: %v", e)
		}
		if _, err := dial(t, address, pg.User(), "first", "postgres"); err != nil {
			t.Errorf("after a refused reload: %v", err)
		}
		clitest.Write(t, users, fmt.Sprintf("%q \"second\"\n", pg.User()))
		settings(4, "debug\nwrite_lanes: 3\nqueue_timeout: 7s\nmax_clients: 50")
		hup()
		if e := log.Await("configuration reloaded"); e["users"] != 1.0 || e["log_level"] != "DEBUG" {
			t.Errorf("reload: %v", e)
		}
		if e := log.Await("changes that need a restart"); e["keys"] != "write_lanes" {
			t.Errorf("reload: %v, want write_lanes to need a restart", e)
		}
		if _, err := dial(t, address, pg.User(), "second", "postgres"); err != nil {
			t.Errorf("with the new password: %v", err)
		}
		if _, err := dial(t, address, pg.User(), "first", "postgres"); err == nil {
			t.Error("the old password is still good")
		}
		if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("the session that was there: %v", err)
		}
		console, err := dial(t, address, pg.User(), "second", "pgbouncer")
		if err != nil {
			t.Fatal(err)
		}
		setting := func(key string) string {
			t.Helper()
			rows, err := console.Query(t.Context(), "SHOW CONFIG")
			if err != nil {
				t.Fatal(err)
			}
			config, err := pgx.CollectRows(rows, pgx.RowToMap)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range config {
				if row["key"] == key {
					return row["value"].(string)
				}
			}
			return ""
		}
		for key, want := range map[string]string{"pool_size": "4", "queue_timeout": "7s", "max_clients": "50", "write_lanes": "2"} {
			if got := setting(key); got != want {
				t.Errorf("after the reload %s is %q, want %q", key, got, want)
			}
		}
		settings(5, "info\nqueue_timeout: soon")
		if _, err := console.Exec(t.Context(), "RELOAD"); err == nil || !strings.Contains(err.Error(), "stays as it was") || !strings.Contains(err.Error(), "queue_timeout") {
			t.Errorf("RELOAD of a broken file: %v", err)
		}
		if got := setting("pool_size"); got != "4" {
			t.Errorf("after a refused RELOAD pool_size is %s, want 4", got)
		}
		settings(5, "info")
		if tag, err := console.Exec(t.Context(), "RELOAD"); err != nil || tag.String() != "RELOAD" || setting("pool_size") != "5" {
			t.Errorf("RELOAD: %v, %v; pool_size is %s, want 5", tag, err, setting("pool_size"))
		}
	})
	if code := stop(); code != cli.ExitFine {
		t.Errorf("exit code %d, want 0; log:\n%s", code, log.Seen.String())
	}
	for _, secret := range []string{"first", "second"} {
		if strings.Contains(log.Seen.String(), secret) {
			t.Errorf("the log holds a password:\n%s", log.Seen.String())
		}
	}
}

// TestProxyTellsBalancersFirst checks that clients are served during --shutdown-delay, while
// /readyz fails.
func TestProxyTellsBalancersFirst(t *testing.T) {
	pg := sharedPostgres.Get(t)
	clitest.ClearEnvironment(t)
	p := startChild(t, pg, "--admin", "127.0.0.1:0", "--shutdown-delay", "10m")
	if code, body := clitest.Get(t, p.admin+"readyz"); code != 200 {
		t.Fatalf("readyz: %d %s", code, body)
	}
	p.send(syscall.SIGTERM)
	p.log.Await("weir proxy is about to stop")
	code, body := clitest.Get(t, p.admin+"readyz")
	p.exec("SELECT 1")
	late, err := dial(t, p.address, pg.User(), "", "postgres")
	if err != nil {
		t.Errorf("a client that comes before the delay is over: %v", err)
	} else {
		_ = late.Close(t.Context())
	}
	if code != 503 || !strings.Contains(body, "stopping") {
		t.Errorf("readyz before the stop: %d %s, want 503", code, body)
	}
	console, err := dial(t, p.address, pg.User(), "", "weir")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := console.Exec(t.Context(), "SHUTDOWN"); err != nil { // without the delay
		t.Error(err)
	}
	_, _ = io.Copy(&p.log.Seen, p.log.Lines)
	if err := p.Wait(); err != nil {
		t.Errorf("ended with %v; log:\n%s", err, p.log.Seen.String())
	}
}

// TestConsoleEndsTheProcess checks that SHUTDOWN on one side's console ends both sides.
func TestConsoleEndsTheProcess(t *testing.T) {
	pg := sharedPostgres.Get(t)
	for _, how := range []string{"", " WAIT_FOR_SERVERS", " WAIT_FOR_CLIENTS"} {
		clitest.ClearEnvironment(t)
		p := startChild(t, pg)
		p.exec("BEGIN")
		console, err := dial(t, p.address, pg.User(), "", "pgbouncer")
		if err != nil {
			t.Fatal(err)
		}
		if tag, err := console.Exec(t.Context(), "SHUTDOWN"+how); err != nil || tag.String() != "SHUTDOWN" {
			t.Errorf("SHUTDOWN%s: %v, %v", how, tag, err)
		}
		if how != "" {
			p.exec("SELECT 1")
			p.exec("COMMIT")
		}
		_ = p.conn.Close(t.Context())
		rest, _ := io.ReadAll(p.log.Lines)
		if err := p.Wait(); err != nil {
			t.Errorf("SHUTDOWN%s: %v; log:\n%s%s", how, err, p.log.Seen.String(), rest)
		}
	}
}

func TestProxyReplacesItsCertificate(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, TLS: lab.TLSRequired})
	other, err := pg.ClientCert("somebody")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "weir.crt"), filepath.Join(dir, "weir.key")
	install := func(pair lab.KeyPair) {
		t.Helper()
		for from, to := range map[string]string{pair.Cert: cert, pair.Key: key} {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			clitest.Write(t, to, string(text))
		}
	}
	install(pg.ServerCert())
	log, stop := startProxy(t, "--postgres", pg.DSN("postgres"), "--client-tls-cert", cert, "--client-tls-key", key, "--client-tls-mode", "require")
	address := log.Await("weir proxy listens")["address"].(string)
	peer := func() string {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s@%s/postgres?sslmode=require", pg.User(), address))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		return conn.PgConn().Conn().(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := peer(); got != "localhost" {
		t.Errorf("certificate of %q, want localhost", got)
	}
	if _, err := dial(t, address, pg.User(), "", "postgres"); err == nil {
		t.Error("a client without TLS was let in")
	}
	install(other)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	log.Await("configuration reloaded")
	if got := peer(); got != "somebody" {
		t.Errorf("certificate of %q after the reload, want somebody", got)
	}
	if code := stop(); code != cli.ExitFine {
		t.Errorf("exit code %d; log:\n%s", code, log.Seen.String())
	}
}

func TestProxyReportsWhatItCannotListenOn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	clitest.ClearEnvironment(t)
	for _, tt := range []struct{ flag, other, want string }{
		{"--listen-postgres", "--admin=off", "listen for clients"},
		{"--admin", "--listen-postgres=127.0.0.1:0", "an address of its own, or --admin off"},
	} {
		out := program.Run(t, "proxy", "--postgres", "host=127.0.0.1 port=1", tt.flag, ln.Addr().String(), tt.other)
		if !strings.Contains(out, tt.want) || !strings.Contains(out, "address already in use") || !strings.HasSuffix(out, "exit 1\n") {
			t.Errorf("%s in use: %s", tt.flag, out)
		}
	}
}

// A proxyChild is `weir proxy` as a process of its own, with a client.
type proxyChild struct {
	*exec.Cmd
	t    *testing.T
	log  *clitest.Log
	conn *pgx.Conn

	address, admin string
}

// startChild starts a proxyChild in front of pg. It is killed if it does not end within the
// test's patience.
func startChild(t *testing.T, pg *lab.Postgres, args ...string) *proxyChild {
	t.Helper()
	p := launch(t, "WEIR_POSTGRES="+pg.DSN("postgres"), args...)
	var err error
	if p.conn, err = dial(t, p.address, pg.User(), "", "postgres"); err != nil {
		t.Fatal(err)
	}
	return p
}

// launch starts a proxyChild in front of the server that an environment variable names, without
// a client.
func launch(t *testing.T, server string, args ...string) *proxyChild {
	t.Helper()
	cmd := program.Command(t, append([]string{"proxy", "--listen-postgres", "127.0.0.1:0", "--admin", "off", "--drain-timeout", "10m", "--trust-loopback"}, args...)...)
	cmd.Env = append(cmd.Env, server)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(labtest.Patience, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { timer.Stop() })
	p := &proxyChild{Cmd: cmd, t: t, log: clitest.NewLog(t, stderr)}
	listens := p.log.Await("weir proxy listens")
	p.address = listens["address"].(string)
	p.admin, _ = listens["admin"].(string)
	return p
}

func (p *proxyChild) exec(sql string) {
	p.t.Helper()
	if _, err := p.conn.Exec(p.t.Context(), sql); err != nil {
		p.t.Errorf("%s: %v", sql, err)
	}
}

func (p *proxyChild) send(signal syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}

// TestProxyTakesSignals runs the proxy as a process of its own.
func TestProxyTakesSignals(t *testing.T) {
	pg := sharedPostgres.Get(t)
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		twice  bool // it is sent again so soon that it counts as the same signal
		open   bool // a transaction is open, and is committed after the signal
		again  bool // the transaction stays open, and the signal is sent until the process ends
		want   string
	}{
		{"SIGTERM", syscall.SIGTERM, false, false, false, ""},
		{"SIGINT", syscall.SIGINT, false, false, false, ""},
		{"in a transaction", syscall.SIGTERM, false, true, false, ""},
		{"twins in a transaction", syscall.SIGTERM, true, true, false, ""},
		{"SIGTERM again", syscall.SIGTERM, false, true, true, "signal: terminated"},
		{"SIGINT again", syscall.SIGINT, false, true, true, "signal: interrupt"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clitest.ClearEnvironment(t)
			var p *proxyChild
			for {
				p = startChild(t, pg)
				if tt.open {
					p.exec("BEGIN")
				}
				began := time.Now()
				p.send(tt.signal)
				p.log.Await("weir proxy stops")
				if !tt.twice {
					break
				}
				p.send(tt.signal)
				if time.Since(began) < cli.SameSignal {
					break
				}
				// The machine was too slow: this counts as a second signal, and may have ended
				// the process.
				_ = p.Process.Kill()
				_ = p.Wait()
			}
			var rest []byte
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				rest, _ = io.ReadAll(p.log.Lines)
			}()
			if tt.open && !tt.again {
				p.exec("COMMIT")
			}
			for repeat := time.NewTicker(cli.SameSignal / 4); tt.again; {
				select {
				case <-ended:
					tt.again = false
				case <-repeat.C:
					_ = p.Process.Signal(tt.signal) // it may have ended just now
				}
			}
			<-ended
			err := p.Wait()
			var exit *exec.ExitError
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("ended with %v, want exit code 0; log:\n%s%s", err, p.log.Seen.String(), rest)
			case tt.want != "" && (!errors.As(err, &exit) || exit.String() != tt.want):
				t.Errorf("ended with %v, want %q; log:\n%s%s", err, tt.want, p.log.Seen.String(), rest)
			}
		})
	}
}
