package mysql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Statements between a warning and the question for it leave it, or take it away, as on a
// direct connection; where the connection was used for something else meanwhile, the answer
// is the same or refused.
func TestWarningsBehindOtherStatements(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 1 })
		other, answered := w.dial(nil), 0
		for _, first := range []string{"DROP TABLE IF EXISTS nothing", "SELECT a FROM nothing", "INSERT INTO t VALUES ('x')"} {
			for _, between := range []string{
				"SET SESSION sql_mode = ''", "SET sql_mode = 'ANSI_QUOTES'", "SET NAMES latin1", "SET @@max_error_count = 60",
				"BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION READ ONLY; ROLLBACK", "SET SESSION sql_mode = ''; COMMIT",
				"SET SESSION max_error_count = (SELECT 60 + a FROM t)", "DO 1", "UPDATE t SET a = a", "SELECT a FROM t",
				"BEGIN; SAVEPOINT s; ROLLBACK TO s; RELEASE SAVEPOINT s; COMMIT",
				"SET STATEMENT max_statement_time = 100 FOR UPDATE t SET a = a",
			} {
				for _, question := range []string{"SHOW WARNINGS", "SHOW ERRORS", "SHOW COUNT(*) WARNINGS", "SELECT @@warning_count, @@error_count"} {
					steps := append(append([]string{first}, strings.Split(between, "; ")...), question)
					run := func(c *wire, share func()) (last reply) {
						for i, sql := range steps {
							last = c.try(c.query(sql))
							if i < len(steps)-1 && last.ok.Status&mywire.StatusInTrans == 0 {
								share()
							}
						}
						_ = c.Close()
						return last
					}
					want := run(dialAt(t, server.Addr(), db, nil), func() {})
					for _, shares := range []bool{false, true} {
						got := run(w.dial(nil), func() {
							if shares {
								other.try(other.query("SELECT a FROM t WHERE a = 1 FOR UPDATE"))
							}
						})
						if got.code() == mywire.ErrNotSupportedYet {
							continue
						}
						if answered++; got.text != want.text {
							t.Errorf("%q, others between %v:\n  weir %s %v\ndirect %s", steps, shares, got.text, got.lost, want.text)
						}
					}
				}
			}
		}
		if answered < 100 {
			t.Errorf("%d questions were answered", answered)
		}
	})
}

// A prepared question for warnings finds those that were there when it was prepared, or is
// refused, with a cursor as well.
func TestPreparedQuestionsForWarnings(t *testing.T) {
	t.Parallel()
	if !isMariaDB(server(t)) {
		t.Skip("MySQL does not prepare SHOW WARNINGS")
	}
	db := database(t, "CREATE TABLE t (a INT)")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = 1 })
	w.dial(nil).must("DO 1")
	for _, flags := range []byte{0, mywire.CursorReadOnly} {
		ask := func(c *wire) (last reply) {
			c.must("INSERT IGNORE INTO t VALUES ('6x')")
			c.try(c.query("SHOW WARNINGS"))
			st := c.prepare("SHOW WARNINGS")
			if last = c.try(mywire.AppendExecute(nil, c.Caps, st.id, flags, nil, nil)); last.ok.Status&mywire.StatusCursorExists != 0 {
				last = c.try(mywire.AppendFetch(nil, st.id, 9))
			}
			_ = c.Close()
			return last
		}
		got, want := ask(w.dial(nil)), ask(directTo(t, server(t), db))
		if got.code() != mywire.ErrNotSupportedYet && got.text != want.text {
			t.Errorf("flags %d:\n  weir %s %v\ndirect %s", flags, got.text, got.lost, want.text)
		}
	}
}

// A client that asks for warnings alone keeps no connection that others wait for, whatever
// pool of its database they wait in, and gets its warnings all the same.
func TestWhoAsksForWarningsKeepsNoConnection(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (a INT)", "CREATE TABLE locked (a INT)")
	sqlOn(t, server(t), "GRANT ALL ON "+db+".* TO bob@'%'")
	w := start(t, db, func(c *mysql.Config) {
		c.MaxDBConnections, c.QueueTimeout = 1, 10*time.Second
		knowsBob(t, c)
	})
	c, other, stranger := w.dial(nil), w.dial(nil), w.dial(asBob)
	others := func() {
		other.must("UPDATE t SET a = a")
		stranger.must("UPDATE t SET a = a")
	}
	warned := func(what, want string) {
		t.Helper()
		for range 2 {
			if r := c.try(c.query("SHOW WARNINGS")); !strings.Contains(r.text, want) {
				t.Errorf("%s: %s %v, want %s", what, r.text, r.lost, want)
			}
			others()
		}
	}
	others()
	c.try(c.query("SELECT a FROM nothing"))
	warned("a failure", "nothing")
	c.must("INSERT IGNORE INTO t VALUES ('x6')")
	others()
	warned("a warning", "x6")

	lock := directTo(t, server(t), db)
	lock.must("LOCK TABLES locked WRITE")
	insert, wait := make(chan reply, 1), make(chan reply, 1)
	go func() { insert <- c.try(c.query("INSERT IGNORE INTO locked VALUES ('x7')")) }()
	eventually(t, "one waits for the lock", func() bool { return w.pool().Owned == 1 })
	go func() { wait <- other.try(other.query("UPDATE t SET a = a")) }()
	eventually(t, "another one for the connection", func() bool { return w.pool().Waiting == 1 })
	lock.must("UNLOCK TABLES")
	for _, r := range []reply{<-insert, <-wait} {
		if r.err != nil || r.lost != nil {
			t.Errorf("%s %v", r.text, r.lost)
		}
	}
	warned("a warning while others waited", "x7")
}

// Warnings that are too long for weir to keep are left to the server: their client keeps its
// connection, though others wait for it, and gets them.
func TestLongWarningsWhileOthersWait(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (a INT)")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize, c.QueueTimeout = 1, time.Hour })
	c, other := w.dial(nil), w.dial(nil)
	c.must("SET max_error_count = 1000")
	c.must("SHOW WARNINGS")
	c.must("INSERT IGNORE INTO t WITH RECURSIVE s (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM s WHERE x < 1000) SELECT REPEAT('x', 100) FROM s")
	update := make(chan reply, 1)
	go func() { update <- other.try(other.query("UPDATE t SET a = a")) }()
	eventually(t, "another one waits, or has not had to", func() bool { return w.pool().Waiting == 1 || len(update) == 1 })
	for range 2 {
		if r := c.try(c.query("SHOW WARNINGS")); r.err != nil || r.lost != nil || len(r.text) < 64<<10 {
			t.Errorf("%.100s %v, want warnings of more than 64 KiB", r.text, r.lost)
		}
	}
	_ = c.Close()
	if r := <-update; r.err != nil || r.lost != nil {
		t.Errorf("%s %v", r.text, r.lost)
	}
}
