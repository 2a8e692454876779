package mysql_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// TestWritesWaitForOldFacts ages what weir knows of the server's names, and of the table, as idle
// time does. Grouped writes that come then, all to one locked row, take a lane nevertheless:
// they leave connections to others until the lock is released.
func TestWritesWaitForOldFacts(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for name, aged := range map[string]struct{ names, tables bool }{"names": {names: true}, "tables": {tables: true}, "both": {true, true}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := databaseOn(t, server, counters...)
				w := startFor(t, server, db, oneGroupAtATime(nil))
				w.warmCounters()
				blocker := dialAt(t, server.Addr(), db, nil)
				writers, others := w.dials(8), w.dials(7)
				messages := make([][]byte, len(writers))
				for i, c := range writers {
					if i%2 == 0 {
						messages[i] = c.up("batch", 0)
					} else {
						messages[i] = c.prepare("/* batch */ UPDATE n SET n = n + 1 WHERE k = ?").execute(0)
					}
				}
				for _, c := range others { // each opens a connection
					c.must("BEGIN")
				}
				for _, c := range others {
					c.must("COMMIT")
				}
				blocker.must("BEGIN")
				blocker.must("UPDATE n SET n = n + 100 WHERE k = 0")

				w.AgeFacts(ctxFor(t), aged.names, aged.tables)
				answers := make(chan []reply, 1)
				go func() { answers <- together(writers, messages) }()
				eventually(t, "all writes wait", func() bool { p := w.pool(); return p.Owned+p.Waiting == len(writers) && p.Laned == 0 })
				if p := w.pool(); p.Owned > 2 {
					t.Errorf("%d of %d connections wait for one row, want at most a quarter", p.Owned, p.Backends)
				}
				for i, c := range others {
					c.try(c.up("batch", i+1)).mustBe(t, "beside those that wait", oneUpdate)
				}
				blocker.must("COMMIT")
				for i, r := range <-answers {
					r.mustBe(t, fmt.Sprint("writer ", i), oneUpdate)
				}
				if got := blocker.one("SELECT n FROM n WHERE k = 0"); got != "108" {
					t.Errorf("the row was counted to %s, want 108", got)
				}
			})
		}
	})
}
