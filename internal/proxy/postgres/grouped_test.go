package postgres_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	gosync "sync"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// lanes are the two ways of grouping writes, each with the other switched off.
var lanes = []struct {
	kind   string
	change func(*postgres.Config)
}{
	{"rows", func(c *postgres.Config) { c.NoSoloLane = true }},
	{"solo", func(c *postgres.Config) { c.NoRowsLane = true }},
}

// oneLane makes groups certain: while one group is under way, all others wait.
func oneLane(change func(*postgres.Config)) func(*postgres.Config) {
	return func(c *postgres.Config) {
		c.WriteLanes = 1
		if change != nil {
			change(c)
		}
	}
}

// together has every client send its message and returns the answers. A proxy reads them
// in one turn of its loop, and so its lanes gather what may be grouped.
func together(clients []*wire, messages [][]byte) [][]message {
	release := func() {}
	if s, ok := proxies.Load(clients[0].conn.RemoteAddr().String()); ok {
		release = s.(*postgres.Server).Hold()
	}
	for i, c := range clients {
		c.send(messages[i])
	}
	release()
	answers := make([][]message, len(clients))
	var done gosync.WaitGroup
	for i, c := range clients {
		done.Go(func() { answers[i], _ = c.until('Z') })
	}
	done.Wait()
	return answers
}

// clients opens n clients and warms the proxy: it knows the server, the tables
// and the shapes, and has a backend to run the group on.
func (w *weir) clients(n int, warm ...string) []*wire {
	w.tb.Helper()
	var all []*wire
	for range n {
		all = append(all, w.wire())
	}
	for range 3 {
		for _, sql := range warm {
			all[0].send(run(sql))
			all[0].ready()
			all[0].ask(sql)
		}
	}
	return all
}

// mustGather repeats try until a group of at least two has run in a lane of
// the given kind.
func (w *weir) mustGather(kind string, try func(round int)) {
	w.tb.Helper()
	before := w.gathered(kind)
	for round := range 200 {
		try(round)
		if w.gathered(kind) > before {
			return
		}
	}
	w.tb.Fatalf("200 bursts made no group in a lane of kind %s: %+v", kind, w.snapshot().Lanes)
}

func TestOneBadMemberFailsAloneAndOthersStay(t *testing.T) {
	t.Parallel()
	for _, lane := range lanes {
		for _, simple := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s simple %v", lane.kind, simple), func(t *testing.T) {
				t.Parallel()
				db := database(t, "CREATE TABLE bt (k int PRIMARY KEY, v text NOT NULL CHECK (v <> 'bad'))", "INSERT INTO bt VALUES (0, 'taken')")
				w := start(t, db, oneLane(lane.change))
				const n = 16
				all := w.clients(n, "/* batch */ INSERT INTO bt VALUES (0, 'warm')")
				next := 1
				w.mustGather(lane.kind, func(int) {
					var messages [][]byte
					var want []string
					var keys []string
					for i := range n {
						k, v, answer := fmt.Sprint(next), fmt.Sprintf("v%d", next), "INSERT_0_1 I"
						next++
						switch i {
						case 3:
							k, answer = "0", "ERROR:23505 I"
						case 7:
							v, answer = "bad", "ERROR:23514 I"
						case 11:
							k, answer = "many", "ERROR:22P02 I"
						default:
							keys = append(keys, k)
						}
						if simple {
							messages = append(messages, query(fmt.Sprintf("/* batch */ INSERT INTO bt VALUES ('%s', '%s')", k, v)))
						} else {
							messages = append(messages, run("/* batch */ INSERT INTO bt VALUES ($1, $2)", k, v))
							if strings.HasPrefix(answer, "INSERT") {
								answer = "parsed bound nodata " + answer
							}
						}
						want = append(want, answer)
					}
					for i, got := range together(all, messages) {
						r := render(got)
						if strings.HasPrefix(want[i], "ERROR") && strings.HasSuffix(r, want[i]) {
							continue
						}
						if r != want[i] {
							t.Errorf("member %d: got %s, want %s", i, r, want[i])
						}
					}
					all[0].want(fmt.Sprintf("SELECT count(*) AS n FROM bt WHERE k IN (%s)", strings.Join(keys, ",")), fmt.Sprintf("[n] (%d) SELECT_1 I", len(keys)))
				})
				all[0].want("SELECT count(*) AS n FROM bt WHERE v = 'bad'", "[n] (0) SELECT_1 I")
			})
		}
	}
}

