package mysql_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// longRows fills a table k with numbers.
const longRows = "INSERT INTO %s WITH RECURSIVE s (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM s WHERE x < %d) SELECT x FROM s"

// longer is so many rows of 1 MB that they are more than weir keeps after mysql.KeepLess, and
// sockets on either side of it.
const longer = 30

// TestLongAnswersOfGroups: the rows that a member of a group returns are not kept until
// the group has committed where they are many, and arrive as directly. The next
// statements like it run alone.
func TestLongAnswersOfGroups(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "DELETE RETURNING")
	const rows = 30
	for name, without := range map[string]mywire.Caps{"": 0, "in the older form": mywire.CapDeprecateEOF} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE big (k INT PRIMARY KEY)", "CREATE TABLE gib (k INT PRIMARY KEY)", "CREATE TABLE g (k INT)")
			w := start(t, db, oneGroupAtATime(mysql.KeepLess))
			change := func(c *mywire.ConnectConfig) { c.Caps = (mywire.WantedCaps | mywire.CapDeprecateEOF) &^ without }
			all, messages := make([]*wire, 8), make([][]byte, 8)
			for i := range all {
				all[i] = w.dial(change)
			}
			direct := w.dial(func(c *mywire.ConnectConfig) { change(c); c.Address = server(t).Addr() })
			for round := range 4 {
				for _, table := range []string{"big", "gib"} {
					sqlOn(t, server(t), "USE "+db, fmt.Sprintf(longRows, table, rows))
				}
				remove := fmt.Sprintf("DELETE FROM %%s RETURNING k, REPEAT('x', 40000) AS a%d", round) // each is a shape of its own
				want := direct.try(direct.query(fmt.Sprintf(remove, "gib")))
				for i := range all {
					messages[i] = all[i].query("/* batch */ INSERT INTO g (k) SELECT 1")
				}
				messages[round] = all[round].query("/* batch */ " + fmt.Sprintf(remove, "big"))
				for i, r := range together(all, messages) {
					switch {
					case r.lost != nil || r.err != nil:
						t.Fatalf("client %d: %v %v", i, r.err, r.lost)
					case i == round && r.text != strings.ReplaceAll(want.text, "gib", "big"):
						t.Fatalf("the answer differs from the server's own: %.300q ... %q, directly %.300q ... %q", r.text, r.text[max(0, len(r.text)-90):], want.text, want.text[max(0, len(want.text)-90):])
					}
				}
			}
			if w.extras(txLane) == 0 {
				t.Error("nothing was grouped")
			}
			sqlOn(t, server(t), "USE "+db, fmt.Sprintf(longRows, "big", rows))
			before := w.pool().Grouped
			if r := all[0].try(all[0].query("/* batch */ DELETE FROM big RETURNING k, REPEAT('x', 40000) AS a0")); r.err != nil || r.lost != nil {
				t.Fatal(r.err, r.lost)
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
	needsMariaDB(t, "DELETE RETURNING")
	const none = "/* batch:100 */ DELETE FROM small WHERE k = 0"
	db := database(t, "CREATE TABLE big (k INT PRIMARY KEY)", "CREATE TABLE small (k INT PRIMARY KEY)")
	w := start(t, db, oneGroupAtATime(func(c *mysql.Config) {
		c.NoRowsLane = true
		mysql.KeepLess(c)
	}))
	others, direct := w.dials(2), directTo(t, server(t), db)
	eventually(t, "writes are grouped", func() bool {
		others[0].must("/* batch */ DELETE FROM big WHERE k = 0")
		return w.pool().Grouped > 0
	})
	gone := false
	for round := 0; !gone && round < 9; round++ {
		c, before := w.dial(nil), w.extras(txLane)
		sqlOn(t, server(t), "USE "+db, "DELETE FROM big", fmt.Sprintf(longRows, "big", longer))
		c.send(c.query(fmt.Sprintf("/* batch:100 */ DELETE FROM big RETURNING REPEAT('x', 1000000) AS a%d", round))) // each is a shape of its own
		for i, r := range together(others, [][]byte{others[0].query(none), others[1].query(none)}) {
			if r.err != nil || r.lost != nil {
				t.Fatalf("client %d of the group: %v %v", i, r.err, r.lost)
			}
		}
		gone = w.extras(txLane) > before && w.snapshot().Clients == len(others) // else it ran alone, or they
		_ = c.Close()
		eventually(t, "the client has left", func() bool { return w.snapshot().Clients == len(others) })
	}
	if got := direct.one("SELECT COUNT(*) FROM big"); !gone || got != "0" {
		t.Errorf("the client was disconnected: %v; %s rows are left", gone, got)
	}
}

