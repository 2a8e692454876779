package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// wireAs logs in through w as a user.
func (w *weir) wireAs(user string) *wire {
	w.tb.Helper()
	return dialWireAs(w.tb, w.Addr().String(), w.db, user)
}

// shown is a cell of a table of the console: of the row whose first column is name.
func (w *weir) shown(command, name, column string) string {
	w.tb.Helper()
	a, err := w.Command(ctxFor(w.tb), command)
	if err != nil {
		w.tb.Fatalf("%s: %v", command, err)
	}
	for _, row := range a.Table.Rows {
		for i, c := range a.Table.Cols {
			if row[0] == name && c == column {
				return row[i]
			}
		}
	}
	w.tb.Fatalf("%s has no %s of %s", command, column, name)
	return ""
}

// learned has the catalogue read, until when a client that writes keeps its connection.
func learned(w *weir) {
	w.tb.Helper()
	c := w.wire()
	eventually(w.tb, "the catalogue is known", func() bool {
		c.ask("UPDATE t SET k = k")
		return w.pool().Pinned == 0 && w.pool().Owned == 0
	})
	c.close()
}

// TestUserWithManyWaitersLeavesOthersTheirShare: three hundred statements of one user
// wait for the three connections of a database, which wait for locks. One that ends is
// enough for another user.
func TestUserWithManyWaitersLeavesOthersTheirShare(t *testing.T) {
	t.Parallel()
	const places, many = 3, 300
	db := database(t, "CREATE TABLE t (k int PRIMARY KEY)", fmt.Sprintf("INSERT INTO t SELECT generate_series(1, %d)", many), "GRANT ALL ON t TO weir_other")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.MaxDBConnections = 2*places, places })
	learned(w)
	other := w.wireAs("weir_other") // a login itself may need a connection
	first, rest := dialWire(t, server(t).Addr(), db), dialWire(t, server(t).Addr(), db)
	for c, which := range map[*wire]string{first: "= 1", rest: "> 1"} {
		c.want("BEGIN", "BEGIN T")
		c.send(query("SELECT FROM t WHERE k " + which + " FOR UPDATE"))
		if e := errorIn(c.ready()); e != nil {
			t.Fatal(e)
		}
	}
	before := w.pool().Statements
	clients := make([]*wire, many)
	for i := range clients {
		clients[i] = w.wire()
		clients[i].send(query(fmt.Sprintf("UPDATE t SET k = k WHERE k = %d", i+1)))
		if i == 0 {
			eventually(t, "the first has a connection", func() bool { return w.pool().Owned > 0 })
		}
	}
	eventually(t, "all others wait", func() bool { p := w.pool(); return p.Waiting >= many-places && p.Backends == places })
	other.send(query("UPDATE t SET k = k WHERE false"))
	eventually(t, "the other user waits", func() bool { return w.poolOf("weir_other").Waiting > 0 })
	first.want("COMMIT", "COMMIT I")
	if got := render(other.ready()); got != "UPDATE_0 I" {
		t.Errorf("the other user: %s", got)
	}
	if p, o := w.pool(), w.poolOf("weir_other"); p.Statements != before+1 || p.Waiting < many-places || p.Backends+o.Backends > places || p.Limited["connections"] == 0 {
		t.Errorf("meanwhile %d statements of the many were answered, %d wait, %d and %d connections are open, %v", p.Statements-before, p.Waiting, p.Backends, o.Backends, p.Limited)
	}
	rest.want("COMMIT", "COMMIT I")
	for _, c := range clients {
		if got := render(c.ready()); got != "UPDATE_1 I" {
			t.Fatalf("one of the many: %s", got)
		}
	}
}

