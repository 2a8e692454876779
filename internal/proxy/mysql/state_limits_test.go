package mysql_test

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

func TestTooManyMySQLClientsAreRefused(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.MaxClients = 2 })
	one, two := w.dial(nil), w.dial(nil)
	if _, err := w.tryDial(nil); mywire.CodeOf(err) != mywire.ErrTooManyConnections {
		t.Errorf("the third client: %v", err)
	}
	if got := one.one("SELECT 1"); got != "1" {
		t.Errorf("the first: %s", got)
	}
	_ = two.Close()
	eventually(t, "there is room again", func() bool {
		c, err := w.tryDial(nil)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// Clients that ask for much and read nothing keep no backends from others.
func TestClientsThatDoNotReadHoldNoBackends(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (x INT)"), func(c *mysql.Config) { c.PoolSize, c.ClientWriteTimeout = 2, 200*time.Millisecond })
	const long = "WITH RECURSIVE s (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM s WHERE x < 300) SELECT REPEAT('x', 1000) FROM s a, s b"
	for range 4 {
		c := w.dial(nil)
		c.must("SET @a = 1") // keeps its backend
		c.send(mywire.AppendCommand(nil, mywire.ComQuery, long))
	}
	c := w.dial(nil)
	c.must("BEGIN")
	c.must("INSERT INTO t VALUES (1)")
	c.must("COMMIT")
}

func TestFullQueuesAndLongWaitsAreRefusedAndSessionsGoOn(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (x INT)")
	for _, c := range []struct {
		name, want string
		change     func(*mysql.Config)
	}{
		{"full", "(--max-waiting)", func(c *mysql.Config) { c.PoolSize, c.MaxWaiting = 1, 1 }},
		{"long", "became free within", func(c *mysql.Config) { c.PoolSize, c.QueueTimeout = 1, 300*time.Millisecond }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := start(t, db, c.change)
			holder, queued, refused := w.speaker(nil), w.speaker(nil), w.speaker(nil)
			// On a busy machine it may itself have waited too long for the pool's first
			// connection.
			eventually(t, "the connection is held", func() bool { return strings.HasPrefix(holder.ask("BEGIN"), "OK") })
			queued.send(mywire.AppendCommand(nil, mywire.ComQuery, "DELETE FROM t"))
			if c.name == "full" {
				eventually(t, "one waits", func() bool { return w.pool().Waiting == 1 })
			}
			for _, got := range []string{refused.ask("DELETE FROM t"), refused.askPrepared("SELECT SLEEP(0)"), refused.ask("UPDATE t SET x = 1")} {
				if !strings.HasPrefix(got, "ERROR 1040 weir: ") || !strings.Contains(got, c.want) || !strings.Contains(got, "root@"+db) {
					t.Errorf("refused with %s", got)
				}
			}
			holder.must("COMMIT")
			got, _ := queued.answerTo(mywire.ComQuery)
			if (c.name == "full") != strings.HasPrefix(got, "OK") {
				t.Errorf("the one that waited: %s", got)
			}
			for _, s := range []speaker{holder, queued, refused} {
				eventually(t, "the session goes on", func() bool {
					got := s.ask("DO 5")
					if !strings.HasPrefix(got, "OK") && !strings.Contains(got, "became free within") {
						t.Errorf("afterwards: %s", got)
					}
					return strings.HasPrefix(got, "OK") || t.Failed()
				})
			}
			if w.pool().Timeouts == 0 && c.name == "long" {
				t.Error("no timeout is counted")
			}
		})
	}
}

func TestIdleMySQLSessionsEnd(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (x INT)"), func(c *mysql.Config) {
		c.IdleInTransactionTimeout, c.ClientIdleTimeout = 300*time.Millisecond, 300*time.Millisecond
	})
	idle := w.speaker(nil)
	var inTx speaker
	eventually(t, "a transaction", func() bool {
		inTx = w.speaker(nil) // which a busy machine could find idle before it has begun
		// At once: between two commands it could, too.
		inTx.send(append(mywire.AppendCommand(nil, mywire.ComQuery, "BEGIN"), mywire.AppendCommand(nil, mywire.ComQuery, "INSERT INTO t VALUES (1)")...))
		_, payload, err := inTx.tryPacket()
		if err != nil || mywire.ErrorCode(payload) == mywire.ErrInteractionTimeout {
			return false
		}
		if !mywire.IsOK(payload) {
			t.Fatalf("BEGIN: %x", payload)
		}
		if got, _ := inTx.answerTo(mywire.ComQuery); !strings.HasPrefix(got, "OK") {
			t.Fatalf("INSERT: %s", got)
		}
		return true
	})
	for name, c := range map[string]speaker{"--idle-in-transaction-timeout": inTx, "--client-idle-timeout": idle} {
		_, payload, err := c.tryPacket()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		e, err := mywire.ParseError(payload)
		if err != nil || e.Code != mywire.ErrInteractionTimeout || !strings.Contains(e.Message, name) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
		if _, _, err := c.tryPacket(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: then %v", name, err)
		}
	}
	eventually(t, "its backend is free", func() bool { return w.pool().Owned == 0 })
	if got := speakerTo(t, server(t).Addr(), w.db, nil).value("SELECT COUNT(*) FROM t"); got != "0" { // past weir, where it may take its time
		t.Errorf("the transaction was not rolled back: %s rows", got)
	}
}