// drain reads the answer to a query, however long, and keeps nothing of it.
func (c *wire) drain() (rows uint64, bytes int) {
	c.tb.Helper()
	var a mywire.Answer
	a.Reset(mywire.ComQuery, c.Caps)
	buf := make([]byte, 64<<10)
	for event := mywire.EventMore; event != mywire.EventDone; {
		n, err := c.Conn.Read(buf)
		if err != nil {
			c.tb.Fatalf("after %d bytes: %v", bytes, err)
		}
		bytes += n
		if _, event, err = a.Feed(buf[:n]); err != nil {
			c.tb.Fatalf("after %d bytes: %v", bytes, err)
		}
	}
	if err := a.Err(); err != nil {
		c.tb.Fatal(err)
	}
	return a.Rows(), bytes
}

// TestLongAnswersOfGroupsThatAreReadSlowly: while a client does not read what a member of
// a group returns, the server waits, and the client gets all of it.
func TestLongAnswersOfGroupsThatAreReadSlowly(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "DELETE RETURNING")
	const rows = longer
	db := database(t, "CREATE TABLE big (k INT PRIMARY KEY)", fmt.Sprintf(longRows, "big", rows))
	w := start(t, db, func(c *mysql.Config) {
		c.NoRowsLane, c.ClientWriteTimeout = true, time.Hour
		mysql.KeepLess(c)
	})
	c := w.dial(nil)
	eventually(t, "writes are grouped", func() bool {
		c.must("/* batch */ DELETE FROM big WHERE k = 0")
		return w.pool().Grouped > 0
	})
	c.send(c.query("/* batch */ DELETE FROM big RETURNING REPEAT('x', 1000000)"))
	before := uint64(0)
	eventually(t, "weir reads nothing more", func() bool {
		last := before
		before = w.snapshot().Loops[0].BytesIn
		return before > mysql.MostSharedOut && before == last
	})
	if before > mysql.MostSharedOut+mysql.MostHeld+16<<20 {
		t.Errorf("weir has read %d MB for a client that does not read", before>>20)
	}
	if n, bytes := c.drain(); n != rows || bytes < rows*1_000_000 {
		t.Errorf("%d rows, %d bytes", n, bytes)
	}
	if got := c.one("SELECT COUNT(*) FROM big"); got != "0" {
		t.Errorf("%s rows are left", got)
	}
}

// TestQueryTimeoutOfALongAnswerThatNobodyReads: where a member of a group reads nothing of
// its answer for longer than --query-timeout, it alone is disconnected. Where the server is
// too slow to end the statement in time, the group is lost: all of it or nothing has run.
func TestQueryTimeoutOfALongAnswerThatNobodyReads(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "DELETE RETURNING")
	const none = "/* batch:100 */ DELETE FROM small WHERE k = 0"
	db := database(t, "CREATE TABLE big (k INT PRIMARY KEY)", "CREATE TABLE small (k INT PRIMARY KEY)")
	w := start(t, db, oneGroupAtATime(func(c *mysql.Config) {
		c.NoRowsLane, c.QueryTimeout, c.ClientWriteTimeout = true, 10*time.Second, time.Hour // 5 s later the group is lost
		mysql.KeepLess(c)
	}))
	others, gone, direct := w.dials(2), false, directTo(t, server(t), db)
	for round := 0; !gone && round < 9; round++ {
		c := w.dial(nil)
		sqlOn(t, server(t), "USE "+db, "DELETE FROM big", fmt.Sprintf(longRows, "big", longer))
		for _, table := range []string{"big", "small"} { // what is known of them is kept for less than a round takes
			grouped := w.pool().Grouped
			eventually(t, "writes are grouped", func() bool {
				others[0].must("/* batch */ DELETE FROM " + table + " WHERE k = 0")
				return w.pool().Grouped > grouped
			})
		}
		extras, ended, lost := w.extras(txLane), w.pool().Limited["query_timeout"], false
		c.send(c.query(fmt.Sprintf("/* batch:100 */ DELETE FROM big RETURNING REPEAT('x', 1000000) AS a%d", round))) // each is a shape of its own
		for i, r := range together(others, [][]byte{others[0].query(none), others[1].query(none)}) {
			switch {
			case r.lost == nil && r.code() == mywire.ErrNetRead:
				lost = true
			case r.err != nil || r.lost != nil:
				t.Fatalf("client %d of the group: %v %v", i, r.err, r.lost)
			}
		}
		if !lost {
			eventually(t, "the timeout has come", func() bool { return w.pool().Limited["query_timeout"] > ended })
			gone = w.extras(txLane) > extras && w.snapshot().Clients == len(others) // else it ran alone, or they
		}
		_ = c.Close()
		eventually(t, "the client has left", func() bool { return w.snapshot().Clients == len(others) })
		if left := direct.one("SELECT COUNT(*) FROM big"); left != "0" && (gone || left != fmt.Sprint(longer)) {
			t.Errorf("%s rows are left, the client was disconnected alone: %v", left, gone)
		}
	}
	if !gone {
		t.Errorf("no client was disconnected: %+v", w.snapshot().Lanes)
	}
}

