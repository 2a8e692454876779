package postgres_test

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// withoutStandby is a server whose commits wait for a standby that there is none of. local
// is a session that does not wait; it has made the table w of a column x.
func withoutStandby(t *testing.T) (srv *lab.Postgres, local *wire) {
	t.Helper()
	srv, _ = ownServer(t, serverKind{standby: "nobody"})
	local = dialWire(t, srv.Addr(), "postgres", pgwire.Param{Name: "options", Value: "-c synchronous_commit=local"})
	local.want("CREATE TABLE w (x int)", "CREATE_TABLE I")
	return srv, local
}

// TestWarningOfTheCommitReachesGroupedWrites cancels the wait for a standby that
// there is none of: every member of a group is told, as it would be directly.
func TestWarningOfTheCommitReachesGroupedWrites(t *testing.T) {
	t.Parallel()
	srv, local := withoutStandby(t)
	local.want("INSERT INTO w VALUES (0)", "INSERT_0_1 I")
	w := startFor(t, srv, "postgres", nil)
	for _, sql := range []string{"/* batch */ UPDATE w SET x = 1", "/* batch */ INSERT INTO w VALUES (7)", "/* batch */ INSERT INTO w VALUES (8)"} {
		c := w.wire()
		c.send(query(sql))
		answered := make(chan []message, 1)
		go func() { answered <- c.ready() }()
		var got []message
		eventually(t, "the write is answered", func() bool {
			local.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			select {
			case got = <-answered:
				return true
			default:
				return false
			}
		})
		if e := noticeIn(got); e == nil || e.Code != "01000" {
			t.Errorf("%s, whose commit no standby has: %s", sql, render(got))
		}
	}
}

// TestCancelledWaitForAStandby: a client whose write waits in a group for a standby that there is
// none of cancels it. It is told what it would be directly; the other members go on waiting.
func TestCancelledWaitForAStandby(t *testing.T) {
	t.Parallel()
	srv, local := withoutStandby(t)
	w := startFor(t, srv, "postgres", func(c *postgres.Config) { c.NoRowsLane = true })
	members := []*wire{w.wire(), w.wire()}
	answers := make([]chan []message, len(members))
	for i, c := range members {
		c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		c.send(query(fmt.Sprintf("/* batch:100 */ INSERT INTO w VALUES (%d)", i)))
		answers[i] = make(chan []message, 1)
		go func() { answers[i] <- c.ready() }()
	}
	eventually(t, "both are carried out", func() bool {
		return local.ask("SELECT count(*) AS n FROM w") == "[n] (2) SELECT_1 I"
	})
	answered := func(i int, cancels func()) {
		var got []message
		eventually(t, "the write is answered", func() bool {
			cancels()
			select {
			case got = <-answers[i]:
				return true
			default:
				return false
			}
		})
		if e := noticeIn(got); e == nil || e.Code != "01000" || !strings.Contains(render(got), "INSERT_0_1 I") {
			t.Errorf("member %d, whose commit no standby has: %s", i, render(got))
		}
		members[i].want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	}
	answered(0, func() { cancel(t, w, members[0]) })
	if got := local.ask("SELECT count(*) >= 1 AS waits FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); got != "[waits] (t) SELECT_1 I" || len(answers[1]) > 0 {
		t.Errorf("the other member does not wait any more: %s", got)
	}
	answered(1, func() {
		local.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	})
	if n := w.pool().Grouped; n != 2 {
		t.Errorf("%d writes were grouped: alone, the server itself cancels the wait", n)
	}
}

// TestHungServerIsNotHealthy stops the server's processes.
func TestHungServerIsNotHealthy(t *testing.T) {
	t.Parallel()
	srv := trusting(t)
	w := startFor(t, srv, "postgres", nil)
	w.wire().want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	if err := w.Healthy(ctxFor(t)); err != nil {
		t.Errorf("a server that works: %v", err)
	}
	srv.Pause()
	eventually(t, "it is found out", func() bool {
		err := w.Healthy(ctxFor(t))
		return err != nil && strings.Contains(err.Error(), "no answer within") && strings.Contains(err.Error(), srv.Addr())
	})
	srv.Resume()
	eventually(t, "it works again", func() bool { return w.Healthy(ctxFor(t)) == nil })
}

// TestClientsThatDoNotReadHoldNoBackends has more clients than the pool has
// backends ask for much and read nothing.
func TestClientsThatDoNotReadHoldNoBackends(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize, c.ClientWriteTimeout = 4, 200*time.Millisecond })
	for _, sql := range []string{"SELECT repeat('x', 60000)", "SELECT repeat('x', 1000) FROM generate_series(1, 100000)"} {
		for range 6 {
			c := w.wire()
			_ = c.conn.(*net.TCPConn).SetReadBuffer(4096)
			_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
			for range 200 {
				_, _ = c.conn.Write(query(sql))
			}
		}
	}
	w.wire().want("BEGIN", "BEGIN T")
}

