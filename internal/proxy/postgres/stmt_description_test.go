package postgres_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestColumnsOfAnotherType: a client has statements prepared, with binary parameters and
// results, when the column changes from eight bytes to eight other ones. On backends that
// parse the statements after that, they store and return what they do directly, or are
// refused as directly.
func TestColumnsOfAnotherType(t *testing.T) {
	t.Parallel()
	steps := func(t *testing.T, dsn, direct, hint string, renew func()) (out []string) {
		ctx := ctxFor(t)
		admin, c := connect(t, direct), connect(t, dsn)
		note := func(what string, v any, err error) {
			if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
				err = fmt.Errorf("%s %s", e.Code, e.Message)
			}
			out = append(out, fmt.Sprint(what, ": ", v, " ", err))
		}
		exec := func(c *pgx.Conn, sql string, args ...any) {
			tag, err := c.Exec(ctx, sql, args...)
			note(sql, tag, err)
		}
		one := func(q interface {
			QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
		}, sql string, args ...any,
		) {
			var v any
			err := q.QueryRow(ctx, sql, args...).Scan(&v)
			note(sql, v, err)
		}
		insert, update := hint+"INSERT INTO typed VALUES ($1, $2)", hint+"UPDATE typed SET v = $1 WHERE id = $2"
		returning, changed := hint+"INSERT INTO typed VALUES ($1, $2) RETURNING v", hint+"UPDATE typed SET v = v + 1 WHERE id = $1 RETURNING v"
		read := "SELECT v FROM typed WHERE id = $1"
		all := func(c *pgx.Conn, id int, v any) {
			exec(c, insert, id, v)
			exec(c, update, v, id)
			one(c, returning, id+1, v)
			one(c, changed, id)
			one(c, read, id)
		}
		exec(admin, "CREATE TABLE typed (id int PRIMARY KEY, v bigint)")
		all(c, 10, int64(5))
		exec(admin, "ALTER TABLE typed ALTER v TYPE float8")
		renew()
		all(c, 20, int64(6))
		tx, err := c.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		one(tx, "SELECT 'in a transaction'")
		one(tx, read, 10)
		one(tx, "SELECT 'the transaction has failed'")
		note("ROLLBACK", nil, tx.Rollback(ctx))
		all(c, 30, int64(7))
		all(connect(t, dsn), 40, 1.5) // has not known it otherwise
		all(c, 50, int64(8))
		one(admin, "SELECT string_agg(concat(id, ':', v), ' ' ORDER BY id) FROM typed")
		return out
	}
	for _, hint := range []string{"", "/* batch */ "} {
		t.Run(hint, func(t *testing.T) {
			t.Parallel()
			through, direct := database(t), database(t)
			w := start(t, through, nil)
			want := steps(t, server(t).DSN(direct), server(t).DSN(direct), hint, func() {})
			got := steps(t, w.dsn("postgres"), server(t).DSN(through), hint, func() { w.command("RECONNECT " + through) })
			for i := range want {
				if i >= len(got) || got[i] != want[i] {
					t.Errorf("step %d:\n%s\ndirect:\n%s", i, got[min(i, len(got)-1)], want[i])
				}
			}
		})
	}
}

