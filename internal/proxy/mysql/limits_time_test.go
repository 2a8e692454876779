package mysql_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
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
	const long = "SELECT COUNT(*) FROM seq_1_to_100000 a, seq_1_to_100000 b, seq_1_to_100000 c WHERE a.seq + b.seq + c.seq < 0"
	for name, got := range map[string]string{
		"a read":           c.ask(long),
		"prepared":         c.askPrepared(long),
		"a write":          c.ask("UPDATE t SET k = k WHERE k = 1"),
		"in a transaction": owner.ask(long),
	} {
		if !strings.HasPrefix(got, "ERROR 1969 ") || !strings.Contains(got, "--query-timeout 300ms") {
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
