package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
)

// A pool that sizes itself grows while clients wait and the server answers more, and takes
// no more connections than a limit allows.
func TestPoolThatSizesItself(t *testing.T) {
	t.Parallel()
	const first, most, clients = 4, 12, 30
	db := database(t)
	w := start(t, db, func(c *mysql.Config) {
		c.Limits = session.Limits{PoolSize: first, AutoPool: true, MaxDBConnections: most, QueueTimeout: patience}
	})
	conns := make([]*sql.Conn, clients) // logins may take connections beyond the limits
	for i := range conns {
		conns[i] = w.connect(nil)
	}
	ctx, stop := context.WithCancel(ctxFor(t))
	var asking sync.WaitGroup
	for _, conn := range conns {
		asking.Go(func() {
			for ctx.Err() == nil {
				if _, err := conn.ExecContext(ctx, "DO SLEEP(0.005)"); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	count := fmt.Sprintf("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = '%s'", db)
	direct := speakerTo(t, server(t).Addr(), "mysql", nil)
	eventually(t, "the pool has grown", func() bool {
		var open int
		if _, err := fmt.Sscan(direct.one(count), &open); err != nil || open > most {
			t.Errorf("%d connections are open, want at most %d: %v", open, most, err)
		}
		p := w.pool()
		if p.Size > most || p.Backends > most {
			t.Errorf("size %d, %d connections, want at most %d", p.Size, p.Backends, most)
		}
		return p.Size == most && p.Backends == most
	})
	stop()
	asking.Wait()
}
