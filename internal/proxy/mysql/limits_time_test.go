package mysql_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Whatever way a statement runs, its client hears of the timeout, and its session goes
// on.
func TestQueryTimeoutEndsTheStatementAlone(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (k INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"), func(c *mysql.Config) { c.QueryTimeout = 300 * time.Millisecond })
	holder := speakerTo(t, server(t).Addr(), w.db, nil)
	holder.must("BEGIN")
	holder.must("UPDATE t SET k = k WHERE k = 1")
	c, owner := w.speaker(nil), w.speaker(nil)
	owner.must("BEGIN")
	const long = "WITH RECURSIVE s (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM s WHERE x < 1000) SELECT COUNT(*) FROM s a, s b, s c, s d WHERE a.x + b.x + c.x + d.x < 0"
	overdue := "ERROR 1969 "
	if !isMariaDB(server(t)) {
		overdue = "ERROR 3024 "
	}
	for name, got := range map[string]string{
		"a read":           c.ask(long),
		"prepared":         c.askPrepared(long),
		"a write":          c.ask("UPDATE t SET k = k WHERE k = 1"),
		"in a transaction": owner.ask(long),
	} {
		if !strings.HasPrefix(got, overdue) || !strings.Contains(got, "--query-timeout 300ms") {
			t.Errorf("%s: %s", name, got)
		}
	}
	owner.must("ROLLBACK")
	c.must("DO 1")
	holder.must("ROLLBACK")
	if n := w.pool().Limited["query_timeout"]; n < 4 {
		t.Errorf("%d are counted", n)
	}
}

// TestQueryTimeoutEndsAGroupOnTheServer: a member of a group is not killed, but its connection is
// closed in the end. A server that waits for a row's lock does not notice that, but it does not
// go on with the statement.
func TestQueryTimeoutEndsAGroupOnTheServer(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (k INT)", "INSERT INTO t VALUES (1)", "CREATE TABLE l (k INT PRIMARY KEY)", "INSERT INTO l VALUES (1)",
		"CREATE FUNCTION waits() RETURNS INT READS SQL DATA BEGIN DECLARE x INT; SET innodb_lock_wait_timeout = 1000; SELECT k INTO x FROM l FOR UPDATE; RETURN x; END",
		"CREATE VIEW v AS SELECT waits() + 1 AS k")
	w := start(t, db, func(c *mysql.Config) {
		c.QueryTimeout, c.TrustFunctions = 5*time.Second, []string{"*"} // weir does not see for how long it waits
	})
	c, holder := w.dial(nil), directTo(t, server(t), db)
	eventually(t, "writes are grouped", func() bool {
		c.try(c.query("/* batch */ UPDATE t SET k = 1"))
		return w.pool().Grouped > 0
	})
	holder.must("BEGIN")
	holder.must("SELECT k FROM l FOR UPDATE")
	busy := func(n string) func() bool {
		return func() bool {
			return holder.one("SELECT COUNT(*) FROM information_schema.processlist WHERE command <> 'Sleep' AND id <> CONNECTION_ID() AND db = '"+db+"'") == n
		}
	}
	c.send(c.query("/* batch */ UPDATE t SET k = (SELECT k FROM v)"))
	eventually(t, "it waits for the lock", busy("1"))
	if r, _ := c.hear(mywire.ComQuery); r.code() != mywire.ErrNetRead || !strings.Contains(r.err.Message, core.ErrOverdue.Error()) {
		t.Errorf("a grouped write that is overdue: %s %v", r.text, r.lost)
	}
	eventually(t, "the server has ended it", busy("0"))
	holder.must("ROLLBACK")
	if got := c.one("SELECT k FROM t"); got != "1" {
		t.Errorf("k is %s", got)
	}
}

