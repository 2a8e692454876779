package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/proxy/postgres"
)

// unreadable has every reading of a database's catalogue wait until release is called.
func unreadable(t *testing.T, db string) (release func()) {
	t.Helper()
	ctx := ctxFor(t)
	conn, err := pgconn.Connect(ctx, server(t).DSN(db))
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Exec(ctx, "BEGIN; LOCK TABLE pg_catalog.pg_policy").Close(); err != nil {
		t.Fatal(err)
	}
	released := false
	release = func() {
		if !released {
			released = true
			_ = conn.Close(ctx)
		}
	}
	t.Cleanup(release)
	return release
}

const slowSetup = "CREATE FUNCTION set_mem() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('work_' || 'mem', '7MB', false); END $$"

// Clients need not wait for a long reading of the catalogue: each keeps its
// connection until it is known what it did.
func TestClientsDoNotWaitForALongReading(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (n int)", slowSetup, "CREATE FUNCTION sets_named() RETURNS void LANGUAGE sql AS $$ SELECT set_config('my.tenant', '5', false) $$")
	release := unreadable(t, db)
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 6 })
	harmless, other, setter, named := w.wire(), w.wire(), w.wire(), w.wire()
	harmless.want("SELECT count(*) AS n FROM t", "[n] (0) SELECT_1 I")
	other.want("INSERT INTO t VALUES (1)", "INSERT_0_1 I")
	other.want("SELECT count(*) AS n FROM t", "[n] (1) SELECT_1 I")
	setter.ask("SELECT set_mem()")
	named.ask("SELECT sets_named()")
	if p := w.pool(); p.Pinned != 4 {
		t.Errorf("%d clients are pinned while nothing is known, want 4", p.Pinned)
	}
	console := dialWire(t, w.Addr().String(), "weir")
	if got := console.ask("SHOW CATALOGUES"); !strings.Contains(got, "("+db+",being read,") {
		t.Errorf("the console shows %s", got)
	}
	release()
	eventually(t, "the catalogue is known, and only who called set_mem is pinned", func() bool {
		return strings.Contains(console.ask("SHOW CATALOGUES"), "("+db+",known,") && w.pool().Pinned == 1
	})
	setter.want("SHOW work_mem", "[work_mem] (7MB) SHOW I")
	others := []*wire{harmless, other, w.wire(), w.wire()}
	held(others, func(c *wire) {
		c.want("SELECT current_setting('work_mem') AS m, current_setting('my.tenant', true) AS t", "[m,t] (4MB,null) SELECT_1 T")
	})
	named.want("SELECT current_setting('my.tenant') AS t", "[t] (5) SELECT_1 I")
}

// The same while functions that a client has made are read.
func TestClientsDoNotWaitLongForNewFunctions(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (n int)")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 5 })
	maker, caller, other := w.wire(), w.wire(), w.wire()
	for _, c := range []*wire{maker, caller, other} {
		c.want("SELECT count(*) AS n FROM t", "[n] (0) SELECT_1 I")
	}
	release := unreadable(t, db)
	maker.ask(slowSetup)
	other.want("SELECT count(*) AS n FROM t", "[n] (0) SELECT_1 I")
	caller.ask("SELECT set_mem()")
	if p := w.pool(); p.Pinned < 2 {
		t.Errorf("%d clients are pinned while nothing is known, want 2", p.Pinned)
	}
	release()
	maker.want("SELECT count(*) AS n FROM t", "[n] (0) SELECT_1 I")
	eventually(t, "only who called the function is pinned", func() bool { return w.pool().Pinned == 1 })
	held([]*wire{maker, other, w.wire()}, func(c *wire) { c.want("SHOW work_mem", "[work_mem] (4MB) SHOW T") })
}

// Statements from before a change of the catalogue cannot be judged by what was read after it.
func TestWhatWasDoneBeforeAChangeStaysInDoubt(t *testing.T) {
	t.Parallel()
	db := database(t, slowSetup)
	release := unreadable(t, db)
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 4 })
	setter, maker := w.wire(), w.wire()
	setter.ask("SELECT set_mem()")
	maker.ask("CREATE OR REPLACE FUNCTION set_mem() RETURNS void LANGUAGE sql AS $$ SELECT $$")
	release()
	maker.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	eventually(t, "it is known that the caller may have left something", func() bool {
		p := w.pool()
		return p.Pins["function"] > 0 && p.Pinned >= 1
	})
	setter.want("SHOW work_mem", "[work_mem] (7MB) SHOW I")
	held([]*wire{w.wire(), w.wire()}, func(c *wire) { c.want("SHOW work_mem", "[work_mem] (4MB) SHOW T") })
}