func TestErrorsOfMembersAreThoseOfADirectConnection(t *testing.T) {
	t.Parallel()
	setup := []string{"CREATE TABLE bt (k int PRIMARY KEY, v text CHECK (v <> 'bad'))", "INSERT INTO bt VALUES (1, 'x')"}
	for _, lane := range lanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			db, beside := twins(t, setup...)
			w := start(t, db, oneLane(lane.change))
			direct := dialWire(t, server(t).Addr(), beside)
			all := w.clients(8, "/* batch */ INSERT INTO bt VALUES (1, 'warm')")
			bad := []string{
				"/* batch */ INSERT INTO bt VALUES (1, 'dup')", "/* batch */ INSERT INTO bt VALUES (2, 'bad')",
				"/* batch */ INSERT INTO bt VALUES ('x', 'y')", "/* batch */ INSERT INTO bt VALUES (1, 2, 3)",
				"/* batch */ INSERT INTO bt VALUES (1/0, 'y')", "/* batch */ INSERT INTO bt VALUES (99999999999, 'y')",
				"/* batch */ INSERT INTO bt VALUES (1, 'dup')", "/* batch */ INSERT INTO bt VALUES (1, nope)",
			}
			for _, sql := range bad { // each is asked directly, then all together
				direct.ask(sql)
			}
			w.mustGather(lane.kind, func(int) {
				var messages [][]byte
				for _, sql := range bad {
					messages = append(messages, query(sql))
				}
				for i, got := range together(all, messages) {
					direct.send(query(bad[i]))
					if want := direct.ready(); !equal(want, got) {
						t.Errorf("%s\n%s", bad[i], detail(want, got))
					}
				}
			})
			all[0].want("SELECT count(*) AS n FROM bt", "[n] (1) SELECT_1 I") // every member failed
		})
	}
}

// TestGroupedWritesEqualDirectOnes has, for every kind of table and statement
// that could make a group differ from its members apart, the same writes made
// by many clients at once through the proxy, and one after the other directly.
func TestGroupedWritesEqualDirectOnes(t *testing.T) {
	t.Parallel()
	for _, c := range groupedCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			setup := append([]string{"CREATE TABLE log (what text)"}, c.setup...)
			grouped, direct := twins(t, setup...)
			w := start(t, grouped, oneLane(nil))
			user := "postgres"
			if c.role != "" {
				user = c.role
			}
			one := dialWireAs(t, server(t).Addr(), direct, user)
			var all []*wire
			for range 12 {
				all = append(all, dialWireAs(t, w.Addr().String(), grouped, user))
			}
			warm := fmt.Sprintf(c.sql, -1)
			for range 3 {
				all[0].ask("/* batch */ " + warm)
				one.ask("/* batch */ " + warm)
				all[0].ask("/* batch */ " + warm)
				one.ask("/* batch */ " + warm)
			}
			k := 0
			kind := c.lane
			if kind == "" {
				kind = "solo"
			}
			w.mustGather(kind, func(int) {
				var messages, same [][]byte
				for range all {
					sql := "/* batch */ " + fmt.Sprintf(c.sql, k)
					k++
					messages = append(messages, query(sql))
					same = append(same, query(sql))
				}
				got := together(all, messages)
				for i := range same {
					one.send(same[i])
					want := one.ready()
					if a, b := c.render(want), c.render(got[i]); a != b {
						t.Errorf("%s\ndirect %s\n  weir %s", same[i][5:], a, b)
					}
				}
			})
			if c.role != "" {
				one = dialWire(t, server(t).Addr(), direct)
			}
			if a, b := one.ask(c.check), dialWire(t, server(t).Addr(), grouped).ask(c.check); a != b {
				t.Errorf("afterwards %s\ndirect %s\n  weir %s", c.check, a, b)
			}
		})
	}
}

