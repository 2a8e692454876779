package postgres_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// crampedServer has few connections, and roles u0, u1... that may log in.
func crampedServer(t *testing.T, setup ...string) *lab.Postgres {
	t.Helper()
	cfg := serverConfig()
	cfg.MaxConnections = 16
	server := labtest.Postgres(t, cfg)
	for i := range 6 {
		sqlOn(t, server.DSN("postgres"), fmt.Sprintf("CREATE ROLE u%d LOGIN", i))
	}
	sqlOn(t, server.DSN("postgres"), setup...)
	return server
}

// leavesIdle has clients of a user in a database hold as many connections at once, and
// leave: the pool keeps them.
func (w *weir) leavesIdle(db, user string, n int) {
	w.tb.Helper()
	var clients []*wire
	for range n {
		c := dialWireAs(w.tb, w.Addr().String(), db, user)
		c.want("BEGIN", "BEGIN T")
		clients = append(clients, c)
	}
	for _, c := range clients {
		c.want("COMMIT", "COMMIT I")
		c.close()
	}
}

// Pools whose clients have left hold connections that others need. What is reserved for
// superusers is refused to others when they have been authenticated.
func TestIdleBackendsMakeRoom(t *testing.T) {
	t.Parallel()
	server := crampedServer(t)
	w := startFor(t, server, "postgres", nil)
	for i := range 6 {
		w.leavesIdle("postgres", fmt.Sprint("u", i), 4)
	}
}

// A server without any connection left says so before it asks who comes.
func TestIdleBackendsMakeRoomOnAFullServer(t *testing.T) {
	t.Parallel()
	server := crampedServer(t)
	var dbs []string
	for range 6 {
		dbs = append(dbs, copyOn(t, server, "template1"))
	}
	w := startFor(t, server, "", nil)
	for _, db := range dbs {
		w.leavesIdle(db, "postgres", 4)
	}
}

// The limits of a role and of a database count the connections of several pools, too.
// Those of others are left alone.
func TestLimitsOfRolesAndDatabasesMakeRoom(t *testing.T) {
	t.Parallel()
	server := crampedServer(t, "ALTER ROLE u1 CONNECTION LIMIT 3", "CREATE DATABASE few CONNECTION LIMIT 3", "CREATE DATABASE other")
	w := startFor(t, server, "postgres", nil)
	w.leavesIdle("postgres", "u0", 2)
	for _, db := range []string{"postgres", "other", "postgres"} {
		w.leavesIdle(db, "u1", 2)
	}
	for _, user := range []string{"u2", "u3", "u2"} {
		w.leavesIdle("few", user, 2)
	}
	for _, p := range w.snapshot().Pools {
		if p.User == "u0" && p.Backends < 2 {
			t.Errorf("the pool of a role without limit has %d connections left of 2", p.Backends)
		}
	}
}

// A server that is full of others' connections refuses, in its own words.
func TestNoRoomToMake(t *testing.T) {
	t.Parallel()
	server := crampedServer(t)
	w := startFor(t, server, "postgres", nil)
	for {
		_, err := tryWireAs(t, server.Addr(), "postgres", "postgres")
		if pgwire.CodeOf(err) == pgwire.CodeTooManyConnections {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tryWireAs(t, w.Addr().String(), "postgres", "postgres"); pgwire.CodeOf(err) != pgwire.CodeTooManyConnections {
		t.Errorf("login: %v, want %s", err, pgwire.CodeTooManyConnections)
	}
}
