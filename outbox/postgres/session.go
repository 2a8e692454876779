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

// sessionSettings sets what a lease depends on, whatever the defaults of the database or the
// role. It skips settings that the server's version does not have.
//
// A plan may be made while the table is empty and is kept when it has grown, so plans that
// are bad for a large table are disabled. synchronous_commit is off because everything that
// a lease writes may be lost in a crash: a lost ack repeats a message, a lost note of a
// failed attempt repeats the attempt.
const sessionSettings = `SELECT set_config(name, setting, false) FROM (VALUES
	('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off'),
	('synchronous_commit', 'off'), ('statement_timeout', '0'), ('lock_timeout', '0'),
	('idle_session_timeout', '0'), ('transaction_timeout', '0'),
	('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '1'), ('tcp_keepalives_count', '3'),
	('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('jit', 'off'),
	('max_parallel_workers_per_gather', '0'), ('plan_cache_mode', 'force_generic_plan')
) AS v(name, setting) WHERE current_setting(name, true) IS NOT NULL`

// connect opens a connection of a lease with the configuration of the pool. Canceling a
// context cancels the statement and keeps the connection.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	return s.connectWith(ctx, func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: s.opts.LeaseTimeout}
	})
}

// connectToWait opens a connection that mostly waits for notifications. Canceling the wait
// keeps the connection; canceling a statement closes it.
func (s *Store) connectToWait(ctx context.Context) (*pgx.Conn, error) {
	return s.connectWith(ctx, func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()}
	})
}

// connectPatience is how long a server may take to accept a session. The address of one that
// hangs may lead to another by now.
const connectPatience = 10 * time.Second

// connConfig returns the pool's configuration after its BeforeConnect, which may set a
// short-lived password.
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
	ctx, cancel := context.WithTimeout(ctx, s.answerPatience)
	defer cancel()
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

// closeConn closes a connection and ignores errors.
func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Close(ctx) // it is closed either way
}

// session is one connection, used by one caller at a time and reopened when it broke.
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
