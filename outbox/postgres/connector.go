package postgres

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// connector opens connections with the configuration of the pool, outside of it.
type connector struct {
	pool           *pgxpool.Pool
	leaseTimeout   time.Duration // see Options
	answerPatience time.Duration // connectPatience, or leaseTimeout if that is longer; shorter in tests
}

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
func (c *connector) connect(ctx context.Context) (*pgx.Conn, error) {
	return c.connectWith(ctx, func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: c.leaseTimeout}
	})
}

// connectToWait opens a connection that mostly waits for notifications. Canceling the wait
// keeps the connection; canceling a statement closes it.
func (c *connector) connectToWait(ctx context.Context) (*pgx.Conn, error) {
	return c.connectWith(ctx, func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	})
}

// connectPatience is how long a server may take to accept a session. The address of one that
// hangs may lead to another by now.
const connectPatience = 10 * time.Second

// connConfig returns the pool's configuration after its BeforeConnect, which may set a
// short-lived password.
func (c *connector) connConfig(ctx context.Context) (*pgx.ConnConfig, error) {
	cfg := c.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, fmt.Errorf("prepare to connect: %w", err)
		}
	}
	setUTF8(cfg.ConnConfig) // Config has copied it
	return cfg.ConnConfig, nil
}

func (c *connector) connectWith(ctx context.Context, watch func(*pgconn.PgConn) ctxwatch.Handler) (*pgx.Conn, error) {
	cfg, err := c.connConfig(ctx)
	if err != nil {
		return nil, err
	}
	cfg.BuildContextWatcherHandler = watch
	ctx, cancel := context.WithTimeout(ctx, c.answerPatience)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := conn.Exec(ctx, safeSearchPath+sessionSettings); err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("prepare the session: %w", err)
	}
	return conn, nil
}

// closeConn closes a connection and ignores errors.
func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Close(ctx) // it is closed either way
}

// answered runs f, whose statements a server answers at once, and bounds it: a server that hangs
// accepts statements and never answers.
func (c *connector) answered(ctx context.Context, f func(context.Context) error) error {
	answer, cancel := context.WithTimeout(ctx, c.answerPatience)
	defer cancel()
	err := f(answer)
	if err != nil && answer.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("the server has not answered within %v: %w", c.answerPatience, err)
	}
	return err
}

// wireConfig is the pool's configuration for replication connections, with the first of
// several hosts.
func (c *connector) wireConfig(ctx context.Context) (pgwire.ConnectConfig, error) {
	all, err := c.wireConfigs(ctx)
	if err != nil {
		return pgwire.ConnectConfig{}, err
	}
	return all[0], nil
}

// wireConfigs returns the configurations of all hosts: any of them may be the primary.
func (c *connector) wireConfigs(ctx context.Context) ([]pgwire.ConnectConfig, error) {
	cfg, err := c.connConfig(ctx)
	if err != nil {
		return nil, err
	}
	all := []pgwire.ConnectConfig{wireConfig(cfg)}
	for _, f := range cfg.Fallbacks {
		other := cfg.Copy()
		other.Host, other.Port, other.TLSConfig = f.Host, f.Port, f.TLSConfig
		one := wireConfig(other)
		if !slices.ContainsFunc(all, func(had pgwire.ConnectConfig) bool { return had.Address == one.Address }) {
			all = append(all, one)
		}
	}
	return all, nil
}

func wireConfig(c *pgx.ConnConfig) pgwire.ConnectConfig {
	address := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if strings.HasPrefix(c.Host, "/") {
		address = fmt.Sprintf("%s/.s.PGSQL.%d", c.Host, c.Port)
	}
	cfg := pgwire.ConnectConfig{
		Address: address, User: c.User, Database: c.Database, Password: c.Password,
		Timeout: c.ConnectTimeout, TLSMode: pgwire.TLSDisable,
	}
	if c.TLSConfig != nil {
		// For verify-ca, pgx puts a verification function into the configuration.
		cfg.TLSMode, cfg.TLSConfig = pgwire.TLSRequire, c.TLSConfig
		if !c.TLSConfig.InsecureSkipVerify {
			cfg.TLSMode = pgwire.TLSVerifyFull
		}
	}
	// prefer and allow are a second attempt on the same host.
	for _, f := range c.Fallbacks {
		switch same := f.Host == c.Host && f.Port == c.Port; {
		case same && c.TLSConfig != nil && f.TLSConfig == nil:
			cfg.TLSMode = pgwire.TLSPrefer
		case same && c.TLSConfig == nil && f.TLSConfig != nil:
			cfg.TLSMode, cfg.TLSConfig = pgwire.TLSAllow, f.TLSConfig
		}
	}
	return cfg
}