func TestMessagesBeyondTheLimitAreRefused(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.MaxMessage = 100 << 10 })
	c := w.speaker(nil)
	if got := c.value("SELECT LENGTH('" + strings.Repeat("x", 90<<10) + "')"); got != "92160" {
		t.Errorf("within the limit: %s", got)
	}
	if got := c.ask("SELECT LENGTH('" + strings.Repeat("x", 110<<10) + "')"); !strings.HasPrefix(got, "ERROR 1153") {
		t.Errorf("beyond the limit: %s", got)
	}
	if _, _, err := c.tryPacket(); err == nil {
		t.Error("the connection goes on")
	}
	if got := w.speaker(nil).value("SELECT 1"); got != "1" {
		t.Errorf("another client: %s", got)
	}
}

func TestStopLetsMySQLTransactionsFinish(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (x INT)")
	w := start(t, db, func(c *mysql.Config) { c.DrainTimeout = patience })
	idle, pinned, busy := w.speaker(nil), w.speaker(nil), w.speaker(nil)
	idle.must("DO 1")
	pinned.must("SET @a = 1")
	busy.must("BEGIN")
	busy.must("INSERT INTO t VALUES (1)")
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	for _, c := range []speaker{idle, pinned} {
		_, payload, err := c.tryPacket()
		if err != nil {
			t.Fatal(err)
		}
		if e, err := mywire.ParseError(payload); err != nil || e.Code != mywire.ErrServerShutdown {
			t.Errorf("an idle client was told %v, %v", e, err)
		}
	}
	busy.must("INSERT INTO t VALUES (2)")
	if got := busy.ask("COMMIT"); !strings.HasPrefix(got, "OK") {
		t.Errorf("COMMIT: %s", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if got := speakerTo(t, server(t).Addr(), db, nil).value("SELECT COUNT(*) FROM t"); got != "2" {
		t.Errorf("%s rows, want 2", got)
	}
}

// A server that goes and comes back costs those who had something there their
// sessions, and others nothing.
func TestMySQLServerGoneAndBack(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	w := startFor(t, server, databaseOn(t, server, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, x INT)"), func(c *mysql.Config) {
		c.PoolSize, c.ConnectPatience = 3, patience
	})
	idle, pinned, inTx := w.speaker(nil), w.speaker(nil), w.speaker(nil)
	idle.must("SET time_zone = '+03:00'")
	idle.must("INSERT INTO t (x) VALUES (1)")
	pinned.must("SET @a = 1")
	inTx.must("BEGIN")
	inTx.must("INSERT INTO t (x) VALUES (2)")
	server.Kill()
	for name, c := range map[string]speaker{"pinned": pinned, "in a transaction": inTx} {
		if got, _ := c.answerTo(mywire.ComQuery); !strings.Contains(got, "ERROR 1158") && !strings.Contains(got, "the connection ended") {
			t.Errorf("the client %s was told %s", name, got)
		}
	}
	idle.send(mywire.AppendCommand(nil, mywire.ComQuery, "SELECT @@time_zone"))
	if err := server.Restart(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	if got, _ := idle.answerTo(mywire.ComQuery); !strings.Contains(got, "+03:00") {
		t.Errorf("the idle client was told %s", got)
	}
	if got := idle.value("SELECT COUNT(*) FROM t"); got != "1" {
		t.Errorf("%s rows, want the committed one", got)
	}
}

// Servers close connections that have been idle for wait_timeout: that is not the
// business of clients.
func TestServerClosesIdleBackends(t *testing.T) {
	t.Parallel()
	server := labtest.MariaDB(t, serverConfig())
	sqlOn(t, server, "SET GLOBAL wait_timeout = 1")
	w := startFor(t, server, databaseOn(t, server, "CREATE TABLE t (x INT)"), func(c *mysql.Config) { c.PoolSize = 2 })
	c := w.speaker(nil)
	c.must("INSERT INTO t VALUES (1)")
	c.must("SET time_zone = '+02:00'")
	eventually(t, "the server has closed all backends", func() bool { p := w.pool(); return p.Opened > 0 && p.Backends == 0 })
	if got := c.value("SELECT CONCAT(@@time_zone, COUNT(*)) FROM t"); got != "+02:001" {
		t.Errorf("after the server closed its connections: %s", got)
	}
}

// It is not parallel: what other tests hold in memory would be counted.
func TestIdleMySQLClientsNeedLittleMemory(t *testing.T) {
	w := start(t, database(t), nil)
	const clients = 150
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range clients {
		w.dial(nil).must("SET time_zone = '+01:00'")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	// Both ends are in this process: what a client costs is far below the bound, a
	// buffer that is kept would be far above.
	if per := (int64(after.HeapInuse) - int64(before.HeapInuse)) / clients; per > 60<<10 {
		t.Errorf("an idle client costs %d bytes of heap", per)
	}
}

func TestShowWeirStatusTellsOfTheSession(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (x INT)"), nil)
	c := w.speaker(nil)
	c.must("INSERT INTO t VALUES (1)")
	c.must("SET @a = 1")
	for _, sql := range []string{"SHOW WEIR STATUS", " show /* x */ weir status; "} {
		got := c.ask(sql)
		for _, want := range []string{"user_variable", "root@" + w.db, "owned"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s in it", sql, got, want)
			}
		}
	}
}
