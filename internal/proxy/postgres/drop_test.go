package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// A pool that has no client and no connection any more is dropped, and made anew for the
// next client. Those of clients that do nothing stay.
func TestUnusedPoolsAreDropped(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, func(c *postgres.Config) {
		c.PoolKeep, c.ServerIdleTimeout = 20*time.Millisecond, 20*time.Millisecond
	})
	stays := w.wire()
	for range 3 {
		comes := dialWireAs(t, w.Addr().String(), db, "weir_other")
		comes.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		comes.close()
		eventually(t, "the pool is dropped", func() bool {
			return !slices.ContainsFunc(w.snapshot().Pools, func(p sight.PoolStatus) bool { return p.User == "weir_other" })
		})
	}
	stays.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
}
