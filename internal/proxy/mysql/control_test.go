package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// command runs a command of the console, which must not be refused.
func (w *weir) command(text string) {
	w.tb.Helper()
	proxytest.Command(w.tb, w, text)
}

// paused reports whether the statements of w's database wait on all loops.
func (w *weir) paused() bool {
	w.tb.Helper()
	return !w.pool().Running
}

// sessions counts the server's sessions in w's database.
func (w *weir) sessions() (n int) {
	w.tb.Helper()
	handle := open(w.tb, server(w.tb).Addr(), "", nil)
	if err := handle.QueryRowContext(ctxFor(w.tb), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = ?", w.db).Scan(&n); err != nil {
		w.tb.Fatal(err)
	}
	if err := handle.Close(); err != nil {
		w.tb.Fatal(err)
	}
	return n
}

// TestPauseWaitsForTransactions: a transaction under way ends, what is new waits, and
// PAUSE returns when the server has no session left.
func TestPauseWaitsForTransactions(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)"), nil)
	holder, reader, writer, warned := w.dial(nil), w.dial(nil), w.dial(nil), w.dial(nil)
	reader.one("SELECT a FROM t WHERE a = 1")
	warned.must("INSERT IGNORE INTO t VALUES (1)") // may keep its connection for SHOW WARNINGS
	holder.must("BEGIN")
	holder.must("UPDATE t SET a = 3 WHERE a = 1")
	console := w.console()
	console.send(mywire.AppendQuery(nil, console.Caps, "PAUSE "+w.db))
	eventually(t, "the transaction alone has a connection", func() bool { return w.paused() && w.pool().Backends == 1 })
	reading, writing := reader.begin("SELECT a FROM t WHERE a = 2"), writer.begin("/* batch */ INSERT INTO t VALUES (9)")
	login := make(chan error, 1)
	var late *wire
	go func() {
		var err error
		late, err = w.tryDial(nil)
		login <- err
	}()
	eventually(t, "both wait", func() bool { return w.pool().Waiting >= 2 })
	holder.must("INSERT INTO t VALUES (4)")
	select {
	case err := <-login:
		t.Fatalf("a login ended while the database was paused: %v", err)
	case <-reading.done:
		t.Fatal("a read was answered while the database was paused")
	default:
	}
	holder.must("COMMIT")
	if _, payload := console.packet(); mywire.IsError(payload) {
		t.Fatalf("PAUSE: %q", payload)
	}
	eventually(t, "the server has no session of the database", func() bool { return w.sessions() == 0 })
	w.command("RESUME " + w.db)
	for what, r := range map[string]*running{"read": reading, "write": writing} {
		if err := r.wait(); err != nil {
			t.Errorf("the %s that waited: %v", what, err)
		}
	}
	if err := <-login; err != nil {
		t.Fatalf("the login that waited: %v", err)
	}
	if n := late.one("SELECT COUNT(*) FROM t"); n != "4" {
		t.Errorf("%s rows, want 4", n)
	}
}

// loadTables are what a load counts in.
var loadTables = []string{
	"CREATE TABLE t (k int PRIMARY KEY, n int)",
	"INSERT INTO t VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0)",
}

// load starts a load on w's database, which has counters: in transactions, in groups, and
// reading in between.
func (w *weir) load(t *testing.T) *proxytest.Load {
	t.Helper()
	return proxytest.NewLoad(t, func(k int) func(i int) (bool, error) {
		conn, ctx := w.connect(nil), ctxFor(t)
		return func(i int) (added bool, err error) {
			switch i % 3 {
			case 0:
				return true, increment(ctx, conn, k)
			case 1:
				_, err = conn.ExecContext(ctx, fmt.Sprintf("/* batch */ UPDATE t SET n = n + 1 WHERE k = %d", k))
				return true, err
			}
			var n int
			return false, conn.QueryRowContext(ctx, "SELECT n FROM t WHERE k = ?", k).Scan(&n)
		}
	})
}

// increment adds one to a counter, in a transaction that reads it first.
func increment(ctx context.Context, conn *sql.Conn, k int) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // of what has not been committed
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM t WHERE k = ? FOR UPDATE", k).Scan(&n); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE t SET n = ? WHERE k = ?", n+1, k); err != nil {
		return err
	}
	return tx.Commit()
}

