package postgres_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestLongTextsAreReadWhole: texts that are read away from the loop do what they do
// directly, and weir knows of them what it must.
func TestLongTextsAreReadWhole(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE l (id int PRIMARY KEY, a int)"), nil)
	c, other := w.wire(), w.wire()
	pad := " /* " + strings.Repeat("x-' ", 1<<18) + " */"
	want := func(c *wire, sql, answer string) {
		t.Helper()
		if got := c.ask(sql); got != answer {
			t.Errorf("%.60s ...\n got %s\nwant %s", sql, got, answer)
		}
	}
	want(c, "INSERT INTO l SELECT g, 0 FROM generate_series(1, 3) g"+pad, "INSERT_0_3 I")
	for range 2 {
		want(c, "SELECT 7 AS n"+pad, "[n] (7) SELECT_1 I")
		want(c, "SET work_mem = '12MB'"+pad, "SET I")
		want(c, "SHOW work_mem", "[work_mem] (12MB) SHOW I")
		want(other, "SHOW work_mem", "[work_mem] (4MB) SHOW I")
		want(c, "BEGIN"+pad, "BEGIN T")
		want(c, "UPDATE l SET a = 1 WHERE id = 1"+pad, "UPDATE_1 T")
		want(other, "SELECT count(*) AS n FROM l WHERE a = 1", "[n] (0) SELECT_1 I")
		want(c, "ROLLBACK"+pad, "ROLLBACK I")
		want(c, "CREATE TEMP TABLE mine (a int)"+pad, "CREATE_TABLE I")
		want(c, "SELECT count(*) AS n FROM mine", "[n] (0) SELECT_1 I")
		want(c, "DROP TABLE mine"+pad, "DROP_TABLE I")
		if got := c.ask("SELECT FROM FROM" + pad); !strings.Contains(got, "42601") {
			t.Errorf("nonsense: %s", got)
		}
	}
	// Prepared under a name, used, and used again on whatever connection.
	c.send(parse("long", "SELECT 8 AS n"+pad), sync())
	c.ready()
	for range 3 {
		c.send(bind("", "long"), execute("", 0), sync())
		if got := render(c.ready()); !strings.Contains(got, "(8)") {
			t.Errorf("prepared: %s", got)
		}
	}
	// Also when more has become known since.
	for i := range 5 {
		want(other, fmt.Sprintf("CREATE FUNCTION f%d() RETURNS int LANGUAGE sql AS 'SELECT 1'", i), "CREATE_FUNCTION I")
		want(other, fmt.Sprintf("SELECT f%d() AS n", i), "[n] (1) SELECT_1 I")
		c.send(bind("", "long"), execute("", 0), sync())
		if got := render(c.ready()); !strings.Contains(got, "(8)") {
			t.Errorf("prepared: %s", got)
		}
	}
	if n := w.LongestRead(ctxFor(t)); n > 256<<10 {
		t.Errorf("a text of %d bytes was read on the loop", n)
	}
	// One that leaves meanwhile leaves nothing behind.
	gone := w.wire()
	gone.send(query("SELECT 9" + pad))
	_ = gone.conn.Close()
	eventually(t, "it has gone", func() bool { return w.snapshot().Clients == 2 })
}
