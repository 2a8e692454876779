package postgres_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
)

// oneBackend has everything run on one server connection, in groups wherever it can be.
func oneBackend(c *postgres.Config) {
	oneLane(lanes[0].change)(c)
	c.PoolSize = 1
}

// bound asks how many statements with rows of parameters the server has.
const bound = "SELECT count(*) > 0 AS bound FROM pg_prepared_statements WHERE statement LIKE '%INSERT INTO g%$2%'"

// burst has each client run sql with a number of its own, with all %d in it the same,
// and returns the rendered answers without those that are as wanted.
func burst(all []*wire, sql string, next *int) (other []string) {
	var messages [][]byte
	for range all {
		messages = append(messages, query(strings.ReplaceAll(sql, "%d", fmt.Sprint(*next))))
		*next++
	}
	for _, got := range together(all, messages) {
		if r := render(got); r != "INSERT_0_1 I" {
			other = append(other, r)
		}
	}
	return other
}

// TestColumnsChangeBetweenGroupsOfConstants: columns that are dropped, renamed or of another
// type since weir learned of them, mostly without a trace in pg_class. What is stored is
// what a direct connection stores, and groups come about again.
func TestColumnsChangeBetweenGroupsOfConstants(t *testing.T) {
	t.Parallel()
	const zoned = "'2001-02-03 04:05:06+07'"
	for _, c := range []struct {
		name   string
		setup  []string
		sql    string // %d is the member's number
		change []string
		check  string
	}{
		{
			"two names swapped",
			[]string{"CREATE TABLE g (k int, a timestamp, b date)"},
			"INSERT INTO g (k, a, b) VALUES (%d, '2001-02-03 04:05:06', '2001-02-03 10:11:12')",
			[]string{"ALTER TABLE g RENAME a TO c", "ALTER TABLE g RENAME b TO a", "ALTER TABLE g RENAME c TO b"},
			"SELECT a, b FROM g",
		},
		{
			"a column dropped in front",
			[]string{"CREATE TABLE g (k int, gone numeric, a text, b text)"},
			"INSERT INTO g VALUES (%d, '007', '008')",
			[]string{"ALTER TABLE g DROP gone"},
			"SELECT a, b FROM g",
		},
		{
			"another column under the name",
			[]string{"CREATE TABLE g (k int, a numeric, b text)"},
			"INSERT INTO g (k, a) VALUES (%d, '007')",
			[]string{"ALTER TABLE g DROP a", "ALTER TABLE g RENAME b TO a"},
			"SELECT a FROM g",
		},
		{
			"a column dropped and added with another type",
			[]string{"CREATE TABLE g (k int, a numeric)"},
			"INSERT INTO g (k, a) VALUES (%d, '007')",
			[]string{"ALTER TABLE g DROP a", "ALTER TABLE g ADD a text"},
			"SELECT a FROM g",
		},
		{
			"a timestamp becomes one with a zone",
			[]string{"CREATE TABLE g (k int, a timestamp)"},
			"INSERT INTO g VALUES (%d, " + zoned + ")",
			[]string{"SET timezone = 'UTC'", "ALTER TABLE g ALTER a TYPE timestamptz"},
			"SELECT a AT TIME ZONE 'UTC' AS a FROM g",
		},
		{
			"a number becomes text",
			[]string{"CREATE TABLE g (k int, a numeric)"},
			"INSERT INTO g VALUES (%d, '007')",
			[]string{"ALTER TABLE g ALTER a TYPE text"},
			"SELECT a FROM g",
		},
		{
			"a network becomes an address",
			[]string{"CREATE TABLE g (k int, a cidr, b text)"},
			"INSERT INTO g VALUES (%d, '10.1.0.0/16')",
			[]string{"ALTER TABLE g ALTER a TYPE inet"},
			"SELECT a FROM g",
		},
		{
			"a text becomes longer, and then of any length",
			[]string{"CREATE TABLE g (k int, a varchar(10))"},
			"INSERT INTO g VALUES (%d, '0123456789     ')",
			[]string{"ALTER TABLE g ALTER a TYPE varchar(20)", "ALTER TABLE g ALTER a TYPE text"},
			"SELECT a || '|' AS a FROM g",
		},
		{
			"a table replaced by another",
			[]string{"CREATE TABLE g (k int, a numeric)", "CREATE TABLE h (k int, a text)"},
			"INSERT INTO g VALUES (%d, '007')",
			[]string{"BEGIN", "ALTER TABLE g RENAME TO i", "ALTER TABLE h RENAME TO g", "COMMIT"},
			"SELECT a FROM g",
		},
		{
			"a schema replaced by another",
			[]string{"CREATE SCHEMA one", "CREATE SCHEMA two", "CREATE TABLE one.g (k int, a numeric)", "CREATE TABLE two.g (k int, a text)", "CREATE VIEW g AS SELECT k, a::text FROM one.g"},
			"INSERT INTO one.g VALUES (%d, '007')",
			[]string{"BEGIN", "ALTER SCHEMA one RENAME TO three", "ALTER SCHEMA two RENAME TO one", "COMMIT"},
			"SELECT a FROM one.g",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			grouped, direct := twins(t, c.setup...)
			w := start(t, grouped, oneBackend)
			sql := "/* batch */ " + c.sql
			all := w.clients(12, fmt.Sprintf(sql, -1))
			k := 0
			w.mustGather("rows", func(int) {
				if other := burst(all, sql, &k); other != nil {
					t.Errorf("%q", other)
				}
			})
			all[0].want(strings.ReplaceAll(bound, "INTO g", "INTO "), "[bound] (t) SELECT_1 I")
			change := [2]*wire{dialWire(t, server(t).Addr(), grouped), dialWire(t, server(t).Addr(), direct)}
			for _, sql := range c.change {
				for _, admin := range change {
					if got := admin.ask(sql); strings.Contains(got, "ERROR") {
						t.Fatalf("%s: %s", sql, got)
					}
				}
			}
			first := k
			// The first bursts meet what weir knew, later ones what it has learned since.
			for range 3 {
				if other := burst(all, sql, &k); other != nil {
					t.Errorf("%q", other)
				}
			}
			w.mustGather("rows", func(int) {
				if other := burst(all, sql, &k); other != nil {
					t.Errorf("%q", other)
				}
			})
			eventually(t, "parameters are of the new types", func() bool {
				if other := burst(all, sql, &k); other != nil {
					t.Errorf("%q", other)
				}
				const types = "SELECT count(DISTINCT parameter_types[2]) > 1 AS new FROM pg_prepared_statements WHERE statement LIKE '%INSERT INTO %$2%'"
				return all[0].ask(types) == "[new] (t) SELECT_1 I"
			})
			for i := first; i < k; i++ {
				change[1].want(fmt.Sprintf(c.sql, i), "INSERT_0_1 I")
			}
			check := fmt.Sprintf("%s WHERE k >= %d ORDER BY k", c.check, first)
			if a, b := change[1].ask(check), change[0].ask(check); a != b {
				t.Errorf("afterwards %s\ndirect %s\n  weir %s", check, a, b)
			}
		})
	}
}

