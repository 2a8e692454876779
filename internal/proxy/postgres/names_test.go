package postgres_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Statements have the names that the server would give them: it looks at the first
// 63 bytes, and a statement prepared by SQL can be named by messages.
func TestStatementNamesAreReadAsTheServerReadsThem(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, nil)
	long, x := strings.Repeat("n", 16<<10), strings.Repeat("x", 63)
	use := func(name string) []byte {
		return slices.Concat(bind("", name), describe('S', name), execute("", 0), sync())
	}
	for _, c := range []struct {
		name  string
		steps [][]byte
	}{
		{"16 kB", [][]byte{
			slices.Concat(parse(long, "SELECT 1"), bind("", long), execute("", 0), sync()),
			slices.Concat(bind("", long), execute("", 0), sync()),
			slices.Concat(bind("", long[:9995]), sync()),
		}},
		{"just short enough to be described", [][]byte{
			slices.Concat(describe('S', long[:9994]), sync()), // unknown
			slices.Concat(parse(long[:9994], "SELECT 1"), sync()),
			use(long[:9994]),
			slices.Concat(closing('S', long[:9994]), sync()),
			use(long[:9994]),
		}},
		{"differing behind byte 63", [][]byte{
			slices.Concat(parse(x+"1", "SELECT 1"), sync()),
			slices.Concat(parse(x+"2", "SELECT 2"), sync()),
			use(x + "3"), use(x),
			slices.Concat(closing('S', x+"4"), sync()),
			use(x + "1"),
		}},
		{"one name twice in a pipeline", [][]byte{
			slices.Concat(parse("a", "SELECT 1"), parse("a", "SELECT 2"), sync()),
			use("a"),
		}},
		{"prepared by SQL, named by messages", [][]byte{
			query("PREPARE s AS SELECT 1"), use("s"), use("t"),
			slices.Concat(closing('S', "s"), sync()),
			query("EXECUTE s"), use("s"),
		}},
		{"prepared by messages, named by SQL", [][]byte{
			slices.Concat(parse(x+"1", "SELECT 1"), sync()),
			query("EXECUTE " + x + "2"), query("DEALLOCATE " + x), use(x + "1"),
		}},
		{"prepared by messages, then by SQL", [][]byte{
			slices.Concat(parse("s", "SELECT 1"), sync()),
			query("EXPLAIN EXECUTE s"), query("PREPARE s AS SELECT 2"), query("EXECUTE s"), use("s"),
			slices.Concat(parse("", "PREPARE s AS SELECT 2"), bind("", ""), execute("", 0), sync()), use("s"),
			slices.Concat(parse("p", "PREPARE s AS SELECT 2"), sync()), use("p"), use("s"),
			slices.Concat(parse("e", "EXECUTE s"), sync()), slices.Concat(bind("", "e"), execute("", 0), sync()),
			query("BEGIN"), query("EXECUTE s"), slices.Concat(closing('S', "s"), sync()), query("EXECUTE s"), query("ROLLBACK"),
			query("PREPARE s AS SELECT 2"), query("EXECUTE s"), use("s"),
		}},
		{"prepared by SQL, then by messages", [][]byte{
			query("PREPARE s AS SELECT 1"), slices.Concat(parse("s", "SELECT 2"), sync()), query("EXECUTE s"), use("s"),
			slices.Concat(parse("t", "SELECT 3"), sync()), use("t"), query("EXECUTE t"), query("EXECUTE s"),
			query("DEALLOCATE t"), use("t"), query("DEALLOCATE s"),
			slices.Concat(parse("s", "SELECT 4"), sync()), use("s"), query("EXECUTE s"),
		}},
		{"prepared by messages, and named by SQL beside one by SQL", [][]byte{
			query("PREPARE s AS SELECT 1"), slices.Concat(parse("t", "SELECT 2"), sync()),
			query("EXECUTE t"), query("EXECUTE s"), query("EXECUTE s"), query("DEALLOCATE ALL"), query("EXECUTE s"), use("t"),
		}},
		{"prepared by messages, and named by SQL where that is skipped", [][]byte{
			query("PREPARE p AS SELECT 1"), slices.Concat(parse("s", "SELECT 2"), sync()),
			query("DEALLOCATE s"), slices.Concat(parse("t", "SELECT 3"), parse("x", "SELECT 4"), sync()), query("DEALLOCATE p"), query("PREPARE p AS SELECT 1"),
			slices.Concat(execute("nowhere", 0), parse("e", "EXECUTE t"), sync()), query("EXECUTE t"),
			slices.Concat(execute("nowhere", 0), closing('S', "t"), sync()), query("EXECUTE t"),
			slices.Concat(execute("nowhere", 0), closing('S', "t"), parse("t", "SELECT 5"), sync()), query("EXECUTE t"),
		}},
		{"named by SQL within other statements", [][]byte{
			slices.Concat(parse("s", "SELECT 1 AS a"), parse("t", "SELECT 2 AS b"), parse("u", "SELECT 3 AS c"), sync()),
			query("CREATE TEMP TABLE x AS EXECUTE s"), query("TABLE x"), query("EXPLAIN (COSTS OFF) CREATE TEMP TABLE y AS EXECUTE t"),
			slices.Concat(parse("x", "CREATE TEMP TABLE y (d) AS EXECUTE u WITH NO DATA"), bind("", "x"), execute("", 0), sync()), query("TABLE y"),
		}},
		{"... and behind them", [][]byte{
			slices.Concat(parse("s", "SELECT 1 AS a"), parse("t", "SELECT 2 AS b"), sync()),
			query("SELECT 3; EXECUTE s; CREATE TEMP TABLE x AS EXECUTE t; EXECUTE s"), query("SELECT 4; DEALLOCATE s"),
			query("SELECT 5; PREPARE t AS SELECT 6"), query("BEGIN; EXECUTE t; COMMIT"),
		}},
		{"unknown", [][]byte{use("a"), use(`a"b`), use("weir_1"), use("client_a"), use("")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answers := func(addr string) (all []string) {
				conn := dialWire(t, addr, db)
				for _, step := range c.steps {
					conn.send(step)
					for _, m := range conn.ready() {
						all = append(all, m.String())
						if e := errorIn([]message{m}); e != nil && m.typ == pgwire.ServerError {
							all = append(all, e.Message[:min(len(e.Message), 200)])
						}
					}
				}
				return all
			}
			direct, through := answers(server(t).Addr()), answers(w.Addr().String())
			if !slices.Equal(direct, through) {
				t.Errorf("direct  %q\nthrough %q", direct, through)
			}
		})
	}
}