// A transaction is ended by its length, though it is never idle.
func TestLongTransactionIsEndedAndRolledBack(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (k INT)"), func(c *mysql.Config) { c.TransactionTimeout = 500 * time.Millisecond })
	c := w.speaker(nil)
	c.must("BEGIN")
	c.must("INSERT INTO t VALUES (1)")
	c.send(mywire.AppendCommand(nil, mywire.ComQuery, "DO SLEEP(1000)"))
	_, payload, err := c.tryPacket()
	if err != nil {
		t.Fatal(err)
	}
	if e, err := mywire.ParseError(payload); err != nil || e.Code != mywire.ErrInteractionTimeout || !strings.Contains(e.Message, "--transaction-timeout") {
		t.Errorf("the long one: %v, %v", e, err)
	}
	if _, _, err := c.tryPacket(); !errors.Is(err, io.EOF) {
		t.Errorf("then %v", err)
	}
	eventually(t, "its backend is free", func() bool { return w.pool().Owned == 0 })
	if got := speakerTo(t, server(t).Addr(), w.db, nil).value("SELECT COUNT(*) FROM t"); got != "0" {
		t.Errorf("the transaction was not rolled back: %s rows", got)
	}
}

// A client that does nothing is idle with a connection of its own, too.
func TestIdleClientsAreEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string
		mode session.Mode
	}{
		"without a connection": {"DO 1", session.ModeAuto},
		"pinned":               {"CREATE TEMPORARY TABLE i (k INT)", session.ModeAuto},
		"session mode":         {"DO 1", session.ModeSession},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, database(t), func(cfg *mysql.Config) { cfg.ClientIdleTimeout, cfg.Mode = 300*time.Millisecond, c.mode })
			busy := w.dial(nil)
			busy.send(busy.query("SELECT GET_LOCK('busy', 0), SLEEP(1)"))
			eventually(t, "an idle client is ended", func() bool { // which a busy machine could find idle before
				idle := w.dial(nil)
				if _, err := idle.Exec(ctxFor(t), c.sql); err != nil {
					return false
				}
				_, payload, err := idle.tryPacket()
				if err != nil {
					t.Fatal(err)
				}
				e, err := mywire.ParseError(payload)
				if err != nil || e.Code != mywire.ErrInteractionTimeout || !strings.Contains(e.Message, "--client-idle-timeout") {
					t.Errorf("the idle one was told %v, %v", e, err)
				}
				return true
			})
			if r, _ := busy.hear(mywire.ComQuery); r.err != nil || r.lost != nil {
				t.Errorf("who waits for an answer: %s %v", r.text, r.lost)
			}
			eventually(t, "none is left", func() bool { return w.snapshot().Clients == 0 && w.pool().Owned == 0 })
		})
	}
}

// Members of a lane that have waited long enough for a backend are refused, and those that
// came after them wait on.
func TestMembersOfALaneExpireEachByItsOwnTime(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (k INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)"), func(c *mysql.Config) {
		c.PoolSize, c.QueueTimeout, c.NoRowsLane = 1, patience/2, true
	})
	long, fresh, holder := w.dial(nil), w.dial(nil), w.dial(nil)
	eventually(t, "writes go through a lane", func() bool { // when the table is known
		long.must("/* batch */ DELETE FROM t WHERE k = 0")
		return w.pool().Grouped > 0
	})
	holder.must("BEGIN")
	long.send(long.query("/* batch */ DELETE FROM t WHERE k = 1"))
	eventually(t, "it waits", func() bool { return w.AgeMembers(ctxFor(t), 0) == 1 })
	fresh.send(fresh.query("/* batch */ DELETE FROM t WHERE k = 2"))
	eventually(t, "so does another", func() bool { return w.AgeMembers(ctxFor(t), 0) == 2 })
	w.AgeMembers(ctxFor(t), patience)
	if r, _ := long.hear(mywire.ComQuery); r.code() != mywire.ErrTooManyConnections {
		t.Errorf("who has waited for too long: %s %v", r.text, r.lost)
	}
	holder.must("COMMIT")
	if r, _ := fresh.hear(mywire.ComQuery); r.err != nil || r.lost != nil {
		t.Errorf("who has just come: %s %v", r.text, r.lost)
	}
	if n := w.pool().Timeouts; n != 1 {
		t.Errorf("%d timeouts are counted", n)
	}
}