// TestSearchPathOfGroupsOfConstants: the columns are those of the table that the name means
// to the client.
func TestSearchPathOfGroupsOfConstants(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE SCHEMA one", "CREATE SCHEMA two", "CREATE TABLE one.g (k int, a numeric)", "CREATE TABLE two.g (k int, a text)")
	w := start(t, db, oneBackend)
	const sql = "/* batch */ INSERT INTO g VALUES (%d, '007')"
	all := w.clients(12)
	k := 0
	for _, schema := range []string{"one", "two", "one"} {
		for _, c := range all {
			c.want("SET search_path = "+schema, "SET I")
		}
		w.mustGather("rows", func(int) {
			if other := burst(all, sql, &k); other != nil {
				t.Errorf("%q", other)
			}
		})
		all[0].want(bound, "[bound] (t) SELECT_1 I")
	}
	all[0].want("SELECT DISTINCT a FROM one.g", "[a] (7) SELECT_1 I")
	all[0].want("SELECT DISTINCT a FROM two.g", "[a] (007) SELECT_1 I")
	// A table that comes to stand in front.
	for _, c := range all {
		c.want("SET search_path = front, one", "SET I")
	}
	admin := dialWire(t, server(t).Addr(), db)
	w.mustGather("rows", func(int) { burst(all, sql, &k) })
	admin.want("CREATE SCHEMA front", "CREATE_SCHEMA I")
	admin.want("ALTER TABLE two.g SET SCHEMA front", "ALTER_TABLE I")
	first := k
	w.mustGather("rows", func(int) {
		if other := burst(all, sql, &k); other != nil {
			t.Errorf("%q", other)
		}
	})
	admin.want(fmt.Sprintf("SELECT DISTINCT a FROM front.g WHERE k >= %d", first), "[a] (007) SELECT_1 I")
	admin.want(fmt.Sprintf("SELECT count(*) AS n FROM front.g WHERE k >= %d", first), fmt.Sprintf("[n] (%d) SELECT_1 I", k-first))
}

