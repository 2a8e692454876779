package mysql_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A pool that has no client and no connection any more is dropped, and made anew for the
// next client. Those of clients that do nothing stay.
func TestUnusedPoolsAreDropped(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) {
		c.PoolKeep, c.ServerIdleTimeout = 20*time.Millisecond, 20*time.Millisecond
	})
	stays := w.dial(nil)
	for range 3 {
		comes := w.dial(as(bob, bobPassword, mywire.TLSDisabled))
		if got := comes.one("SELECT 1"); got != "1" {
			t.Errorf("SELECT 1 is %s", got)
		}
		if err := comes.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the pool is dropped", func() bool {
			return !slices.ContainsFunc(w.snapshot().Pools, func(p sight.PoolStatus) bool { return p.User == bob })
		})
	}
	if got := stays.one("SELECT 1"); got != "1" {
		t.Errorf("SELECT 1 is %s", got)
	}
}