// end ends a load, whose counters are in a database of the server at an address.
func end(t *testing.T, l *proxytest.Load, address, db string) {
	t.Helper()
	l.End(func() (sum int64, err error) {
		err = open(t, address, db, nil).QueryRowContext(ctxFor(t), "SELECT SUM(n) FROM t").Scan(&sum)
		return sum, err
	})
}

// TestSuspendReadsNothing: from SUSPEND to RESUME nothing is read, connections and
// transactions stay, logins wait, and the console works.
func TestSuspendReadsNothing(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, loadTables...), nil)
	holder, reader := w.dial(nil), w.dial(nil)
	reader.one("SELECT n FROM t WHERE k = 1")
	holder.must("BEGIN")
	holder.must("UPDATE t SET n = 1 WHERE k = 1")
	console := w.console()
	console.must("SUSPEND")
	reading, ending := reader.begin("SELECT n FROM t WHERE k = 2"), holder.begin("COMMIT")
	login := make(chan error, 1)
	go func() {
		_, err := w.tryDial(nil)
		login <- err
	}()
	again := w.console()
	rows, err := again.Query(ctxFor(t), "SHOW STATE")
	if err != nil || len(rows) != 3 || rows[2][0].String != "suspended" || rows[2][1].String != "yes" {
		t.Errorf("SHOW STATE: %v, %v", rows, err)
	}
	select {
	case <-reading.done:
		t.Error("a read was answered")
	case <-ending.done:
		t.Error("a transaction went on")
	case err := <-login:
		t.Errorf("a login did not wait: %v", err)
	default:
	}
	again.must("RESUME")
	for what, r := range map[string]*running{"read": reading, "transaction": ending} {
		if err := r.wait(); err != nil {
			t.Errorf("the %s that waited: %v", what, err)
		}
	}
	if err := <-login; err != nil {
		t.Errorf("the login that waited: %v", err)
	}
	l := w.load(t)
	for range 5 {
		l.GoesOn()
		w.command("SUSPEND")
		w.command("RESUME")
	}
	l.Stop()
}

// TestPauseUnderLoad pauses, resumes and reconnects under load.
func TestPauseUnderLoad(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, loadTables...), func(c *mysql.Config) { c.Loops = 2 })
	l := w.load(t)
	for round := range 12 {
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
			w.command("RESUME " + w.db)
		}
	}
	end(t, l, server(t).Addr(), w.db)
}

// TestServerRestartsUnderPause: PAUSE, a restart of the server and RESUME cost a load
// that goes on all the while not one error.
func TestServerRestartsUnderPause(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	own := ownServer(t)
	db := databaseOn(t, own, loadTables...)
	w := startFor(t, own, db, nil)
	l := w.load(t)
	l.GoesOn()
	w.command("PAUSE")
	if err := own.Restart(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	w.command("RESUME")
	l.GoesOn()
	end(t, l, own.Addr(), db)
}

func TestPausedForTooLong(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.QueueTimeout = 300 * time.Millisecond })
	c := w.dial(nil)
	w.command("PAUSE " + w.db)
	if _, err := c.Exec(ctxFor(t), "DO 1"); code(err) != mywire.ErrTooManyConnections || !strings.Contains(err.Error(), "query_wait_timeout") {
		t.Fatalf("a statement that has waited too long: %v", err)
	}
	w.command("RESUME")
	eventually(t, "a statement that runs again", func() bool { // the new backend may take longer than the queue timeout
		_, err := c.Exec(ctxFor(t), "DO 1")
		if err != nil && code(err) != mywire.ErrTooManyConnections {
			t.Fatalf("after RESUME: %v", err)
		}
		return err == nil
	})
}

