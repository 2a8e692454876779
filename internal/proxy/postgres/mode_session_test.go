package postgres_test

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
)

// TestEverySessionMayKeepABackend: where each session keeps a backend nothing is shared, so
// none of a pool's backends is held back for what shares.
func TestEverySessionMayKeepABackend(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *postgres.Config){
		"session mode":                  func(c *postgres.Config) { c.Mode = session.ModeSession },
		"a server that reports nothing": func(c *postgres.Config) { c.Postgres.Address = gateway(t, server(t).Addr(), true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, database(t), func(c *postgres.Config) {
				c.PoolSize = 8
				change(c)
			})
			for _, c := range w.wires(8) {
				c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
			}
			if p := w.pool(); p.Owned != 8 || p.Waiting != 0 {
				t.Errorf("%d backends have an owner, %d sessions wait, want 8 and 0", p.Owned, p.Waiting)
			}
		})
	}
}
