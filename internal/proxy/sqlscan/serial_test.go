package sqlscan

import (
	"slices"
	"testing"
)

func TestSerial(t *testing.T) {
	for _, c := range []struct {
		sql, table string
		fields     []string
		returning  bool
	}{
		{sql: "/* batch */ UPDATE g SET n = n + 1 WHERE k = $1", table: "g"},
		{sql: `UPDATE ONLY "S"."T" SET "a" = $1, b = DEFAULT WHERE "T"."id" = $2;`, table: `"S"."T"`, fields: []string{"id"}},
		{sql: "UPDATE g AS x SET a = coalesce(x.a, 0) + $1::int, t = now(), c = CURRENT_TIMESTAMP WHERE x.k IN ($2, 3) AND NOT (v IS NULL) RETURNING x.*, k", table: "g", fields: []string{"a", "k"}, returning: true},
		{sql: "DELETE FROM g x WHERE k = 'a' AND v LIKE 'b%' OR d < DATE '2001-01-01' AND n = $1::numeric(10, 2)", table: "g"},
		{sql: "update g set v = case when k = 1 then 'a' else 'b' end where k = 1", table: "g"},
	} {
		got, ok := Serial(c.sql)
		if !ok || got.Table != c.table || got.Returning != c.returning || !slices.Equal(got.Fields, c.fields) {
			t.Errorf("%s: %+v, %v", c.sql, got, ok)
		}
	}
	for _, sql := range []string{
		"UPDATE g SET n = f(1)", "UPDATE g SET n = public.now()", "UPDATE g SET n = (SELECT 1)", "UPDATE g SET n = h.n FROM h",
		"DELETE FROM g USING h WHERE g.k = h.k", "UPDATE g SET n = 1 WHERE CURRENT OF c", "WITH x AS (SELECT 1) UPDATE g SET n = 1",
		"UPDATE g SET n = 1; UPDATE g SET n = 2", "UPDATE g SET n = nextval('s')", "UPDATE g SET n = $1::mine", `UPDATE g SET n = $1::"text"`,
		"UPDATE g SET n = mine 'x'", "UPDATE g SET n = 1 WHERE k === 2", "UPDATE g SET n = k % 2", "UPDATE g SET n = pg_advisory_xact_lock(1)",
		"UPDATE g SET n = k OPERATOR(public.+) 1", "UPDATE g SET n = ROW(1)", "UPDATE g", "DELETE g", "UPDATE SET n = 1", "INSERT INTO g VALUES (1)",
		"UPDATE g SET n = 'x", "UPDATE g SET (a, b) = (SELECT 1, 2)", "UPDATE g SET v = 'x' COLLATE c WHERE EXISTS (TABLE h)", "",
		"UPDATE g SET n = CAST(k AS mine)", "UPDATE g SET n = g.f(k)", "UPDATE g SET n = currval('s')", "SELECT 1", "UPDATE pg_temp.g SET n = 1",
		"UPDATE g SET n = 1 WHERE k = 1 RETURNING xmin", `DELETE FROM g WHERE "xmin" = $1`, "UPDATE g SET n = 1 WHERE CTID = $1",
	} {
		if got, ok := Serial(sql); ok {
			t.Errorf("%s: %+v", sql, got)
		}
	}
}
