package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

const patience = proxytest.Patience

// shared is the server of most tests; each has a database of its own in it.
var shared struct {
	server *lab.Postgres
	err    error // why there is none
	serial atomic.Int64

	// admins are sessions of the superuser in the database postgres, which askServer takes
	// in turn: to begin one and to end it takes the server 5 ms of work.
	admins chan *pgconn.PgConn

	known   catalogue.Known
	lookups *postgres.Lookups
}

// TestMain runs the tests against one real server and then checks that they
// left neither goroutines nor file descriptors behind.
func TestMain(m *testing.M) {
	os.Exit(proxytest.RunAll(tests{m}, func(ctx context.Context) func(context.Context) error {
		shared.server, shared.err = lab.StartPostgres(ctx, serverConfig())
		if shared.server == nil {
			return nil
		}
		shared.lookups = postgres.NewLookups()
		shared.admins = make(chan *pgconn.PgConn, 3)
		for range cap(shared.admins) {
			conn, err := pgconn.Connect(ctx, shared.server.DSN("postgres"))
			shared.err = errors.Join(shared.err, err)
			shared.admins <- conn
		}
		if shared.err == nil {
			shared.err = errors.Join(makeRoles(ctx), makeTemplate(ctx))
		}
		return shared.server.Discard // which ends the admins' sessions
	}))
}

// tests run, and then end the servers that they have kept.
type tests struct{ m *testing.M }

func (t tests) Run() int {
	code := t.m.Run()
	if shared.lookups != nil {
		shared.lookups.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := discardServers(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "stop servers:", err)
		code = max(code, 1)
	}
	return code
}

// serverConfig is a server that does not flush, because the machine does not
// crash in these tests, but commits synchronously: what it acknowledged has
// left its memory and survives a SIGKILL, what it did not has not and does not.
func serverConfig() lab.PostgresConfig {
	return lab.PostgresConfig{
		Durability: lab.Fast, Preload: []string{}, SharedBuffers: "32MB",
		Settings: map[string]string{
			"synchronous_commit": "on", "deadlock_timeout": "50ms", "jit": "off", "autovacuum": "off", "max_prepared_transactions": "4",
			"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", // asynchronous commits stay in memory
		},
	}
}

// makeRoles makes the roles that tests log in as; roles belong to the server.
func makeRoles(ctx context.Context) error {
	if _, err := askServer(ctx, "CREATE ROLE weir_rls LOGIN; CREATE ROLE weir_other LOGIN"); err != nil {
		return fmt.Errorf("make roles: %w", err)
	}
	return nil
}

// template is the database of the shared server that others are copies of.
const template = "template_of_tests"

// makeTemplate makes a database that costs the server less to copy and to remove than
// template1: it has fewer and smaller files, and what the first session of a copy would
// have to work out.
func makeTemplate(ctx context.Context) error {
	if _, err := askServer(ctx, shared.server.CreateDatabase(template)); err != nil {
		return fmt.Errorf("make the template: %w", err)
	}
	for _, texts := range [][]string{{"SET allow_system_table_mods = on", "TRUNCATE pg_description", "VACUUM FULL"}, nil} {
		if err := runOn(ctx, shared.server.DSN(template), texts...); err != nil {
			return fmt.Errorf("make the template: %w", err)
		}
	}
	return nil
}

// askServer runs a text on the shared server, as the superuser in the database postgres. The
// session is not the text's own: it must leave as it is what belongs to a session.
func askServer(ctx context.Context, sql string) ([]*pgconn.Result, error) {
	conn := <-shared.admins
	defer func() { shared.admins <- conn }()
	if conn.IsClosed() { // a test has ended what it found, or a context its statement
		fresh, err := pgconn.Connect(ctx, shared.server.DSN("postgres"))
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		conn = fresh
	}
	return conn.Exec(ctx, sql).ReadAll()
}

// onServer runs texts by askServer.
func onServer(tb testing.TB, texts ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // a cleanup's, too
	defer cancel()
	for _, sql := range texts {
		if _, err := askServer(ctx, sql); err != nil {
			tb.Fatalf("%s: %v", sql, err)
		}
	}
}

