package postgres_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A server that takes CopyData ignores Sync, and behind an extended message that failed it
// skips everything up to the next Sync. Clients get as many answers as from the server
// itself, and their backend serves others afterwards.
func TestAnswersWhereSyncAndQueryAreIgnored(t *testing.T) {
	t.Parallel()
	cat := slices.Concat[[]byte]
	run := func(sql string) []byte { return cat(parse("", sql), bind("", ""), describe('P', ""), execute("", 0)) }
	copying := run("COPY c FROM STDIN")
	data := func(s string) []byte { return pgwire.AppendCopyData(nil, []byte(s)) }
	done, gaveUp := pgwire.AppendCopyDone(nil), pgwire.AppendCopyFail(nil, "no more")
	fails := cat(parse("", "SELECT nonsense"), bind("", ""), execute("", 0))
	db := database(t, "CREATE TABLE c (k int)", "CREATE VIEW v AS SELECT 1 AS k", "CREATE TABLE refusing (k int)",
		"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
		"CREATE TRIGGER refuse BEFORE INSERT ON refusing EXECUTE FUNCTION refuse()")
	direct := dialWire(t, server(t).Addr(), db)
	type step struct {
		send  []byte
		until string // the types of messages that are waited for, in order
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"COPY", []step{{cat(copying, sync()), "G"}, {cat(data("1\n"), done, sync()), "Z"}}},
		{"COPY, messages one by one", []step{{cat(copying, sync()), "G"}, {data("1\n"), ""}, {cat(done), ""}, {sync(), "Z"}}},
		{"COPY, sent at once", []step{{cat(copying, sync(), data("1\n"), done, sync()), "Z"}}},
		{"COPY twice, sent at once", []step{{cat(copying, sync(), data("1\n"), done, sync(), copying, sync(), data("2\n"), done, sync()), "ZZ"}}},
		{"COPY, more behind its data", []step{{cat(copying, sync(), data("1\n"), done, run("SELECT 7"), sync()), "Z"}}},
		{"COPY without the first Sync", []step{{cat(copying, data("1\n"), done, sync()), "Z"}}},
		{"COPY with Flush", []step{{cat(copying, flush()), "G"}, {cat(data("1\n"), done, sync()), "Z"}}},
		{"COPY, Syncs in the data", []step{{cat(copying, sync()), "G"}, {cat(data("1\n"), sync(), data("2\n"), sync(), done, sync()), "Z"}}},
		{"COPY, Syncs in the data, sent at once", []step{{cat(copying, sync(), data("1\n"), sync(), data("2\n"), sync(), done, sync()), "Z"}}},
		{"COPY, a Sync in the data of a Query", []step{{query("COPY c FROM STDIN"), "G"}, {cat(data("1\n"), sync(), done), "Z"}}},
		{"COPY by Query, sent at once, then a Sync", []step{{cat(query("COPY c FROM STDIN"), data("1\n"), done, sync()), "ZZ"}}},
		{"COPY that is given up", []step{{cat(copying, sync()), "G"}, {cat(data("1\n"), gaveUp, sync()), "Z"}}},
		{"COPY of bad rows", []step{{cat(copying, sync()), "G"}, {cat(data("bad\n"), done, sync()), "Z"}}},
		{"COPY of bad rows, told before it ends", []step{{cat(copying, sync()), "G"}, {data("bad\n"), "E"}, {cat(done, sync()), "Z"}}},
		{"COPY of bad rows, sent at once", []step{{cat(copying, sync(), data("bad\n"), done, sync()), "Z"}}},
		{"COPY of bad rows in a transaction", []step{{query("BEGIN"), "Z"}, {cat(copying, sync()), "G"}, {cat(data("bad\n"), done, sync()), "Z"}, {query("ROLLBACK"), "Z"}}},
		{"COPY into a view", []step{{cat(run("COPY v FROM STDIN"), sync()), "EZ"}, {cat(done, sync()), "Z"}}},
		{"COPY that a trigger refuses", []step{{cat(run("COPY refusing FROM STDIN"), sync()), "GEZ"}, {cat(data("1\n"), done, sync()), "Z"}}},
		{"COPY in a transaction", []step{{query("BEGIN"), "Z"}, {cat(copying, sync()), "G"}, {cat(data("1\n"), done, sync()), "Z"}, {query("COMMIT"), "Z"}}},
		{"Query behind a failure, then Sync", []step{{cat(fails, query("SELECT 1"), sync()), "Z"}}},
		{"Query behind a failure that was told", []step{{cat(fails, flush()), "E"}, {query("SELECT 1"), ""}, {sync(), "Z"}}},
		{"Queries behind a failure", []step{{cat(fails, query("SELECT 1"), query("SELECT 2"), sync(), query("SELECT 3")), "ZZ"}}},
		{"more behind a failure", []step{{cat(fails, query("SELECT 1"), run("SELECT 2"), sync(), run("SELECT 3"), sync()), "ZZ"}}},
		{"a name behind a failure", []step{{cat(fails, query("SELECT 1"), parse("s", "SELECT 4"), sync()), "Z"}, {cat(parse("s", "SELECT 5"), bind("", "s"), execute("", 0), closing('S', "s"), sync()), "Z"}}},
		{"Query behind what succeeds", []step{{cat(run("SELECT 1"), query("SELECT 2")), "Z"}, {sync(), "Z"}}},
		{"a failing Query behind what succeeds", []step{{cat(run("SELECT 1"), query("SELECT 1/0")), "Z"}, {sync(), "Z"}}},
		{"Queries behind a failure in a transaction", []step{{query("BEGIN"), "Z"}, {cat(fails, query("SELECT 1"), sync()), "Z"}, {query("ROLLBACK"), "Z"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.ReadLanes = 1, 1 }) // which knows no text yet
			answers := func(mine *wire) string {
				var got []string
				for _, s := range c.steps {
					mine.send(s.send)
					for _, typ := range []byte(s.until) {
						ms, err := mine.until(typ)
						if err != nil {
							return strings.Join(append(got, render(ms), err.Error()), " ")
						}
						got = append(got, render(ms))
					}
				}
				got = append(got, mine.ask("SELECT 1 AS x"), mine.ask("SELECT count(*) AS n FROM c"), mine.ask("TRUNCATE c"))
				return strings.Join(got, "; ")
			}
			direct.asNew()
			want := answers(direct)
			mine := w.wire()
			for range 2 {
				if got := answers(mine); got != want {
					t.Fatalf("\n got %s\nwant %s", got, want)
				}
			}
			w.wire().want("BEGIN", "BEGIN T") // on the one backend that there is
		})
	}
}

