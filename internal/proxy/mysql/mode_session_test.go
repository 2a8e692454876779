package mysql_test

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
)

// TestEverySessionMayKeepABackend: where each session keeps a backend nothing is shared, so
// none of a pool's backends is held back for what shares.
func TestEverySessionMayKeepABackend(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *mysql.Config){
		"session mode":                  func(c *mysql.Config) { c.Mode = session.ModeSession },
		"a server that reports nothing": func(c *mysql.Config) { c.MySQL.Address = gateway(t, server(t).Addr(), true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, database(t), func(c *mysql.Config) {
				c.PoolSize = 8
				change(c)
			})
			for range 8 {
				w.dial(nil).must("DO 1")
			}
			var owned, waiting int
			for _, p := range w.snapshot().Pools {
				owned += p.Owned
				waiting += p.Waiting
			}
			if owned != 8 || waiting != 0 {
				t.Errorf("%d backends have an owner, %d sessions wait, want 8 and 0", owned, waiting)
			}
		})
	}
}
