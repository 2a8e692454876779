package mysql_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A session in the settings of a new connection that is to use sequences leaves its
// backend for one that has forgotten those of others, and that may be the same one.
// Its command is already there then.
func TestSequencesInTheSettingsOfANewSession(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "sequences")
	w := start(t, database(t, "CREATE SEQUENCE s"), nil)
	asks, uses := w.dial(nil), w.dial(nil)
	if _, err := asks.Query(ctxFor(t), "SELECT LASTVAL(s)"); err != nil {
		t.Fatal(err) // from now on the pool looks after its sequences
	}
	for want := range 3 {
		if got := uses.one("SELECT NEXTVAL(s)"); got != string(rune('1'+want)) {
			t.Errorf("NEXTVAL is %s, want %d", got, want+1)
		}
	}
	if got := uses.one("SELECT LASTVAL(s)"); got != "3" {
		t.Errorf("LASTVAL is %s, want 3", got)
	}
}

// A server may hang up right behind the answer that made a connection ready for
// a client: the one that was to have it gets another.
func TestServerHangsUpBehindAnAnswer(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(c *wire) string{
		"alone":  func(c *wire) string { return c.one("SELECT CONCAT(@@time_zone, SLEEP(0))") },
		"shared": func(c *wire) string { return c.one("SELECT @@time_zone") + "0" },
		"grouped": func(c *wire) string {
			c.must("/* batch */ INSERT INTO t VALUES (1)")
			return c.one("SELECT CONCAT(@@time_zone, SLEEP(0))")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			w := start(t, database(t, "CREATE TABLE t (x INT)"), func(c *mysql.Config) {
				c.PoolSize = 1
				c.MySQL.Address = hangingUp(t, server(t).Addr(), "time_zone='+01:00'", &armed)
			})
			one, two := w.dial(nil), w.dial(nil)
			for _, c := range []*wire{one, two} { // what they use is known, and the groups' connections are
				c.must("SET time_zone = '+01:00'")
				use(c)
			}
			two.must("SET time_zone = '+02:00'")
			armed.Store(true)
			if got := use(one); got != "+01:000" {
				t.Errorf("after the server has hung up: %s", got)
			}
			if armed.Load() {
				t.Error("the server has not hung up")
			}
		})
	}
}

// Waits outside of queues are bounded as well: here for a server that does not answer the
// statements which make a connection ready.
func TestConnectionThatIsNeverReady(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	w := start(t, database(t), func(c *mysql.Config) {
		c.PoolSize, c.QueueTimeout = 1, 300*time.Millisecond
		c.MySQL.Address = relayed(t, server(t).Addr(), func() (up, down func(p []byte) ([]byte, bool)) {
			same := func(p []byte) ([]byte, bool) { return p, true }
			return func(p []byte) ([]byte, bool) {
				if armed.Load() && bytes.Contains(p, []byte("time_zone='+01:00'")) {
					return nil, true
				}
				return p, true
			}, same
		})
	})
	one, two := speaker{w.dial(nil)}, speaker{w.dial(nil)}
	// A busy machine may take longer to open a connection.
	ask := func(c speaker, sql string) (got string) {
		eventually(t, sql+" is answered", func() bool {
			got = c.ask(sql)
			return !strings.HasPrefix(got, "ERROR 1040")
		})
		return got
	}
	ask(one, "SET time_zone = '+01:00'")
	ask(two, "SET time_zone = '+02:00'")
	armed.Store(true)
	got := one.ask("SELECT SLEEP(0)")
	if !strings.Contains(got, "ERROR 1040") || !strings.Contains(got, "--queue-timeout") {
		t.Errorf("the client is told %s", got)
	}
	if got := ask(two, "SELECT @@time_zone"); !strings.Contains(got, "+02:00") {
		t.Errorf("another session: %s", got)
	}
	armed.Store(false)
	if got := ask(one, "SELECT @@time_zone"); !strings.Contains(got, "+01:00") {
		t.Errorf("the session goes on in %s", got)
	}
}