// countOnServer is the number that a query returns by askServer.
func countOnServer(tb testing.TB, sql string) int {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := askServer(ctx, sql)
	if err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	n, err := strconv.Atoi(string(results[0].Rows[0][0]))
	if err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return n
}

// server returns the shared server.
func server(tb testing.TB) *lab.Postgres {
	tb.Helper()
	proxytest.Need(tb, shared.err)
	return shared.server
}

// database makes a database for tb and returns its name. setup is run in it.
func database(tb testing.TB, setup ...string) string {
	tb.Helper()
	if len(setup) == 0 {
		return emptyDatabase(tb)
	}
	name := copyOn(tb, server(tb), template)
	sqlOn(tb, server(tb).DSN(name), setup...)
	return name
}

// twins makes two databases that are alike: the second is a copy of the first, which costs
// the server less than to run setup twice.
func twins(tb testing.TB, setup ...string) (one, other string) {
	tb.Helper()
	one = database(tb, setup...)
	if strings.Contains(strings.Join(setup, ";"), "ALTER DATABASE") { // of which a copy has nothing
		return one, database(tb, setup...)
	}
	return one, copyOn(tb, server(tb), one)
}

// emptied are databases that tests have left as they were made.
var emptied struct {
	mu    gosync.Mutex
	names []string // guarded by mu
}

// emptyDatabase has tb have a database without anything in it, for itself: to see that it was
// left so takes the server a tenth of what it takes to make one and to remove it.
func emptyDatabase(tb testing.TB) (name string) {
	tb.Helper()
	emptied.mu.Lock()
	if n := len(emptied.names); n > 0 {
		name, emptied.names = emptied.names[n-1], emptied.names[:n-1]
	}
	emptied.mu.Unlock()
	if name == "" {
		name = fmt.Sprintf("t%d", shared.serial.Add(1))
		onServer(tb, server(tb).CreateDatabase(name)+" TEMPLATE "+template)
	}
	tb.Cleanup(func() {
		if tb.Failed() || !isAsMade(tb, name) {
			onServer(tb, "DROP DATABASE "+name+" WITH (FORCE)")
			return
		}
		emptied.mu.Lock()
		defer emptied.mu.Unlock()
		emptied.names = append(emptied.names, name)
	})
	return name
}

