package postgres_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
)

// Behind a message that fails the server skips weir's own Parse and Close, too. Statements
// that were to make room, and those that were to be prepared, are what they were.
func TestStatementsBehindAFailure(t *testing.T) {
	t.Parallel()
	use := func(name string) []byte { return slices.Concat(bind("", name), execute("", 0)) }
	prepared := slices.Concat(parse("a", "SELECT 1 AS a"), parse("b", "SELECT 2 AS b"), parse("f", "SELECT 1/0"), sync())
	all := slices.Concat(use("a"), use("b"), sync())
	db := database(t, "CREATE TABLE d (k int)")
	for name, steps := range map[string][][]byte{
		"what made room":                  {prepared, all, slices.Concat(use("f"), parse("c", "SELECT 3"), use("c"), sync()), all, all},
		"what made room, and came back":   {prepared, all, slices.Concat(use("f"), parse("c", "SELECT 3"), use("c"), use("a"), use("b"), sync()), all, all},
		"... sent at once":                {prepared, all, slices.Concat(use("f"), parse("c", "SELECT 3"), use("c"), sync(), use("a"), sync(), use("b"), sync()), all},
		"what was to be there":            {prepared, all, slices.Concat(parse("c", "SELECT 3"), parse("d", "SELECT 4"), sync()), slices.Concat(use("f"), use("a"), sync(), use("a"), sync(), use("b"), sync()), all},
		"what was there, in a group":      {prepared, slices.Concat(use("f"), use("a"), sync()), slices.Concat(query("/* batch */ UPDATE d SET k = k")), all},
		"an aborted transaction":          {prepared, all, slices.Concat(parse("c", "SELECT 3"), parse("d", "SELECT 4"), sync()), slices.Concat(query("BEGIN"), use("f"), sync(), use("a"), sync(), use("a"), sync(), query("ROLLBACK"), use("a"), sync(), use("b"), sync()), all},
		"what a later message parses":     {slices.Concat(parse("x", "SELECT nonsense"), parse("b1", "SELECT 21"), parse("c1", "SELECT 22"), parse("d1", "SELECT 23"), parse("e1", "SELECT 24"), sync(), parse("b2", "SELECT 21"), use("b2"), sync()), slices.Concat(parse("b3", "SELECT 21"), use("b3"), sync()), slices.Concat(use("b2"), sync())},
		"statements that fail in parsing": {prepared, slices.Concat(parse("g", "SELECT nonsense"), use("a"), sync()), all, slices.Concat(parse("g", "SELECT nonsense"), use("a"), sync()), all},
	} {
		for _, pinned := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", pinned"}[pinned], func(t *testing.T) {
				t.Parallel()
				w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.ReadLanes, c.MaxPrepared = 1, 1, 3 })
				answers := func(c *wire) string {
					if pinned {
						c.ask("LISTEN x")
					}
					var got []string
					for _, s := range steps {
						c.send(s)
						for range strings.Count(string(s), "S\x00\x00\x00\x04") + strings.Count(string(s), "Q\x00\x00") {
							got = append(got, render(c.ready()))
						}
					}
					return strings.Join(got, "; ")
				}
				direct := dialWire(t, server(t).Addr(), db)
				want := answers(direct)
				for range 3 {
					mine := w.wire()
					if got := answers(mine); got != want {
						t.Fatalf("\n got %s\nwant %s", got, want)
					}
					mine.close()
					eventually(t, "the client has left", func() bool { return w.pool().Clients == 0 })
				}
			})
		}
	}
}