// TestGroupsOfConstantsThatFailForTheirTypes: the server refuses a parameter of a type
// that the column had once, where the constant is right. No client sees that, and weir
// learns of it.
func TestGroupsOfConstantsThatFailForTheirTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, column, before, alter, after string }{
		{"value refused", "cidr", "'10.1.0.0/16'", "ALTER TABLE g ALTER a TYPE inet", "'10.1.2.3/8'"},
		{"type refused", "text", "'2001-02-03'", "ALTER TABLE g ALTER a TYPE date USING a::date", "'2001-02-03'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE g (k int, a "+c.column+")")
			w := start(t, db, oneBackend)
			all := w.clients(12)
			k := 0
			w.mustGather("rows", func(int) {
				if other := burst(all, "/* batch */ INSERT INTO g VALUES (%d, "+c.before+")", &k); other != nil {
					t.Errorf("%q", other)
				}
			})
			all[0].want(bound, "[bound] (t) SELECT_1 I")
			dialWire(t, server(t).Addr(), db).want(c.alter, "ALTER_TABLE I")
			fallbacks := func() (n uint64) {
				for _, l := range w.snapshot().Lanes {
					n += l.Fallbacks
				}
				return n
			}
			eventually(t, "groups do not fail any more", func() bool {
				failed := fallbacks()
				w.mustGather("rows", func(int) {
					if other := burst(all, "/* batch */ INSERT INTO g VALUES (%d, "+c.after+")", &k); other != nil {
						t.Errorf("%q", other)
					}
				})
				return fallbacks() == failed
			})
			all[0].want("SELECT count(*) AS n FROM g", fmt.Sprintf("[n] (%d) SELECT_1 I", k))
		})
	}
}

// TestConstantsEqualDirectOnes: each constant in a column of each type is answered as by a
// direct connection, and stored as by one.
func TestConstantsEqualDirectOnes(t *testing.T) {
	t.Parallel()
	types := []string{
		"bool", "bytea", "int2", "int4", "int8", "numeric", "numeric(6,2)", "numeric(3)", "float4", "float8", "text", "varchar", "varchar(5)", "char(4)", `"char"`, "name",
		"json", "jsonb", "uuid", "date", "time", "time(0)", "timetz", "timestamp", "timestamp(0)", "timestamptz(3)", "interval", "interval minute", "interval(0)",
		"cidr", "inet", "macaddr", "bit", "bit(3)", "varbit", "varbit(4)", "int[]", "text[]", "varchar(2)[]", "numeric(4,1)[]", "bool[]", "uuid[]", "money", "oid", "regclass", "xml", "point",
		"mood", "price", "short", "information_schema.yes_or_no", "pair",
	}
	constants := []string{
		"NULL", "DEFAULT", "TRUE", "false", "0", "1", "-1", "007", "-0", "32768", "-32768", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
		"1.5", "2.50", "-0.005", "1.005", "12345678901234567890.123", "1e3", "1.", ".5", "- 1", "1::text", "+1", "(1)", "1+1",
		"''", "'1'", "' 7 '", "'007'", "'1.5'", "'1e3'", "'-0'", "'NaN'", "'infinity'", "'t'", "'yes'", "'abc'", "'abc     '", "'abcdefghij'", "'a''b'", "'''x'''", "'{1,2}'", "'{\"a\": 1}'", "'{a,b }'", "'{1.25,2}'",
		"'5'", "'1 day 2 hours'", "'2001-02-03'", "'2001-02-03 04:05:06.789+07'", "'04:05:06.789'", "'today'", "'epoch'", "'1/2/2003'", "'101'", "'B101'", "B'101'", "X'1f'", "'10.1.0.0/16'", "'10.1.2.3/8'", "'08:00:2b:01:02:03'",
		"'5b8e5f2e-0f6c-4f57-9d3c-3a1d7b1d1a11'", `'\x00ff'`, `'a\b'`, `E'a\tb'`, "E'a'", "'a' 'b'", "'a'\n'b'", "U&'\\0061'", "'happy'", "'é'", "'pg_class'", "'(1,2)'", "$$a$$", "'1'::text", "date '2001-02-03'", "current_date",
	}
	parts := 1
	if testing.Short() {
		parts = 4 // one of them is played
	}
	part := rand.IntN(parts)
	every := func(string, string) bool { return true }
	// Dates and times depend on these settings, and of all others on none.
	temporal := func(typ, _ string) bool {
		return strings.Contains(typ, "date") || strings.Contains(typ, "time") || strings.Contains(typ, "interval") || typ == "text" || typ == "int4"
	}
	// Of how a string is read its type knows nothing.
	quoted := func(typ, constant string) bool {
		return strings.ContainsAny(constant, "'$") && slices.Contains([]string{"int4", "numeric", "bytea", "text", "varchar(5)", "char(4)", "jsonb", "date", "text[]", "bit(3)", "mood"}, typ)
	}
	for setting, applies := range map[string]func(typ, constant string) bool{
		"SET datestyle = 'ISO, MDY'":                                                                       every,
		"SET datestyle = 'German, DMY'; SET timezone = 'Asia/Tokyo'":                                       temporal,
		"SET standard_conforming_strings = off; SET backslash_quote = on; SET escape_string_warning = off": quoted,
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			setup := []string{
				"CREATE TYPE mood AS ENUM ('happy', '1')", "CREATE DOMAIN price AS numeric(6,1) CHECK (VALUE > 0)", "CREATE DOMAIN short AS varchar(2)", "CREATE TYPE pair AS (a int, b int)",
			}
			for i, typ := range types {
				setup = append(setup, fmt.Sprintf("CREATE TABLE g%d (k int, v %s)", i, typ))
			}
			grouped, direct := twins(t, setup...)
			w := start(t, grouped, oneLane(lanes[0].change))
			one, all := dialWire(t, server(t).Addr(), direct), w.clients(4)
			for _, c := range append(slices.Clone(all), one) {
				for s := range strings.SplitSeq(setting, "; ") {
					if got := c.ask(s); got != "SET I" && !strings.HasSuffix(got, " SET I") {
						t.Fatalf("%s: %s", s, got)
					}
				}
			}
			stores := 0
			for i, typ := range types {
				for k, constant := range constants {
					if !applies(typ, constant) || (i+k)%parts != part {
						continue
					}
					sql := fmt.Sprintf("/* batch */ INSERT INTO g%d VALUES (1, %s) RETURNING v", i, constant)
					one.send(query(sql))
					want := render(one.ready())
					try := func() {
						for _, got := range together(all, slices.Repeat([][]byte{query(sql)}, len(all))) {
							if r := render(got); r != want {
								t.Errorf("%s (%s)\ndirect %s\n  weir %s", sql, typ, want, r)
							}
						}
					}
					try()
					if !strings.Contains(want, "ERROR") && !strings.ContainsAny(constant, `\:+(`) {
						stores++
						try()
					}
				}
			}
			if n := w.gathered("rows"); n < uint64(stores) {
				t.Errorf("%d inserts joined those of others, of %d times 8", n, stores)
			}
		})
	}
}