// TestLongReadsBesideOthersAreReadSlowly: a read that was thought to be short, with others
// sent behind it, and whose client takes it slowly. The others are answered meanwhile, and
// the client gets all of it.
func TestLongReadsBesideOthersAreReadSlowly(t *testing.T) {
	t.Parallel()
	const rows = longer
	db := database(t, "CREATE TABLE big (k INT PRIMARY KEY)", fmt.Sprintf(longRows, "big", rows))
	w := start(t, db, func(c *mysql.Config) {
		c.ReadLanes = 1
		mysql.KeepLess(c)
	})
	const other = "SELECT 1 FROM big WHERE k = 1"
	slow, others, round := w.dial(nil), w.dials(8), 0
	eventually(t, "reads were sent behind a long one", func() bool {
		round++
		read := fmt.Sprintf("SELECT REPEAT('x', 1000000) AS a%d FROM big WHERE k < ", round) // a shape of its own
		w.warmReads(read+"0", other)
		moved := w.pool().Moved
		slow.send(slow.query(read + "1000"))
		for _, c := range others {
			c.send(c.query(other))
		}
		for _, c := range others {
			if n, _ := c.drain(); n != 1 {
				t.Fatalf("%d rows", n)
			}
		}
		if n, bytes := slow.drain(); n != rows || bytes < rows*1_000_000 {
			t.Fatalf("%d rows, %d bytes", n, bytes)
		}
		return w.pool().Moved > moved
	})
}

// TestLongAnswersThatEndAtALock: a client whose statement could not be run again, since
// its rows were too many to be kept, is told that it was weir that has not waited.
func TestLongAnswersThatEndAtALock(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "DELETE RETURNING")
	const rows = 8
	db := database(t, "CREATE TABLE big (k INT PRIMARY KEY)", fmt.Sprintf(longRows, "big", rows))
	w := start(t, db, func(c *mysql.Config) {
		c.NoRowsLane = true
		mysql.KeepLess(c)
	})
	c := w.dial(nil)
	eventually(t, "writes are grouped", func() bool {
		c.must("/* batch */ DELETE FROM big WHERE k = 0")
		return w.pool().Grouped > 0
	})
	holder := directTo(t, server(t), db)
	holder.must("BEGIN")
	holder.must(fmt.Sprintf("UPDATE big SET k = k WHERE k = %d", rows))
	r := c.try(c.query("/* batch */ DELETE FROM big RETURNING REPEAT('x', 1000000)"))
	if r.code() != mywire.ErrLockWaitTimeout || !strings.Contains(r.err.Message, "of weir") {
		t.Errorf("the client is told %v, %v", r.err, r.lost)
	}
	holder.must("ROLLBACK")
	if got := c.one("SELECT COUNT(*) FROM big"); got != fmt.Sprint(rows) {
		t.Errorf("%s of %d rows are left", got, rows)
	}
}
