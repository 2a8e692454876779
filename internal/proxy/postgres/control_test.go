package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// command runs a command of the console, which must not be refused.
func (w *weir) command(text string) {
	w.tb.Helper()
	proxytest.Command(w.tb, w, text)
}

// begin runs a command of the console in the background; the result is its end.
func (w *weir) begin(text string) <-chan error {
	ctx, ended := ctxFor(w.tb), make(chan error, 1)
	go func() {
		_, err := w.Command(ctx, text)
		ended <- err
	}()
	return ended
}

// paused reports whether the statements of w's database wait on all loops.
func (w *weir) paused() bool {
	w.tb.Helper()
	return !w.pool().Running
}

// sessions counts the server's sessions in w's database.
func (w *weir) sessions() int {
	w.tb.Helper()
	return countOnServer(w.tb, "SELECT count(*) FROM pg_stat_activity WHERE datname = '"+w.db+"'")
}

// TestPauseWaitsForTransactions checks that under PAUSE an open transaction can finish, new
// statements wait, and PAUSE returns when the server has no session left.
func TestPauseWaitsForTransactions(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"the database", "all"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, database(t, "CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)"), nil)
			argument := ""
			if name != "all" {
				argument = " " + w.db
			}
			holder, reader, writer := w.wire(), w.wire(), w.wire()
			reader.ask("SELECT a FROM t WHERE a = 1")
			holder.want("BEGIN", "BEGIN T")
			holder.want("UPDATE t SET a = 3 WHERE a = 1", "UPDATE_1 T")
			ended := w.begin("PAUSE" + argument)
			eventually(t, "the transaction alone has a connection", func() bool { return w.paused() && w.pool().Backends == 1 })
			reader.send(query("SELECT a FROM t WHERE a = 2"))
			writer.send(query("/* batch */ INSERT INTO t VALUES (9)"))
			login := make(chan error, 1)
			var late *wire
			go func() {
				var err error
				late, err = tryWireAs(t, w.Addr().String(), w.db, "postgres")
				login <- err
			}()
			eventually(t, "both wait", func() bool { return w.pool().Waiting >= 2 })
			holder.want("INSERT INTO t VALUES (4)", "INSERT_0_1 T")
			select {
			case err := <-ended:
				t.Fatalf("PAUSE returned in the middle of a transaction: %v", err)
			default:
			}
			holder.want("COMMIT", "COMMIT I")
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			eventually(t, "the server has no session of the database", func() bool { return w.sessions() == 0 })
			if _, err := w.Command(t.Context(), "PAUSE"+argument); err == nil || !strings.Contains(err.Error(), "paused already") {
				t.Errorf("PAUSE again: %v", err)
			}
			select {
			case err := <-login:
				t.Fatalf("a login ended while the database was paused: %v", err)
			default:
			}
			w.command("RESUME" + argument)
			if got := render(reader.ready()); got != "[a] (2) SELECT_1 I" {
				t.Errorf("the read that waited: %s", got)
			}
			if got := render(writer.ready()); got != "INSERT_0_1 I" {
				t.Errorf("the write that waited: %s", got)
			}
			if err := <-login; err != nil {
				t.Fatalf("the login that waited: %v", err)
			}
			late.want("SELECT count(*) AS n FROM t", "[n] (4) SELECT_1 I")
			if _, err := w.Command(t.Context(), "RESUME"+argument); err == nil || !strings.Contains(err.Error(), "not paused") {
				t.Errorf("RESUME again: %v", err)
			}
		})
	}
}

// loadTables are the tables in which a load counts.
var loadTables = []string{"CREATE TABLE t (k int PRIMARY KEY, n int)", "INSERT INTO t SELECT k, 0 FROM generate_series(0, 7) k"}

// load starts a load on w's database that increments counters in transactions and in groups, and
// reads in between.
func (w *weir) load(t *testing.T) *proxytest.Load {
	t.Helper()
	return proxytest.NewLoad(t, func(k int) func(i int) (bool, error) {
		conn, ctx := connect(t, fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", w.Addr(), w.db)), ctxFor(t)
		return func(i int) (added bool, err error) {
			var n int
			switch i % 3 {
			case 0:
				return true, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
					if err := tx.QueryRow(ctx, "SELECT n FROM t WHERE k = $1 FOR UPDATE", k).Scan(&n); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, "UPDATE t SET n = $2 WHERE k = $1", k, n+1)
					return err
				})
			case 1:
				_, err = conn.Exec(ctx, "/* batch */ UPDATE t SET n = n + 1 WHERE k = $1", k)
				return true, err
			}
			return false, conn.QueryRow(ctx, "SELECT n FROM t WHERE k = $1", k).Scan(&n)
		}
	})
}