// Statements that a client sends before its Terminate are run, whether or not it waits for the
// answers.
func TestStatementsBeforeTerminateAreRun(t *testing.T) {
	t.Parallel()
	bye := pgwire.AppendTerminate(nil)
	add := "INSERT INTO d VALUES (1)"
	fresh := func() *weir {
		return start(t, database(t, "CREATE TABLE d (k int)"), func(c *postgres.Config) { c.PoolSize, c.ReadLanes = 1, 1 })
	}
	proxyFor := inTurn(fresh)
	for name, sent := range map[string][]byte{
		"a write":                query("/* batch=off */ " + add),
		"a grouped write":        query("/* batch */ " + add),
		"an extended write":      run(add),
		"writes":                 slices.Concat(query(add), query("DELETE FROM d"), query("INSERT INTO d VALUES (1)")),
		"a write after its lock": slices.Concat(query("SELECT pg_sleep(0.2)"), query(add)),
		"a transaction":          slices.Concat(query("BEGIN"), query(add), query("COMMIT")),
		"COPY":                   slices.Concat(query("COPY d FROM STDIN"), pgwire.AppendCopyData(nil, []byte("1\n")), pgwire.AppendCopyDone(nil)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := proxyFor(t)
			other := w.wire()
			for _, gone := range []bool{false, true} {
				mine := w.wire()
				other.want("BEGIN", "BEGIN T") // the backend is in use
				mine.send(sent, bye)
				if gone {
					mine.close()
				}
				other.want("COMMIT", "COMMIT I")
				if !gone {
					if got := mine.end(); len(got) == 0 || got[len(got)-1].typ != pgwire.ServerReady {
						t.Errorf("answered %s", render(got))
					}
				}
				eventually(t, "it is run", func() bool { return other.ask("SELECT count(*) AS n FROM d") == "[n] (1) SELECT_1 I" })
				eventually(t, "the client is gone", func() bool { return w.pool().Clients == 1 })
				other.want("DELETE FROM d", "DELETE_1 I")
			}
		})
	}
	// An incomplete one is not.
	w := fresh()
	for _, sent := range [][]byte{
		slices.Concat(query("COPY d FROM STDIN"), pgwire.AppendCopyData(nil, []byte("1\n"))),
		slices.Concat(parse("", add), bind("", ""), execute("", 0)),
		slices.Concat(query("BEGIN"), query(add)),
	} {
		mine := w.wire()
		mine.send(sent, bye)
		mine.end()
		mine.close()
		w.wire().want("SELECT count(*) AS n FROM d", "[n] (0) SELECT_1 I")
	}
}
