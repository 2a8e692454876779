package mysql_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
)

// TestGroupsOfSessionsWithACompletionType: what the clients have a COMMIT do besides holds
// for theirs, not for that of a group, which would cost its connection.
func TestGroupsOfSessionsWithACompletionType(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"CHAIN", "RELEASE"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE t (k INT)")
			w := start(t, db, oneGroupAtATime(func(c *mysql.Config) {
				c.NoRowsLane, c.PoolSize = true, 1 // where statements are slow, a larger pool opens more
			}))
			all, messages := make([]*wire, 6), make([][]byte, 6)
			for i := range all {
				all[i] = w.dial(nil)
				all[i].must("SET completion_type = '" + kind + "'")
				messages[i] = all[i].query(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d)", i))
			}
			eventually(t, "writes go through a lane", func() bool {
				all[0].must("/* batch */ DELETE FROM t WHERE k < 0")
				return w.pool().Grouped > 0
			})
			eventually(t, "several are one group", func() bool {
				for i, r := range together(all, messages) {
					if r.err != nil || r.lost != nil {
						t.Fatalf("client %d: %v %v", i, r.err, r.lost)
					}
				}
				return w.extras(txLane) > 0
			})
			before := w.pool().Opened
			for range 5 {
				for i, r := range together(all, messages) {
					if r.err != nil || r.lost != nil {
						t.Fatalf("client %d: %v %v", i, r.err, r.lost)
					}
				}
			}
			if after := w.pool().Opened; after != before {
				t.Errorf("%d connections were opened in the place of those that groups have lost", after-before)
			}
			if got := all[0].one("SELECT @@completion_type"); got != kind {
				t.Errorf("the client's own is %s", got)
			}
		})
	}
}