func TestDisableReconnectKill(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int)"), nil)
	c, other := w.dial(nil), w.dial(nil)
	w.command("DISABLE " + w.db)
	if _, err := w.tryDial(nil); code(err) != mywire.ErrDBAccessDenied {
		t.Errorf("a login to a disabled database: %v", err)
	}
	w.command("ENABLE " + w.db)
	before := w.pool().Opened
	c.one("SELECT COUNT(*) FROM t")
	w.command("RECONNECT " + w.db)
	w.command("WAIT_CLOSE " + w.db)
	c.one("SELECT COUNT(*) FROM t")
	if now := w.pool().Opened; now == before {
		t.Error("no connection was opened after RECONNECT")
	}
	w.command("KILL_CLIENT " + other.id())
	if _, err := other.Exec(ctxFor(t), "DO 1"); err == nil {
		t.Error("a client that was ended is served")
	}
	c.must("BEGIN")
	c.must("INSERT INTO t VALUES (1)")
	w.command("KILL " + w.db)
	if _, err := c.Exec(ctxFor(t), "COMMIT"); err == nil {
		t.Error("a transaction that was ended can be committed")
	}
	eventually(t, "the server has no session of the database", func() bool { return w.sessions() == 0 })
	w.command("RESUME " + w.db)
	if n := w.dial(nil).one("SELECT COUNT(*) FROM t"); n != "0" {
		t.Errorf("%s rows of a transaction that was cut off, want none", n)
	}
}

// TestConsoleDoubtsNames checks that a command for a database that no client has used is
// executed, and says so, in case the name is mistyped.
func TestConsoleDoubtsNames(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	w.dial(nil).must("DO 1")
	console := w.console()
	for _, command := range []string{"DISABLE " + w.db, "ENABLE " + w.db, "DISABLE nobodys", "ENABLE nobodys"} {
		ok, err := console.Exec(ctxFor(t), command)
		if err != nil {
			t.Errorf("%s: %v", command, err)
		}
		if doubts := strings.Contains(string(ok.Info), "nobodys"); doubts != strings.Contains(command, "nobodys") {
			t.Errorf("%s: info %q", command, ok.Info)
		}
	}
}

// TestShutdownWaits: for servers, SHUTDOWN lets transactions end; for clients, it
// waits until they have left by themselves.
func TestShutdownWaits(t *testing.T) {
	t.Parallel()
	for _, how := range []core.ShutdownMode{core.ShutdownAfterServers, core.ShutdownAfterClients, core.ShutdownNow} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			w := start(t, database(t), func(c *mysql.Config) { c.DrainTimeout = time.Millisecond })
			holder := w.dial(nil)
			holder.must("BEGIN")
			w.End(how)
			switch how {
			case core.ShutdownAfterServers, core.ShutdownAfterClients:
				holder.must("DO 1")
				holder.send(holder.query("COMMIT"))
				if _, payload := holder.packet(); mywire.IsError(payload) { // one may follow: that weir stops
					t.Errorf("COMMIT: %q", payload)
				}
				_ = holder.Close()
			case core.ShutdownNow:
				if _, err := holder.Exec(ctxFor(t), "COMMIT"); err == nil {
					t.Error("a transaction goes on after SHUTDOWN")
				}
			}
			<-w.ended
		})
	}
}

// A reload changes how later connections to the server notice that it is gone.
func TestReloadedKeepalive(t *testing.T) {
	t.Parallel()
	var cfg mysql.Config
	w := start(t, database(t), func(c *mysql.Config) { cfg = *c })
	for _, off := range []bool{false, true, false} {
		next := cfg
		next.Keepalive.Off = off
		if err := w.Reload(next); err != nil {
			t.Fatal(err)
		}
		if on := proxytest.Keepalive(t, w.Dial); on == off {
			t.Errorf("with keepalive off %v, new connections have it %v", off, on)
		}
	}
}

// TestReloadUnderLoad changes limits under load; in the end the last ones hold.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	var cfg mysql.Config
	w := start(t, database(t, loadTables...), func(c *mysql.Config) { cfg = *c })
	l := w.load(t)
	for round := range 9 {
		l.GoesOn()
		next := cfg
		next.PoolSize, next.NoSoloLane = []int{1, 12, 3}[round%3], round%2 == 0
		next.Mode = "session" // which stays as it is
		if err := w.Reload(next); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the pools have their last size", func() bool { p := w.pool(); return p.Size%3 == 0 && p.Backends <= p.Size })
	end(t, l, server(t).Addr(), w.db)
	if o := w.Options(); o.Mode != "auto" || o.PoolSize != 3 {
		t.Errorf("in force: mode %s and a pool of %d, want auto and 3", o.Mode, o.PoolSize)
	}
}
