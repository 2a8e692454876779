package postgres_test

import (
	"slices"
	"strings"
	"testing"
)

// The meaning of a prepared statement's name in a unit depends on whether the units before it
// fail, which is unknown when all come in one write. The answers, and the names in errors, are
// those of a direct connection.
func TestNamesBehindUnitsThatFail(t *testing.T) {
	t.Parallel()
	use := func(name string, values ...string) []byte {
		return slices.Concat(bind("", name, values...), execute("", 0))
	}
	all := func(parts ...[]byte) []byte { return slices.Concat(parts...) }
	fails := execute("unknown", 0)
	end := sync()
	db := database(t, "CREATE TABLE n (k int, v text)")
	w, alone := start(t, db, nil), dialWire(t, server(t).Addr(), db)
	insert := "/* batch */ INSERT INTO n (k, v) VALUES ($1, $2)"
	for _, c := range []struct {
		name  string
		steps [][]byte
	}{
		{"parsed again", [][]byte{all(fails, parse("s1", "SELECT 1"), end, parse("s1", "SELECT 2"), use("s1"), end)}},
		{"parsed again, the same", [][]byte{all(fails, parse("s1", "SELECT 1"), end, parse("s1", "SELECT 1"), use("s1"), end)}},
		{"parsed twice", [][]byte{all(parse("s1", "SELECT 1"), end, parse("s1", "SELECT 2"), end, use("s1"), end)}},
		{"a read is bound", [][]byte{all(fails, parse("s1", "SELECT 1"), end, use("s1"), end, use("s1"), end)}},
		{"a write is bound", [][]byte{all(fails, parse("s1", "INSERT INTO n VALUES (1, 'x')"), end, use("s1"), end)}},
		{"described", [][]byte{all(fails, parse("s1", "SELECT 1 AS a"), end, describe('S', "s1"), end)}},
		{"closed", [][]byte{
			all(parse("s1", "SELECT 1"), end),
			all(fails, closing('S', "s1"), end, use("s1"), end, parse("s1", "SELECT 2"), end),
		}},
		{"closed, and parsed", [][]byte{
			all(parse("s1", "SELECT 1"), end),
			all(closing('S', "s1"), end, parse("s1", "SELECT 2"), use("s1"), end),
		}},
		{"closed where that is skipped, and parsed", [][]byte{
			all(parse("s1", "SELECT 1"), end),
			all(fails, closing('S', "s1"), end, parse("s1", "SELECT 2"), end, use("s1"), end),
		}},
		{"the unnamed one from before", [][]byte{
			all(parse("", "SELECT 1 AS a"), end),
			all(fails, parse("", "SELECT 2 AS b"), end, describe('S', ""), use(""), end),
		}},
		{"the unnamed one that was refused", [][]byte{
			all(parse("", "SELECT 1 AS a"), end),
			all(parse("", "SELECT nonsense"), end, describe('S', ""), end),
		}},
		{"the unnamed one, skipped twice", [][]byte{
			all(parse("", "SELECT 1 AS a"), end),
			all(fails, parse("", "SELECT 2 AS b"), end, fails, parse("", "SELECT 3 AS c"), end, describe('S', ""), use(""), end),
		}},
		{"the unnamed one, skipped and parsed", [][]byte{
			all(parse("", "SELECT 1 AS a"), end),
			all(fails, parse("", "SELECT 2 AS b"), end, parse("", "SELECT 3 AS c"), end, describe('S', ""), use(""), end),
			all(use(""), end),
		}},
		{"the unnamed one, skipped and parsed, the same", [][]byte{
			all(parse("", "SELECT 1 AS a"), end),
			all(fails, parse("", "SELECT 2 AS b"), end, parse("", "SELECT 2 AS b"), end),
			all(describe('S', ""), use(""), end),
		}},
		{"the unnamed one behind a text", [][]byte{
			all(parse("", "SELECT 1 AS a"), end),
			all(fails, parse("", "SELECT 2 AS b"), end, query("SELECT 5"), use(""), end),
		}},
		{"many units", [][]byte{
			all(parse("", "SELECT 1 AS a"), end),
			slices.Repeat(all(fails, parse("", "SELECT 2 AS b"), parse("s1", "SELECT 3"), end), 20),
			all(use(""), end, use("s1"), end),
		}},
		{"named by SQL", [][]byte{all(fails, parse("s1", "SELECT 1"), end, query("EXECUTE s1"))}},
		{"closed where that is skipped, and named by SQL", [][]byte{
			all(parse("s1", "SELECT 1"), end),
			all(fails, closing('S', "s1"), end, query("EXECUTE s1"), fails, closing('S', "s1"), end, query("DEALLOCATE s1"), use("s1"), end),
		}},
		{"closed where that is skipped, and named by a Parse of SQL", [][]byte{
			all(parse("s1", "SELECT 1"), end),
			all(fails, closing('S', "s1"), end, parse("", "EXECUTE s1"), use(""), end),
			all(fails, closing('S', "s1"), end, parse("", "DEALLOCATE s1"), use(""), end, use("s1"), end),
		}},
		{"closed, and named by SQL", [][]byte{
			all(parse("s1", "SELECT 1"), end),
			all(closing('S', "s1"), end, query("EXECUTE s1"), closing('S', "s1"), end, query("DEALLOCATE s1")),
		}},
		{"a runtime error", [][]byte{all(parse("", "SELECT 1/0"), use(""), parse("s1", "SELECT 1"), end, use("s1"), end)}},
		{"within a transaction", [][]byte{
			query("BEGIN"),
			all(fails, parse("s1", "SELECT 1"), end, use("s1"), end, query("ROLLBACK"), use("s1"), end, parse("s1", "SELECT 2"), use("s1"), end),
		}},
		{"behind a Flush", [][]byte{all(fails, parse("s1", "SELECT 1"), end, use("s1"), flush(), end)}},
		{"too few parameters, unnamed", [][]byte{
			all(parse("", insert), use("", "1", "x"), end),
			all(use(""), end),
		}},
		{"too few parameters, unnamed and parsed behind", [][]byte{all(parse("", insert), use("", "1", "x"), end, use(""), end, parse("", "SELECT 1"), end)}},
		{"too few parameters, of two names for a text", [][]byte{
			all(parse("s1", insert), end), all(parse("", insert), end),
			all(use("s1"), end), all(use(""), end),
		}},
		{"too few parameters, of many names for a text", [][]byte{
			all(parse("s1", "SELECT $1::int"), parse("s2", "SELECT $1::int"), parse("s3", "SELECT $1::int"), parse("s4", "SELECT $1::int"), end),
			slices.Repeat(all(use("s1"), end, use("s2"), end, use("s3"), end, use("s4"), end), 4),
		}},
		{"too few parameters of a read", [][]byte{
			all(parse("s1", "SELECT $1::int"), end), all(parse("", "SELECT $1::int"), end),
			all(use("s1"), end), all(use(""), end), all(use("s1"), end, use(""), end, parse("", "SELECT 2"), end),
		}},
	} {
		for _, how := range []string{"", "pinned", "in one write"} {
			t.Run(strings.TrimSpace(c.name+" "+how), func(t *testing.T) {
				answers := func(c *wire, steps [][]byte) (out []string) {
					for _, s := range steps {
						c.send(s)
						for range unitsIn(s) {
							got := c.ready()
							out = append(out, render(got))
							if e := errorIn(got); e != nil {
								out = append(out, e.Message)
							}
						}
					}
					return out
				}
				client := dialWire(t, w.Addr().String(), db)
				defer client.close()
				alone.asNew()
				steps := c.steps
				switch how {
				case "pinned":
					client.ask("LISTEN x")
				case "in one write":
					steps = [][]byte{all(steps...)}
				}
				direct, through := answers(alone, steps), answers(client, steps)
				if !slices.Equal(direct, through) {
					t.Errorf("direct  %q\nthrough %q", direct, through)
				}
			})
		}
	}
}