// onceSaid is render for answers with a notice, which the server says twice when it parses
// the first statement with a table.
func onceSaid(ms []message) string {
	return strings.ReplaceAll(render(ms), "NOTICE:42622 NOTICE:42622", "NOTICE:42622")
}

// TestNamesThatConstantsAreNotBoundFor: names that a client's encoding does not have, and
// names that the server cuts, which it says each time.
func TestNamesThatConstantsAreNotBoundFor(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long", 20)
	for _, c := range []struct{ name, setup, set, sql string }{
		{"a column that Latin 1 does not have", `CREATE TABLE g (k int, "日本" text, a text)`, "SET client_encoding = 'LATIN1'", "INSERT INTO g (k, a) VALUES (%d, '7')"},
		{"a column not of ASCII", `CREATE TABLE g (k int, "é" text)`, "SET client_encoding = 'UTF8'", `INSERT INTO g (k, "é") VALUES (%d, '7')`},
		{"a long name", "CREATE TABLE g (k int, " + long[:63] + " text)", "SET client_encoding = 'UTF8'", "INSERT INTO g (k, " + long + ") VALUES (%d, '7')"},
		{"a long name that is returned", "CREATE TABLE g (k int, " + long[:63] + " text)", "SET client_encoding = 'UTF8'", "INSERT INTO g VALUES (%d, '7') RETURNING " + long},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			grouped, direct := twins(t, c.setup)
			w := start(t, grouped, oneBackend)
			one, all := dialWire(t, server(t).Addr(), direct), w.clients(8)
			for _, c2 := range append(slices.Clone(all), one) {
				if got := c2.ask(c.set); !strings.Contains(got, "SET") {
					t.Fatal(got)
				}
			}
			one.send(query(fmt.Sprintf(c.sql, -1)))
			want := onceSaid(one.ready())
			k := 0
			w.mustGather("rows", func(int) {
				var messages [][]byte
				for range all {
					messages = append(messages, query(fmt.Sprintf("/* batch */ "+c.sql, k)))
					k++
				}
				for _, got := range together(all, messages) {
					if r := onceSaid(got); r != want {
						t.Errorf("%s\ndirect %s\n  weir %s", c.sql, want, r)
					}
				}
			})
			all[0].want(bound, "[bound] (f) SELECT_1 I")
		})
	}
}