// In a failed transaction the server refuses what it refuses directly, also where weir has the
// statement already, and where the failure is still under way.
func TestStatementsInAFailedTransaction(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, nil)
	use := func(name string) []byte { return slices.Concat(bind("", name), execute("", 0)) }
	anew := slices.Concat(closing('S', "s"), parse("s", "SELECT 1 AS x"))
	failed := slices.Concat(query("BEGIN"), query("SELECT 1/0"))
	end := slices.Concat(parse("end", "ROLLBACK"), use("end"))
	for name, messages := range map[string][]byte{
		"closed and parsed":           slices.Concat(anew, sync()),
		"closed, parsed and used":     slices.Concat(anew, use("s"), sync()),
		"parsed under another name":   slices.Concat(parse("t", "SELECT 1 AS x"), sync(), use("s"), sync()),
		"described":                   slices.Concat(describe('S', "s"), sync()),
		"described without columns":   slices.Concat(describe('S', "set"), sync()),
		"BEGIN parsed":                slices.Concat(parse("b", "BEGIN"), sync()),
		"BEGIN parsed again":          slices.Concat(parse("c", "BEGIN"), sync()),
		"ended, and parsed behind it": slices.Concat(end, anew, use("s"), sync()),
		"ended, and parsed next":      slices.Concat(end, sync(), anew, use("s"), sync()),
		"ended, and used next":        slices.Concat(anew, sync(), end, sync(), use("s"), sync()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, apart := range []bool{true, false} {
				answers := func(addr string) (all []string) {
					conn := dialWire(t, addr, db)
					read := func(messages []byte) {
						for range units(messages) {
							all = append(all, render(conn.ready()))
						}
					}
					conn.send(parse("s", "SELECT 1 AS x"), parse("set", "SET work_mem = '5MB'"), parse("begin", "BEGIN"), sync(), query("BEGIN"), describe('S', "s"), describe('S', "set"), sync(), query("COMMIT"))
					for range 4 {
						conn.ready()
					}
					if apart {
						conn.send(failed)
						read(failed)
						conn.send(messages)
						read(messages)
					} else {
						both := slices.Concat(failed, messages)
						conn.send(both)
						read(both)
					}
					last := slices.Concat(query("ROLLBACK"), parse("s", "SELECT 1 AS x"), sync(), use("s"), sync())
					conn.send(last)
					read(last)
					return all
				}
				direct, through := answers(server(t).Addr()), answers(w.Addr().String())
				if !slices.Equal(direct, through) {
					t.Errorf("apart %v\ndirect  %q\nthrough %q", apart, direct, through)
				}
			}
		})
	}
}