// TestGroupsWithOtherColumns: none of the members of a group whose result has other columns
// than their clients were told takes effect.
func TestGroupsWithOtherColumns(t *testing.T) {
	t.Parallel()
	for i, sql := range []string{
		"/* batch */ INSERT INTO g VALUES ($1, $2) RETURNING v",
		"/* batch */ UPDATE g SET v = $2 WHERE k = $1 RETURNING v",
	} {
		kind := lanes[i].kind
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const rows = "INSERT INTO g SELECT k, 0 FROM generate_series(1, 3000) k"
			db := database(t, "CREATE TABLE g (k int, v bigint)", rows)
			w := start(t, db, oneLane(func(c *postgres.Config) {
				lanes[i].change(c)
				c.PoolSize = 1
			}))
			all := w.clients(12)
			for _, c := range all {
				c.send(parse("s", sql), describe('S', "s"), sync())
				if got := render(c.ready()); strings.Contains(got, "ERROR") {
					t.Fatal(got)
				}
			}
			k := 0
			run := func(want string) {
				var messages [][]byte
				for range all {
					k++
					messages = append(messages, slices.Concat(bind("", "s", fmt.Sprint(k), "5"), execute("", 0), sync()))
				}
				for i, got := range together(all, messages) {
					if r := render(got); !strings.Contains(r, want) {
						t.Errorf("member %d: %s, want %s", i, r, want)
					}
				}
			}
			w.mustGather(kind, func(int) { run("_1 I") })
			admin := dialWire(t, server(t).Addr(), db)
			admin.want("TRUNCATE g", "TRUNCATE_TABLE I")
			admin.want(rows, "INSERT_0_3000 I")
			admin.want("ALTER TABLE g ALTER v TYPE float8", "ALTER_TABLE I")
			w.command("RECONNECT " + db)
			for range 3 {
				run("ERROR:0A000")
			}
			admin.want("SELECT count(*) FROM g WHERE v = 5", "[count] (0) SELECT_1 I")
			admin.want("ALTER TABLE g ALTER v TYPE bigint", "ALTER_TABLE I")
			run("_1 I")
		})
	}
}

// TestColumnsToldByName: a client has two names for a text whose columns have become others
// between them. Each means what the client was told of it.
func TestColumnsToldByName(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE named (v bigint)", "INSERT INTO named VALUES (7)")
	w := start(t, db, oneBackend)
	c, admin := w.wire(), dialWire(t, server(t).Addr(), db)
	prepare := func(name string) {
		c.send(parse(name, "SELECT v FROM named"), describe('S', name), sync())
		if got := render(c.ready()); strings.Contains(got, "ERROR") {
			t.Fatal(got)
		}
	}
	run := func(name, want string) {
		t.Helper()
		c.send(bind("", name), describe('P', ""), execute("", 0), sync())
		if got := render(c.ready()); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	prepare("a")
	run("a", "(7)")
	admin.want("ALTER TABLE named ALTER v TYPE float8 USING v + 0.5", "ALTER_TABLE I")
	w.command("RECONNECT " + db)
	run("a", "ERROR:0A000")
	run("a", "ERROR:0A000")
	prepare("b")
	for range 2 {
		run("b", "(7.5)")
		run("a", "ERROR:0A000")
	}
	c.want("BEGIN", "BEGIN T")
	run("b", "(7.5)")
	run("a", "ERROR:0A000")
	c.want("ROLLBACK", "ROLLBACK I")
}

// TestParametersOfAnotherType: binary parameters are stored as what they were when their
// statement was prepared, however it was prepared and is sent.
func TestParametersOfAnotherType(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO par VALUES ($1)"
	five := binary.BigEndian.AppendUint64(nil, 5)
	bound := func(name string) []byte {
		return all(binding(name, pgwire.BindArgs{Values: [][]byte{five}, Formats: []int16{1}}), execute("", 0))
	}
	type units [][]byte
	described := units{all(parse("s", insert), describe('S', "s"), sync())}
	named := units{all(parse("s", insert), sync())}
	one := units{all(bound("s"), sync())}
	for name, test := range map[string]struct{ prepare, run units }{
		"described":     {described, one},
		"not described": {named, one},
		"declared":      {units{all(parse("s", insert, 20), sync())}, one},
		"unnamed":       {units{all(parse("", insert), describe('S', ""), sync())}, units{all(bound(""), sync())}},
		"unnamed, not described": {
			units{query("BEGIN"), all(parse("c", "COMMIT"), parse("", insert), sync()), all(bind("", "c"), execute("", 0), sync())},
			units{all(bound(""), sync())},
		},
		"in a pipeline":             {named, units{one[0], all(bound("s"), bound("s"), sync()), one[0]}},
		"in a transaction":          {named, units{query("BEGIN"), one[0], query("COMMIT")}},
		"prepared in a transaction": {units{query("BEGIN"), described[0], query("COMMIT")}, one},
		"in a lane":                 {units{all(parse("s", "/* batch */ "+insert), describe('S', "s"), sync())}, one},
		"named by SQL":              {described, units{query("EXECUTE s(5)")}},
		"beside one of SQL":         {units{query("PREPARE q AS SELECT 1"), described[0], query("DEALLOCATE q")}, one},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE par (v bigint)")
			w := start(t, db, oneBackend)
			c, admin := w.wire(), dialWire(t, server(t).Addr(), db)
			send := func(messages units) {
				t.Helper()
				c.send(messages...)
				for range messages {
					if got := render(c.ready()); strings.Contains(got, "ERROR") {
						t.Error(got)
					}
				}
			}
			send(test.prepare)
			admin.want("ALTER TABLE par ALTER v TYPE float8", "ALTER_TABLE I")
			w.command("RECONNECT " + db)
			send(test.run)
			admin.want("SELECT DISTINCT v FROM par", "[v] (5) SELECT_1 I")
		})
	}
}

