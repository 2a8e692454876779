package postgres_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// seriesCases are UPDATEs and DELETEs by many clients at once, for every kind of table
// and statement that could make one transaction differ from one for each.
var seriesCases = []struct {
	name  string
	setup []string
	sql   string // $1 is the member's number
	check string
	apart bool // each must have a transaction of its own
	quick bool // the server looks for deadlocks soon, as the test's does by default
}{
	{name: "by key", sql: "UPDATE g SET n = n + 1 WHERE k = $1"},
	{name: "server that looks for deadlocks soon", sql: "UPDATE g SET n = n + 1 WHERE k = $1", apart: true, quick: true},
	{name: "returning", sql: "UPDATE g AS x SET n = coalesce(x.n, 0) + 1, t = now() WHERE x.k = $1 RETURNING k, n"},
	{name: "some fail", setup: []string{"ALTER TABLE g ADD CHECK (n < 2 OR k % 50 <> 0)"}, sql: "UPDATE g SET n = n + 3 WHERE k = $1"},
	{name: "some match nothing", sql: "UPDATE g SET n = 7 WHERE k = $1 AND k / 2 * 2 = k"},
	{name: "deletes", setup: []string{"INSERT INTO g SELECT x FROM generate_series(0, 2399) x"}, sql: "DELETE FROM g WHERE k = $1 AND n = 0 RETURNING k", check: "SELECT 1"},
	{name: "foreign keys", setup: []string{"CREATE TABLE h (k int PRIMARY KEY)", "INSERT INTO h VALUES (0), (1)", "ALTER TABLE g ADD h int REFERENCES h DEFAULT 0"}, sql: "UPDATE g SET h = $1::int / 2400 + 1 WHERE k = $1"},
	{name: "row trigger", setup: []string{rowLog, "CREATE TRIGGER t AFTER UPDATE ON g FOR EACH ROW EXECUTE FUNCTION logs()"}, sql: "UPDATE g SET n = n + 1 WHERE k = $1", apart: true},
	{name: "statement trigger", setup: []string{rowLog, "CREATE TRIGGER t AFTER UPDATE ON g FOR EACH STATEMENT EXECUTE FUNCTION logs()"}, sql: "UPDATE g SET n = n + 1 WHERE k = $1", apart: true},
	{name: "deferred foreign key", setup: []string{"CREATE TABLE h (k int PRIMARY KEY)", "INSERT INTO h VALUES (0)", "ALTER TABLE g ADD h int DEFAULT 0 REFERENCES h DEFERRABLE INITIALLY DEFERRED"}, sql: "UPDATE g SET h = $1::int * 0 WHERE k = $1", apart: true},
	{name: "cascades", setup: []string{"CREATE TABLE h (k int REFERENCES g ON UPDATE CASCADE)"}, sql: "UPDATE g SET n = n + 1 WHERE k = $1", apart: true},
	{name: "children", setup: []string{"CREATE TABLE h () INHERITS (g)"}, sql: "UPDATE g SET n = n + 1 WHERE k = $1", apart: true},
	{name: "rule", setup: []string{"CREATE RULE r AS ON UPDATE TO g DO ALSO INSERT INTO log VALUES (NEW.n::text)"}, sql: "UPDATE g SET n = n + 1 WHERE k = $1", apart: true},
	{name: "column of a user's type", setup: []string{"CREATE DOMAIN d AS int CHECK (VALUE IS NULL OR VALUE < 1000000)", "ALTER TABLE g ADD h d"}, sql: "UPDATE g SET h = $1 WHERE k = $1", apart: true},
	{name: "user's operator", setup: []string{"CREATE FUNCTION f(int, text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'", "CREATE OPERATOR + (LEFTARG = int, RIGHTARG = text, FUNCTION = f)"}, sql: "UPDATE g SET n = n + 1 WHERE k = $1", apart: true},
	{name: "function of the row", setup: []string{"CREATE FUNCTION twice(g) RETURNS int LANGUAGE sql STABLE AS 'SELECT $1.k * 2'"}, sql: "UPDATE g SET n = g.twice WHERE k = $1", apart: true},
	{name: "subquery", sql: "UPDATE g SET n = (SELECT count(*) FROM log) WHERE k = $1", apart: true},
	{name: "repeatable read", setup: []string{repeatableRead}, sql: "UPDATE g SET n = n + 1 WHERE k = $1", apart: true},
	{name: "number of the transaction", sql: "UPDATE g SET n = txid_current() * 0 WHERE k = $1", apart: true},
	{name: "default of a user's function", setup: []string{"CREATE FUNCTION two() RETURNS int LANGUAGE sql AS 'SELECT 2'", "ALTER TABLE g ALTER n SET DEFAULT two()"}, sql: "UPDATE g SET n = DEFAULT WHERE k = $1", apart: true},
}

// repeatableRead is the default of a database's transactions from then on.
const repeatableRead = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), 'repeatable read'); END $$"

const seriesTable = "CREATE TABLE g (k int PRIMARY KEY, n int DEFAULT 0, u int, t timestamptz)"

// longDeadlocks has the server look for deadlocks in a database as late as it does by
// default.
func longDeadlocks(t *testing.T, db string) {
	onServer(t, "ALTER DATABASE "+db+" SET deadlock_timeout = '1s'")
}

