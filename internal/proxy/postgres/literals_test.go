package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// prepared prepares a text under a name, runs it and returns the answer.
func (w *wire) prepared(name, sql string, values ...string) string {
	w.tb.Helper()
	w.send(parse(name, sql), bind("", name, values...), execute("", 0), sync())
	return render(w.ready())
}

// again runs a statement that was prepared before.
func (w *wire) again(name string) string {
	w.tb.Helper()
	w.send(bind("", name), execute("", 0), sync())
	return render(w.ready())
}

// asks runs simple queries that are to succeed.
func (w *wire) asks(texts ...string) {
	w.tb.Helper()
	for _, sql := range texts {
		if got := w.ask(sql); strings.Contains(got, "ERROR") || strings.Contains(got, "FATAL") {
			w.tb.Fatalf("%s: %s", sql, got)
		}
	}
}

// The server evaluates 'now' when it parses a statement. A client that prepares a text that
// another client has prepared before must get the present time.
func TestTimesInPreparedStatements(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE s (v bool)"), func(c *postgres.Config) { c.PoolSize = 1 })
	const read = "SELECT 'now'::timestamptz > $1::timestamptz"
	const write = "/* batch */ INSERT INTO s VALUES ($1::timestamptz < 'NOW') RETURNING v"
	for name, does := range map[string]func(c *wire, since string) string{
		"without a name": func(c *wire, since string) string { c.send(run(read, since)); return render(c.ready()) },
		"with a name":    func(c *wire, since string) string { return c.prepared("p", read, since) },
		"in a transaction": func(c *wire, since string) string {
			c.asks("BEGIN")
			defer c.asks("COMMIT")
			return c.prepared("q", read, since)
		},
		"a grouped write": func(c *wire, since string) string { return c.prepared("w", write, since) },
	} {
		for i := range 3 {
			since := strings.TrimSuffix(strings.TrimPrefix(w.wire().ask("SELECT to_char(clock_timestamp() - interval '1 microsecond', 'YYYY-MM-DD HH24:MI:SS.US OF') AS at"), "[at] ("), ") SELECT_1 I")
			if got := does(w.wire(), since); !strings.Contains(got, "(t)") {
				t.Errorf("%s, client %d: the time is not after %s: %s", name, i, since, got)
			}
		}
	}
}

// The server reads a literal by the settings in which it parses a statement, also by those
// of a transaction. Neither does the transaction find what others have parsed, nor the
// others what the transaction has.
func TestSettingsOfTransactionsInPreparedStatements(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE FUNCTION away() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET LOCAL TimeZone = 'Asia/Tokyo'; END $$")
	for name, set := range map[string]string{
		"SET LOCAL":  "SET LOCAL TimeZone = 'Asia/Tokyo'",
		"SET":        "SET TimeZone = 'Asia/Tokyo'",
		"set_config": "SELECT set_config('TimeZone', 'Asia/Tokyo', true)",
		"a function": "SELECT away()",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, db, func(c *postgres.Config) { c.PoolSize = 2 })
			text := func(n int) string {
				return fmt.Sprintf("SELECT extract(epoch from '2000-01-01 00:00'::timestamptz)::int8 AS at -- %d", n)
			}
			value := func(answer string) string {
				t.Helper()
				_, v, _ := strings.Cut(answer, "(")
				v, _, ok := strings.Cut(v, ")")
				if !ok {
					t.Fatalf("no row in %s", answer)
				}
				return v
			}
			want := func(what, got, want string) {
				t.Helper()
				if got = value(got); got != want {
					t.Errorf("%s: %s, want %s", what, got, want)
				}
			}
			holder, a, b := w.wire(), w.wire(), w.wire()
			home, away := value(b.ask(text(0))), "946652400"
			want("before", a.prepared("old", text(1)), home)
			holder.asks("BEGIN") // the connection that knows it

			a.asks("BEGIN", set)
			want("in the transaction, known", a.prepared("known", text(1)), away)
			want("in the transaction, new", a.prepared("new", text(2)), away)
			a.again("old") // which is parsed once more, for this connection has not heard of it
			a.asks("ROLLBACK")

			for n := range 3 {
				want(fmt.Sprintf("of another client behind it, text %d", n), b.prepared(fmt.Sprintf("b%d", n), text(n)), home)
			}
			want("behind it", a.again("old"), home)
			want("behind it, prepared then", a.prepared("last", text(2)), home)
			holder.asks("COMMIT")
		})
	}
}

