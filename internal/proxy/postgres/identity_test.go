package postgres_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
)

// No client gets a connection that was opened as another role, or with settings that the role no
// longer has, although several of them are in the pool.
func TestPooledConnectionsAreOfTheRole(t *testing.T) {
	t.Parallel()
	own, _ := loggedServer(t, lab.SCRAM, lab.TLSOff)
	admin := own.DSN("postgres")
	sqlOn(t, admin, "CREATE ROLE alice LOGIN PASSWORD 'alices'", "CREATE ROLE old LOGIN PASSWORD 'olds'")
	w := startFor(t, own, "postgres", func(c *postgres.Config) { c.Loops = 1 })
	login := func(user, password string) *pgconn.PgConn {
		t.Helper()
		conn, err := pgconn.Connect(ctxFor(t), fmt.Sprintf("postgres://%s:%s@%s/postgres?sslmode=disable", user, password, w.Addr()))
		if err != nil {
			t.Fatalf("login as %s: %v", user, err)
		}
		t.Cleanup(func() { _ = conn.Close(ctxFor(t)) })
		return conn
	}
	const size = 4
	// see has several sessions hold connections at once, and returns what they see there.
	see := func(user, password, expr string) (seen [size]string) {
		t.Helper()
		var conns [size]*pgconn.PgConn
		for i := range conns {
			conns[i] = login(user, password)
			results, err := conns[i].Exec(ctxFor(t), "BEGIN; SELECT "+expr).ReadAll()
			if err != nil {
				seen[i] = err.Error()
				continue
			}
			seen[i] = string(results[1].Rows[0][0])
		}
		for _, conn := range conns {
			if err := conn.Exec(ctxFor(t), "ROLLBACK").Close(); err != nil {
				t.Errorf("ROLLBACK: %v", err)
			}
			_ = conn.Close(ctxFor(t))
		}
		return seen
	}
	all := func(s string) (list [size]string) {
		for i := range list {
			list[i] = s
		}
		return list
	}
	want := func(what string, got, want [size]string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: sessions see %q, want %q", what, got, want)
		}
	}
	want("at first", see("alice", "alices", "session_user"), all("alice"))
	stays := login("alice", "alices")
	if err := stays.Exec(ctxFor(t), "SELECT 1").Close(); err != nil {
		t.Fatal(err)
	}

	sqlOn(t, admin, "ALTER ROLE alice RENAME TO gone", "ALTER ROLE old RENAME TO alice")
	want("another role has the name", see("alice", "olds", "session_user"), all("alice"))
	if err := stays.Exec(ctxFor(t), "SELECT 1").Close(); sqlState(err) != "57P01" {
		t.Errorf("a session of the role that had the name: %v, want SQLSTATE 57P01", err)
	}

	sqlOn(t, admin, "DROP ROLE alice", "CREATE ROLE alice LOGIN PASSWORD 'new'")
	want("dropped and made again", see("alice", "new", "session_user"), all("alice"))

	stays = login("alice", "new")
	for _, c := range []struct{ does, seen string }{
		{"ALTER ROLE alice SET work_mem = '7MB'", "7MB"},
		{"ALTER ROLE alice RESET work_mem", "4MB"},
		{"ALTER ROLE alice IN DATABASE postgres SET work_mem = '8MB'", "8MB"},
		{"ALTER DATABASE postgres SET work_mem = '9MB'", "8MB"},
		{"ALTER ROLE alice IN DATABASE postgres RESET ALL", "9MB"},
	} {
		sqlOn(t, admin, c.does)
		want(c.does, see("alice", "new", "current_setting('work_mem')"), all(c.seen))
	}
	if err := stays.Exec(ctxFor(t), "SELECT 1").Close(); err != nil {
		t.Errorf("a session of a role whose settings have changed: %v", err)
	}
}
