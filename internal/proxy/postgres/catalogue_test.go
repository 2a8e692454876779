package postgres_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/proxytest"
)

// held has every client begin a transaction, so that each has another backend, runs
// what is asked there and ends the transactions.
func held(clients []*wire, run func(c *wire)) {
	for _, c := range clients {
		c.ask("BEGIN")
	}
	for _, c := range clients {
		run(c)
	}
	for _, c := range clients {
		c.ask("ROLLBACK")
	}
}

func TestFunctionsThatAStatementDoesNotReachPinNobody(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE EXTENSION pgcrypto", "CREATE TABLE acc (n int)",
		"CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE acc SET n = n + 1; RETURN NEW; END'",
		"CREATE FUNCTION switch(v text) RETURNS text LANGUAGE sql AS $$ SELECT set_config(v, v, false) $$",
		"CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql AS 'SELECT 2 * n'")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 2 })
	for range 6 { // more than there are backends, and none leaves
		c := w.wire()
		c.want("SELECT length(gen_salt('md5'))", "[length] (11) SELECT_1 I")
		c.want("SELECT twice(4)", "[twice] (8) SELECT_1 I")
		c.want("INSERT INTO acc VALUES (1)", "INSERT_0_1 I")
	}
	eventually(t, "nobody is pinned", func() bool { return w.pool().Pinned == 0 })
	c := w.wire()
	c.ask("SELECT switch('work_mem')")
	c.ask("SELECT switch('road.x')")
	eventually(t, "who calls it is pinned", func() bool { return w.pool().Pinned == 1 })
}

// Functions of extensions in C that keep something in the session, or reach tables and
// sequences that no text shows, are known as such.
func TestFunctionsOfExtensionsThatDoMore(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE EXTENSION pg_trgm", "CREATE EXTENSION isn", "CREATE EXTENSION autoinc", "CREATE EXTENSION refint", "CREATE EXTENSION pg_stat_statements",
		"CREATE SEQUENCE drawn", "CREATE TABLE numbered (id int, v int)",
		"CREATE TRIGGER draw BEFORE INSERT ON numbered FOR EACH ROW EXECUTE FUNCTION autoinc(id, drawn)",
		"CREATE TABLE parent (id int)", "CREATE TABLE child (id int)",
		"CREATE TRIGGER cascade BEFORE DELETE ON parent FOR EACH ROW EXECUTE FUNCTION check_foreign_key(1, 'cascade', 'id', 'child', 'id')")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 4 })
	a, b := w.wire(), w.wire()
	a.want("SELECT set_limit(0.875)", "[set_limit] (0.875) SELECT_1 I")
	b.want("SELECT show_limit()", "[show_limit] (0.3) SELECT_1 I")
	held([]*wire{b}, func(*wire) { // a is elsewhere
		a.want("SELECT show_limit()", "[show_limit] (0.875) SELECT_1 I")
	})
	a.want("SELECT isn_weak(true)", "[isn_weak] (t) SELECT_1 I")
	for range 3 {
		b.want("SELECT isn_weak()", "[isn_weak] (f) SELECT_1 I")
	}
	one := start(t, db, func(c *postgres.Config) { c.PoolSize = 1 })
	one.wire().want("INSERT INTO numbered VALUES (0, 1)", "INSERT_0_1 I")
	one.wire().want("SELECT currval('drawn')", "[currval] ERROR:55000 I") // it is of another session
	before := w.pool().Pins["function"]
	d := w.wire()
	d.want("DELETE FROM parent", "DELETE_0 I")
	if n := w.pool().Pins["function"] - before; n != 1 {
		t.Errorf("%d sessions are pinned by a trigger that deletes from tables by their names, want 1", n)
	}
}

func TestMadeUpSettingsReachNobodyElse(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 1 })
	for i, set := range []string{
		"SET app.tenant%d = '1'", "BEGIN; SET LOCAL app.tenant%d = '1'; COMMIT", "BEGIN; SET app.tenant%d = '1'; ROLLBACK",
		"SELECT set_config('app.tenant%d', '1', true)", "SET app.tenant%d = '1'; RESET app.tenant%[1]d", "SET app.tenant%d = '1'; DISCARD ALL",
		"BEGIN/SET app.tenant%d = '1'", "BEGIN/SAVEPOINT s/SET LOCAL app.tenant%d = '1'", "BEGIN/SELECT set_config('app.tenant%d', '1', true)",
	} {
		a := w.wire()
		for sql := range strings.SplitSeq(fmt.Sprintf(set, i), "/") {
			a.ask(sql)
		}
		a.close()
		null := fmt.Sprintf("SELECT current_setting('app.tenant%d', true) IS NULL AS u", i)
		w.wire().want(null, "[u] (t) SELECT_1 I")
	}
}

func TestDatestyleIsReplayedWhole(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 3 })
	a := w.wire()
	a.ask("SET datestyle TO dmy")
	a.ask("SET datestyle TO iso")
	others := []*wire{w.wire(), w.wire()}
	held(others, func(*wire) {
		a.want("SELECT '01/02/2026'::date AS d", "[d] (2026-02-01) SELECT_1 I")
	})
	held(append(others, a), func(*wire) {})
	a.want("SHOW datestyle", "[DateStyle] (ISO, DMY) SHOW I")
}

func TestBackupModeStaysWithItsSession(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 3 })
	a := w.wire()
	a.ask("SELECT pg_backup_start('x', true)")
	b := w.wire()
	b.ask("BEGIN")
	b.ask("SELECT 1")
	a.want("SELECT labelfile IS NOT NULL AS l FROM pg_backup_stop(false)", "[l] (t) SELECT_1 I")
	if n := w.pool().Pins["backup"]; n != 1 {
		t.Errorf("%d pins for backup mode, want 1", n)
	}
}