// units is how many times the server is ready behind messages.
func units(messages []byte) (n int) {
	for len(messages) > 0 {
		typ, size, _ := pgwire.Peek(messages)
		if typ == pgwire.ClientQuery || typ == pgwire.ClientSync {
			n++
		}
		messages = messages[size:]
	}
	return n
}

// Errors that speak of a prepared statement have the name that the client gave it, whatever
// becomes of the name behind that.
func TestErrorsHaveTheClientsNamesForStatements(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, nil)
	for name, messages := range map[string][]byte{
		"closed behind it":        slices.Concat(bind("", "a"), closing('S', "a"), sync()),
		"closed in the next unit": slices.Concat(bind("", "a"), sync(), closing('S', "a"), sync()),
		"another with its text":   slices.Concat(bind("", "b"), sync(), bind("", "a"), sync()),
		"closed, and parsed":      slices.Concat(closing('S', "a"), parse("a", "SELECT $1::text"), bind("", "a"), sync()),
		"without a name":          slices.Concat(bind("", ""), parse("", "SELECT 1"), sync()),
		"and after it":            slices.Concat(bind("", ""), sync(), parse("", "SELECT 1"), sync()),
		"a text after it":         slices.Concat(bind("", ""), sync(), query("SELECT 1")),
		"a name that is taken":    slices.Concat(parse("a", "SELECT 2"), sync()),
		"taken, and closed":       slices.Concat(parse("b", "SELECT 2"), closing('S', "b"), sync(), closing('S', "b"), sync()),
		"DEALLOCATE behind it":    slices.Concat(bind("", "b"), sync(), query("DEALLOCATE b")),
		// parsed where it is forgotten: elsewhere weir would parse it again
		"forgotten unseen": slices.Concat(query("CREATE TEMP TABLE keeps ()"), parse("c", "SELECT $1::int"), sync(),
			query("DO 'BEGIN EXECUTE ''DEALLOCATE ALL''; END'"), describe('S', "c"), sync(), bind("", "c"), sync()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, begin := range []string{"SELECT 1", "CREATE TEMP TABLE own ()"} { // without a backend of its own, and with one
				answers := func(addr string) (all []string) {
					conn := dialWire(t, addr, db)
					conn.ask(begin)
					conn.send(parse("a", "SELECT $1::int"), parse("b", "SELECT $1::int"), parse("", "SELECT $1::int"), sync())
					conn.ready()
					conn.send(messages)
					for range units(messages) {
						for _, m := range conn.ready() {
							all = append(all, m.String())
							if e := errorIn([]message{m}); e != nil {
								all = append(all, e.Message)
							}
						}
					}
					return all
				}
				direct, through := answers(server(t).Addr()), answers(w.Addr().String())
				if !slices.Equal(direct, through) {
					t.Errorf("behind %s\ndirect  %q\nthrough %q", begin, direct, through)
				}
			}
		})
	}
}