func TestSeriesEqualDirectOnes(t *testing.T) {
	t.Parallel()
	for _, c := range seriesCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			setup := append([]string{"CREATE TABLE log (what text)", seriesTable}, c.setup...)
			if !slices.ContainsFunc(c.setup, func(s string) bool { return strings.HasPrefix(s, "INSERT INTO g") }) {
				setup = append(setup, "INSERT INTO g SELECT x FROM generate_series(0, 2399) x")
			}
			grouped, direct := twins(t, setup...)
			if !c.quick {
				longDeadlocks(t, grouped)
			}
			w := start(t, grouped, oneLane(nil))
			one := dialWire(t, server(t).Addr(), direct)
			admin := dialWire(t, server(t).Addr(), grouped)
			var all []*wire
			for range 12 {
				all = append(all, dialWire(t, w.Addr().String(), grouped))
			}
			sql := "/* batch */ " + c.sql
			for range 3 { // weir knows the table and the shape
				for _, c := range []*wire{all[0], one} {
					c.send(run(sql, "-1"))
					c.ready()
				}
			}
			row := admin.ask("SELECT xmin FROM g WHERE k = 2399")
			_, made, _ := strings.Cut(row, "(")
			made, _, _ = strings.Cut(made, ")")
			k, joined := 0, 0
			for burst := 0; burst < 190 && (burst < 5 || joined == 0 && !c.apart && c.check == ""); burst++ {
				var messages [][]byte
				first := k
				for range all {
					messages = append(messages, run(sql, strconv.Itoa(k)))
					k++
				}
				for i, got := range together(all, messages) {
					one.send(messages[i])
					if want := one.ready(); render(want) != render(got) {
						t.Errorf("%s of %d\ndirect %s\n  weir %s", c.sql, first+i, render(want), render(got))
					}
				}
				if admin.ask(fmt.Sprintf("SELECT count(DISTINCT xmin::text) = count(*) AS apart FROM g WHERE k BETWEEN %d AND %d AND xmin::text <> '%s'", first, k-1, made)) != "[apart] (t) SELECT_1 I" {
					joined++
				}
			}
			if c.apart && joined > 0 {
				t.Errorf("%d bursts shared a transaction", joined)
			}
			if !c.apart && joined == 0 && !strings.HasPrefix(c.sql, "DELETE") {
				t.Error("no burst shared a transaction")
			}
			check := c.check
			if check == "" {
				check = "SELECT sum(n) AS n, count(u) AS u, (SELECT count(*) FROM log) AS log FROM g"
			}
			if a, b := one.ask(check), admin.ask(check); a != b {
				t.Errorf("afterwards %s\ndirect %s\n  weir %s", check, a, b)
			}
		})
	}
}

// TestSeriesOfOneRow: members of a series see each other, as transactions one after the
// other do.
func TestSeriesOfOneRow(t *testing.T) {
	t.Parallel()
	db := database(t, seriesTable, "INSERT INTO g VALUES (1)")
	longDeadlocks(t, db)
	w := start(t, db, oneLane(nil))
	const sql = "/* batch */ UPDATE g SET n = n + 1 WHERE k = $1 RETURNING n"
	var all []*wire
	for range 12 {
		all = append(all, dialWire(t, w.Addr().String(), db))
	}
	for range 3 {
		all[0].send(run(sql, "-1"))
		all[0].ready()
	}
	n := 0
	w.mustGather("solo", func(int) {
		var messages [][]byte
		var want, got []string
		for range all {
			n++
			messages = append(messages, run(sql, "1"))
			want = append(want, fmt.Sprintf("parsed bound [n] (%d) UPDATE_1 I", n))
		}
		for _, answer := range together(all, messages) {
			got = append(got, render(answer))
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestTriggerMadeBetweenSeries: what is made of a table after weir looked at it is seen
// in the transaction itself.
func TestTriggerMadeBetweenSeries(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE log (what text)", seriesTable, "INSERT INTO g SELECT x FROM generate_series(0, 5000) x", rowLog)
	longDeadlocks(t, db)
	w := start(t, db, oneLane(nil))
	admin := dialWire(t, server(t).Addr(), db)
	const sql = "/* batch */ UPDATE g SET n = n + 1 WHERE k = $1"
	var all []*wire
	for range 12 {
		all = append(all, dialWire(t, w.Addr().String(), db))
	}
	for range 3 {
		all[0].send(run(sql, "-1"))
		all[0].ready()
	}
	k := 0
	burst := func(int) {
		var messages [][]byte
		for range all {
			messages = append(messages, run(sql, strconv.Itoa(k)))
			k++
		}
		for _, answer := range together(all, messages) {
			if e := errorIn(answer); e != nil {
				t.Errorf("%v", e)
			}
		}
	}
	w.mustGather("solo", burst)
	admin.want("CREATE TRIGGER t AFTER UPDATE ON g FOR EACH STATEMENT EXECUTE FUNCTION logs()", "CREATE_TRIGGER I")
	before := k
	w.mustGather("solo", burst)
	admin.want("SELECT count(*) AS n FROM log", fmt.Sprintf("[n] (%d) SELECT_1 I", k-before))
}
