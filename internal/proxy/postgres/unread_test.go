package postgres_test

import (
	"strings"
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

// TestConnectionsOfAnswersThatNobodyReadAreAwaited: a client that does not read what its
// grouped write returns holds up neither PAUSE nor a user who shares the pool's places.
func TestConnectionsOfAnswersThatNobodyReadAreAwaited(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(w *weir, other *wire){
		"PAUSE":        func(w *weir, _ *wire) { w.command("PAUSE " + w.db); w.command("RESUME " + w.db) },
		"another user": func(_ *weir, other *wire) { other.want("DELETE FROM small", "DELETE_0 I") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE big (k int PRIMARY KEY)", "INSERT INTO big SELECT generate_series(1, 120)",
				"CREATE TABLE small (k int)", "GRANT ALL ON small TO weir_other")
			w := start(t, db, func(c *postgres.Config) {
				c.NoRowsLane, c.MaxDBConnections, c.ClientWriteTimeout = true, 1, time.Second
			})
			other, c := w.wireAs("weir_other"), w.wire()
			other.want("DELETE FROM small", "DELETE_0 I")
			eventually(t, "writes are grouped", func() bool {
				c.ask("/* batch */ DELETE FROM big WHERE k = 0")
				return w.pool().Grouped > 0
			})
			c.send(query("/* batch */ DELETE FROM big RETURNING repeat('x', 1000000)"))
			direct := dialWire(t, server(t).Addr(), db)
			eventually(t, "the server waits", func() bool {
				return strings.Contains(direct.ask("SELECT count(*) AS n FROM pg_stat_activity WHERE query LIKE '%RETURNING repeat%' AND wait_event = 'ClientWrite' AND datname = current_database()"), "(1)")
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
