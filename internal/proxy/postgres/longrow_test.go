package postgres_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A row that is too long to be held is passed on as it comes. What weir itself answers
// comes before it.
func TestOwnAnswersBeforeALongRow(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 1 })
	steps := [][]byte{
		slices.Concat(parse("one", "SELECT 1 AS a"), parse("big", "SELECT repeat('x', 1000000) AS b"), sync()),
		slices.Concat(closing('S', "one"), sync()),
		slices.Concat(bind("", "big"), parse("again", "SELECT 1 AS a"), closing('S', "none"), execute("", 0), bind("", "again"), execute("", 0), sync()),
		slices.Concat(bind("", "big"), closing('S', "again"), execute("", 0), flush()),
		sync(),
	}
	for _, pinned := range []bool{false, true} {
		answers := func(c *wire) (got []string) {
			if pinned {
				c.ask("LISTEN x")
			}
			for i, s := range steps {
				c.send(s)
				end := byte(pgwire.ServerReady)
				if i == 3 {
					end = pgwire.ServerCommandComplete
				}
				ms, err := c.until(end)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range ms {
					got = append(got, fmt.Sprintf("%c %d", m.typ, len(m.body)))
				}
			}
			return got
		}
		want := answers(dialWire(t, server(t).Addr(), db))
		for range 2 {
			c := w.wire()
			if got := answers(c); !slices.Equal(got, want) {
				t.Errorf("pinned: %v\n got %v\nwant %v", pinned, got, want)
			}
			c.close()
			eventually(t, "the client has left", func() bool { return w.pool().Clients == 0 })
		}
	}
}
