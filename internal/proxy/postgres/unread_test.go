package postgres_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
)

// TestTransactionsOfClientsThatDoNotReadEnd: --transaction-timeout ends the transaction of
// a client that has stopped reading in the middle of an answer, too.
func TestTransactionsOfClientsThatDoNotReadEnd(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE n (i int)"), func(c *postgres.Config) { c.TransactionTimeout = time.Second })
	c := w.wire()
	c.ask("BEGIN")
	c.ask("INSERT INTO n VALUES (1)")
	c.send(query("SELECT repeat('x', 1000000) FROM generate_series(1, 200)"))
	eventually(t, "the session is over", func() bool { return w.snapshot().Clients == 0 })
	eventually(t, "its transaction is over", func() bool { return w.pool().Owned == 0 })
	w.wire().want("SELECT count(*) AS n FROM n", "[n] (0) SELECT_1 I")
}
