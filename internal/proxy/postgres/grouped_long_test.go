package postgres_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestLongAnswersOfGroups: the rows that a member of a group returns are not kept until
// the group is flushed where they are many, and arrive as directly. The next statements
// like it run alone.
func TestLongAnswersOfGroups(t *testing.T) {
	t.Parallel()
	fill := func(table string) string {
		return "INSERT INTO " + table + " SELECT i, repeat('x', 100000) FROM generate_series(1, 60) i"
	}
	for _, simple := range []bool{true, false} {
		t.Run(fmt.Sprintf("simple %v", simple), func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE big (k int PRIMARY KEY, v text)", "CREATE TABLE gib (k int PRIMARY KEY, v text)")
			w := start(t, db, oneLane(nil))
			warm := "/* batch */ DELETE FROM big WHERE k = 0"
			all := w.clients(8, warm)
			w.mustGather("solo", func(int) {
				messages := make([][]byte, len(all))
				for i := range all {
					messages[i] = run("/* batch */ DELETE FROM big WHERE k = $1", "0")
				}
				together(all, messages)
			})
			direct, admin := dialWire(t, server(t).Addr(), db), sqlOver(t, server(t).DSN(db))
			message := func(sql, key string) []byte {
				if simple {
					return query(strings.ReplaceAll(sql, "$1", key))
				}
				return run(sql, key)
			}
			gathered := w.gathered("solo")
			for round := range 3 {
				admin(fill("big"), fill("gib"))
				remove := fmt.Sprintf("DELETE FROM %%s WHERE k > $1 RETURNING k, v AS a%d", round) // each is a shape of its own
				messages := make([][]byte, len(all))
				for i := range all {
					messages[i] = run("/* batch */ DELETE FROM big WHERE k = $1", "0")
				}
				messages[round] = message("/* batch */ "+fmt.Sprintf(remove, "big"), "20")
				direct.send(message(fmt.Sprintf(remove, "gib"), "20"))
				want := render(direct.ready())
				for i, ms := range together(all, messages) {
					if got := render(ms); i == round && got != want {
						t.Fatalf("the answer differs from the server's own: %.200s ... %s, directly %.200s ... %s", got, got[max(0, len(got)-90):], want, want[max(0, len(want)-90):])
					} else if i != round && !strings.HasSuffix(got, "DELETE_0 I") {
						t.Fatalf("client %d: %s", i, got)
					}
				}
				admin("TRUNCATE gib", "DELETE FROM big")
			}
			if w.gathered("solo") == gathered {
				t.Error("nothing was grouped")
			}
			admin(fill("big"))
			before := w.pool().Grouped
			all[0].send(message("/* batch */ DELETE FROM big WHERE k > $1 RETURNING k, v AS a0", "20"))
			if got := render(all[0].ready()); !strings.HasSuffix(got, "DELETE_40 I") {
				t.Fatal(got[max(0, len(got)-90):])
			}
			if after := w.pool().Grouped; after != before {
				t.Error("a statement whose answers are known to be long was grouped")
			}
		})
	}
}

// TestLongAnswersOfGroupsThatNobodyReads: a client that reads nothing of what a member of
// a group returns is disconnected when others of it wait. The group goes on.
func TestLongAnswersOfGroupsThatNobodyReads(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE big (k int PRIMARY KEY)", "CREATE TABLE small (k int PRIMARY KEY)")
	w := start(t, db, oneLane(func(c *postgres.Config) { c.NoRowsLane = true }))
	others := w.clients(2, "/* batch:100 */ DELETE FROM big WHERE k = 0", "/* batch:100 */ DELETE FROM small WHERE k = 0")
	gone := false
	for round := 0; !gone && round < 100; round++ {
		c := w.wire()
		sqlOn(t, server(t).DSN(db), "INSERT INTO big SELECT generate_series(1, 120) ON CONFLICT DO NOTHING")
		c.send(query(fmt.Sprintf("/* batch:100 */ DELETE FROM big RETURNING repeat('x', 1000000) AS a%d", round))) // each is a shape of its own
		for i, ms := range together(others, [][]byte{query("/* batch:100 */ DELETE FROM small WHERE k = 0"), run("/* batch:100 */ DELETE FROM small WHERE k = 0")}) {
			if got := render(ms); !strings.HasSuffix(got, "DELETE_0 I") {
				t.Fatalf("client %d of the group: %s", i, got)
			}
		}
		gone = w.snapshot().Clients == len(others) // else it ran alone
		c.close()
		eventually(t, "the client has left", func() bool { return w.snapshot().Clients == len(others) })
	}
	direct := dialWire(t, server(t).Addr(), db)
	if got := direct.ask("SELECT count(*) AS n FROM big"); !gone || !strings.Contains(got, "(0)") {
		t.Errorf("the client was disconnected: %v; %s rows are left", gone, got)
	}
}

