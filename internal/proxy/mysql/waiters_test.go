package mysql_test

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
)

// TestLockWaitersLeaveMostOfThePool: more hinted writes to one locked row than the pool
// has connections hold a part of it; the others write, read and run transactions meanwhile.
func TestLockWaitersLeaveMostOfThePool(t *testing.T) {
	t.Parallel()
	db := database(t, counters...)
	const size, waiters = 8, 40
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = size })
	w.warmCounters()
	holder := dialAt(t, server(t).Addr(), db, nil)
	holder.must("BEGIN")
	holder.must("UPDATE n SET n = n + 100 WHERE k = 0")
	answers := make(chan reply, waiters)
	for _, c := range w.dials(waiters) {
		m := c.up("batch", 0)
		go func() { answers <- c.try(m) }()
	}
	eventually(t, "most of the writes wait in weir", func() bool { return w.pool().Waiting >= waiters-size })
	others := w.dials(3)
	for range 30 {
		others[0].try(others[0].up("batch", 1)).mustBe(t, "a group beside those that wait", oneUpdate)
		others[1].one("SELECT n FROM n WHERE k = 2")
		others[2].must("BEGIN")
		others[2].must("UPDATE n SET n = n + 1 WHERE k = 3")
		others[2].must("COMMIT")
		if p := w.pool(); p.Owned > size-2 { // a quarter apart, the transaction, and what weir asks itself
			t.Fatalf("%d of %d connections are held by single statements", p.Owned, size)
		}
	}
	if n := len(answers); n > 0 {
		t.Errorf("%d writes did not wait for the lock", n)
	}
	holder.must("COMMIT")
	for range waiters {
		r := <-answers
		r.mustBe(t, "who waited for the row", oneUpdate)
	}
	if got := holder.one("SELECT n FROM n WHERE k = 0"); got != "140" {
		t.Errorf("the row is at %s, want 140", got)
	}
}