// hangingUp relays to a server. While it is armed it waits for a text, says behind
// the answer that the server is going down, and hangs up, once.
func hangingUp(t *testing.T, to, text string, armed *atomic.Bool) string {
	t.Helper()
	return relayed(t, to, func() (up, down func(p []byte) ([]byte, bool)) {
		var last atomic.Bool
		up = func(p []byte) ([]byte, bool) {
			if bytes.Contains(p, []byte(text)) && armed.CompareAndSwap(true, false) {
				last.Store(true)
			}
			return p, true
		}
		down = func(p []byte) ([]byte, bool) {
			if !last.Load() {
				return p, true
			}
			return mywire.AppendError(p, 0, mywire.NewError(mywire.ErrServerShutdown, "Server shutdown in progress")), false
		}
		return up, down
	})
}

// relayed relays to a server. Each connection has a pair of functions that see, and
// may change, what is read in each direction. One that returns false ends it.
func relayed(t *testing.T, to string, watch func() (up, down func(p []byte) ([]byte, bool))) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	pass := func(from, to net.Conn, see func(p []byte) ([]byte, bool)) {
		defer from.Close()
		defer to.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			out, goesOn := see(buf[:n])
			if _, werr := to.Write(out); werr != nil || err != nil || !goesOn {
				return
			}
		}
	}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = conn.Close()
				continue
			}
			up, down := watch()
			go pass(conn, server, up)
			go pass(server, conn, down)
		}
	}()
	return ln.Addr().String()
}

// withCatalogueHeld starts weir with two connections. hold runs a statement that changes
// the catalogue, and returns when that is being read again, which ends with release.
func withCatalogueHeld(t *testing.T, db string) (w *weir, hold func(c *wire, sql string), release func()) {
	t.Helper()
	var armed, held atomic.Bool
	goOn := make(chan struct{})
	w = start(t, db, func(c *mysql.Config) {
		twoBackends(c)
		c.MySQL.Address = relayed(t, server(t).Addr(), func() (up, down func(p []byte) ([]byte, bool)) {
			same := func(p []byte) ([]byte, bool) { return p, true }
			return func(p []byte) ([]byte, bool) {
				if bytes.Contains(p, []byte("information_schema.VIEWS")) && armed.CompareAndSwap(true, false) {
					held.Store(true)
					<-goOn
				}
				return p, true
			}, same
		})
	})
	release = sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	return w, func(c *wire, sql string) {
		t.Helper()
		armed.Store(true)
		c.must(sql)
		c.must("DO 1")
		eventually(t, "the catalogue is being read", held.Load)
	}, release
}

// While the catalogue is read again after a change, weir knows only the old one: statements that
// run then are judged when the reading has ended.
func TestCatalogueThatIsBeingRead(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (x INT)")
	w, hold, release := withCatalogueHeld(t, db)
	definer, writer, other := w.dial(nil), w.dial(nil), w.dial(nil)
	for _, c := range []*wire{definer, writer, other} {
		c.must("INSERT INTO t VALUES (1)")
	}
	hold(definer, "CREATE TRIGGER locks BEFORE INSERT ON t FOR EACH ROW SET NEW.x = GET_LOCK('"+db+"', 0)")
	writer.must("INSERT INTO t VALUES (2)") // on the other of two connections
	released := make(chan string, 1)
	go func() { released <- speaker{other}.value("SELECT RELEASE_LOCK('" + db + "')") }()
	var got string
	eventually(t, "another session waits for a connection, or has its answer", func() bool {
		select {
		case got = <-released:
			return true
		default:
			return w.pool().Waiting > 0
		}
	})
	if got == "1" {
		t.Error("another session holds the lock that the trigger took for its writer")
	}
	_ = definer.Close()
	release()
	if got == "" {
		got = <-released
	}
	if got != "0" {
		t.Errorf("RELEASE_LOCK of another session's lock: %s, want 0", got)
	}
	if got := writer.one("SELECT RELEASE_LOCK('" + db + "')"); got != "1" {
		t.Errorf("RELEASE_LOCK of the writer: %s, want 1", got)
	}
}

