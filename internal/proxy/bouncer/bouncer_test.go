package bouncer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/pgbouncer"
	"github.com/weirdb/weir/internal/testkit"
)

// patience bounds every wait for something that must happen.
const patience = 2 * time.Minute

// A rig is a proxy that runs within a test.
type rig struct {
	t       *testing.T
	dir     string
	ini     string
	port    int
	signals chan os.Signal
	ended   chan error
}

// start runs a proxy by an ini file, in which %s is the directory and %d the port.
func start(t *testing.T, ini string) *rig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, dir: t.TempDir(), port: ln.Addr().(*net.TCPAddr).Port,
		signals: make(chan os.Signal, 4), ended: make(chan error, 1),
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	r.ini = filepath.Join(r.dir, "pgbouncer.ini")
	r.write("userlist.txt", "\"app\" \"secret\"\n\"other\" \"else\"\n\"admin\" \"root\"\n\"watch\" \"tower\"\n")
	r.write("pgbouncer.ini", ini+fmt.Sprintf("\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir = %s\nlogfile = %s\nauth_file = %s\n",
		r.port, r.dir, filepath.Join(r.dir, "log"), filepath.Join(r.dir, "userlist.txt")))
	r.run(false)
	t.Cleanup(func() {
		r.signals <- syscall.SIGQUIT
		r.awaitEnd()
	})
	return r
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// run starts the proxy and waits until it listens.
func (r *rig) run(takeOver bool) {
	r.t.Helper()
	cfg, err := pgbouncer.Read(r.ini)
	if err != nil {
		r.t.Fatal(err)
	}
	signals, ended := r.signals, r.ended
	go func() {
		ended <- Run(context.Background(), Options{Config: cfg, Signals: signals, TakeOver: takeOver, Verbose: 1})
	}()
	testkit.Eventually(r.t, "the proxy listens", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(r.port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func (r *rig) awaitEnd() {
	r.t.Helper()
	select {
	case err := <-r.ended:
		if err != nil {
			r.t.Error(err)
		}
	case <-time.After(patience):
		r.t.Error("the proxy does not end")
	}
}

// dial connects by a connection string's further words.
func (r *rig) dial(words string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d sslmode=disable %s", r.port, words))
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(r.t.Context(), cfg)
	if err == nil {
		r.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

func (r *rig) mustDial(words string) *pgx.Conn {
	r.t.Helper()
	conn, err := r.dial(words)
	if err != nil {
		r.t.Fatal(err)
	}
	return conn
}

func (r *rig) refused(words, want string) {
	r.t.Helper()
	conn, err := r.dial(words)
	if err == nil {
		_ = conn.Close(r.t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		r.t.Errorf("%s: %v, want %q", words, err, want)
	}
}

func (r *rig) value(conn *pgx.Conn, sql string) string {
	r.t.Helper()
	var v any
	if err := conn.QueryRow(r.t.Context(), sql).Scan(&v); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return fmt.Sprint(v)
}

// table returns the rows of SHOW, by column.
func (r *rig) table(conn *pgx.Conn, what string) []map[string]any {
	r.t.Helper()
	rows, err := conn.Query(r.t.Context(), "SHOW "+what)
	if err != nil {
		r.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil {
		r.t.Fatalf("SHOW %s: %v", what, err)
	}
	return list
}

func (r *rig) logged(text string) {
	r.t.Helper()
	var log []byte
	testkit.Await(r.t, func() bool {
		var err error
		if log, err = os.ReadFile(filepath.Join(r.dir, "log")); err != nil {
			r.t.Fatal(err)
		}
		return strings.Contains(string(log), text)
	}, func() string { return fmt.Sprintf("the log has no %q:\n%s", text, log) })
}

const general = `
[pgbouncer]
auth_type = scram-sha-256
admin_users = admin
stats_users = watch
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
`

func TestDatabasesAndModes(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	host, port, err := net.SplitHostPort(pg.Addr())
	if err != nil {
		t.Fatal(err)
	}
	to := "host=" + host + " port=" + port
	r := start(t, fmt.Sprintf(`
[databases]
renamed = %[1]s dbname=postgres user=%[2]s connect_query='SET my.mark = 7' timezone=Asia/Tokyo
session = %[1]s dbname=postgres user=%[2]s pool_mode=session
statement = %[1]s dbname=postgres user=%[2]s pool_mode=statement
gone = host=127.0.0.1,%[3]s port=1 dbname=postgres user=%[2]s load_balance_hosts=disable
lookup = %[1]s dbname=postgres user=%[2]s auth_user=%[2]s auth_query='SELECT $1::text, ''found'''
[users]
other = max_user_client_connections=1
`, to, pg.User(), host)+general)

	conn := r.mustDial("user=app password=secret dbname=renamed")
	if db, who, mark, zone := r.value(conn, "SELECT current_database()"), r.value(conn, "SELECT current_user"), r.value(conn, "SHOW my.mark"),
		r.value(conn, "SHOW timezone"); db != "postgres" || who != pg.User() || mark != "7" || zone != "Asia/Tokyo" {
		t.Errorf("database %s, user %s, mark %s, zone %s", db, who, mark, zone)
	}
	// A session keeps its backend; a transaction does not.
	own := r.mustDial("user=app password=secret dbname=session")
	if a, b := r.value(own, "SELECT pg_backend_pid()"), r.value(own, "SELECT pg_backend_pid()"); a != b {
		t.Errorf("the session has moved from %s to %s", a, b)
	}
	for _, srv := range r.table(r.mustDial("user=admin password=root dbname=pgbouncer"), "SERVERS") {
		if srv["database"] == "session" && (srv["state"] != "active" || srv["link"] == "") {
			t.Errorf("the session's server: %v", srv)
		}
	}
	single := r.mustDial("user=app password=secret dbname=statement")
	if _, err := single.Exec(t.Context(), "BEGIN"); err == nil {
		if _, err = single.Exec(t.Context(), "SELECT 1"); err == nil {
			t.Error("BEGIN in mode statement, and the session goes on")
		}
	}
	r.logged("closing because: transaction blocks not allowed in statement pooling mode")

	r.mustDial("user=anybody password=found dbname=lookup")
	r.refused("user=anybody password=wrong dbname=lookup", "SASL authentication failed")
	r.refused("user=app password=secret dbname=nowhere", "no such database: nowhere")
	r.refused("user=app password=wrong dbname=renamed", "SASL authentication failed")
	r.refused("user=nobody password=x dbname=renamed", "SASL authentication failed")
	r.refused("user=app password=secret dbname=renamed enable_seqscan=off", "unsupported startup parameter: enable_seqscan")
	r.mustDial("user=app password=secret dbname=renamed extra_float_digits=3 datestyle=German")
	r.mustDial("user=other password=else dbname=renamed")
	r.refused("user=other password=else dbname=renamed", "max_user_client_connections")

	repl, err := pgconn.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=app password=secret dbname=renamed sslmode=disable replication=database", r.port))
	if err != nil {
		t.Fatal(err)
	}
	defer repl.Close(context.Background())
	if res, err := repl.Exec(t.Context(), "IDENTIFY_SYSTEM").ReadAll(); err != nil || len(res[0].Rows) != 1 {
		t.Errorf("replication: %v, %v", res, err)
	}
}

func TestConsole(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	host, port, err := net.SplitHostPort(pg.Addr())
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, fmt.Sprintf("[databases]\na = host=%s port=%s dbname=postgres user=%s pool_size=3\n", host, port, pg.User())+general)
	admin, watch := r.mustDial("user=admin password=root dbname=pgbouncer"), r.mustDial("user=watch password=tower dbname=pgbouncer")
	r.refused("user=app password=secret dbname=pgbouncer", "not allowed")

	for _, what := range []string{
		"CLIENTS", "SERVERS", "SOCKETS", "ACTIVE_SOCKETS", "CONFIG", "DATABASES", "POOLS", "USERS", "LISTS", "STATE", "STATS", "STATS_TOTALS", "STATS_AVERAGES",
		"TOTALS", "PEERS", "PEER_POOLS", "MEM", "DNS_HOSTS", "DNS_ZONES", "VERSION", "HELP", "timezone",
	} {
		r.table(watch, what)
	}
	client := r.mustDial("user=app password=secret dbname=a application_name=here")
	r.value(client, "SELECT 1")
	for _, db := range r.table(watch, "DATABASES") {
		if db["name"] == "a" && (db["pool_size"] != int64(3) || db["force_user"] != pg.User() || db["current_client_connections"] != int64(1)) {
			t.Errorf("database: %v", db)
		}
	}
	var id int64
	for _, c := range r.table(watch, "CLIENTS") {
		if c["user"] == "app" {
			id = c["id"].(int64)
		}
	}
	exec := func(conn *pgx.Conn, sql, want string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql)
		var e *pgconn.PgError
		switch {
		case want == "" && err == nil:
		case want == "" || err == nil || !errors.As(err, &e) || !strings.Contains(e.Message, want):
			t.Errorf("%s: %v, want %q", sql, err, want)
		}
	}
	exec(watch, "SET max_client_conn = 7", "admin access needed")
	exec(watch, "PAUSE", "admin access needed")
	exec(admin, "SET max_client_conn = 7", "")
	exec(admin, "SET nothing = 7", "SET failed")
	exec(admin, "SET syslog = 1", "SET failed")
	exec(admin, "KILL b", "no such database: b")
	exec(admin, "KILL_CLIENT x", "invalid client pointer supplied")
	exec(admin, "KILL_CLIENT 123456", "client not found")
	exec(admin, "RESUME", "pooler is not paused/suspended")
	exec(admin, "PAUSE", "")
	exec(admin, "PAUSE", "already suspended/paused")
	exec(admin, "RESUME", "")
	exec(admin, "SUSPEND", "")
	if st := r.table(watch, "STATE"); st[2]["key"] != "suspended" || st[2]["value"] != "yes" {
		t.Errorf("STATE: %v", st)
	}
	exec(admin, "RESUME", "")
	exec(admin, "DISABLE a", "")
	r.refused("user=app password=secret dbname=a", `database "a" is disabled`)
	exec(admin, "ENABLE a", "")
	exec(admin, "NONSENSE", "invalid command")
	for _, c := range r.table(watch, "CONFIG") {
		if c["key"] == "max_client_conn" && (c["value"] != "7" || c["default"] != "100") {
			t.Errorf("CONFIG: %v", c)
		}
	}
	exec(admin, "RELOAD", "")
	for _, c := range r.table(watch, "CONFIG") {
		if c["key"] == "max_client_conn" && c["value"] != "100" {
			t.Errorf("after RELOAD: %v", c)
		}
	}
	text, err := os.ReadFile(r.ini)
	if err != nil {
		t.Fatal(err)
	}
	r.write("pgbouncer.ini", string(text)+"\nserver_lifetime = soon\n")
	exec(admin, "RELOAD", "RELOAD failed, see logs for additional details")
	r.logged("server_lifetime: want a number of seconds")
	exec(admin, "KILL_CLIENT "+strconv.FormatInt(id, 10), "")
	if _, err := client.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("a client that was killed goes on")
	}
}

// A second process takes the place of the first, which ends when its clients have left.
func TestTakeOver(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	host, port, err := net.SplitHostPort(pg.Addr())
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, fmt.Sprintf("[databases]\na = host=%s port=%s dbname=postgres user=%s\n", host, port, pg.User())+general)
	conn := r.mustDial("user=app password=secret dbname=a")
	first := r.ended
	r.signals, r.ended = make(chan os.Signal, 4), make(chan error, 1)
	r.run(true)
	r.logged("listening on")
	r.value(conn, "SELECT 1")
	select {
	case err := <-first:
		t.Fatalf("it has ended under its client: %v", err)
	default:
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := r.ended
	r.ended = first
	r.awaitEnd()
	r.ended = second
	r.value(r.mustDial("user=app password=secret dbname=a"), "SELECT 1")
	if _, err := os.Stat(filepath.Join(r.dir, ".s.PGSQL."+strconv.Itoa(r.port))); err != nil {
		t.Errorf("the first process has taken the second one's socket away: %v", err)
	}
}

// SIGTERM waits for clients, a second one does not.
func TestSignals(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	host, port, err := net.SplitHostPort(pg.Addr())
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, fmt.Sprintf("[databases]\na = host=%s port=%s dbname=postgres user=%s\n", host, port, pg.User())+general)
	conn := r.mustDial("user=app password=secret dbname=a")
	r.signals <- syscall.SIGUSR1
	r.logged("got SIGUSR1: PAUSE")
	r.signals <- syscall.SIGUSR2
	r.value(conn, "SELECT 1")
	r.signals <- syscall.SIGHUP
	r.logged("got SIGHUP, re-reading config")
	r.signals <- syscall.SIGTERM
	r.logged("got SIGTERM, shutting down, wait_for_clients")
	r.value(conn, "SELECT 1")
	r.signals <- syscall.SIGUSR2
	r.logged("got SIGUSR2 while shutting down, ignoring")
	r.signals <- syscall.SIGTERM
	r.awaitEnd()
	r.ended <- nil // for the cleanup
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("the client goes on")
	}
}
