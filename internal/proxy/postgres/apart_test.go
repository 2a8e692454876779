package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestLockedRowHoldsUpNoOtherGroup has more hinted writes to one locked row than
// the pool has backends. Reads, other tables' writes and other rows of the same
// table go on while the lock is held, and afterwards each write took effect once.
func TestLockedRowHoldsUpNoOtherGroup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		pool, n int
		params  []pgwire.Param
	}{
		{"pool 8", 8, 40, nil},
		{"pool 20", 20, 100, nil},
		{"pool 3", 3, 10, nil},
		{"lock_timeout off by the client", 8, 20, []pgwire.Param{{Name: "options", Value: "-c lock_timeout=0"}}},
		{"lock_timeout of the client", 8, 20, []pgwire.Param{{Name: "options", Value: "-c lock_timeout=1h"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := database(t, "CREATE TABLE a (k int PRIMARY KEY, n int)", "INSERT INTO a VALUES (1, 0), (2, 0)", "CREATE TABLE b (x int)", "INSERT INTO b VALUES (1)", readCommitted)
			w := start(t, db, func(cfg *postgres.Config) { cfg.PoolSize = c.pool })
			other := w.wire(c.params...)
			warm(w, other, "SELECT x FROM b")
			holder := dialWire(t, server(t).Addr(), db)
			holder.want("BEGIN", "BEGIN T")
			holder.want("UPDATE a SET n = 0 WHERE k = 1", "UPDATE_1 T")
			var blocked []*wire
			for range c.n {
				b := w.wire(c.params...)
				b.send(query("/* batch */ UPDATE a SET n = n + 1 WHERE k = 1"))
				blocked = append(blocked, b)
			}
			for range 3 {
				other.want("/* batch */ UPDATE a SET n = n + 1 WHERE k = 2", "UPDATE_1 I")
				other.want("/* batch */ UPDATE b SET x = 1", "UPDATE_1 I")
				other.want("/* batch */ INSERT INTO b SELECT 2 WHERE false", "INSERT_0_0 I")
				other.want("SELECT x FROM b", "[x] (1) SELECT_1 I")
				if c.pool > 4 {
					other.want("BEGIN", "BEGIN T")
					other.want("COMMIT", "COMMIT I")
				}
			}
			holder.want("COMMIT", "COMMIT I")
			for _, b := range blocked {
				if got := render(b.ready()); got != "UPDATE_1 I" {
					t.Errorf("when the lock is gone: %s", got)
				}
			}
			other.want("SELECT k, n FROM a ORDER BY k", fmt.Sprintf("[k,n] (1,%d) (2,3) SELECT_2 I", c.n))
		})
	}
}

// TestGroupedWriteKeepsTheClientsLockTimeout: the wait ends when the client wants
// it to, whatever turns it is cut into, and by the client's own error.
func TestGroupedWriteKeepsTheClientsLockTimeout(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE a (k int PRIMARY KEY, n int)", "INSERT INTO a VALUES (1, 0)")
	w := start(t, db, nil)
	holder := dialWire(t, server(t).Addr(), db)
	holder.want("BEGIN", "BEGIN T")
	holder.want("UPDATE a SET n = 0 WHERE k = 1", "UPDATE_1 T")
	for _, setting := range []string{"lock_timeout=10", "lock_timeout=400ms"} {
		c := w.wire(pgwire.Param{Name: "options", Value: "-c " + setting})
		for range 2 {
			c.want("/* batch */ UPDATE a SET n = n + 1 WHERE k = 1", "ERROR:55P03 I")
		}
		c.want("SHOW lock_timeout", map[string]string{"lock_timeout=10": "[lock_timeout] (10ms) SHOW I", "lock_timeout=400ms": "[lock_timeout] (400ms) SHOW I"}[setting])
	}
	// Without one it waits, and sees none of weir's.
	c := w.wire()
	c.send(query("/* batch */ UPDATE a SET n = 5 WHERE k = 1"))
	eventually(t, "it waits apart", func() bool { return w.pool().Replays > 0 })
	holder.want("COMMIT", "COMMIT I")
	if got := render(c.ready()); got != "UPDATE_1 I" {
		t.Errorf("when the lock is gone: %s", got)
	}
	c.want("SHOW lock_timeout", "[lock_timeout] (0) SHOW I")
}

// TestGroupsEndNoWaitBeforeTheClientsOwnLockTimeout: a large group waits for locks less
// long than its members would.
func TestGroupsEndNoWaitBeforeTheClientsOwnLockTimeout(t *testing.T) {
	t.Parallel()
	const own = 20 * time.Millisecond
	db := database(t, "CREATE TABLE a (k int PRIMARY KEY, n int)", "INSERT INTO a SELECT generate_series(0, 39), 0", readCommitted)
	w := start(t, db, oneLane(lanes[1].change))
	var all []*wire
	var messages [][]byte
	for i := range 40 {
		all = append(all, w.wire(pgwire.Param{Name: "options", Value: "-c lock_timeout=20"}))
		messages = append(messages, query(fmt.Sprintf("/* batch */ UPDATE a SET n = n + 1 WHERE k = %d", i)))
		all[i].ask("/* batch */ UPDATE a SET n = n + 1 WHERE k < 0")
	}
	holder := dialWire(t, server(t).Addr(), db)
	holder.want("BEGIN", "BEGIN T")
	holder.want("UPDATE a SET n = 0 WHERE k = 39", "UPDATE_1 T")
	w.mustGather("solo", func(int) {
		sent := time.Now()
		for i, c := range all {
			c.send(messages[i])
		}
		if got := render(all[39].ready()); got != "ERROR:55P03 I" || time.Since(sent) < own {
			t.Errorf("with a lock_timeout of %v, after %v: %s", own, time.Since(sent), got)
		}
		for _, c := range all[:39] {
			if got := render(c.ready()); got != "UPDATE_1 I" && got != "ERROR:55P03 I" { // of a row that another one's series has
				t.Errorf("a row that nobody holds: %s", got)
			}
		}
	})
}

// TestSlowGroupedWriteHoldsUpNoOther: a lane's runs that are slow by themselves
// leave their places to others.
func TestSlowGroupedWriteHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE a (k int)", "CREATE TABLE b (k int)", "INSERT INTO b VALUES (1)")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.WriteLanes = 8, 2 })
	slow, quick := []*wire{w.wire(), w.wire()}, w.wire()
	quick.want("/* batch */ UPDATE b SET k = 1", "UPDATE_1 I")
	look := dialWire(t, server(t).Addr(), db)
	for i, s := range slow {
		s.send(query(fmt.Sprintf("/* batch */ UPDATE a SET k = %d WHERE (SELECT count(*) FROM (SELECT generate_series(1, 1000000000000)) AS s) < 0", i)))
		eventually(t, "it runs", func() bool {
			return look.ask("SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE '%batch%generate%' AND pid <> pg_backend_pid()") == fmt.Sprintf("[n] (%d) SELECT_1 I", i+1)
		})
	}
	for range 5 {
		quick.want("/* batch */ UPDATE b SET k = 1", "UPDATE_1 I")
	}
	look.want("SELECT bool_and(pg_terminate_backend(pid)) AS x FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%generate%' AND pid <> pg_backend_pid()", "[x] (t) SELECT_1 I")
}

// readCommitted makes the usual isolation the database's default, for those tests
// whose clients wait for the same row: under a stricter one all but the first fail.
const readCommitted = `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''read committed''', current_database()); END $$`