// TestToldWithinAMigration: a client that has a statement described in the transaction that
// changes the type of its column is told of the new one, others that have known it before keep
// the old one.
func TestToldWithinAMigration(t *testing.T) {
	t.Parallel()
	ctx := ctxFor(t)
	db := database(t, "CREATE TABLE mig (v bigint)")
	w := start(t, db, nil)
	before, c := connect(t, w.dsn("postgres")), connect(t, w.dsn("postgres"))
	insert := func(c interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}, v any,
	) {
		t.Helper()
		if _, err := c.Exec(ctx, "INSERT INTO mig VALUES ($1)", v); err != nil {
			t.Errorf("insert %v: %v", v, err)
		}
	}
	insert(before, int64(1))
	for _, end := range []string{"ROLLBACK", "COMMIT"} {
		for _, sql := range []string{"BEGIN", "ALTER TABLE mig ALTER v TYPE float8"} {
			if _, err := c.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
		insert(c, 1.5)
		if _, err := c.Exec(ctx, end); err != nil {
			t.Fatal(err)
		}
		if end == "ROLLBACK" {
			insert(connect(t, w.dsn("postgres")), int64(2))
			c = connect(t, w.dsn("postgres"))
		}
	}
	for range 2 {
		w.command("RECONNECT " + db)
		insert(c, 2.5)
		insert(before, int64(2))
		insert(connect(t, w.dsn("postgres")), 3.5)
	}
	var got string
	if err := connect(t, server(t).DSN(db)).QueryRow(ctx, "SELECT string_agg(v::text, ' ' ORDER BY v) FROM mig").Scan(&got); err != nil || got != "1 1.5 2 2 2 2.5 2.5 3.5 3.5" {
		t.Errorf("stored are %s, %v", got, err)
	}
}

// TestPortalsAreDescribedByTheirNames: what the server says of a portal is told of the
// statement that is bound to it, not of the last one.
func TestPortalsAreDescribedByTheirNames(t *testing.T) {
	t.Parallel()
	for name, odd := range map[string][]byte{
		"two portals":             all(bind("p", "a"), bind("q", "b"), describe('P', "p"), execute("p", 0), describe('P', "q"), execute("q", 0), sync()),
		"portal behind statement": all(bind("", "a"), describe('S', "b"), describe('P', ""), execute("", 0), sync()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE portals (v bigint, w text)", "INSERT INTO portals VALUES (7, 'x')")
			w := start(t, db, oneBackend)
			c := w.wire()
			for i, m := range [][]byte{
				all(parse("a", "SELECT v FROM portals"), parse("b", "SELECT w FROM portals"), sync()),
				odd,
				all(bind("", "b"), execute("", 0), sync()),
				all(bind("", "a"), execute("", 0), sync()),
			} {
				if i == 2 {
					w.command("RECONNECT " + db)
				}
				c.send(m)
				if got := render(c.ready()); strings.Contains(got, "ERROR") {
					t.Error(got)
				}
			}
		})
	}
}