// isAsMade ends the sessions of a database and reports whether nobody has written to it, or
// set anything for it. From PostgreSQL 15 on a session counts what it has written before it ends.
func isAsMade(tb testing.TB, name string) bool {
	tb.Helper()
	onServer(tb, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '"+name+"'")
	return countOnServer(tb, `SELECT count(*) FROM pg_database d WHERE datname = '`+name+`' AND datconnlimit = -1 AND datallowconn AND datacl IS NULL
 AND pg_stat_get_db_tuples_inserted(oid) + pg_stat_get_db_tuples_updated(oid) + pg_stat_get_db_tuples_deleted(oid) = 0
 AND NOT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = d.oid) AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE datid = d.oid)
 AND NOT EXISTS (SELECT FROM pg_prepared_xacts WHERE database = d.datname) AND current_setting('server_version_num')::int >= 150000`) == 1
}

// copyOn makes a database for tb that is a copy of another, and returns its name.
func copyOn(tb testing.TB, server *lab.Postgres, template string) string {
	tb.Helper()
	name := fmt.Sprintf("t%d", shared.serial.Add(1))
	run := onServer
	if server != shared.server {
		run = func(tb testing.TB, texts ...string) { sqlOn(tb, server.DSN("postgres"), texts...) }
	}
	run(tb, server.CreateDatabase(name)+" TEMPLATE "+template)
	tb.Cleanup(func() {
		select {
		case <-server.Done():
		default:
			run(tb, "DROP DATABASE "+name+" WITH (FORCE)")
		}
	})
	return name
}

// sqlOn runs texts on a connection of their own.
func sqlOn(tb testing.TB, dsn string, texts ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := runOn(ctx, dsn, texts...); err != nil {
		tb.Fatal(err)
	}
}

// sqlOver is sqlOn on one connection for all texts, which is kept until tb ends: to begin one
// takes the server more work than most texts.
func sqlOver(tb testing.TB, dsn string) func(texts ...string) {
	tb.Helper()
	conn := connect(tb, dsn).PgConn()
	return func(texts ...string) {
		tb.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, sql := range texts {
			if err := conn.Exec(ctx, sql).Close(); err != nil {
				tb.Fatalf("%s: %v", sql, err)
			}
		}
	}
}

func runOn(ctx context.Context, dsn string, texts ...string) error {
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range texts {
		if err := conn.Exec(ctx, sql).Close(); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// A weir is a running proxy.
type weir struct {
	*postgres.Server
	tb   testing.TB
	db   string
	stop func() error // ends it and waits; idempotent
	// ended is closed when Run has returned.
	ended chan struct{}

	past func(texts ...string) // of changes
}

// proxies are those that tests have started, by their addresses.
var proxies gosync.Map

// start runs a proxy in front of the shared server for the length of tb. Its
// clients use database db.
func start(tb testing.TB, db string, change func(*postgres.Config)) *weir {
	tb.Helper()
	return startFor(tb, server(tb), db, change)
}

func startFor(tb testing.TB, server *lab.Postgres, db string, change func(*postgres.Config)) *weir {
	tb.Helper()
	cfg := postgres.Config{
		Postgres: pgwire.ConnectConfig{Address: server.Addr(), User: server.User(), Database: "postgres", Password: server.Password(), TLSMode: pgwire.TLSDisable},
		Listen:   "127.0.0.1:0",
		Options: session.Options{
			Limits: session.Limits{PoolSize: 8, QueueTimeout: patience}, Loops: 1, TrustLoopback: true, // the tests' server trusts this machine
			DrainTimeout: time.Second,
			Log:          proxytest.Log(tb),
		},
	}
	login := cfg.Postgres
	if server == shared.server {
		cfg.ShareKnown(&shared.known)
	}
	if change != nil {
		change(&cfg)
	}
	if server == shared.server && reflect.DeepEqual(cfg.Postgres, login) && cfg.Hosts == nil && cfg.AuthUser+cfg.AuthDatabase+cfg.AuthQuery == "" {
		cfg.ShareLookups(shared.lookups)
	}
	s, err := postgres.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	w := &weir{Server: s, tb: tb, db: db}
	w.stop, w.ended = proxytest.Run(tb, s)
	proxies.Store(s.Addr().String(), s)
	tb.Cleanup(func() { proxies.Delete(s.Addr().String()) })
	return w
}

// inTurn returns a function that gives a subtest a proxy and takes it back at the subtest's
// end: start is called for as many as run at a time. A proxy that starts costs its server 50 ms.
func inTurn(start func() *weir) func(testing.TB) *weir {
	var mu gosync.Mutex
	var idle []*weir
	return func(sub testing.TB) *weir {
		mu.Lock()
		defer mu.Unlock()
		var w *weir
		if n := len(idle); n > 0 {
			w, idle = idle[n-1], idle[:n-1]
		} else {
			w = start()
		}
		sub.Cleanup(func() { // behind those that close the subtest's clients
			if sub.Failed() {
				return // another would fail for the same reason
			}
			mu.Lock()
			defer mu.Unlock()
			idle = append(idle, w)
		})
		return w.within(sub)
	}
}

// within is w for a subtest.
func (w *weir) within(tb testing.TB) *weir {
	sub := *w
	sub.tb = tb
	return &sub
}

// connect opens a pgx connection that is closed with tb.
func connect(tb testing.TB, dsn string) *pgx.Conn {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// snapshot is the proxy's state now.
func (w *weir) snapshot() sight.Snapshot {
	w.tb.Helper()
	return proxytest.Snapshot(w.tb, w)
}

// pool is the state of the pool of w's database and the superuser.
func (w *weir) pool() sight.PoolStatus {
	w.tb.Helper()
	return proxytest.Pool(w.tb, w, w.db, "postgres")
}

// gathered counts the members beyond the first of each group that the lanes of
// a kind ran: more than none means that there were groups of two and more.
func (w *weir) gathered(kind string) (extra uint64) {
	w.tb.Helper()
	return proxytest.Gathered(w.tb, w, kind)
}

func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	testkit.Eventually(tb, what, holds)
}

// ctxFor bounds everything that a test does with its connections.
func ctxFor(tb testing.TB) context.Context {
	tb.Helper()
	return proxytest.Context(tb)
}