// A statement that was prepared by messages is found by SQL also where what has named it so
// before was skipped or refused, and that was not known yet.
func TestStatementsLentWhereItFails(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, nil)
	failing := execute("nowhere", 0)
	for name, messages := range map[string][]byte{
		"skipped":                 slices.Concat(failing, parse("e", "EXECUTE s"), sync(), query("EXECUTE s"), query("EXECUTE s")),
		"skipped, by messages":    slices.Concat(parse("e", "EXECUTE s"), sync(), failing, bind("", "e"), execute("", 0), sync(), bind("", "e"), execute("", 0), sync()),
		"in a failed transaction": slices.Concat(query("BEGIN"), query("SELECT 1/0"), query("EXECUTE s"), query("ROLLBACK"), query("EXECUTE s")),
		"prepared and skipped":    slices.Concat(failing, parse("t", "SELECT 2"), sync(), query("EXECUTE t"), parse("t", "SELECT 3"), sync(), query("EXECUTE t")),
	} {
		for _, begin := range []string{"SELECT 1", "PREPARE p AS SELECT 1", "BEGIN"} {
			t.Run(name+" behind "+begin, func(t *testing.T) {
				t.Parallel()
				answers := func(addr string) (all []string) {
					conn := dialWire(t, addr, db)
					conn.ask(begin)
					conn.send(parse("s", "SELECT 1"), sync())
					conn.ready()
					conn.send(messages)
					for range units(messages) {
						all = append(all, render(conn.ready()))
					}
					return append(all, conn.ask("ROLLBACK"), conn.ask("EXECUTE s"))
				}
				direct, through := answers(server(t).Addr()), answers(w.Addr().String())
				if !slices.Equal(direct, through) {
					t.Errorf("direct  %q\nthrough %q", direct, through)
				}
			})
		}
	}
}

// In transaction mode a PREPARE by SQL is no reason to have the backend forget, with each
// transaction, what was prepared on it by messages.
func TestPrepareBySQLInTransactionMode(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize, c.Loops, c.Mode = 1, 1, session.ModeTransaction })
	c := w.wire()
	c.want("PREPARE p AS SELECT 1 AS x", "PREPARE I")
	c.want("BEGIN", "BEGIN T")
	c.send(parse("s", "SELECT 2 AS x"), bind("", "s"), execute("", 0), sync())
	if got := render(c.ready()); got != "parsed bound (2) SELECT_1 T" {
		t.Errorf("prepared by messages: %s", got)
	}
	c.want("COMMIT", "COMMIT I")
	c.want("SELECT count(*) AS n FROM pg_prepared_statements WHERE statement = 'SELECT 2 AS x'", "[n] (1) SELECT_1 I")
}

// The columns of a prepared EXECUTE or FETCH are those of what its client has under the name.
func TestColumnsOfWhatNamesAStatementOrCursor(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.Loops = 1, 1 })
	for _, columns := range []string{"1 AS a", "'x' AS b, 2 AS c"} {
		for name, steps := range map[string][][]byte{
			"EXECUTE": {
				slices.Concat(parse("s", "SELECT "+columns), sync()), slices.Concat(parse("e", "EXECUTE s"), describe('S', "e"), sync()),
				query("SELECT 1"), slices.Concat(describe('S', "e"), bind("", "e"), describe('P', ""), execute("", 0), sync()), query("DEALLOCATE ALL"),
			},
			"described later": {
				slices.Concat(parse("s", "SELECT "+columns), parse("e", "EXECUTE s"), sync()), query("SELECT 1"), slices.Concat(describe('S', "e"), sync()),
			},
			"FETCH": {
				query("BEGIN; DECLARE c CURSOR FOR SELECT " + columns), slices.Concat(parse("f", "FETCH c"), describe('S', "f"), sync()),
				slices.Concat(bind("", "f"), describe('P', ""), execute("", 0), sync()), query("ROLLBACK"),
			},
		} {
			answers := func(addr string) (all []string) {
				conn := dialWire(t, addr, db)
				defer conn.close()
				for _, step := range steps {
					conn.send(step)
					all = append(all, render(conn.ready()))
				}
				return all
			}
			direct, through := answers(server(t).Addr()), answers(w.Addr().String())
			if !slices.Equal(direct, through) {
				t.Errorf("%s of %s\ndirect  %q\nthrough %q", name, columns, direct, through)
			}
		}
	}
}