// TestMoreUsersThanConnectionsTakeTurns: one connection for a database of three users,
// of whom one has many clients that ask again at once. Each of the others is served
// after as many statements as the turns before it have.
func TestMoreUsersThanConnectionsTakeTurns(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (k int)"), func(c *postgres.Config) { c.MaxDBConnections = 1 })
	learned(w)
	done := make(chan struct{})
	ended := make(chan error)
	const many = 20
	for range many {
		c := w.wire()
		go func() {
			for {
				select {
				case <-done:
					ended <- nil
					return
				default:
				}
				if _, err := c.conn.Write(query("UPDATE t SET k = 1")); err != nil {
					ended <- err
					return
				}
				if _, err := c.until(pgwire.ServerReady); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	for round := range 6 {
		user := []string{"weir_other", "weir_rls"}[round%2]
		c := w.wireAs(user)
		c.send(query("BEGIN"))
		var before uint64
		eventually(t, user+" waits, or has been served", func() (asked bool) {
			for _, p := range w.snapshot().Pools { // of one moment
				switch p.User {
				case "postgres":
					before = p.Statements
				case user:
					asked = p.Active > 0
				}
			}
			return asked
		})
		if got := render(c.ready()); got != "BEGIN T" {
			t.Fatalf("%s: %s", user, got)
		}
		if n := w.pool().Statements - before; n > 2*16+many { // its own transaction holds the one connection
			t.Errorf("%s waited for %d statements of another user", user, n)
		}
		c.want("COMMIT", "COMMIT I")
		c.close()
	}
	close(done)
	for range many {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestReserveIsForThoseWhoHaveWaited(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) {
		c.PoolSize, c.ReservePoolSize, c.ReservePoolTimeout = 1, 1, 50*time.Millisecond
	})
	holder, second, third := w.wire(), w.wire(), w.wire()
	holder.want("BEGIN", "BEGIN T")
	second.want("BEGIN", "BEGIN T")
	third.send(query("BEGIN"))
	eventually(t, "the third waits", func() bool { p := w.pool(); return p.Waiting == 1 && p.Backends == 2 })
	holder.want("COMMIT", "COMMIT I")
	if got := render(third.ready()); got != "BEGIN T" {
		t.Errorf("the third: %s", got)
	}
	second.want("COMMIT", "COMMIT I")
	third.want("COMMIT", "COMMIT I")
	eventually(t, "the reserve is closed", func() bool { return w.pool().Backends == 1 })
}

func TestLeastNumberOfConnectionsStaysOpen(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.MinPoolSize, c.ServerIdleTimeout = 3, 50*time.Millisecond })
	c := w.wire()
	var all []*wire
	for range 5 {
		all = append(all, w.wire())
		all[len(all)-1].want("BEGIN", "BEGIN T")
	}
	for _, c := range all {
		c.want("COMMIT", "COMMIT I")
	}
	eventually(t, "those beyond the least number are closed", func() bool { return w.pool().Closed >= 2 && w.pool().Backends == 3 })
	c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	if p := w.pool(); p.Backends != 3 {
		t.Errorf("%d are open, want 3", p.Backends)
	}
}

// TestQueueTimeoutOfARule: sessions that there are get the timeout with a reload.
func TestQueueTimeoutOfARule(t *testing.T) {
	t.Parallel()
	var cfg postgres.Config
	w := start(t, database(t), func(c *postgres.Config) {
		c.PoolSize = 1
		cfg = *c
	})
	holder, queued := w.wireAs("weir_rls"), w.wireAs("weir_rls")
	holder.want("BEGIN", "BEGIN T")
	cfg.LimitRules = []session.LimitRule{{User: "weir_rls", Set: func(l *session.Limits) { l.QueueTimeout = time.Millisecond }}}
	if err := w.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	queued.send(query("SELECT pg_sleep(0)"))
	if e := errorIn(queued.ready()); e == nil || e.Code != pgwire.CodeTooManyConnections || !strings.Contains(e.Message, "within 1ms") {
		t.Errorf("one who waits gets %+v", e)
	}
	holder.want("COMMIT", "COMMIT I")
}

func TestLimitsOfUsersAndDatabases(t *testing.T) {
	t.Parallel()
	db := database(t)
	var cfg postgres.Config
	w := start(t, db, func(c *postgres.Config) {
		c.LimitRules = []session.LimitRule{
			{User: "weir_other", Set: func(l *session.Limits) { l.PoolSize, l.MaxUserClients, l.MaxUserConnections = 2, 2, 1 }},
			{Database: db, Set: func(l *session.Limits) {
				l.PoolSize, l.MinPoolSize, l.MaxDBClients, l.MaxDBConnections = 5, 1, 3, 4
			}},
		}
		cfg = *c
	})
	refused := func(user string) bool {
		c, err := tryWireAs(t, w.Addr().String(), db, user)
		if err == nil {
			c.close()
			return false
		}
		if pgwire.CodeOf(err) != pgwire.CodeTooManyConnections {
			t.Errorf("a login as %s: %v", user, err)
		}
		return true
	}
	others := []*wire{w.wireAs("weir_other"), w.wireAs("weir_other")}
	if !refused("weir_other") {
		t.Error("a third client of a user who may have two")
	}
	third := w.wireAs("weir_rls")
	for _, c := range []struct{ table, name, column, want string }{
		{"SHOW DATABASES", db, "pool_size", "5"},
		{"SHOW DATABASES", db, "min_pool_size", "1"},
		{"SHOW DATABASES", db, "max_connections", "4"},
		{"SHOW DATABASES", db, "max_client_connections", "3"},
		{"SHOW DATABASES", "postgres", "pool_size", "8"},
		{"SHOW CONFIG", "max_db_connections", "value", "0"},
	} {
		if got := w.shown(c.table, c.name, c.column); got != c.want {
			t.Errorf("%s of %s is %s, want %s", c.column, c.name, got, c.want)
		}
	}
	if !refused("postgres") {
		t.Error("a fourth client of a database that may have three")
	}
	if got := w.shown("SHOW USERS", "weir_other", "max_user_client_connections"); got != "2" {
		t.Errorf("SHOW USERS: %s", got)
	}
	if n := w.poolOf("postgres").Limited["clients"] + w.poolOf("weir_other").Limited["clients"]; n != 2 {
		t.Errorf("%d refused logins are counted, want 2", n)
	}
	third.close()
	eventually(t, "there is room again", func() bool { return !refused("postgres") })
	others[0].want("BEGIN", "BEGIN T")
	others[1].send(query("BEGIN"))
	eventually(t, "the second transaction of the user waits for the first", func() bool { return w.poolOf("weir_other").Waiting == 1 })
	cfg.LimitRules = nil
	if err := w.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	if got := render(others[1].ready()); got != "BEGIN T" {
		t.Errorf("after the reload: %s", got)
	}
	if refused("weir_other") {
		t.Error("the limit holds after a reload without it")
	}
}