// end ends a load, and checks its counters in the database that dsn names.
func end(t *testing.T, l *proxytest.Load, dsn string) {
	t.Helper()
	l.End(func() (sum int64, err error) {
		err = connect(t, dsn).QueryRow(ctxFor(t), "SELECT sum(n) FROM t").Scan(&sum)
		return sum, err
	})
}

// TestPauseUnderLoad pauses, resumes and reconnects under load.
func TestPauseUnderLoad(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, loadTables...), func(c *postgres.Config) { c.Loops = 2 })
	l := w.load(t)
	for round := range testkit.Rounds(3, 60) {
		l.GoesOn()
		switch round % 3 {
		case 0:
			w.command("PAUSE")
			eventually(t, "the server's sessions end", func() bool { return w.sessions() == 0 })
			w.command("RESUME")
		case 1:
			w.command("RECONNECT " + w.db)
			w.command("WAIT_CLOSE")
		default:
			w.command("PAUSE " + w.db)
			w.command("RESUME")
		}
	}
	end(t, l, server(t).DSN(w.db))
}

// TestServerRestartsUnderPause restarts the server between PAUSE and RESUME: a load that goes on
// meanwhile must see no error.
func TestServerRestartsUnderPause(t *testing.T) {
	t.Parallel()
	own := trusting(t)
	sqlOn(t, own.DSN("postgres"), loadTables...)
	w := startFor(t, own, "postgres", nil)
	l := w.load(t)
	for range 2 {
		l.GoesOn()
		w.command("PAUSE")
		if err := own.Restart(ctxFor(t)); err != nil {
			t.Fatal(err)
		}
		w.command("RESUME")
	}
	l.GoesOn()
	end(t, l, own.DSN("postgres"))
}

// TestPausedForTooLong checks that a statement that waits longer than --queue-timeout, and a
// login longer than --login-timeout, get an error with the reason.
func TestPausedForTooLong(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) {
		c.QueueTimeout, c.LoginTimeout = 300*time.Millisecond, 20*time.Second
	})
	c := w.firstWire()
	w.command("PAUSE " + w.db)
	c.send(query("SELECT 1"))
	e := errorIn(c.ready())
	if e == nil || !strings.Contains(e.Message, "query_wait_timeout") || e.Code != pgwire.CodeCannotConnectNow {
		t.Fatalf("a statement that has waited too long: %v", e)
	}
	w.command("RESUME")
	eventually(t, "a statement that runs again", func() bool { // the new backend may take longer than the queue timeout
		c.send(query("SELECT 1"))
		e := errorIn(c.ready())
		if e != nil && e.Code != pgwire.CodeTooManyConnections {
			t.Fatalf("after RESUME: %v", e)
		}
		return e == nil
	})
}

// TestPauseIsGivenUp checks that PAUSE stops waiting when its client disconnects, or when
// another one runs RESUME.
func TestPauseIsGivenUp(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	holder := w.wire()
	holder.want("BEGIN", "BEGIN T")
	holder.want("SELECT 1 AS a", "[a] (1) SELECT_1 T")
	ended := w.begin("PAUSE " + w.db)
	eventually(t, "the database is paused", w.paused)
	w.command("RESUME " + w.db)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "resumed before") {
		t.Errorf("a PAUSE that was ended by RESUME: %v", err)
	}
	console := dialWire(t, w.Addr().String(), "pgbouncer")
	console.send(query("PAUSE"))
	eventually(t, "all is paused", w.paused)
	console.close()
	eventually(t, "the console's session has ended", func() bool { return w.Consoles.Load() == 0 })
	if !w.paused() {
		t.Error("that the administrator has left resumed the database")
	}
	w.command("RESUME")
	holder.want("COMMIT", "COMMIT I")
}