// TestMembersThatParseAnew: clients that prepare a text anew after a column's type was changed
// write what they mean by it now, also in the groups of those who have prepared it before.
func TestMembersThatParseAnew(t *testing.T) {
	t.Parallel()
	const insert = "/* batch */ INSERT INTO anew VALUES ($1)"
	db := database(t, "CREATE TABLE anew (v bigint)", "INSERT INTO anew SELECT 0 FROM generate_series(1, 3000)")
	w := start(t, db, oneLane(func(c *postgres.Config) {
		lanes[0].change(c)
		c.PoolSize = 1
	}))
	clients := w.clients(12)
	for _, c := range clients {
		c.send(all(parse("s", insert), describe('S', "s"), sync()))
		if got := render(c.ready()); strings.Contains(got, "ERROR") {
			t.Fatal(got)
		}
	}
	run := func(m []byte) {
		for i, got := range together(clients, slices.Repeat([][]byte{m}, len(clients))) {
			if r := render(got); !strings.Contains(r, "_1 I") {
				t.Errorf("member %d: %s", i, r)
			}
		}
	}
	value := func(stmt string, bits uint64) []byte {
		return all(binding(stmt, pgwire.BindArgs{Values: [][]byte{binary.BigEndian.AppendUint64(nil, bits)}, Formats: []int16{1}}), execute("", 0), sync())
	}
	old := value("s", 5)
	w.mustGather(lanes[0].kind, func(int) { run(old) })
	admin := dialWire(t, server(t).Addr(), db)
	admin.want("ALTER TABLE anew ALTER v TYPE float8", "ALTER_TABLE I")
	w.mustGather(lanes[0].kind, func(int) { run(old) })
	for range 3 {
		run(all(parse("", insert), value("", math.Float64bits(1.5))))
	}
	w.mustGather(lanes[0].kind, func(int) { run(old) })
	admin.want("SELECT DISTINCT v FROM anew WHERE v <> 0 ORDER BY v", "[v] (1.5) (5) SELECT_2 I")
}

// TestDescribedAgain: a client that has a statement described once more, after its columns have
// become others, may run it.
func TestDescribedAgain(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE again (v bigint)", "INSERT INTO again VALUES (7)")
	w := start(t, db, oneBackend)
	c, admin := w.wire(), dialWire(t, server(t).Addr(), db)
	warm(w, c, "SELECT v FROM again")
	c.send(parse("s", "SELECT v FROM again"), describe('S', "s"), sync())
	c.ready()
	run := func(want string) {
		t.Helper()
		c.send(bind("", "s"), execute("", 0), sync())
		if got := render(c.ready()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	run("bound (7) SELECT_1 I")
	admin.want("ALTER TABLE again ALTER v TYPE float8 USING v + 0.5", "ALTER_TABLE I")
	w.command("RECONNECT " + db)
	run("ERROR:0A000 I")
	c.send(describe('S', "s"), sync())
	if got := render(c.ready()); strings.Contains(got, "ERROR") {
		t.Error(got)
	}
	run("bound (7.5) SELECT_1 I")
}

// TestToldByTheCache: what the cache describes to a client counts as what the server does.
func TestToldByTheCache(t *testing.T) {
	t.Parallel()
	const sql = "/* ttl:3600 */ SELECT v FROM kept"
	db := database(t, "CREATE TABLE kept (v bigint)", "INSERT INTO kept VALUES (7)")
	w := start(t, db, oneBackend)
	a, b, admin := w.wire(), w.wire(), dialWire(t, server(t).Addr(), db)
	described := func(c *wire, name string) string {
		c.send(bind("", name), describe('P', ""), execute("", 0), sync())
		return render(c.ready())
	}
	warm(w, a, "SELECT v FROM kept")
	a.send(parse("a", sql), describe('S', "a"), sync())
	a.ready()
	want := described(a, "a")
	before := w.pool().Cached
	if got := described(a, "a"); got != want || w.pool().Cached != before+1 {
		t.Fatalf("not cached: %s, then %s", want, got)
	}
	admin.want("ALTER TABLE kept ALTER v TYPE float8 USING v + 0.5", "ALTER_TABLE I")
	admin.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	eventually(t, "the connection is closed", func() bool { return w.pool().Backends == 0 }) // RECONNECT would empty the cache
	b.send(parse("b", sql), sync())
	b.ready()
	if got := described(b, "b"); got != want {
		t.Fatalf("not cached: %s, want %s", got, want)
	}
	b.send(bind("", "b"), execute("", 0), sync())
	if got := render(b.ready()); !strings.Contains(got, "ERROR:0A000") {
		t.Errorf("with the columns of bigint: %s", got)
	}
}
