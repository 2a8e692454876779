package profile

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// pgxPool is pgx's own pool. Its hooks distinguish connecting and checking from waiting; they
// run with the context of the operation that acquires.
type pgxPool struct {
	pool    *pgxpool.Pool
	connect atomic.Int64
}

func openPgxPool(ctx context.Context, dsn string, c poolConfig) (*pgxPool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	p := &pgxPool{}
	cfg.MaxConns = int32(c.max)
	cfg.MinConns, cfg.MinIdleConns = 0, 0
	cfg.ConnConfig.DialFunc = c.dial.DialContext
	if c.driver == DriverPgxSimple {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	}
	cfg.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
		if t := timelineOf(ctx); t != nil {
			t.connectBegins(c.dial.clock.Now())
		}
		return nil
	}
	cfg.AfterConnect = func(ctx context.Context, _ *pgx.Conn) error {
		p.connect.Add(1)
		if t := timelineOf(ctx); t != nil {
			t.connectEnds(c.dial.clock.Now())
		}
		return nil
	}
	usual := pgxShouldPing
	cfg.ShouldPing = func(ctx context.Context, params pgxpool.ShouldPingParams) bool {
		if !usual(params) {
			return false
		}
		if t := timelineOf(ctx); t != nil {
			t.checkBegins(c.dial.clock.Now())
		}
		return true
	}
	if p.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg); err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return p, nil
}

// pgxShouldPing is the pool's own default, which a hook replaces: check a connection that was
// idle for more than a second.
func pgxShouldPing(p pgxpool.ShouldPingParams) bool { return p.IdleDuration.Seconds() > 1 }

func (p *pgxPool) client() client { return &pgxClient{pool: p.pool} }
func (p *pgxPool) opened() int64  { return p.connect.Load() }
func (p *pgxPool) close()         { p.pool.Close() }

func (p *pgxPool) fill(ctx context.Context, n int) error {
	conns := make([]*pgxpool.Conn, n)
	err := inParallel(n, func(i int) (err error) {
		conns[i], err = p.pool.Acquire(ctx)
		return err
	})
	for _, c := range conns {
		if c != nil {
			c.Release()
		}
	}
	return err
}

// fillParallel is how many connections are opened at once when a pool is filled: about as many as
// a server can fork in the time of one login.
const fillParallel = 8

// inParallel calls f(0) to f(n-1), a few at a time, until one fails.
func inParallel(n int, f func(int) error) error {
	g, ctx := errgroup.WithContext(context.Background())
	g.SetLimit(fillParallel)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

// pgxClient is a user of the pool.
type pgxClient struct {
	pool *pgxpool.Pool
	conn *pgxpool.Conn
	wire *wire // nil if the operation is not traced
}

func (c *pgxClient) acquire(ctx context.Context, t *timeline) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	c.conn = conn
	if t != nil {
		if c.wire = wireOf(conn.Conn().PgConn().Conn()); c.wire != nil {
			c.wire.attach(t)
		}
	}
	return nil
}

func (c *pgxClient) run(ctx context.Context, s *statement, args []any) error {
	if !s.query {
		_, err := c.conn.Exec(ctx, s.text, args...)
		return err
	}
	rows, err := c.conn.Query(ctx, s.text, args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if _, err := rows.Values(); err != nil {
			rows.Close()
			return err
		}
	}
	return rows.Err()
}

func (c *pgxClient) release(context.Context) {
	if c.wire != nil {
		c.wire.attach(nil)
		c.wire = nil
	}
	c.conn.Release()
	c.conn = nil
}