func TestTriggersMadePastWeirAreNoticed(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (x int)",
		"CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(7); RETURN NEW; END $$")
	w := start(t, db, nil)
	a := w.wire()
	a.want("INSERT INTO t VALUES (1)", "INSERT_0_1 I")
	eventually(t, "the first insert pins nobody", func() bool { return w.pool().Pinned == 0 })
	sqlOn(t, server(t).DSN(db), "CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION leave()")
	eventually(t, "the trigger is known", func() bool {
		a.ask("INSERT INTO t VALUES (1)")
		return w.pool().Pins["advisory_lock"] > 0
	})
	if n := w.pool().Pinned; n != 1 {
		t.Errorf("%d clients are pinned, want the one that holds the lock", n)
	}
}

func TestWithoutTheCatalogueEachClientKeepsItsBackend(t *testing.T) {
	t.Parallel()
	db := database(t, "REVOKE SELECT ON pg_catalog.pg_rewrite FROM PUBLIC", "CREATE TABLE t (x int)", "GRANT ALL ON t TO weir_other")
	w := start(t, db, nil)
	a := dialWireAs(t, w.Addr().String(), w.db, "weir_other")
	a.want("SELECT count(*) AS n FROM t", "[n] (0) SELECT_1 I")
	pinned := func() (n int) {
		for _, p := range w.snapshot().Pools {
			if p.User == "weir_other" {
				n = p.Pinned
			}
		}
		return n
	}
	if n := pinned(); n != 1 {
		t.Errorf("%d clients are pinned, want 1", n)
	}
	a.want("/* batch */ INSERT INTO t VALUES (1)", "INSERT_0_1 I")
	for _, l := range w.snapshot().Lanes {
		t.Errorf("there is a lane: %+v", l)
	}
	console := dialWire(t, w.Addr().String(), "weir")
	const columns = "[database,catalogue,names,reads,failures,read_ms,look_ms,error] "
	eventually(t, "the console shows what cannot be read", func() bool { // it is being read again now and then
		got := console.ask("SHOW CATALOGUES")
		return strings.HasPrefix(got, columns+"("+db+",cannot be read,0,") && strings.Contains(got, "pg_rewrite")
	})
	sqlOn(t, server(t).DSN(db), "GRANT SELECT ON pg_catalog.pg_rewrite TO PUBLIC")
	eventually(t, "the catalogue can be read, and the console shows that", func() bool {
		a.ask("SELECT count(*) AS n FROM t")
		return strings.HasPrefix(console.ask("SHOW CATALOGUES"), columns+"("+db+",known,")
	})
}

// TestTheServersFunctionsAreReadOnce: they are the same in every database. A database is the same
// on every loop.
func TestTheServersFunctionsAreReadOnce(t *testing.T) {
	t.Parallel()
	var sent proxytest.Lines
	gateway := proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
		go func() { _, _ = io.Copy(io.MultiWriter(be, &sent), client); _ = be.Close() }()
		go func() { _, _ = io.Copy(client, be); _ = client.Close() }()
	})
	one, other := database(t), database(t)
	w := start(t, one, func(c *postgres.Config) {
		c.Postgres.Address = gateway
		c.ShareKnown(nil)
		c.Loops = 2
	})
	for _, db := range []string{one, one, other, other} { // on two loops
		dialWire(t, w.Addr().String(), db).want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	}
	if n := len(sent.With("prorettype")); n != 1 {
		t.Errorf("weir has asked for them %d times", n)
	}
	if n := len(sent.With("UNION ALL SELECT 'func'")); n != 2 {
		t.Errorf("weir has read %d databases", n)
	}
}

// An address may lead to another cluster, where the same steps have made another function.
func TestClustersThatDifferInAFunctionAreReadApart(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	var clusters [2]*lab.Postgres
	var stamps [2]string
	for i, from := range []string{"", " FROM pg_advisory_lock_shared(7)"} {
		s, err := lab.StartPostgres(ctxFor(t), serverConfig())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Discard(context.Background()) })
		conn := connect(t, s.DSN("postgres")).PgConn()
		if err := conn.Exec(ctxFor(t), "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS $$ SELECT 1"+from+" $$").Close(); err != nil {
			t.Fatal(err)
		}
		results, err := conn.Exec(ctxFor(t), catalogue.StampSQL).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		_, stamps[i], _ = strings.Cut(string(results[len(results)-1].Rows[0][0]), " ")
		clusters[i] = s
	}
	if stamps[0] != stamps[1] {
		t.Fatalf("the clusters differ in more than their functions:\n%s\n%s", stamps[0], stamps[1])
	}
	var at atomic.Int32
	w := startFor(t, clusters[0], "postgres", func(c *postgres.Config) {
		c.Loops = 2
		c.Postgres.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, clusters[at.Load()].Addr())
		}
	})
	call := func(c *wire) { c.want("SELECT one()", "[one] (1) SELECT_1 I") }
	first := w.wire()
	call(first)
	at.Store(1)
	w.command("RECONNECT")
	second := w.wire() // on the other loop
	call(second)
	if n := w.pool().Pins["advisory_lock"]; n != 1 {
		t.Errorf("%d sessions are pinned by the function of the second cluster, want 1", n)
	}
	eventually(t, "the first loop has read it, too", func() bool {
		call(first)
		return w.pool().Pins["advisory_lock"] == 2
	})
}
