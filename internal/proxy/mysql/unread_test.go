package mysql_test

import (
	"fmt"
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

// TestConnectionsOfAnswersThatNobodyReadAreAwaited: a client that does not read what its
// grouped write returns holds up neither PAUSE nor a user who shares the pool's places.
func TestConnectionsOfAnswersThatNobodyReadAreAwaited(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "DELETE RETURNING")
	for name, wait := range map[string]func(w *weir, other *wire){
		"PAUSE":        func(w *weir, _ *wire) { w.command("PAUSE " + w.db); w.command("RESUME " + w.db) },
		"another user": func(_ *weir, other *wire) { other.must("DELETE FROM small") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE big (k INT PRIMARY KEY)", fmt.Sprintf(longRows, "big", longer), "CREATE TABLE small (k INT)")
			sqlOn(t, server(t), "GRANT ALL ON "+db+".* TO bob@'%'")
			w := start(t, db, func(c *mysql.Config) {
				c.NoRowsLane, c.MaxDBConnections, c.ClientWriteTimeout = true, 1, time.Second
				mysql.KeepLess(c)
				knowsBob(t, c)
			})
			other, c := w.dial(asBob), w.dial(nil)
			other.must("DELETE FROM small")
			eventually(t, "writes are grouped", func() bool {
				c.must("/* batch */ DELETE FROM big WHERE k = 0")
				return w.pool().Grouped > 0
			})
			before, last := w.snapshot().Loops[0].BytesIn, uint64(0)
			c.send(c.query("/* batch */ DELETE FROM big RETURNING REPEAT('x', 1000000)"))
			eventually(t, "weir reads nothing more", func() bool {
				n := w.snapshot().Loops[0].BytesIn - before
				still := n > mysql.MostSharedOut && n == last
				last = n
				return still
			})
			if n := w.snapshot().Clients; n != 2 {
				t.Errorf("%d clients while nobody waits", n)
			}
			wait(w, other)
			if n := w.snapshot().Clients; n != 1 {
				t.Errorf("%d clients afterwards", n)
			}
		})
	}
}