// A prepared statement that runs then is judged by what the server has read it as, in the
// database and the mode in which it was prepared.
func TestPreparedWhileTheCatalogueIsRead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ before, text, after string }{
		"in another database": {"DO 0", "SELECT x FROM v", "USE " + database(t)},
		"in another mode":     {"SET sql_mode = 'ANSI_QUOTES'", `SELECT x FROM "v"`, "SET sql_mode = ''"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !isMariaDB(server(t)) && name == "in another mode" {
				t.Skip("MySQL prepares a text anew in the mode of the moment, and refuses this one")
			}
			db := database(t, "CREATE VIEW v AS SELECT 1 AS x")
			w, hold, release := withCatalogueHeld(t, db)
			definer, reader := w.dial(nil), w.dial(nil)
			definer.must("DO 0")
			reader.must(tc.before)
			st := reader.prepare(tc.text)
			reader.must(tc.after)
			hold(definer, "CREATE OR REPLACE VIEW v AS SELECT GET_LOCK('"+db+"', 0) AS x")
			if r := reader.try(st.execute(0)); r.err != nil || r.lost != nil {
				t.Fatal(r.text, r.lost)
			}
			release()
			eventually(t, "what it did is judged", func() bool { p := w.pool(); return p.Pinned > 0 || p.Backends == p.Free })
			if n := w.pool().Pinned; n != 1 {
				t.Errorf("%d sessions keep their connection, want the one that holds a lock", n)
			}
		})
	}
}

// A client that writes its values into its texts runs any number of them while the catalogue is
// read, and does not keep its connection behind them.
func TestManyTextsWhileTheCatalogueIsRead(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (x INT, y VARCHAR(9))")
	w, hold, release := withCatalogueHeld(t, db)
	definer, writer := w.dial(nil), w.dial(nil)
	for _, c := range []*wire{definer, writer} {
		c.must("INSERT INTO t VALUES (1, '')")
	}
	hold(definer, "CREATE TRIGGER harmless BEFORE INSERT ON t FOR EACH ROW SET NEW.x = NEW.x + 1")
	for i := range 50 {
		writer.must(fmt.Sprintf("INSERT INTO t VALUES (%d, '%d')", i, i))
		writer.must(fmt.Sprintf("SELECT x FROM t WHERE x = %d AND y = '%d'", i, i))
	}
	release()
	eventually(t, "no client keeps its connection", func() bool { return w.pool().Backends == w.pool().Free })
}

// Statements that weir sends before a client's never change what that one asks for: it is
// answered rightly, or refused.
func TestNumberOfRowsIsNeverMadeUp(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (x INT)", "INSERT INTO t VALUES (1), (2), (3)")
	w, hold, release := withCatalogueHeld(t, db)
	multi := func(c *mywire.ConnectConfig) { c.Caps = mywire.WantedCaps | mywire.CapMultiStatements }
	definer, client := w.dial(multi), w.dial(multi)
	ask := func(sql string) {
		t.Helper()
		r := client.try(client.query(sql))
		if r.code() != mywire.ErrNotSupportedYet && !strings.Contains(r.text, `"\x013"`) {
			t.Errorf("%s: %s, want 3", sql, r.text)
		}
		// A session that was refused keeps its connection from then on.
		_ = client.Close()
		client = w.dial(multi)
	}
	eventually(t, "the catalogue is known", func() bool { // so that a write needs nothing in front
		client.must("UPDATE t SET x = x + 1")
		return w.pool().Backends == w.pool().Free
	})
	// The connection of each.
	definer.must("BEGIN")
	client.must("UPDATE t SET x = x + 1")
	definer.must("COMMIT")
	ask("SELECT ROW_COUNT(); SELECT 2")
	client.must("UPDATE t SET x = x + 1")
	hold(definer, "CREATE TRIGGER counts BEFORE INSERT ON t FOR EACH ROW SET NEW.x = 1")
	ask("SELECT ROW_COUNT()")
	client.must("UPDATE t SET x = x + 1")
	ask("SELECT ROW_COUNT() FROM (SELECT 1) AS one")
	release()
}