// TestSilentConnectionsLeaveRoomForLogins opens many connections that say nothing.
func TestSilentConnectionsLeaveRoomForLogins(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for range 300 {
		conn, err := net.Dial("tcp", w.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
	w.wire().want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
}

// TestTextsOfOneClientAreBoundedInMemory parses many long texts, each once.
func TestTextsOfOneClientAreBoundedInMemory(t *testing.T) {
	testkit.Long(t, "sends 72 MB of texts")
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 2 })
	c := w.wire()
	pad := strings.Repeat("x", 60000)
	for i := range 1200 { // 72 MB
		c.send(run(fmt.Sprintf("SELECT 1 AS x /* %d %s */", i, pad)))
		if got := render(c.ready()); got != "parsed bound [x] (1) SELECT_1 I" {
			t.Fatal(got)
		}
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 60<<20 {
		t.Errorf("%d MB are in use after 72 MB of texts", m.HeapAlloc>>20)
	}
}

// TestNameOfALostParseIsFree kills the server process that parses a statement.
func TestNameOfALostParseIsFree(t *testing.T) {
	t.Parallel()
	srv := trusting(t) // which restarts when one of its processes is killed
	sqlOn(t, srv.DSN("postgres"), "CREATE TABLE a (x int)")
	w := startFor(t, srv, "postgres", nil)
	holder, c := dialWire(t, srv.Addr(), "postgres"), w.wire()
	holder.want("BEGIN", "BEGIN T")
	holder.want("LOCK TABLE a", "LOCK_TABLE T")
	c.send(parse("s1", "SELECT x FROM a"), sync())
	pid := 0
	eventually(t, "it waits", func() bool {
		got := holder.ask("SELECT max(pid) AS pid FROM pg_locks WHERE NOT granted") // pg_stat_activity stays as first read
		n, err := fmt.Sscanf(got, "[pid] (%d)", &pid)
		return n == 1 && err == nil
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := c.ready()
	if e := errorIn(got); e == nil || e.Code != pgwire.CodeConnectionFailure {
		t.Fatalf("the Parse whose backend is gone: %s", render(got))
	}
	eventually(t, "the server is back, and weir has seen that it was gone", func() bool {
		back, err := tryWireAs(t, srv.Addr(), "postgres", "postgres")
		if err != nil {
			return false
		}
		back.close()
		probe, err := tryWireAs(t, w.Addr().String(), "postgres", "postgres")
		if err != nil {
			return false
		}
		defer probe.close()
		probe.send(query("SELECT x FROM a"))
		_, err = probe.until(pgwire.ServerRowDescription)
		return err == nil
	})
	c.send(parse("s1", "SELECT x FROM a"), sync())
	if got := render(c.ready()); got != "parsed I" {
		t.Errorf("Parse under the same name: %s", got)
	}
}

// TestErrorComesBeforeSync: a client that pipelines sees what went wrong though it
// has not sent a Sync.
func TestErrorComesBeforeSync(t *testing.T) {
	t.Parallel()
	c := start(t, database(t), nil).wire()
	for range 2 {
		c.send(parse("", "SELECT nonsense"), bind("", ""), execute("", 0))
		got, err := c.until(pgwire.ServerError)
		if err != nil {
			t.Fatal(err)
		}
		if e := errorIn(got); e.Code != "42703" {
			t.Errorf("before the Sync: %s", render(got))
		}
		c.send(sync())
		if got := render(c.ready()); got != "I" {
			t.Errorf("after it: %s", got)
		}
		c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	}
}

// The server holds no superuser to the limits of databases and roles, and weir does not ask for
// them.
func TestLimitsOfDatabasesAreNotASuperusers(t *testing.T) {
	t.Parallel()
	db := database(t)
	for user, asks := range map[string]bool{"postgres": false, "weir_other": true} {
		var sent proxytest.Lines
		gateway := proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
			go func() { _, _ = io.Copy(io.MultiWriter(be, &sent), client); _ = be.Close() }()
			go func() { _, _ = io.Copy(client, be); _ = client.Close() }()
		})
		w := start(t, db, func(c *postgres.Config) { c.Postgres.Address = gateway })
		dialWireAs(t, w.Addr().String(), db, user).want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		if asked := len(sent.With("SELECT rolconnlimit FROM")) > 0; asked != asks {
			t.Errorf("asked for the limits of %s: %v", user, asked)
		}
	}
}
