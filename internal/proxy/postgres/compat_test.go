package postgres_test

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// The tests of this file hold what drivers' own suites and standard clients
// found to differ from a direct connection. docs/compatibility.md has the
// results of those runs.

func TestFlushBringsTheAnswersThatWeirGivesItself(t *testing.T) {
	t.Parallel()
	c := start(t, database(t), nil).wire()
	got := func(want string, last byte) {
		t.Helper()
		ms, err := c.until(last)
		if err != nil {
			t.Fatalf("connection lost: %v", err)
		}
		if have := render(ms); have != want {
			t.Fatalf("got %s, want %s", have, want)
		}
	}
	c.want("BEGIN", "BEGIN T")
	// The server learns the text under weir's name, so neither the second
	// Parse nor the Close goes to it. There is no Sync until all is answered.
	c.send(parse("one", "SELECT 1 AS x"), flush())
	got("parsed", pgwire.ServerParseComplete)
	c.send(parse("two", "SELECT 1 AS x"), flush())
	got("parsed", pgwire.ServerParseComplete)
	c.send(bind("", "two"), execute("", 0), closing('S', "two"), flush())
	got("bound (1) SELECT_1 closed", pgwire.ServerCloseComplete)
	c.send(closing('S', "one"), flush())
	got("closed", pgwire.ServerCloseComplete)
	c.send(sync())
	got("T", pgwire.ServerReady)
	// Behind a unit that is not answered yet.
	c.send(parse("", "SELECT pg_sleep(0.01)"), bind("", ""), execute("", 0), sync(), closing('S', "one"), flush())
	got("parsed bound () SELECT_1 T closed", pgwire.ServerCloseComplete)
	c.send(sync())
	got("T", pgwire.ServerReady)
	c.want("COMMIT", "COMMIT I")
}

func TestFatalErrorIsTheLastWord(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for _, setup := range []string{"LISTEN news", "BEGIN", "SELECT 1"} {
		c := w.wire()
		c.ask(setup)
		c.send(query("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)"))
		if got := render(c.end()); got != "[pg_terminate_backend,pg_sleep] FATAL:57P01" {
			t.Errorf("after %s: got %s, want the server's own error and the end", setup, got)
		}
	}
}

// A direct client that has left does not keep a database from being dropped.
func TestDatabaseOfClientsThatLeftCanBeDroppedAndCopied(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	admin := w.wire()
	name := w.db + "_copy"
	admin.want("CREATE DATABASE "+name+" TEMPLATE "+w.db, "CREATE_DATABASE I") // its own database, and its own backends there
	for range 3 {
		c := dialWire(t, w.Addr().String(), name)
		c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		c.close()
	}
	admin.want("ALTER DATABASE "+name+" RENAME TO "+name+"2", "ALTER_DATABASE I")
	c := dialWire(t, w.Addr().String(), name+"2")
	c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	c.close()
	admin.send(run("DROP DATABASE " + name + "2"))
	if got := render(admin.ready()); got != "parsed bound nodata DROP_DATABASE I" {
		t.Errorf("DROP DATABASE: %s", got)
	}
}

func TestDatabaseInUseIsNotDropped(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	admin := w.wire()
	name := w.db + "_used"
	admin.want("CREATE DATABASE "+name+" TEMPLATE template0", "CREATE_DATABASE I")
	c := dialWire(t, w.Addr().String(), name)
	c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	admin.want("DROP DATABASE "+name, "ERROR:55006 I")
	c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	c.close()
	admin.want("DROP DATABASE "+name, "DROP_DATABASE I")
}

