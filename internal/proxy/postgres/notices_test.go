package postgres_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
)

// TestNoticesOfAParseElsewhere: the server says each time that it cuts a name when it parses
// a statement; a client hears that when it has parsed one, and not again when weir parses it
// on another connection.
func TestNoticesOfAParseElsewhere(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 4 })
	c := w.wire()
	c.send(parse("s", "SELECT pg_sleep(0) AS "+strings.Repeat("long", 20)), sync())
	if got := c.ready(); noticeIn(got) == nil || errorIn(got) != nil {
		t.Fatalf("parsed: %s", render(got))
	}
	parses := w.pool().ServerParses
	for range 4 { // each time on another connection
		c.send(bind("", "s"), execute("", 0), sync())
		if got := c.ready(); noticeIn(got) != nil || errorIn(got) != nil {
			t.Errorf("run: %s", render(got))
		}
		w.wire().want("BEGIN", "BEGIN T")
		if w.pool().Free == 0 && w.pool().Backends == 4 {
			break
		}
	}
	if w.pool().ServerParses == parses {
		t.Error("it was parsed on no other connection")
	}
}

// TestNoticesOfAParseAgain: each client that parses a statement hears what the server says of
// it, also where weir has the statement already.
func TestNoticesOfAParseAgain(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), oneBackend)
	for i := range 3 {
		c := w.wire()
		for _, name := range []string{"s", "t"} {
			c.send(parse(name, "SELECT 1 AS "+strings.Repeat("long", 20)), sync())
			if got := c.ready(); noticeIn(got) == nil || errorIn(got) != nil {
				t.Errorf("client %d: %s", i, render(got))
			}
		}
	}
}