// TestReconnect checks that backends are replaced when they are free, and that WAIT_CLOSE waits
// for that.
func TestReconnect(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	free, holder := w.wire(), w.wire()
	pid := func(c *wire) string { return c.ask("SELECT pg_backend_pid() AS pid") }
	holder.want("BEGIN", "BEGIN T")
	held, used := pid(holder), pid(free)
	w.command("RECONNECT " + w.db)
	if now := pid(free); now == used {
		t.Error("the free backend was not replaced")
	}
	ended := w.begin("WAIT_CLOSE " + w.db)
	if now := pid(holder); now != held {
		t.Errorf("the transaction moved from %s to %s", held, now)
	}
	select {
	case err := <-ended:
		t.Fatalf("WAIT_CLOSE returned before the transaction's end: %v", err)
	default:
	}
	holder.want("COMMIT", "COMMIT I")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestDisableAndEnable(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	c := w.wire()
	w.command("DISABLE " + w.db)
	if _, err := tryWireAs(t, w.Addr().String(), w.db, "postgres"); err == nil || !strings.Contains(err.Error(), "takes no logins") {
		t.Errorf("a login to a disabled database: %v", err)
	}
	c.want("SELECT 1 AS a", "[a] (1) SELECT_1 I")
	w.command(`ENABLE "` + w.db + `"`)
	w.wire().want("SELECT 1 AS a", "[a] (1) SELECT_1 I")
}

func TestKillFromTheConsole(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int)"), nil)
	one, other, busy := w.wire(), w.wire(), w.wire()
	busy.want("BEGIN", "BEGIN T")
	busy.want("INSERT INTO t VALUES (1)", "INSERT_0_1 T")
	var id uint32
	for _, l := range w.Loops {
		if err := l.Call(t.Context(), func() {
			for c := range l.EachClient {
				if id == 0 && c.State == "idle" {
					id = c.ID
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	w.command(fmt.Sprintf("KILL_CLIENT %d", id))
	ends := func(c *wire) bool {
		e := errorIn(c.end())
		return e != nil && e.Code == pgwire.CodeAdminShutdown
	}
	eventually(t, "one client is gone", func() bool { return w.pool().Clients == 2 })
	w.command("KILL " + w.db)
	for i, c := range []*wire{one, other, busy} {
		if !ends(c) {
			t.Errorf("client %d was not told that it was ended", i)
		}
	}
	eventually(t, "the server has no session of the database", func() bool { return w.sessions() == 0 })
	if p := w.pool(); p.Clients != 0 || p.Backends != 0 || !w.paused() {
		t.Errorf("after KILL: %+v", p)
	}
	w.command("RESUME " + w.db)
	w.wire().want("SELECT count(*) AS n FROM t", "[n] (0) SELECT_1 I")
}

// A process records the requests of the console.
type process struct {
	reload error
	ended  chan core.ShutdownMode
}

// A reload changes how later connections to the server notice that it is gone.
func TestReloadedKeepalive(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for _, off := range []bool{false, true, false} {
		next := postgres.Config{Postgres: pgwire.ConnectConfig{Address: server(t).Addr(), User: "postgres", TLSMode: pgwire.TLSDisable}}
		next.Keepalive.Off, next.TrustLoopback = off, true
		if err := w.Reload(next); err != nil {
			t.Fatal(err)
		}
		if on := proxytest.Keepalive(t, w.Dial); on == off {
			t.Errorf("with keepalive off %v, new connections have it %v", off, on)
		}
	}
}

func (p *process) Reload() error             { return p.reload }
func (p *process) End(how core.ShutdownMode) { p.ended <- how }

func TestConsoleAsksTheProcess(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for text, want := range map[string]string{
		"RELOAD":             "no configuration",
		"SHUTDOWN":           "not to be shut down",
		"SHUTDOWN SOON":      "SHUTDOWN takes",
		"SUSPEND a":          "takes no database",
		"PAUSE a b":          "takes one database",
		"PAUSE weir":         "the console itself",
		"DISABLE":            "needs the name",
		"ENABLE " + w.db:     "enabled already",
		"KILL_CLIENT x":      "not the id",
		"KILL_CLIENT 1":      "no client 1",
		"SET pool_size = 10": "unknown command",
	} {
		var no *core.Refusal
		if _, err := w.Command(t.Context(), text); !errors.As(err, &no) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestConsoleDoubtsNames checks that a command for a database that no client has used is
// executed, with a notice in case the name is mistyped.
func TestConsoleDoubtsNames(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	w.wire().want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	cfg, err := pgx.ParseConfig("postgres://postgres@" + w.Addr().String() + "/pgbouncer?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	var notices []string
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Message) }
	console, err := pgx.ConnectConfig(ctxFor(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close(context.Background())
	for _, command := range []string{"DISABLE " + w.db, "ENABLE " + w.db, "DISABLE nobodys", "ENABLE nobodys"} {
		notices = nil
		if _, err := console.Exec(ctxFor(t), command, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Errorf("%s: %v", command, err)
		}
		if doubts := len(notices) == 1 && strings.Contains(notices[0], "nobodys"); doubts != strings.Contains(command, "nobodys") {
			t.Errorf("%s: notices %q", command, notices)
		}
	}
}

// TestShutdownWaits checks that SHUTDOWN WAIT_FOR_SERVERS waits for transactions and
// WAIT_FOR_CLIENTS for clients, and that both refuse new clients.
func TestShutdownWaits(t *testing.T) {
	t.Parallel()
	for _, how := range []core.ShutdownMode{core.ShutdownAfterServers, core.ShutdownAfterClients, core.ShutdownNow} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			p := &process{ended: make(chan core.ShutdownMode, 1)}
			w := start(t, database(t), func(c *postgres.Config) { c.DrainTimeout, c.Process = time.Millisecond, p })
			idle, holder := w.wire(), w.wire()
			holder.want("BEGIN", "BEGIN T")
			console := dialWire(t, w.Addr().String(), "weir")
			console.want("SHUTDOWN "+string(how), "SHUTDOWN I")
			if got := <-p.ended; got != how {
				t.Fatalf("the process was told to end %q, want %q", got, how)
			}
			w.End(how)
			switch how {
			case core.ShutdownAfterServers:
				if e := errorIn(idle.end()); e == nil || e.Code != pgwire.CodeAdminShutdown {
					t.Errorf("an idle client: %v", e)
				}
				holder.want("SELECT 1 AS a", "[a] (1) SELECT_1 T")
				holder.want("COMMIT", "COMMIT I")
			case core.ShutdownAfterClients:
				if _, err := tryWireAs(t, w.Addr().String(), w.db, "postgres"); err == nil {
					t.Error("a new client was taken")
				}
				holder.want("COMMIT", "COMMIT I")
				idle.want("SELECT 1 AS a", "[a] (1) SELECT_1 I")
				idle.close()
				holder.close()
			case core.ShutdownNow:
				if e := errorIn(holder.end()); e == nil || e.Code != pgwire.CodeAdminShutdown {
					t.Errorf("a client in a transaction: %v", e)
				}
			}
			<-w.ended
		})
	}
}

// TestReloadUnderLoad changes limits under load; in the end the last ones hold.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	var cfg postgres.Config
	w := start(t, database(t, loadTables...), func(c *postgres.Config) { cfg = *c })
	l := w.load(t)
	for round := range 12 {
		l.GoesOn()
		next := cfg
		next.PoolSize = []int{1, 12, 3}[round%3]
		next.Users = []postgres.User{{Name: fmt.Sprintf("user%d", round), Secret: pgwire.Secret{}}}
		next.NoSoloLane, next.NoRowsLane = round%2 == 0, round%2 == 0
		next.Mode, next.Listen = "session", "127.0.0.1:1" // a reload does not change these
		if err := w.Reload(next); err != nil {
			t.Fatal(err)
		}
		next.PoolSize = -1
		if err := w.Reload(next); err == nil {
			t.Fatal("a pool of -1 was accepted")
		}
	}
	eventually(t, "the pool has its last size", func() bool { p := w.pool(); return p.Size == 3 && p.Backends <= 3 })
	end(t, l, server(t).DSN(w.db))
	if o := w.Options(); o.Mode != "auto" || o.PoolSize != 3 {
		t.Errorf("in force: mode %s and a pool of %d, want auto and 3", o.Mode, o.PoolSize)
	}
}

// TestPauseLetsGoOfLookups checks that PAUSE also closes the connection on which secrets are
// looked up.
func TestPauseLetsGoOfLookups(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, func(c *postgres.Config) {
		c.Postgres.Database = db
		c.Auth, c.AuthQuery = "password", "SELECT $1::text, 'secret'::text"
	})
	client, err := pgwire.Connect(ctxFor(t), pgwire.ConnectConfig{
		Address: w.Addr().String(), User: "postgres", Database: db, Password: "secret", TLSMode: pgwire.TLSDisable, Timeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Conn.Close() }()
	if n := w.sessions(); n < 2 {
		t.Fatalf("%d sessions on the server, want the pool's and that of the lookup", n)
	}
	w.command("PAUSE " + db)
	eventually(t, "the server's sessions end", func() bool { return w.sessions() == 0 })
}
