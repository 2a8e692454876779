package postgres_test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// through starts a proxy that reaches the shared server through a relay, by one
// connection at most.
func through(t *testing.T, db string, change func(*postgres.Config)) (*weir, *lab.Relay) {
	relay := labtest.Relay(t, server(t).Addr())
	return start(t, db, func(c *postgres.Config) {
		c.Postgres.Address = relay.Addr()
		c.ConnectPatience, c.PoolSize, c.ReadLanes = patience, 1, 1
		if change != nil {
			change(c)
		}
	}), relay
}

// A login that the server checks waits for another connection when the one that it had is
// reset: before the server has said anything, and when it has let the client in.
func TestRelayedLoginOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	w, relay := through(t, database(t), func(c *postgres.Config) { c.Auth, c.Postgres.User = postgres.AuthRelay, "" })
	w.wire().close()
	for _, n := range []int64{0, 9, 40} { // nothing, AuthenticationOk, and a part of what follows
		relay.CutAfter(lab.ToClient, n)
		c, err := tryWireAs(t, w.Addr().String(), w.db, "postgres")
		if err != nil {
			t.Errorf("the server's answer was cut after %d bytes, and the login failed: %v", n, err)
			continue
		}
		c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		c.close()
	}
}

// A server that cannot be connected to is asked about a client on a connection of the
// pool. Where that is lost, nothing was said against the client.
func TestLoginOutlivesTheQuestionAboutIt(t *testing.T) {
	t.Parallel()
	password, err := pgwire.ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	w, relay := through(t, database(t), func(c *postgres.Config) {
		c.Auth, c.Users = "scram-sha-256", []postgres.User{{Name: "postgres", Secret: password}}
		c.LoginCheckInterval = 0
	})
	login := func() (*wire, error) {
		be, err := pgwire.Connect(ctxFor(t), pgwire.ConnectConfig{
			Address: w.Addr().String(), User: "postgres", Password: "secret", Database: w.db, TLSMode: pgwire.TLSDisable,
		})
		if err != nil {
			return nil, err
		}
		return newWire(t, be), nil
	}
	first, err := login()
	if err != nil {
		t.Fatal(err)
	}
	first.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	eventually(t, "the connection is free", func() bool { return w.pool().Free == 1 })
	if err := relay.Refuse(true); err != nil {
		t.Fatal(err)
	}
	relay.Stall(lab.ToServer)
	done := make(chan error, 1)
	go func() {
		c, err := login()
		if err == nil {
			c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		}
		done <- err
	}()
	eventually(t, "the server is asked on the connection that there is", func() bool { p := w.pool(); return p.Backends == 1 && p.Free == 0 })
	relay.Cut()
	relay.Heal()
	if err := relay.Refuse(false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the login failed: %v", err)
	}
}

// Statements that wait for a connection which is lost while its settings are replayed wait for
// another: a shared read, one that runs alone, a group of writes.
func TestStatementsOutliveConnectionsThatWereNotReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, want string }{
		"shared read": {"SELECT k FROM d", "[k] (1) SELECT_1 I"},
		"read alone":  {"SELECT k AS other FROM d", "[other] (1) SELECT_1 I"},
		"group":       {"/* batch */ UPDATE d SET k = k", "UPDATE_1 I"},
	} {
		t.Run(name, func(t *testing.T) {
			w, relay := through(t, database(t, "CREATE TABLE d (k int)", "INSERT INTO d VALUES (1)"), nil)
			warm(w, w.wire(), "SELECT k FROM d")
			asked := w.wire(pgwire.Param{Name: "work_mem", Value: "111kB"})
			other := w.wire()
			other.want("BEGIN", "BEGIN T") // in its own settings
			other.want("COMMIT", "COMMIT I")
			relay.Stall(lab.ToServer)
			before := w.pool().Replays
			asked.send(query(c.sql))
			eventually(t, "the settings have been sent", func() bool {
				p := w.pool()
				if p.Replays == before && p.Waiting > 0 {
					// A question of weir's own was under way, whose answer is held back.
					relay.Heal()
					relay.Stall(lab.ToClient)
				}
				return p.Replays > before
			})
			relay.Cut()
			relay.Heal()
			if got := render(asked.ready()); got != c.want {
				t.Errorf("%s, of which nothing had been sent: %s", c.sql, got)
			}
		})
	}
}

