package postgres_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestQueryTimeoutEndsTheStatementAlone: whatever way it runs, the client hears of the
// timeout, and its session goes on.
func TestQueryTimeoutEndsTheStatementAlone(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (k int)"), func(c *postgres.Config) { c.QueryTimeout = 300 * time.Millisecond })
	learned(w)
	c, owner := w.wire(), w.wire()
	owner.want("BEGIN", "BEGIN T")
	for _, tt := range []struct {
		name    string
		c       *wire
		message []byte
		status  string
	}{
		{"simple", c, query("SELECT pg_sleep(1000)"), "I"},
		{"extended", c, run("SELECT pg_sleep($1)", "1000"), "I"},
		{"a write", c, query("UPDATE t SET k = 1 FROM pg_sleep(1000)"), "I"},
		{"in a transaction", owner, query("SELECT pg_sleep(1000)"), "E"},
	} {
		tt.c.send(tt.message)
		got := tt.c.ready()
		e := errorIn(got)
		if e == nil || e.Code != pgwire.CodeQueryCanceled || !strings.Contains(e.Message, "query timeout") || !strings.HasSuffix(render(got), " "+tt.status) {
			t.Errorf("%s: %s: %+v", tt.name, render(got), e)
		}
	}
	owner.want("ROLLBACK", "ROLLBACK I")
	c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	if n := w.pool().Limited["query_timeout"]; n < 4 {
		t.Errorf("%d are counted", n)
	}
}

// TestQueryTimeoutCountsNoPause: the time for which the server waits for the rest of a pipeline
// is not that of a statement, whether or not it was asked for the answers.
func TestQueryTimeoutCountsNoPause(t *testing.T) {
	t.Parallel()
	const limit = 200 * time.Millisecond
	w := start(t, database(t), func(c *postgres.Config) { c.QueryTimeout = limit })
	for name, messages := range map[string][]byte{
		"answered":   slices.Concat(parse("", "SELECT 1 AS x"), bind("", ""), execute("", 0), flush()),
		"not asked":  slices.Concat(parse("", "SELECT 1 AS x"), bind("", ""), execute("", 0)),
		"weir's own": slices.Concat(closing('S', "a"), parse("a", "SELECT 1 AS x")),
	} {
		t.Run(name, func(t *testing.T) {
			c := w.within(t).wire()
			c.want("BEGIN", "BEGIN T")
			c.send(parse("a", "SELECT 1 AS x"), sync())
			c.ready()
			eventually(t, "a pause that is not counted", func() bool { // a slow machine may count the statement
				before := w.pool().Limited["query_timeout"]
				c.send(messages)
				time.Sleep(3 * limit)
				c.send(sync())
				c.ready()
				return w.pool().Limited["query_timeout"] == before
			})
		})
	}
}

// TestQueryTimeoutEndsAPipelineThatGrows: that the client sends more does not give the statement
// under way more time.
func TestQueryTimeoutEndsAPipelineThatGrows(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.QueryTimeout = 200 * time.Millisecond })
	c := w.wire()
	c.send(parse("", "SELECT pg_sleep(600)"), bind("", ""), execute("", 0))
	eventually(t, "it is ended", func() bool {
		c.send(parse("", "SELECT 1 AS x"), bind("", ""), execute("", 0))
		return w.pool().Limited["query_timeout"] > 0
	})
	c.send(sync())
	if got := render(c.ready()); !strings.HasSuffix(got, "ERROR:57014 I") {
		t.Errorf("it was answered: %s", got)
	}
}

// TestQueryTimeoutAtAServerThatHangs: where the server does not end the statement its
// connection is closed, and the client told that the outcome is unknown.
func TestQueryTimeoutAtAServerThatHangs(t *testing.T) {
	t.Parallel()
	srv := trusting(t)
	w := startFor(t, srv, "postgres", func(c *postgres.Config) { c.QueryTimeout = 100 * time.Millisecond })
	c := w.wire()
	c.want("BEGIN", "BEGIN T")
	srv.Pause()
	defer srv.Resume()
	c.send(query("SELECT 2 AS x"))
	got, err := c.until(pgwire.ServerError)
	if err != nil {
		t.Fatal(err)
	}
	if e := errorIn(got); e == nil || e.Code != pgwire.CodeConnectionFailure || !strings.Contains(e.Detail, core.ErrOverdue.Error()) {
		t.Errorf("a statement at a server that hangs: %s: %+v", render(got), e)
	}
}

// TestLongTransactionIsEndedAndRolledBack: by its length, though it is never idle.
func TestLongTransactionIsEndedAndRolledBack(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (k int)"), func(c *postgres.Config) { c.TransactionTimeout = 300 * time.Millisecond })
	long, many := w.wire(), w.wire()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 { // a transaction each: together they take longer
			many.send(query("BEGIN; SELECT 1"), query("COMMIT; BEGIN"), query("COMMIT"))
			for range 3 {
				if e := errorIn(many.ready()); e != nil && e.Code != pgwire.CodeTransactionTimeout { // of a machine that stands still
					t.Errorf("one of many: %+v", e)
				} else if e != nil {
					return
				}
			}
		}
	}()
	long.send(query("BEGIN"), query("INSERT INTO t VALUES (1)"), query("SELECT pg_sleep(1000)"))
	got, err := long.until(pgwire.ServerError)
	if err != nil {
		t.Fatal(err)
	}
	if e := errorIn(got); e == nil || e.Code != pgwire.CodeTransactionTimeout || !strings.Contains(e.Message, "transaction timeout") {
		t.Errorf("the long one: %s", render(got))
	}
	<-done
	eventually(t, "its backend is free", func() bool { return w.pool().Owned == 0 })
	w.wire().want("SELECT count(*) AS n FROM t", "[n] (0) SELECT_1 I")
	if w.pool().Limited["transaction_timeout"] == 0 {
		t.Error("it is not counted")
	}
}

// TestQueryTimeoutEndsAGroupOnTheServer: a member of a group is not cancelled, but its
// connection is closed in the end. The server does not go on with the statement then.
func TestQueryTimeoutEndsAGroupOnTheServer(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (k int)", "INSERT INTO t VALUES (1)", "CREATE FUNCTION slow() RETURNS bool LANGUAGE sql AS 'SELECT pg_sleep(1000) IS NULL'")
	w := start(t, db, func(c *postgres.Config) {
		c.QueryTimeout, c.TrustFunctions = 300*time.Millisecond, []string{"slow"} // weir does not see that it sleeps
	})
	c := w.wire()
	eventually(t, "writes are grouped", func() bool {
		c.ask("/* batch */ UPDATE t SET k = 1")
		return w.pool().Grouped > 0
	})
	c.send(query("/* batch */ UPDATE t SET k = 2 WHERE slow()"))
	if e := errorIn(c.ready()); e == nil || e.Code != pgwire.CodeConnectionFailure || !strings.Contains(e.Detail, core.ErrOverdue.Error()) {
		t.Errorf("a grouped write that is overdue: %+v", e)
	}
	eventually(t, "the server has ended it", func() bool {
		return countOnServer(t, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%slow()%' AND datname = '"+db+"'") == 0
	})
	c.want("SELECT k FROM t", "[k] (1) SELECT_1 I")
}
