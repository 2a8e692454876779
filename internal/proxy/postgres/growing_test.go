package postgres_test

import (
	"context"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
)

// A pool that sizes itself grows while clients wait for a connection that others hold in
// their transactions, and takes no more connections than a limit allows.
func TestPoolThatSizesItself(t *testing.T) {
	t.Parallel()
	const first, most, clients = 4, 12, 30
	db := database(t)
	w := start(t, db, func(c *postgres.Config) {
		c.Limits = session.Limits{PoolSize: first, AutoPool: true, MaxDBConnections: most, QueueTimeout: patience}
	})
	ctx, stop := context.WithCancel(ctxFor(t))
	var asking errgroup.Group
	for range clients {
		conn := connect(t, w.dsn("postgres"))
		asking.Go(func() error {
			for ctx.Err() == nil {
				for _, text := range []string{"BEGIN", "SELECT pg_sleep(0.005)", "COMMIT"} {
					if _, err := conn.Exec(ctx, text); err != nil && ctx.Err() == nil {
						return err
					}
				}
			}
			return nil
		})
	}
	direct := connect(t, server(t).DSN("postgres"))
	eventually(t, "the pool has grown", func() bool {
		var open int
		err := direct.QueryRow(ctxFor(t), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", db).Scan(&open)
		if err != nil || open > most {
			t.Errorf("%d connections are open, want at most %d: %v", open, most, err)
		}
		p := w.pool()
		if p.Size > most || p.Backends > most {
			t.Errorf("size %d, %d connections, want at most %d", p.Size, p.Backends, most)
		}
		return p.Size == most && p.Backends == most
	})
	stop()
	if err := asking.Wait(); err != nil {
		t.Error(err)
	}
}

// A pool that becomes smaller than what clients hold in their transactions still answers
// what ends by itself: a client may write, or prepare a statement, and others end their
// transactions only then.
func TestPoolThatShrinksUnderTransactions(t *testing.T) {
	t.Parallel()
	const before = core.KeepForShared + 6
	var cfg postgres.Config
	w := start(t, database(t, "CREATE TABLE t (k int)"), func(c *postgres.Config) {
		c.Limits = session.Limits{PoolSize: before, AutoPool: true, QueueTimeout: patience}
		cfg = *c
	})
	var holders []*wire
	for range before - 1 {
		c := w.wire()
		c.want("BEGIN", "BEGIN T")
		holders = append(holders, c)
	}
	cfg.PoolSize = core.KeepForShared
	if err := w.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pool is smaller", func() bool { return w.pool().Size == core.KeepForShared })
	c, waits := w.wire(), w.wire()
	waits.send(query("BEGIN"))
	c.want("/* batch */ INSERT INTO t VALUES (1)", "INSERT_0_1 I")
	c.send(parse("s", "SELECT count(*) FROM pg_class"), sync())
	if got := render(c.ready()); got != "parsed I" {
		t.Errorf("a statement is prepared: %s", got)
	}
	for _, h := range holders {
		h.want("COMMIT", "COMMIT I")
	}
	if got := render(waits.ready()); got != "BEGIN T" {
		t.Errorf("a transaction begins: %s", got)
	}
	eventually(t, "no more connections than the size", func() bool { return w.pool().Backends <= core.KeepForShared })
}