func TestNewSessionsHaveTheDefaultsOfToday(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	role := "role_" + w.db
	onServer(t, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() { onServer(t, "DROP ROLE IF EXISTS "+role) })
	admin := w.wire()
	show := func(name, want string) {
		t.Helper()
		c := dialWireAs(t, w.Addr().String(), w.db, role)
		c.want("SHOW "+name, "["+name+"] ("+want+") SHOW I")
		c.close()
	}
	show("lock_timeout", "0")
	admin.want("ALTER DATABASE "+w.db+" SET lock_timeout = '7s'", "ALTER_DATABASE I")
	show("lock_timeout", "7s")
	admin.want("BEGIN", "BEGIN T")
	admin.want("ALTER ROLE "+role+" IN DATABASE "+w.db+" SET lock_timeout = '8s'", "ALTER_ROLE T")
	show("lock_timeout", "7s")
	admin.want("COMMIT", "COMMIT I")
	show("lock_timeout", "8s")
	admin.want("ALTER ROLE ALL SET compat.everyone = 'yes'", "ALTER_ROLE I")
	show("compat.everyone", "yes")
	admin.want("ALTER ROLE ALL RESET compat.everyone", "ALTER_ROLE I")
	// Under the same name, another role.
	admin.want("DROP ROLE "+role, "DROP_ROLE I")
	admin.want("CREATE ROLE "+role+" LOGIN", "CREATE_ROLE I")
	show("lock_timeout", "7s")
	c := dialWireAs(t, w.Addr().String(), w.db, role)
	c.want("SELECT current_user::text AS u", "[u] ("+role+") SELECT_1 I")
	c.close()
}

// A program may prepare a statement in one session, and wait for that, before it
// goes on with another that is in a transaction: pgbench -M prepared does.
func TestPreparingDoesNotWaitForTransactions(t *testing.T) {
	t.Parallel()
	const size = 8
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = size })
	all := make([]*wire, 2*size)
	for i := range all {
		all[i] = w.wire()
	}
	for _, c := range all {
		c.send(query("BEGIN"))
	}
	eventually(t, "as many transactions as the pool can hold", func() bool {
		p := w.pool()
		return p.Owned == size-1 && p.Waiting == size+1
	})
	other := w.wire()
	other.send(parse("p", "BEGIN"), sync())
	if got := render(other.ready()); got != "parsed I" {
		t.Errorf("Parse behind transactions: %s", got)
	}
	// Those that have a transaction end it; so all get theirs. Which ones
	// are first is not known, so each ends its own as soon as it has begun.
	for _, c := range all {
		c.send(query("COMMIT"))
	}
	for _, c := range all {
		if got := render(c.ready()); got != "BEGIN T" {
			t.Errorf("BEGIN: %s", got)
		}
		if got := render(c.ready()); got != "COMMIT I" {
			t.Errorf("COMMIT: %s", got)
		}
	}
}

// TestLoginAfterNewDefaultsDoesNotWaitForTransactions: what new connections are told has
// changed, and all that there are have a transaction.
func TestLoginAfterNewDefaultsDoesNotWaitForTransactions(t *testing.T) {
	t.Parallel()
	const size = 4
	server := trusting(t)
	w := start(t, "postgres", func(c *postgres.Config) { c.PoolSize, c.Postgres.Address = size, server.Addr() })
	all := make([]*wire, 2*size)
	for i := range all {
		all[i] = w.wire()
	}
	sqlOn(t, server.DSN("postgres"), "ALTER SYSTEM SET datestyle = German", "SELECT pg_reload_conf()")
	t.Cleanup(func() { sqlOn(t, server.DSN("postgres"), "ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()") })
	eventually(t, "new connections have the new default", func() bool {
		return dialWire(t, server.Addr(), "postgres").params["DateStyle"] == "German, DMY"
	})
	for _, c := range all {
		c.send(query("BEGIN"))
	}
	eventually(t, "as many transactions as the pool can hold", func() bool {
		p := w.pool()
		return p.Owned >= size-1 && p.Waiting >= size
	})
	if got := w.wire().params["DateStyle"]; got != "German, DMY" {
		t.Errorf("a new session is told that DateStyle is %q", got)
	}
	for _, c := range all {
		c.send(query("COMMIT"))
	}
	for _, c := range all {
		c.ready()
		c.ready()
	}
}

func TestOwnNotificationsAreKnownByTheirProcess(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	c, other := w.wire(), w.wire()
	from := func() uint32 {
		t.Helper()
		ms, err := c.until(pgwire.ServerNotification)
		if err != nil {
			t.Fatalf("no notification: %v", err)
		}
		pid, _, _, err := pgwire.ParseNotification(ms[len(ms)-1].body)
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	c.want("LISTEN news", "LISTEN I")
	c.send(query("NOTIFY news, 'mine'"))
	if pid := from(); pid != c.pid {
		t.Errorf("own notification comes from process %d; the session is %d", pid, c.pid)
	}
	c.ready()
	other.want("NOTIFY news, 'theirs'", "NOTIFY I")
	if pid := from(); pid == c.pid {
		t.Errorf("another's notification comes from the session's own process")
	}
}
