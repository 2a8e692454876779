package mysql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
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
			for i, between := range []string{
				"SET SESSION sql_mode = ''", "SET sql_mode = 'ANSI_QUOTES'", "SET NAMES latin1", "SET @@max_error_count = 60",
				"BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION READ ONLY; ROLLBACK", "SET SESSION sql_mode = ''; COMMIT",
				"SET SESSION max_error_count = (SELECT 60 + a FROM t)", "DO 1", "UPDATE t SET a = a", "SELECT a FROM t",
				"BEGIN; SAVEPOINT s; ROLLBACK TO s; RELEASE SAVEPOINT s; COMMIT",
				"SET STATEMENT max_statement_time = 100 FOR UPDATE t SET a = a",
			} {
				steps := append([]string{first}, strings.Split(between, "; ")...)
				prepare := func(c *wire, share func()) {
					for _, sql := range steps {
						if r := c.try(c.query(sql)); r.ok.Status&mywire.StatusInTrans == 0 {
							share()
						}
					}
				}
				direct := dialAt(t, server.Addr(), db, nil)
				prepare(direct, func() {})
				for j, question := range []string{"SHOW WARNINGS", "SHOW ERRORS", "SHOW COUNT(*) WARNINGS", "SELECT @@warning_count, @@error_count"} {
					want := direct.try(direct.query(question)) // none but the last overwrites what the next asks for
					for _, shares := range []bool{false, true} {
						if testing.Short() && shares != ((i+j)%2 == 0) {
							continue // others are in between for every other question
						}
						c := w.dial(nil)
						prepare(c, func() {
							if shares {
								other.try(other.query("SELECT a FROM t WHERE a = 1 FOR UPDATE"))
							}
						})
						got := c.try(c.query(question))
						_ = c.Close()
						if got.code() == mywire.ErrNotSupportedYet {
							continue
						}
						if answered++; got.text != want.text {
							t.Errorf("%q, %s, others between %v:\n  weir %s %v\ndirect %s", steps, question, shares, got.text, got.lost, want.text)
						}
					}
				}
				_ = direct.Close()
			}
		}
		if answered < 50 {
			t.Errorf("%d questions were answered", answered)
		}
	})
}

// A session that keeps its connection is shown what is there, whatever weir itself has asked there
// meanwhile.
func TestWarningsOfPinnedSessions(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a INT)")
		c, direct := startFor(t, server, db, nil).dial(nil), dialAt(t, server.Addr(), db, nil)
		for _, between := range []string{
			"SET @@max_error_count = 64", "SET SESSION sql_mode = ''", "SET CHARACTER SET latin1", "SET timestamp = 5", "SELECT 'from'; SET @@max_error_count = 63",
			"USE " + db + "; SET @@max_error_count = 62", "BEGIN; SELECT EXTRACT(YEAR FROM NOW()); COMMIT; SET @@max_error_count = 61",
			"SELECT GET_LOCK('" + db + "', 0); SELECT RELEASE_LOCK('" + db + "')", "SELECT a FROM t; SET @@max_error_count = 60",
			"PREPARE p FROM 'DO 1'; EXECUTE p; DEALLOCATE PREPARE p; SET @@max_error_count = 59",
		} {
			ask := func(c *wire) string {
				c.try(c.query("SHOW WARNINGS; SELECT 1; SHOW WARNINGS")) // keeps the connection
				c.try(c.query("SELECT a FROM nothing"))
				for sql := range strings.SplitSeq(between, "; ") {
					c.try(c.query(sql))
				}
				return c.try(c.query("SHOW WARNINGS")).text
			}
			if got, want := ask(c), ask(direct); got != want {
				t.Errorf("%s:\n  weir %s\ndirect %s", between, got, want)
			}
		}
	})
}

// What a text of several statements leaves is what its last statement has not cleared: the
// answer to that one does not say.
func TestWarningsOfTextsOfSeveralStatements(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a INT)")
		w, answered := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 2 }), 0
		for _, text := range []string{"INSERT IGNORE INTO t VALUES ('6x'); SHOW WARNINGS", "INSERT IGNORE INTO t VALUES ('6x'); SELECT 1", "SELECT 1; SELECT 2", "SELECT 1; DELETE FROM t"} {
			ask := func(c *wire) reply {
				c.try(c.query("SHOW WARNINGS"))
				c.must("INSERT IGNORE INTO t VALUES ('7x')")
				c.try(c.query(text))
				defer func() { _ = c.Close() }()
				return c.try(c.query("SHOW WARNINGS"))
			}
			want := ask(dialAt(t, server.Addr(), db, nil))
			if got := ask(w.dial(nil)); got.text == want.text {
				answered++
			} else if got.code() != mywire.ErrNotSupportedYet {
				t.Errorf("%s\n  weir %s %v\ndirect %s", text, got.text, got.lost, want.text)
			}
		}
		if answered == 0 {
			t.Error("none was answered")
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

// A client that has changed to another pool gives back its connection there as well.
func TestWhoChangesPoolsKeepsNoConnection(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a INT)"), func(c *mysql.Config) { c.MaxDBConnections, c.QueueTimeout = 1, 10*time.Second })
	c, other := w.dial(nil), w.dial(nil)
	off := mywire.AppendSetOption(nil, mywire.OptionMultiStatementsOff)
	other.try(off)
	for _, m := range [][]byte{c.query("SELECT a FROM nothing"), c.query("UPDATE t SET a = a"), off, c.query("SELECT a FROM nothing")} {
		c.try(m)
	}
	if r := other.try(other.query("UPDATE t SET a = a")); r.err != nil || r.lost != nil {
		t.Errorf("%s %v", r.text, r.lost)
	}
}