// TestDefaultThatAssigns checks columns of MariaDB whose DEFAULT assigns a user variable, which
// the server does not report: a client that may evaluate it keeps its connection. The test never
// evaluates it, because MariaDB assigns the variable of the session that opened the table,
// whichever session writes, and crashes when that one has left.
func TestDefaultThatAssigns(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "DEFAULT of a column that assigns")
	db := database(t, "CREATE TABLE d (a INT DEFAULT (@leak := 5), b INT)", "CREATE TABLE plain (a INT, b VARCHAR(9) DEFAULT '@z:=1')", "CREATE VIEW v AS SELECT a, b FROM d")
	w := start(t, db, nil)
	w.dial(nil).one("SELECT 1") // the catalogue is known
	for _, c := range []struct {
		sql    string
		pinned int
	}{
		{"INSERT INTO d (a, b) VALUES (1, 1)", 1},
		{"/* batch */ INSERT INTO d (a, b) VALUES (1, 1)", 1},
		{"INSERT INTO v (a, b) VALUES (1, 1)", 1},
		{"UPDATE d SET b = 1", 1},
		{"SELECT b AS `default` FROM d", 1},
		{"SELECT b FROM d", 0},
		{"INSERT INTO plain (a) VALUES (1)", 0},
		{"SELECT DEFAULT(b) FROM plain", 0},
	} {
		for _, prepared := range []bool{false, true} {
			session := speaker{w.dial(nil)}
			ask := session.ask
			if prepared {
				ask = session.askPrepared
			}
			if got := ask(c.sql); strings.HasPrefix(got, "ERROR") {
				t.Fatal(got)
			}
			eventually(t, "what it did is judged", func() bool { p := w.pool(); return p.Pinned > 0 || p.Backends == p.Free })
			if got := w.pool().Pinned; got != c.pinned {
				t.Errorf("after %s (prepared: %v) %d sessions keep their connection, want %d", c.sql, prepared, got, c.pinned)
			}
			_ = session.Close()
			eventually(t, "the session has left", func() bool { return w.pool().Clients == 1 })
		}
	}
}

// Nothing is tried for ever where making a connection ready for it ends that each time.
func TestConnectionsAreLostBeforeAStatement(t *testing.T) {
	t.Parallel()
	ofAGroup := "innodb_lock_wait_timeout=0"
	if !isMariaDB(server(t)) {
		ofAGroup = "innodb_lock_wait_timeout=1"
	}
	for name, c := range map[string]struct {
		fatal  string // in what weir says to make a connection ready
		before string
		run    string
	}{
		"a write that runs alone": {"innodb_lock_wait_timeout=1", "", "/* batch */ UPDATE t SET n = 2 WHERE k = 1"},
		"a group":                 {ofAGroup, "", "/* batch */ UPDATE t SET n = 2 WHERE k = 1"},
		"a shared read":           {"max_error_count=61", "SET SESSION max_error_count = 61", "SELECT k FROM t"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE t (k INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 0)")
			var armed atomic.Bool
			var lost atomic.Int64
			w := start(t, db, func(cfg *mysql.Config) {
				cfg.PoolSize = 1
				cfg.MySQL.Address = relayed(t, server(t).Addr(), func() (up, down func(p []byte) ([]byte, bool)) {
					same := func(p []byte) ([]byte, bool) { return p, true }
					return func(p []byte) ([]byte, bool) {
						if armed.Load() && bytes.Contains(p, []byte(c.fatal)) {
							lost.Add(1)
							return nil, false
						}
						return p, true
					}, same
				})
			})
			w.warmReads("SELECT k FROM t")
			holder, session := dialAt(t, server(t).Addr(), db, nil), w.dial(nil)
			eventually(t, "writes are grouped", func() bool {
				session.must("/* batch */ UPDATE t SET n = 0 WHERE k = 1")
				return w.pool().Grouped > 0
			})
			if c.before != "" {
				session.must(c.before)
			}
			holder.must("BEGIN")
			holder.must("UPDATE t SET n = 1 WHERE k = 1")
			w.dial(nil).must("DO 0") // the connection is in other settings
			armed.Store(true)
			if r := session.try(session.query(c.run)); r.code() != mywire.ErrNetRead || strings.Contains(r.err.Message, "unknown") {
				t.Errorf("%s, %v; want error %d that names no doubt", r.text, r.lost, mywire.ErrNetRead)
			}
			if n := lost.Load(); n < core.MostLost || n > 2*core.MostLost {
				t.Errorf("%d connections were lost", n)
			}
			holder.must("ROLLBACK")
			if got := holder.one("SELECT n FROM t"); got != "0" {
				t.Errorf("n is %s, want 0", got)
			}
		})
	}
}