// Writes whose connection is lost while weir asks what they return wait for another: nothing of
// them had been sent.
func TestStatementsOutliveConnectionsThatAreAsked(t *testing.T) {
	t.Parallel()
	const own, grouped = "UPDATE d SET k = 2 RETURNING k", "/* batch */ UPDATE d SET k = 2 RETURNING k"
	for name, sql := range map[string]string{"own backend": own, "group": grouped, "alone, terminated": grouped} {
		t.Run(name, func(t *testing.T) {
			db := database(t, "CREATE TABLE d (k int)", "INSERT INTO d VALUES (1)")
			w, relay := through(t, db, nil)
			c, admin := w.wire(), dialWire(t, server(t).Addr(), db)
			if sql == grouped {
				w.groupsSolo(c, sql)
			} else {
				c.send(parse("s", sql), describe('S', "s"), sync())
				c.ready()
			}
			w.command("RECONNECT " + db)
			if sql == grouped {
				w.groupsSolo(w.wire(), "/* batch */ UPDATE d SET k = 1")
			}
			admin.want("BEGIN", "BEGIN T")
			admin.want("LOCK TABLE d", "LOCK_TABLE T")
			c.send(bind("", "s"), execute("", 0), sync())
			const waits = " FROM pg_locks WHERE NOT granted AND relation = 'd'::regclass"
			if name == "alone, terminated" {
				var pid int
				eventually(t, "it waits for the lock, for longer than a group does", func() bool {
					_, err := fmt.Sscanf(admin.ask("SELECT pid, pg_terminate_backend(pid) AS t"+waits+" AND clock_timestamp() - waitstart > '100 ms'"), "[pid,t] (%d,t)", &pid)
					return err == nil
				})
				eventually(t, "it is ended", func() bool {
					return admin.ask(fmt.Sprint("SELECT count(*) AS n FROM pg_locks WHERE pid = ", pid)) == "[n] (0) SELECT_1 T"
				})
			} else {
				eventually(t, "it waits for the lock", func() bool { return admin.ask("SELECT count(*) AS n"+waits) == "[n] (1) SELECT_1 T" })
				relay.Cut()
				relay.Heal()
			}
			admin.want("COMMIT", "COMMIT I")
			if got := render(c.ready()); got != "bound (2) UPDATE_1 I" {
				t.Error(got)
			}
		})
	}
}

// Statements that wait for a connection which is lost right behind the answer to its settings
// wait for another, too: they were not sent.
func TestStatementsOutliveConnectionsThatWereJustReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, want string }{
		"shared read": {"SELECT k FROM d", "[k] (1) SELECT_1 I"},
		"write alone": {"UPDATE d SET k = k", "UPDATE_1 I"},
		"transaction": {"BEGIN", "BEGIN T"},
	} {
		t.Run(name, func(t *testing.T) {
			w, relay := through(t, database(t, "CREATE TABLE d (k int)", "INSERT INTO d VALUES (1)"), nil)
			warm(w, w.wire(), "SELECT k FROM d")
			asked := w.wire(pgwire.Param{Name: "work_mem", Value: "111kB"})
			other := w.wire()
			other.want(c.sql, c.want)     // in its own settings
			other.send(query("ROLLBACK")) // of what may have begun
			other.ready()
			eventually(t, "the connection is free", func() bool { return w.pool().Free == 1 })
			relay.Stall(lab.ToClient)
			before := w.pool().Replays
			asked.send(query(c.sql))
			eventually(t, "the settings have been sent", func() bool {
				p := w.pool()
				if p.Replays == before && p.Waiting > 0 {
					// A question of weir's own was under way, whose answer is held back.
					relay.Heal()
					relay.Stall(lab.ToClient)
				}
				return p.Replays > before
			})
			direct := dialWire(t, server(t).Addr(), "postgres")
			defer direct.close()
			eventually(t, "the server has taken the settings, and ends the connection", func() bool {
				return direct.ask("SELECT pg_terminate_backend(pid) AS t FROM pg_stat_activity WHERE datname = '"+w.db+"' AND state = 'idle' AND query LIKE '%work_mem%'") == "[t] (t) SELECT_1 I"
			})
			held, hold := make(chan struct{}), make(chan struct{})
			release := gosync.OnceFunc(func() { close(hold) })
			defer release()
			w.Loops[0].Post(func() { close(held); <-hold }) // so that it reads both at once
			<-held
			relay.Heal()
			eventually(t, "the end is there", func() bool { return halfClosed(t, relay.Port()) })
			release()
			if got := render(asked.ready()); got != c.want {
				t.Errorf("%s, of which nothing had been sent: %s", c.sql, got)
			}
		})
	}
}

// halfClosed reports whether a connection to a port of this machine has been ended by the
// other side alone, and its end has arrived.
func halfClosed(t *testing.T, port int) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const closeWait = "08"
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); strings.HasSuffix(f[2], fmt.Sprintf(":%04X", port)) && f[3] == closeWait {
			return true
		}
	}
	return false
}

// Reads behind the one that the server was at work on when the connection broke are read
// elsewhere, in their order; that one's client is told.
func TestReadsGoOnElsewhere(t *testing.T) {
	t.Parallel()
	w, relay := through(t, database(t, "CREATE TABLE d (k int)", "INSERT INTO d VALUES (1)"), nil)
	c := w.wire()
	warm(w, c, "SELECT k AS a FROM d", "SELECT k AS b FROM d")
	relay.CutAfter(lab.ToServer, 5)
	c.send(append(query("SELECT k AS a FROM d"), append(query("SELECT k AS b FROM d"), query("SELECT k AS a FROM d")...)...))
	for i, want := range []string{"ERROR:08006 I", "[b] (1) SELECT_1 I", "[a] (1) SELECT_1 I"} {
		if got := render(c.ready()); got != want {
			t.Errorf("read %d: %s, want %s", i, got, want)
		}
	}
	c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
}

