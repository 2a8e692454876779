package mysql_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestTransactionsOfClientsThatDoNotReadEnd: --transaction-timeout ends the transaction of
// a client that has stopped reading in the middle of an answer, too.
func TestTransactionsOfClientsThatDoNotReadEnd(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE n (i INT)"), func(c *mysql.Config) { c.TransactionTimeout = time.Second })
	c := w.dial(nil)
	c.must("BEGIN")
	c.must("INSERT INTO n VALUES (1)")
	c.send(mywire.AppendCommand(nil, mywire.ComQuery, "SELECT REPEAT('x', 1000000) FROM information_schema.COLUMNS LIMIT 200"))
	eventually(t, "the session is over", func() bool { return w.snapshot().Clients == 0 })
	eventually(t, "its transaction is over", func() bool { return w.pool().Owned == 0 })
	if got := w.dial(nil).one("SELECT COUNT(*) FROM n"); got != "0" {
		t.Errorf("%s rows were written", got)
	}
}