// A session with a temporary table that hides another table parses a statement itself, also
// where another session has parsed it before.
func TestTemporaryTablesInPreparedStatements(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t AS SELECT 'permanent' AS v",
		"CREATE FUNCTION hide() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE t ON COMMIT DROP AS SELECT 'temporary' AS v; END $$")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 1 })
	const text = "SELECT v FROM t"
	const permanent, temporary = "parsed bound (permanent) SELECT_1 I", "parsed bound (temporary) SELECT_1"
	a, b := w.wire(), w.wire()
	a.asks("CREATE TEMP TABLE first (i int)", "DROP TABLE first") // the session's first one has all be parsed again
	see := func(what, got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	see("before", b.prepared("b1", text), permanent)

	a.asks("BEGIN", "SELECT hide()")
	see("made by a function", a.prepared("a1", text), temporary)
	a.asks("COMMIT")
	see("behind it", b.prepared("b2", text), permanent)

	a.send(query("CREATE TEMP TABLE t AS SELECT 'temporary' AS v"), parse("a2", text), bind("", "a2"), execute("", 0), sync())
	a.ready()
	see("made just before", render(a.ready()), temporary)
	a.asks("DROP TABLE t")
	see("behind that", b.prepared("b3", text), permanent)
	see("of the first client", a.prepared("a3", text), permanent)
}

// A session with temporary tables has a statement that it had prepared before parsed once on
// its connection, not each time.
func TestTemporaryTablesHaveStatementsParsedOnce(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 2 })
	c, holder := w.wire(), w.wire()
	c.send(parse("s", "SELECT 1"), sync())
	c.ready()
	holder.asks("BEGIN") // the connection that knows it
	c.asks("CREATE TEMP TABLE own (i int)")
	holder.asks("COMMIT")
	before := w.pool().ServerParses
	for range 3 {
		c.again("s")
	}
	if n := w.pool().ServerParses - before; n != 1 {
		t.Errorf("parsed %d times", n)
	}
}

// Names mean other tables, with columns of other types, behind a SET LOCAL search_path.
func TestSearchPathsOfTransactionsInPreparedStatements(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE SCHEMA one CREATE TABLE t (v int)", "CREATE SCHEMA two CREATE TABLE t (v text)",
		"INSERT INTO one.t VALUES (1)", "INSERT INTO two.t VALUES ('two')",
		"CREATE FUNCTION enter(s text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN IF s = 'one' THEN SET LOCAL search_path = one; ELSE SET LOCAL search_path = two; END IF; END $$")
	for name, set := range map[string]string{
		"SET LOCAL":  "SET LOCAL search_path = %s",
		"SET":        "SET search_path = %s",
		"set_config": "SELECT set_config('search_path', '%s', true)",
		"a function": "SELECT enter('%s')",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, db, func(c *postgres.Config) { c.PoolSize = 1 })
			one, two := w.wire(), w.wire()
			for range 2 {
				for c, at := range map[*wire][2]string{one: {"one", "1"}, two: {"two", "two"}} {
					c.asks("BEGIN", fmt.Sprintf(set, at[0]))
					c.send(parse("p", "SELECT v FROM t WHERE v = $1"), describe('S', "p"), bind("", "p", at[1]), execute("", 0), pgwire.AppendClose(nil, 'S', "p"), sync())
					if got := render(c.ready()); !strings.Contains(got, "("+at[1]+") SELECT_1") {
						t.Errorf("in %s: %s", at[0], got)
					}
					c.asks("ROLLBACK")
				}
			}
		})
	}
}
