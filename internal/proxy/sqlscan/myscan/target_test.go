package myscan

import "testing"

func TestTarget(t *testing.T) {
	for _, c := range []struct{ sql, schema, table string }{
		{"INSERT INTO t VALUES (1)", "", "t"},
		{"/* batch */ INSERT IGNORE INTO `my db`.`t``x` (a) VALUES (1)", "my db", "t`x"},
		{"INSERT t SET a = 1", "", "t"},
		{"INSERT INTO t SELECT * FROM u", "", "t"},
		{"REPLACE LOW_PRIORITY INTO s.t (a) SELECT 1", "s", "t"},
		{"UPDATE t SET a = 1 WHERE id = 2", "", "t"},
		{"UPDATE LOW_PRIORITY IGNORE s.t AS x SET x.a = 1", "s", "t"},
		{"UPDATE t x SET a = 1", "", "t"},
		{"DELETE FROM t", "", "t"},
		{"DELETE QUICK FROM t WHERE id = 1 LIMIT 1", "", "t"},
		{"DELETE FROM t WHERE id = 1 RETURNING id;", "", "t"},
	} {
		schema, table, ok := Target(c.sql, Mode{})
		if !ok || schema != c.schema || table != c.table {
			t.Errorf("%s: %q.%q, %v; want %q.%q", c.sql, schema, table, ok, c.schema, c.table)
		}
	}
	for _, sql := range []string{
		"", "SELECT 1", "UPDATE t, u SET t.a = u.a", "UPDATE t JOIN u ON t.id = u.id SET t.a = 1", "DELETE t FROM t JOIN u ON t.id = u.id",
		"DELETE FROM t USING t JOIN u", "DELETE FROM a.b.c", "UPDATE (SELECT 1) x SET a = 1", "WITH x AS (SELECT 1) UPDATE t SET a = 1",
		"INSERT INTO t PARTITION (p) VALUES (1)", "DELETE FROM 't", "TRUNCATE t",
	} {
		if schema, table, ok := Target(sql, Mode{}); ok {
			t.Errorf("%s: %q.%q; want none", sql, schema, table)
		}
	}
}

func TestReadsTable(t *testing.T) {
	for sql, want := range map[string]bool{
		"SELECT a FROM t": true, "/* x */ select 'from', `from` from `dual`": true, "SELECT 1 FROM (SELECT 1) x": true, "SELECT 1 UNION SELECT a FROM s.t": true,
		"SELECT 'a from t'": false, "SELECT EXTRACT(YEAR FROM NOW())": false, "SELECT (SELECT a FROM t)": true, "SET a = 1, b = (SELECT 60 + a FROM t)": true, "DO (SELECT 0 FROM (SELECT 0) AS x)": true, "SELECT TRIM('a' FROM (SELECT 1)) + (1": false, "SELECT 1 FROM dual WHERE (SELECT a FROM t)": true, "SELECT 1 FROM dual": false, "SELECT @@x.from": false, "": false,
	} {
		var text Text
		if text.Read(sql, Mode{}); text.ReadsTable() != want {
			t.Errorf("%s: reads a table: %v, want %v", sql, !want, want)
		}
	}
}
