package postgres_test

import (
	"testing"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A change of the schema whose outcome is unknown, because its client has left, purges the cache
// as one that succeeded.
func TestCachePurgesWhereTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	c, other, lock := w.wire(), w.wire(), dialWire(t, server(t).Addr(), w.db)
	const read = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"
	before := c.ask(read)
	w.changes("new")
	c.want(read, before)
	lock.want("BEGIN", "BEGIN T")
	lock.want("LOCK TABLE kept IN ACCESS SHARE MODE", "LOCK_TABLE T")
	other.send(pgwire.AppendQuery(nil, "ALTER TABLE kept ADD COLUMN late int"))
	direct := dialWire(t, server(t).Addr(), w.db) // in a transaction pg_stat_activity stays as it was
	eventually(t, "the change waits for the lock", func() bool {
		return direct.ask("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'ALTER TABLE kept%'") == "[count] (1) SELECT_1 I"
	})
	other.close()
	lock.want("COMMIT", "COMMIT I")
	eventually(t, "what was kept is gone", func() bool { return c.ask(read) == "[v] (new) SELECT_1 I" })
}
