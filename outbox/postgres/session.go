package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// sessionSettings make a connection of its own what a lease rests on, whatever
// the database's or the role's defaults are. Settings that a version lacks are
// passed over.
//
// Plans are made once, maybe for a table that is empty, and then kept for one
// that has grown: so the plans that are bad for a large table are not for
// choice. synchronous_commit is off because all that a lease writes may be lost
// with the server: an ack that is lost repeats a message, a note of a failed
// attempt that is lost repeats the attempt.
const sessionSettings = `SELECT set_config(name, setting, false) FROM (VALUES
	('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off'),
	('synchronous_commit', 'off'), ('statement_timeout', '0'), ('lock_timeout', '0'),
	('idle_session_timeout', '0'), ('transaction_timeout', '0'),
	('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '1'), ('tcp_keepalives_count', '3'),
	('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('jit', 'off'),
	('max_parallel_workers_per_gather', '0'), ('plan_cache_mode', 'force_generic_plan')
) AS v(name, setting) WHERE current_setting(name, true) IS NOT NULL`

// connect opens a connection of a lease, with the configuration of the pool. A
// context that ends cancels its statement and keeps the connection.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	return s.connectWith(ctx, func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: s.opts.LeaseTimeout}
	})
}

// connectToWait opens a connection that mostly waits for notifications. A
// context that ends then costs nothing; one that ends during a statement costs
// the connection.
func (s *Store) connectToWait(ctx context.Context) (*pgx.Conn, error) {
	return s.connectWith(ctx, func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()}
	})
}

// connConfig is how the pool would connect now, with the password of the hour
// if it has a function for that.
func (s *Store) connConfig(ctx context.Context) (*pgx.ConnConfig, error) {
	cfg := s.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, fmt.Errorf("prepare to connect: %w", err)
		}
	}
	setUTF8(cfg.ConnConfig) // Config has copied it
	return cfg.ConnConfig, nil
}

func (s *Store) connectWith(ctx context.Context, watch func(*pgconn.PgConn) ctxwatch.Handler) (*pgx.Conn, error) {
	cfg, err := s.connConfig(ctx)
	if err != nil {
		return nil, err
	}
	cfg.BuildContextWatcherHandler = watch
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := c.Exec(ctx, safeSearchPath+sessionSettings); err != nil {
		closeConn(c)
		return nil, fmt.Errorf("prepare the session: %w", err)
	}
	return c, nil
}

// closeConn closes a connection that nothing more is expected of.
func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Close(ctx) // it is closed either way
}

// session is one connection that takes turns, and is opened again after it broke.
type session struct {
	open func(ctx context.Context) (*pgx.Conn, error)

	mu     sync.Mutex
	conn   *pgx.Conn
	closed bool
}

// use runs f on the connection.
func (s *session) use(ctx context.Context, f func(*pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if s.conn == nil || s.conn.IsClosed() {
		c, err := s.open(ctx)
		if err != nil {
			return err
		}
		s.conn = c
	}
	return f(s.conn)
}

func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conn != nil {
		closeConn(s.conn)
	}
}
