package mysql_test

import (
	"fmt"
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
	all, others, holder := w.dials(waiters), w.dials(3), dialAt(t, server(t).Addr(), db, nil)
	answers, want := make(chan reply, waiters), 0
	unlocked := func() {
		holder.must("COMMIT")
		for range waiters {
			r := <-answers
			r.mustBe(t, "who waited for the row", oneUpdate)
		}
		want += 100 + waiters
	}
	for try := 1; ; try++ {
		w.warmCounters()
		holder.must("BEGIN")
		holder.must("UPDATE n SET n = n + 100 WHERE k = 0")
		for _, c := range all {
			m := c.up("batch", 0)
			go func() { answers <- c.try(m) }()
		}
		eventually(t, "most of the writes wait in weir", func() bool { return w.pool().Waiting >= waiters-size })
		if w.pool().Owned <= size/4 || try == 10 || t.Failed() {
			break
		}
		unlocked() // on a busy machine, what weir knew of the table was too old: they ran alone
	}
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
	unlocked()
	if got := holder.one("SELECT n FROM n WHERE k = 0"); got != fmt.Sprint(want) {
		t.Errorf("the row is at %s, want %d", got, want)
	}
}
