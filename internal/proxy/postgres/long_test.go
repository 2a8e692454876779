package postgres_test

import (
	"fmt"
	"slices"
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

// A statement that is cancelled while its text is read away from the loop is cancelled, whatever
// the server makes of a request that comes while it takes a long message.
func TestCancelOfALongTextThatIsRead(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	c, look := w.wire(), dialWire(t, server(t).Addr(), w.db)
	text := "SELECT pg_sleep(600) /* " + strings.Repeat("x-' ", 3<<20) + " */"
	for _, way := range []struct {
		name     string
		messages []byte
		begin    bool
	}{
		{"a text", query(text), false},
		{"a text in a transaction", query(text), true},
		{"extended", slices.Concat(parse("", text), bind("", ""), execute("", 0), sync()), false},
	} {
		t.Run(way.name, func(t *testing.T) {
			status := "I"
			if way.begin {
				status = "E"
			}
			for done := false; !done; {
				if way.begin {
					c.want("BEGIN", "BEGIN T")
				}
				c.send(way.messages)
				eventually(t, "it is being read, or runs", func() bool {
					done = w.CancelUnread(ctxFor(t), c.pid)
					return done || look.ask("SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") == "[n] (1) SELECT_1 I"
				})
				if !done { // it was read too soon for the test to see
					cancel(t, w, c)
				}
				if got := render(c.ready()); !strings.HasSuffix(got, "ERROR:57014 "+status) {
					t.Errorf("cancelled: %s", got)
				}
				if way.begin {
					c.want("ROLLBACK", "ROLLBACK I")
				}
			}
			c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		})
	}
}