// TestLongAnswersOfGroupsThatAreReadSlowly: while a client does not read what a member of
// a group returns, the server waits, and the client gets all of it, be it one row.
func TestLongAnswersOfGroupsThatAreReadSlowly(t *testing.T) {
	t.Parallel()
	testkit.Long(t, "sends answers of 125 MB")
	const size = 125_000_000 // more than weir holds, 64 MB, and the sockets, which may hold 40
	for _, rows := range []int{1, 100} {
		t.Run(fmt.Sprintf("%d rows", rows), func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE big (k int PRIMARY KEY)", fmt.Sprintf("INSERT INTO big SELECT generate_series(1, %d)", rows))
			w := start(t, db, func(c *postgres.Config) { c.NoRowsLane, c.ClientWriteTimeout = true, time.Hour })
			c := w.wire()
			if err := c.conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
				t.Fatal(err)
			}
			eventually(t, "writes are grouped", func() bool {
				c.ask("/* batch */ DELETE FROM big WHERE k = 0")
				return w.pool().Grouped > 0
			})
			c.send(query(fmt.Sprintf("/* batch */ DELETE FROM big RETURNING repeat('x', %d)", size/rows)))
			direct, waits := dialWire(t, server(t).Addr(), db), 0
			eventually(t, "the server waits", func() bool {
				if strings.Contains(direct.ask("SELECT count(*) AS n FROM pg_stat_activity WHERE query LIKE '%RETURNING repeat%' AND wait_event = 'ClientWrite' AND datname = current_database()"), "(1)") {
					waits++
				} else {
					waits = 0
				}
				return waits == 10
			})
			got := c.ready()
			n := 0
			for _, m := range got {
				if m.typ == pgwire.ServerDataRow {
					n += len(m.body)
				}
			}
			if want := size + 6*rows; n != want {
				t.Errorf("rows of %d bytes, want %d", n, want)
			}
			if end := got[len(got)-2].String(); end != fmt.Sprintf("DELETE_%d", rows) {
				t.Errorf("the answer ends with %s", end)
			}
		})
	}
}

// TestQueryTimeoutOfALongAnswerThatNobodyReads: where a member of a group reads nothing of
// its answer for longer than --query-timeout, it alone is disconnected. Where the server is
// too slow to end the statement in time, the group is lost: all of it or nothing has run.
func TestQueryTimeoutOfALongAnswerThatNobodyReads(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE big (k int PRIMARY KEY)", "CREATE TABLE small (k int PRIMARY KEY)")
	w := start(t, db, oneLane(func(c *postgres.Config) {
		c.NoRowsLane, c.QueryTimeout, c.ClientWriteTimeout = true, 10*time.Second, time.Hour // 5 s later the group is lost
	}))
	others := w.clients(2, "/* batch:100 */ DELETE FROM big WHERE k = 0", "/* batch:100 */ DELETE FROM small WHERE k = 0")
	direct, gone := dialWire(t, server(t).Addr(), db), false
	for round := 0; !gone && round < 100; round++ {
		c, lost, before := w.wire(), false, w.gathered("solo")
		sqlOn(t, server(t).DSN(db), "INSERT INTO big SELECT generate_series(1, 120) ON CONFLICT DO NOTHING")
		c.send(query(fmt.Sprintf("/* batch:100 */ DELETE FROM big RETURNING repeat('x', 1000000) AS a%d", round))) // each is a shape of its own
		for i, ms := range together(others, [][]byte{query("/* batch:100 */ DELETE FROM small WHERE k = 0"), run("/* batch:100 */ DELETE FROM small WHERE k = 0")}) {
			got := render(ms)
			switch e := errorIn(ms); {
			case e != nil && e.Code == pgwire.CodeConnectionFailure:
				lost = true
			case !strings.HasSuffix(got, "DELETE_0 I"):
				t.Fatalf("client %d of the group: %s", i, got)
			}
		}
		if !lost {
			eventually(t, "the client is disconnected", func() bool { return w.snapshot().Clients == len(others) })
			gone = w.gathered("solo") > before
		}
		c.close()
		eventually(t, "the client has left", func() bool { return w.snapshot().Clients == len(others) })
		got := direct.ask("SELECT count(*) AS n FROM big")
		if !strings.Contains(got, "(0)") && (gone || !strings.Contains(got, "(120)")) {
			t.Errorf("%s rows are left, the client was disconnected alone: %v", got, gone)
		}
	}
	if !gone {
		t.Errorf("no client was disconnected: %+v", w.snapshot().Lanes)
	}
}

// TestLongAnswersOfGroupsThatMeetALock: a write meets a lock when more of its answer has left
// than weir keeps, so that it cannot be run again. The server sends what a write returns when it
// is carried out: the lock is one of a deferred check. Its client is told whose timeout that was.
func TestLongAnswersOfGroupsThatMeetALock(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE p (k int PRIMARY KEY)", "INSERT INTO p VALUES (1)", "CREATE TABLE big (k int, p int REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
	w := start(t, db, func(c *postgres.Config) { c.NoRowsLane = true })
	c := w.wire()
	eventually(t, "writes are grouped", func() bool {
		c.ask("/* batch */ DELETE FROM big WHERE k = 0")
		return w.pool().Grouped > 0
	})
	blocker := dialWire(t, server(t).Addr(), db)
	blocker.want("BEGIN", "BEGIN T")
	blocker.want("UPDATE p SET k = 2", "UPDATE_1 T")
	c.send(query("/* batch */ INSERT INTO big SELECT g, 1 FROM generate_series(1, 30) g RETURNING repeat('x', 1000000)"))
	got := c.ready()
	if e := errorIn(got); e == nil || e.Code != pgwire.CodeLockNotAvailable || !strings.Contains(e.Message, "of weir") {
		t.Errorf("the answer ends with %v", e)
	}
	blocker.want("ROLLBACK", "ROLLBACK I")
	c.want("SELECT count(*) AS n FROM big", "[n] (0) SELECT_1 I")
}
