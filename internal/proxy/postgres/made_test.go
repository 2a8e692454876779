package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
)

// Objects that are renamed, attached or referred to, or that older functions name, count before
// the next statement of another client, too.
func TestWhatBecomesReachableCountsAtOnce(t *testing.T) {
	t.Parallel()
	w := start(t, database(t,
		"CREATE FUNCTION set_mem() RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('work_mem', '7MB', false); RETURN '1'; END $$",
		"CREATE FUNCTION sets() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('work_mem', '7MB', false); RETURN NEW; END $$",
		"CREATE FUNCTION fill() RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO later DEFAULT VALUES; END $$",
		"CREATE FUNCTION good(v text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN set_mem() = '1'; END $$",
		"CREATE DOMAIN checked AS text CHECK (good(VALUE))",
		"CREATE TABLE model (v checked)",
		"CREATE TABLE parent (id int)", "CREATE TABLE referred (id int PRIMARY KEY)", "INSERT INTO referred VALUES (1), (2)",
		"CREATE TABLE seen (id int, v text)", "CREATE VIEW over AS SELECT id, v FROM seen",
		"CREATE TABLE whole (id int) PARTITION BY RANGE (id)", "CREATE TABLE part (id int)",
		"CREATE TRIGGER x BEFORE INSERT ON whole FOR EACH ROW EXECUTE FUNCTION sets()",
		"CREATE TABLE old (id int)", "CREATE TABLE child (id int)", "CREATE TABLE refers (id int)", "INSERT INTO child VALUES (1)", "INSERT INTO refers VALUES (1)",
		"CREATE TRIGGER x BEFORE INSERT ON old FOR EACH ROW EXECUTE FUNCTION sets()",
		"CREATE TRIGGER x BEFORE UPDATE ON child FOR EACH ROW EXECUTE FUNCTION sets()",
		"CREATE TRIGGER x BEFORE UPDATE ON refers FOR EACH ROW EXECUTE FUNCTION sets()",
		"CREATE VIEW sight AS SELECT set_mem() AS s"),
		func(c *postgres.Config) { c.PoolSize = 1 })
	for i, m := range []struct{ makes, uses string }{
		{"ALTER TABLE old RENAME TO renamed", "INSERT INTO renamed VALUES (1)"},
		{`ALTER VIEW sight RENAME TO "Sight %d"`, `SELECT * FROM "Sight %d"`},
		{"ALTER TABLE child INHERIT parent", "UPDATE parent SET id = 2"},
		{"ALTER TABLE whole ATTACH PARTITION part FOR VALUES FROM (0) TO (10)", "INSERT INTO part VALUES (1)"},
		{"ALTER TABLE refers ADD FOREIGN KEY (id) REFERENCES referred ON UPDATE CASCADE", "UPDATE referred SET id = 3 WHERE id = 1"},
		{"CREATE TABLE r%d (id int REFERENCES referred ON UPDATE CASCADE CHECK (set_mem() = '1')); INSERT INTO r%[1]d VALUES (2)", "UPDATE referred SET id = 4 WHERE id = 2"},
		{"CREATE TABLE later (v text DEFAULT set_mem())", "SELECT fill()"},
		{"-- a comment\rCREATE VIEW v%d AS SELECT set_mem() AS s", "SELECT * FROM v%d"},
		{"EXPLAIN ANALYZE CREATE TABLE t%d AS SELECT * FROM model", "INSERT INTO t%d VALUES ('a')"},
		{"SELECT * INTO t%d FROM model", "INSERT INTO t%d VALUES ('a')"},
		{"ALTER TABLE seen ADD COLUMN more text DEFAULT set_mem()", "INSERT INTO over VALUES (1)"},
	} {
		maker, user := w.wire(), w.wire()
		maker.ask("SELECT count(*) FROM parent")
		for _, c := range []struct {
			w   *wire
			sql string
		}{{maker, m.makes}, {user, m.uses}} {
			sql := c.sql
			if strings.Contains(sql, "%") {
				sql = fmt.Sprintf(sql, i)
			}
			if got := c.w.ask(sql); strings.Contains(got, "ERROR") {
				t.Errorf("%s: %s", sql, got)
			}
			c.w.close()
		}
		other := w.wire()
		if got := other.ask("SELECT current_setting('work_mem') AS m"); got != "[m] (4MB) SELECT_1 I" {
			t.Errorf("%s: another client has %s", m.makes, got)
		}
		other.close()
	}
}

// A prepared transaction brings in what its maker has made long ago.
func TestWhatAPreparedTransactionBringsInCountsAtOnce(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE FUNCTION set_mem() RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('work_mem', '7MB', false); RETURN '1'; END $$")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 1 })
	console := dialWire(t, w.Addr().String(), "weir")
	known := func(text string) func() bool {
		return func() bool {
			w.wire().ask("SELECT 1")
			return strings.Contains(console.ask("SHOW CATALOGUES"), "("+db+",known,"+text)
		}
	}
	eventually(t, "the catalogue is known", known(""))
	maker := w.wire()
	for _, sql := range []string{"BEGIN", "CREATE VIEW v AS SELECT set_mem() AS s", "PREPARE TRANSACTION '" + db + "'"} {
		if got := maker.ask(sql); strings.Contains(got, "ERROR") {
			t.Fatalf("%s: %s", sql, got)
		}
	}
	before := console.ask("SHOW CATALOGUES")
	sqlOn(t, server(t).DSN(db), "CREATE FUNCTION other() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(1); END $$")
	eventually(t, "the catalogue was read again", func() bool { w.wire().ask("SELECT 1"); return console.ask("SHOW CATALOGUES") != before })
	maker.want("COMMIT PREPARED '"+db+"'", "COMMIT_PREPARED I")
	maker.close()
	user := w.wire()
	user.want("SELECT s FROM v", "[s] (1) SELECT_1 I")
	user.close()
	w.wire().want("SHOW work_mem", "[work_mem] (4MB) SHOW I")
}

// Clients that keep their backends only because the catalogue is not known must not
// keep it from being read.
func TestTheCatalogueIsReadWhereAllBackendsAreKept(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 2 })
	for i := range 10 {
		maker := w.wire()
		maker.ask(fmt.Sprintf("CREATE FUNCTION f%d() RETURNS int LANGUAGE sql AS 'SELECT 1'", i))
		maker.close() // perhaps while what it made is being read on its backend
		var clients []*wire
		for range 4 {
			c := w.wire()
			clients = append(clients, c)
			if got := c.ask("SELECT 1 AS n"); got != "[n] (1) SELECT_1 I" {
				t.Fatalf("round %d: %s", i, got)
			}
		}
		for _, c := range clients {
			c.close()
		}
	}
}