// A statement that comes in the turn in which the connection is lost has not left weir.
func TestUnsentReadGoesElsewhere(t *testing.T) {
	t.Parallel()
	w, relay := through(t, database(t, "CREATE TABLE d (k int)", "INSERT INTO d VALUES (1)"), nil)
	c := w.wire()
	warm(w, c, "SELECT k AS a FROM d")
	for range 20 {
		held, entered := make(chan struct{}), make(chan struct{})
		go func() {
			_ = w.Loops[0].Call(ctxFor(t), func() { close(entered); <-held })
		}()
		<-entered
		c.send(query("SELECT k AS a FROM d"))
		relay.Cut()
		close(held)
		if got := render(c.ready()); got != "[a] (1) SELECT_1 I" {
			t.Fatalf("a read that was not sent: %s", got)
		}
	}
}

// Statements that a client has sent on a connection of its own, and that had not left weir when
// it was lost, are sent on another, once.
func TestUnsentStatementsOfOwnConnectionsGoElsewhere(t *testing.T) {
	t.Parallel()
	w, relay := through(t, database(t, "CREATE TABLE d (k int)"), nil)
	c := w.wire()
	warm(w, c, "SELECT k FROM d")
	rows := 0
	for _, s := range []struct {
		name     string
		messages []byte
		want     []string
	}{
		{"a write", query("INSERT INTO d VALUES (1)"), []string{"INSERT_0_1 I"}},
		{"an unnamed statement", run("INSERT INTO d VALUES ($1::int)", "2"), []string{"parsed bound nodata INSERT_0_1 I"}},
		{"a named one", slices.Concat(parse("s", "INSERT INTO d VALUES ($1::int)"), bind("", "s", "3"), execute("", 0), closing('S', "s"), sync()), []string{"parsed bound INSERT_0_1 closed I"}},
		{"a transaction", slices.Concat(query("BEGIN"), query("INSERT INTO d VALUES (4)"), query("COMMIT")), []string{"BEGIN T", "INSERT_0_1 T", "COMMIT I"}},
		{"the beginning of a transaction", query("BEGIN"), []string{"BEGIN T"}},
	} {
		for range 5 {
			held, entered := make(chan struct{}), make(chan struct{})
			go func() {
				_ = w.Loops[0].Call(ctxFor(t), func() { close(entered); <-held })
			}()
			<-entered
			c.send(s.messages)
			relay.Cut()
			close(held)
			for _, want := range s.want {
				if got := render(c.ready()); got != want {
					t.Fatalf("%s that was not sent: %s, want %s", s.name, got, want)
				}
			}
			if len(s.want) == 1 && s.want[0] == "BEGIN T" {
				c.want("ROLLBACK", "ROLLBACK I")
				continue
			}
			rows++
		}
	}
	c.want("SELECT count(*) AS n FROM d", fmt.Sprintf("[n] (%d) SELECT_1 I", rows))
}

// endingServer passes connections on to the shared server. When it is told to, it
// answers the next message on any of them as a server that stops.
func endingServer(t *testing.T) (addr string, end *atomic.Bool) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	end = new(atomic.Bool)
	last := pgwire.AppendError(nil, pgwire.NewFatal(pgwire.CodeAdminShutdown, "terminating connection due to administrator command"))
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server(t).Addr())
			if err != nil {
				_ = near.Close()
				continue
			}
			pass := func(from, to net.Conn, ends bool) {
				defer near.Close()
				defer far.Close()
				buf := make([]byte, 16<<10)
				for {
					n, err := from.Read(buf)
					if ends && n > 0 && end.CompareAndSwap(true, false) {
						_, _ = near.Write(last)
						return
					}
					if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
						return
					}
				}
			}
			go pass(near, far, true)
			go pass(far, near, false)
		}
	}()
	return ln.Addr().String(), end
}

// A read that the server answers by ending the connection is read elsewhere; a write is
// not sent again.
func TestReadOnAServerThatStops(t *testing.T) {
	t.Parallel()
	addr, end := endingServer(t)
	w := start(t, database(t, "CREATE TABLE d (k int)", "INSERT INTO d VALUES (1)"), func(c *postgres.Config) {
		c.Postgres.Address, c.PoolSize, c.ReadLanes = addr, 1, 1
	})
	c := w.wire()
	warm(w, c, "SELECT k AS a FROM d")
	for _, reads := range []int{1, 3} {
		end.Store(true)
		var all []byte
		for range reads {
			all = append(all, query("SELECT k AS a FROM d")...)
		}
		c.send(all)
		for i := range reads {
			if got := render(c.ready()); got != "[a] (1) SELECT_1 I" {
				t.Errorf("read %d of %d: %s", i, reads, got)
			}
		}
	}
	end.Store(true)
	c.send(query("UPDATE d SET k = k + 1"))
	got, err := c.until(pgwire.ServerReady)
	if e := errorIn(got); e == nil || e.Code != pgwire.CodeAdminShutdown {
		t.Errorf("a write: %v, %v; want 57P01", fmt.Sprint(e), err)
	}
	w.wire().want("SELECT k FROM d", "[k] (1) SELECT_1 I")
}