// Warnings that are too long for weir to keep are left to the server: their client keeps its
// connection, though others wait for it, and gets them. The number of rows is not left: weir
// has overwritten it when it looked.
func TestLongWarningsWhileOthersWait(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (a INT)")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize, c.QueueTimeout = 1, time.Hour })
	for question, right := range map[string]func(r reply) bool{
		"SHOW WARNINGS":      func(r reply) bool { return r.err == nil && r.lost == nil && len(r.text) > 64<<10 },
		"SELECT ROW_COUNT()": func(r reply) bool { return r.code() == mywire.ErrNotSupportedYet || strings.Contains(r.text, "1000") },
	} {
		c, other := w.dial(nil), w.dial(nil)
		c.must("SET max_error_count = 1000")
		c.must("SHOW WARNINGS")
		c.must("INSERT IGNORE INTO t WITH RECURSIVE s (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM s WHERE x < 1000) SELECT REPEAT('x', 100) FROM s")
		update := make(chan reply, 1)
		go func() { update <- other.try(other.query("UPDATE t SET a = a")) }()
		eventually(t, "another one waits, or has not had to", func() bool { return w.pool().Waiting == 1 || len(update) == 1 })
		if r := c.try(c.query(question)); !right(r) {
			t.Errorf("%s: %.100s %v", question, r.text, r.lost)
		}
		_ = c.Close()
		if r := <-update; r.err != nil || r.lost != nil {
			t.Errorf("%s %v", r.text, r.lost)
		}
	}
}

// A client that reads a number of rows after each statement, in the same words, keeps no
// connection that others wait for, and gets what it would on a direct connection.
func TestWhoAsksForNumbersOfRowsKeepsNoConnection(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		setup := []string{"CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1), (2), (3), (4)"}
		db, plain := databaseOn(t, server, setup...), databaseOn(t, server, setup...)
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize, c.QueueTimeout = 1, 10*time.Second })
		other := w.dial(nil)
		for question, statements := range map[string][]string{
			"select Row_Count() ;": {"UPDATE t SET a = a + 10 WHERE a < 3", "INSERT INTO t VALUES (7), (8), (9)", "DELETE FROM t WHERE a = 7", "SELECT a FROM t", "CREATE TABLE made (a INT)", "DO 1", "SELECT a FROM nothing"},
			"SELECT FOUND_ROWS()":  {"SELECT SQL_CALC_FOUND_ROWS a FROM t LIMIT 2", "SELECT a FROM t", "SELECT a FROM t LIMIT 1"},
		} {
			c, direct := w.dial(nil), dialAt(t, server.Addr(), plain, nil)
			asked := 0
			for _, sql := range append([]string{"UPDATE t SET a = a"}, statements...) {
				direct.try(direct.query(sql))
				c.try(c.query(sql))
				if !strings.Contains(sql, "CALC") { // after which a client keeps it until its next statement
					other.must("UPDATE t SET a = a")
				}
				want := direct.try(direct.query(question))
				if got := c.try(c.query(question)); got.text == want.text {
					asked++
				} else if got.code() != mywire.ErrNotSupportedYet || asked > 0 {
					t.Errorf("%s, then %s:\n  weir %s %v\ndirect %s", sql, question, got.text, got.lost, want.text)
				}
				other.must("UPDATE t SET a = a")
			}
			if asked < len(statements) {
				t.Errorf("%s was answered %d times", question, asked)
			}
			_ = c.Close()
		}
		for name, between := range map[string][]byte{
			"SHOW WARNINGS": other.query("SHOW WARNINGS"), "a ping": mywire.AppendPing(nil), "a reset statement": mywire.AppendStmtReset(nil, 1),
			"another option": mywire.AppendSetOption(nil, mywire.OptionMultiStatementsOn), "nothing": nil,
		} {
			ask := func(c *wire, share func()) reply {
				defer func() { _ = c.Close() }()
				c.prepare("SELECT a FROM t")
				c.must("UPDATE t SET a = a + 10")
				c.try(c.query("SELECT ROW_COUNT()"))
				c.must("UPDATE t SET a = a + 10")
				share()
				if between != nil {
					c.try(between)
				}
				return c.try(c.query("SELECT ROW_COUNT()"))
			}
			want := ask(dialAt(t, server.Addr(), plain, nil), func() {})
			got := ask(w.dial(nil), func() { other.must("UPDATE t SET a = a") })
			if got.text != want.text && (got.code() != mywire.ErrNotSupportedYet || between == nil) {
				t.Errorf("behind %s:\n  weir %s %v\ndirect %s", name, got.text, got.lost, want.text)
			}
		}
	})
}

// What a failed statement has left is cleared by a prepared one, or not, as on a direct
// connection, though weir knows the statement and answers that itself.
func TestWarningsBehindPreparing(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a INT)")
		w := startFor(t, server, db, func(c *mysql.Config) { c.Mode = session.ModeTransaction })
		for _, sql := range []string{"INSERT INTO t VALUES (?)", "SELECT a FROM t", "SELECT 1"} {
			ask := func(c *wire) string {
				c.prepare(sql)
				c.try(c.query("SELECT a FROM nothing"))
				c.prepare(sql)
				return c.try(c.query("SHOW WARNINGS")).text
			}
			if got, want := ask(w.dial(nil)), ask(dialAt(t, server.Addr(), db, nil)); got != want {
				t.Errorf("%s:\n  weir %s\ndirect %s", sql, got, want)
			}
		}
	})
}