type groupedCase struct {
	name  string
	setup []string
	sql   string // %d is the member's number
	check string
	lane  string // in which groups must come about. Default: solo
	role  string
	loose bool // ids depend on the order of arrival: compare without rows
}

// render shows an answer; ids that depend on the order in which clients arrive
// are left out.
func (c *groupedCase) render(ms []message) string {
	if !c.loose {
		return render(ms)
	}
	return render(slices.DeleteFunc(slices.Clone(ms), func(m message) bool { return m.typ == 'D' }))
}

const rowLog = `CREATE FUNCTION logs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
 INSERT INTO log VALUES (TG_LEVEL || ' ' || TG_WHEN || ' ' || TG_OP); RAISE NOTICE 'logged %', TG_OP; RETURN NEW; END $$`

var groupedCases = []groupedCase{
	{name: "plain rows", lane: "rows", setup: []string{"CREATE TABLE g (k int, v text)"}, sql: "INSERT INTO g VALUES (%d, 'v''\"')", check: "SELECT k, v, count(*) FROM g WHERE k >= 0 GROUP BY k, v ORDER BY k LIMIT 12"},
	{name: "serial returning", lane: "rows", loose: true, setup: []string{"CREATE TABLE g (id serial PRIMARY KEY, k int)"}, sql: "INSERT INTO g (k) VALUES (%d) RETURNING id, k", check: "SELECT count(DISTINCT id) = count(*) AS ok, min(k) FROM g"},
	{name: "identity", lane: "rows", loose: true, setup: []string{"CREATE TABLE g (id bigint GENERATED ALWAYS AS IDENTITY, k int)"}, sql: "INSERT INTO g (k) VALUES (%d) RETURNING id", check: "SELECT count(DISTINCT id) = count(*) AS ok FROM g"},
	{name: "defaults and generated", lane: "rows", setup: []string{"CREATE TABLE g (k int, d text DEFAULT 'dflt', n numeric DEFAULT 1.50, t int GENERATED ALWAYS AS (k * 2) STORED)"}, sql: "INSERT INTO g (k, d) VALUES (%d, DEFAULT) RETURNING k, d, n, t", check: "SELECT k, d, n, t FROM g WHERE k >= 0 ORDER BY k LIMIT 12"},
	{name: "literal and swapped columns", lane: "rows", setup: []string{"CREATE TABLE g (a int, b text, c text)"}, sql: "INSERT INTO g (c, a, b) VALUES ('real', %d, 'x')", check: "SELECT a, b, c FROM g WHERE a >= 0 ORDER BY a LIMIT 12"},
	{name: "types kept", lane: "rows", setup: []string{"CREATE TABLE g (k int, n numeric(6,2), u uuid, j jsonb, b bytea, t timestamptz, x bool)"}, sql: `INSERT INTO g VALUES (%d, 1.50, '5b8e5f2e-0f6c-4f57-9d3c-3a1d7b1d1a11', '{"a": [1]}', E'\\x00ff', '2001-02-03 04:05:06+07', true) RETURNING *`, check: "SELECT count(DISTINCT j) FROM g"},
	{name: "constants of their columns' types", lane: "rows", setup: []string{"CREATE TABLE g (k int, a smallint, b bigint, n numeric(6,2), m numeric, e numeric, x bool, y bool, v varchar(5), c char(4), s text, d date, t timestamp(0), l int[], i bit(3), j json, z text)"}, sql: `INSERT INTO g VALUES (%d, -7, '9223372036854775807', 1.005, -012.50, 007, FALSE, true, 'a''b  ', 'x', '', '2001-02-03', '2001-02-03 04:05:06.7', '{1,2}', '101', '{"a": 1}', NULL) RETURNING *`, check: "SELECT count(DISTINCT g.n) FROM g"},
	{name: "constants of other types", lane: "rows", setup: []string{"CREATE TABLE g (k int, s text, f float8, r int, b text)"}, sql: "INSERT INTO g VALUES (%d, 007, 1.5, 2.5, true) RETURNING *", check: "SELECT count(DISTINCT s) FROM g"},
	{name: "constants of a domain", lane: "rows", setup: []string{"CREATE DOMAIN price AS numeric(6,1)", "CREATE TABLE g (k int, p price)"}, sql: "INSERT INTO g VALUES (%d, 1.25) RETURNING *", check: "SELECT DISTINCT p FROM g"},
	{name: "constants of an interval of minutes", lane: "rows", setup: []string{"CREATE TABLE g (k int, i interval minute)"}, sql: "INSERT INTO g VALUES (%d, '5') RETURNING *", check: "SELECT DISTINCT i FROM g"},
	{name: "names of columns in any case", lane: "rows", setup: []string{`CREATE TABLE g (gone int, "K" int, k text, "a ""b""" numeric, "a b" numeric)`, "ALTER TABLE g DROP COLUMN gone"}, sql: `INSERT INTO g ("K", K, "a b") VALUES (%d, '1', 1.50) RETURNING *`, check: `SELECT DISTINCT k, "a b" FROM g`},
	{name: "fewer constants than columns", lane: "rows", setup: []string{"CREATE TABLE g (k int, n numeric, s text DEFAULT 'd')"}, sql: "INSERT INTO g VALUES (%d, 1.50) RETURNING *", check: "SELECT DISTINCT n, s FROM g"},
	{name: "now is one per statement", lane: "rows", loose: true, setup: []string{"CREATE TABLE g (k int, t timestamptz DEFAULT now())"}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT bool_and(t > now() - interval '1 hour') AS ok FROM g"},
	{name: "statement trigger", setup: []string{"CREATE TABLE g (k int)", rowLog, "CREATE TRIGGER s AFTER INSERT ON g FOR EACH STATEMENT EXECUTE FUNCTION logs()"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT what, count(*) = (SELECT count(*) FROM g) AS each FROM log GROUP BY what"},
	{name: "row triggers", setup: []string{"CREATE TABLE g (k int)", rowLog, "CREATE TRIGGER b BEFORE INSERT ON g FOR EACH ROW EXECUTE FUNCTION logs()", "CREATE TRIGGER a AFTER INSERT ON g FOR EACH ROW EXECUTE FUNCTION logs()"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT what, count(*) = (SELECT count(*) FROM g) AS each FROM log GROUP BY what ORDER BY what"},
	{name: "trigger that swallows", setup: []string{"CREATE TABLE g (k int)", "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.k % 2 = 0 THEN RETURN NULL; END IF; RETURN NEW; END $$", "CREATE TRIGGER b BEFORE INSERT ON g FOR EACH ROW EXECUTE FUNCTION no()"}, sql: "INSERT INTO g VALUES (%d) RETURNING k", check: "SELECT count(*) FROM g WHERE k % 2 = 0"},
	{name: "rule instead", setup: []string{"CREATE TABLE g (k int)", "CREATE RULE r AS ON INSERT TO g DO INSTEAD INSERT INTO log VALUES (NEW.k::text)"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT count(*) FROM g"},
	{name: "rule also", setup: []string{"CREATE TABLE g (k int)", "CREATE RULE r AS ON INSERT TO g DO ALSO INSERT INTO log VALUES (NEW.k::text)"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT count(*) = (SELECT count(*) FROM g) AS each FROM log"},
	{name: "on conflict", setup: []string{"CREATE TABLE g (k int PRIMARY KEY, n int DEFAULT 1)"}, sql: "INSERT INTO g VALUES (%d / 3) ON CONFLICT (k) DO UPDATE SET n = g.n + 1", check: "SELECT bool_and(n >= 1) AS ok FROM g"},
	{name: "on conflict do nothing", setup: []string{"CREATE TABLE g (k int PRIMARY KEY)", "INSERT INTO g SELECT generate_series(0, 5000, 2)"}, sql: "INSERT INTO g VALUES (%d) ON CONFLICT DO NOTHING", check: "SELECT count(*) FROM g WHERE k % 2 = 0"},
	{name: "partitioned", setup: []string{"CREATE TABLE g (k int) PARTITION BY HASH (k)", "CREATE TABLE g0 PARTITION OF g FOR VALUES WITH (MODULUS 2, REMAINDER 0)", "CREATE TABLE g1 PARTITION OF g FOR VALUES WITH (MODULUS 2, REMAINDER 1)"}, sql: "INSERT INTO g VALUES (%d) RETURNING k", check: "SELECT count(*) > 0 AS some FROM g0"},
	{name: "deferred foreign key", lane: "rows", setup: []string{"CREATE TABLE p (k int PRIMARY KEY)", "INSERT INTO p SELECT generate_series(0, 4000, 2)", "CREATE TABLE g (k int REFERENCES p DEFERRABLE INITIALLY DEFERRED)"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT count(*) FROM g WHERE k % 2 = 1"},
	{name: "foreign key to itself", setup: []string{"CREATE TABLE g (k int PRIMARY KEY, other int GENERATED ALWAYS AS (k # 1) STORED REFERENCES g)"}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT count(*) FROM g"},
	{name: "deferred unique", lane: "rows", setup: []string{"CREATE TABLE g (k int UNIQUE DEFERRABLE INITIALLY DEFERRED)", "INSERT INTO g SELECT generate_series(0, 4000, 2)"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT count(*) = count(DISTINCT k) AS ok FROM g"},
	{name: "update affected rows", setup: []string{"CREATE TABLE g (k int, n int DEFAULT 0)", "INSERT INTO g SELECT x / 3 FROM generate_series(0, 9000) x"}, sql: "UPDATE g SET n = n + 1 WHERE k = %d", check: "SELECT bool_and(n <= 6) AS ok FROM g"},
	{name: "update violating a check", setup: []string{"CREATE TABLE g (k int PRIMARY KEY, n int DEFAULT 0 CHECK (n < 100))", "INSERT INTO g SELECT generate_series(0, 4000)"}, sql: "UPDATE g SET n = k %% 5 * 30 WHERE k = %[1]d RETURNING n", check: "SELECT max(n) FROM g"},
	{name: "delete affected rows", setup: []string{"CREATE TABLE g (k int)", "INSERT INTO g SELECT x / 3 FROM generate_series(0, 9000) x"}, sql: "DELETE FROM g WHERE k = %d RETURNING k", check: "SELECT 1"},
	{name: "row security", role: "weir_rls", setup: []string{"CREATE TABLE g (k int, o text DEFAULT current_user)", "ALTER TABLE g ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON g USING (o = current_user) WITH CHECK (o = current_user AND k % 3 <> 1)", "GRANT ALL ON g TO weir_rls"}, sql: "INSERT INTO g VALUES (%d) RETURNING k, o", check: "SELECT DISTINCT o, k % 3 AS m FROM g WHERE k >= 0 ORDER BY 2"},
	{name: "semicolons and comments in literals", lane: "rows", setup: []string{"CREATE TABLE g (k int, v text)"}, sql: "INSERT INTO g VALUES (%d, 'a; DROP TABLE g; -- /* batch:5 */ $1')", check: "SELECT DISTINCT v FROM g"},
	{name: "view with trigger", setup: []string{"CREATE TABLE base (k int)", "CREATE VIEW g AS SELECT k FROM base", "CREATE FUNCTION ins() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO base VALUES (NEW.k + 1); RETURN NEW; END $$", "CREATE TRIGGER i INSTEAD OF INSERT ON g FOR EACH ROW EXECUTE FUNCTION ins()"}, sql: "INSERT INTO g VALUES (%d) RETURNING k", check: "SELECT min(k) >= 0 AS ok FROM base"},
}

// TestExecutesThatAskForSoManyRowsJoinGroups: pgJDBC's executeUpdate asks for one row,
// because it wants none.
func TestExecutesThatAskForSoManyRowsJoinGroups(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, sql, lane string }{
		{"a row without an answer", "/* batch */ INSERT INTO g VALUES ($1)", "rows"},
		{"a row that is returned", "/* batch */ INSERT INTO g VALUES ($1) RETURNING k", "solo"},
		{"an update", "/* batch */ UPDATE g SET n = n + 1 WHERE k = $1", "solo"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const setup = "CREATE TABLE g (k int, n int DEFAULT 0)"
			db, beside := twins(t, setup)
			w := start(t, db, oneLane(nil))
			direct := dialWire(t, server(t).Addr(), beside)
			limited := func(k int) []byte {
				return slices.Concat(parse("", c.sql), bind("", "", strconv.Itoa(k)), describe('P', ""), execute("", 1), sync())
			}
			all := w.clients(12, strings.Replace(c.sql, "$1", "-1", 1))
			k := 0
			w.mustGather(c.lane, func(int) {
				var messages [][]byte
				first := k
				for range all {
					messages = append(messages, limited(k))
					k++
				}
				for i, got := range together(all, messages) {
					direct.send(limited(first + i))
					// Which table a column is of is another number there.
					if want := direct.ready(); render(want) != render(got) {
						t.Errorf("%s\ndirect %s\n  weir %s", c.sql, render(want), render(got))
					}
				}
			})
		})
	}
}

// A guard sees a trigger that was made a moment ago in a transaction of READ COMMITTED
// alone: in others inserts are not grouped.
func TestRowsAreNotGroupedAboveReadCommitted(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			w := start(t, database(t, "CREATE TABLE lv (k int)"), oneLane(lanes[0].change))
			var all []*wire
			for range 12 {
				c := w.wire()
				c.ask("SET default_transaction_isolation = '" + level + "'")
				all = append(all, c)
			}
			for range 20 {
				var messages [][]byte
				for i := range all {
					messages = append(messages, run("/* batch */ INSERT INTO lv VALUES ($1)", strconv.Itoa(i)))
				}
				for _, got := range together(all, messages) {
					if want := "parsed bound nodata INSERT_0_1 I"; render(got) != want {
						t.Errorf("an insert is answered with %s, want %s", render(got), want)
					}
				}
			}
			if n := w.gathered("rows"); n > 0 {
				t.Errorf("%d inserts joined those of others", n)
			}
			all[0].want("SELECT count(*) AS n FROM lv", "[n] (240) SELECT_1 I")
		})
	}
}

// A trigger that reads application_name reads that of its own client.
func TestTriggersSeeTheirOwnApplicationName(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE named (who text, said text)",
		"CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.said := current_setting('application_name'); RETURN NEW; END $$",
		"CREATE TRIGGER stamp BEFORE INSERT ON named FOR EACH ROW EXECUTE FUNCTION stamp()")
	for _, lane := range lanes {
		w := start(t, db, oneLane(lane.change))
		for round := range 3 {
			for _, who := range []string{"one", "two", "three"} {
				c := w.wire(pgwire.Param{Name: "application_name", Value: who})
				sql := fmt.Sprintf("/* batch */ INSERT INTO named VALUES ('%s')", who)
				c.want(sql, "INSERT_0_1 I")
				c.send(run(sql))
				if got := render(c.ready()); got != "parsed bound nodata INSERT_0_1 I" {
					t.Errorf("round %d: %s", round, got)
				}
			}
		}
	}
	dialWire(t, server(t).Addr(), db).want("SELECT count(*) AS n FROM named WHERE who <> said", "[n] (0) SELECT_1 I")
}
