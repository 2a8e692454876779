// Package postgres is the outbox store of PostgreSQL 13 and newer.
//
// # Tables
//
// Besides the outbox table itself (weir_outbox, unless [Options] say otherwise), there are:
// _scheduled for messages that are not due yet, _parked for failed attempts, _dead for dead
// letters, _lease for who leads which shard, and _meta for the version and options of the
// last migration. Producers need INSERT on the outbox table and on _scheduled, nothing else:
//
//	GRANT INSERT ON weir_outbox, weir_outbox_scheduled TO app;
//
// Any language enqueues by an INSERT in its own transaction; topic is the one
// column without a default:
//
//	INSERT INTO weir_outbox (topic, msg_key, payload, headers)
//	VALUES ('orders', 'order-42', '{"id":42}', '{"type":"order.placed"}');
//
// # How late commits are not lost
//
// A row gets its number when it is inserted and becomes visible when its transaction
// commits, so numbers appear in any order. Transaction ids cannot prove that a gap stays
// empty: nextval is called before the transaction has one. But an INSERT holds ROW
// EXCLUSIVE on the table from before nextval until after its commit is visible. So a mark
// is the list of transactions that hold that lock, and it is settled when none of them
// holds it any longer. This requires that the sequence returns numbers one by one (CACHE 1),
// which Lead verifies, and that only the INSERT calls nextval on it.
package postgres

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/outbox"
)

// Options of a store. The zero value is right for most.
type Options struct {
	// Table is the outbox table, "name" or "schema.name". Without a schema it is
	// looked for along the search_path, and created in its first schema.
	// Default: outbox.DefaultTable.
	Table string

	// Notify makes Migrate create a trigger that notifies callers of [Store.Wake]
	// once per INSERT statement. It slows producers down: transactions that
	// notify commit one at a time. Default: no trigger; an existing one stays.
	Notify bool

	// LeaseTimeout is how long a leader waits for an answer of the server before
	// it takes the lease for lost. It notices a closed connection at once.
	// Default: 1 s.
	LeaseTimeout time.Duration

	// Owner names this process in Status. Default: host name and process id.
	Owner string
}

func (o Options) withDefaults() Options {
	o.Table = cmp.Or(o.Table, outbox.DefaultTable)
	o.LeaseTimeout = cmp.Or(o.LeaseTimeout, time.Second)
	if o.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		o.Owner = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	return o
}

// Store is the outbox tables in one PostgreSQL database. It implements
// [outbox.Store] and [outbox.Partitioner] and is safe for concurrent use.
type Store struct {
	catalog
	locks
	pool *pgxpool.Pool
	opts Options
	// patience is slotPatience, shorter in tests.
	patience time.Duration
}

var (
	_ outbox.Store       = (*Store)(nil)
	_ outbox.Partitioner = (*Store)(nil)
	_ outbox.Waker       = (*Store)(nil)
	_ outbox.Announcer   = (*Store)(nil)
	_ outbox.Checker     = (*Store)(nil)
)

// oneLine prints an error of pgx on one line, with each address that was tried once.
type oneLine struct{ error }

func (e oneLine) Error() string {
	first, rest, _ := strings.Cut(e.error.Error(), "\n")
	var tried []string
	for line := range strings.Lines(rest) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(tried, line) {
			tried = append(tried, line)
		}
	}
	return strings.TrimSpace(first + " " + strings.Join(tried, "; "))
}

func (e oneLine) Unwrap() error { return e.error }

// Open connects to a database. dsn is what pgxpool accepts: a URL or keywords,
// with pool_max_conns and the like. Each lease and each tail opens further
// connections of its own.
func Open(ctx context.Context, dsn string, opts Options) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("outbox: read the DSN: %w", err)
	}
	setUTF8(cfg.ConnConfig)
	// Concurrent Promote, Requeue and Purge skip each other's rows; with a stricter default
	// isolation they would fail.
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		sql := "SET default_transaction_isolation = 'read committed'"
		alone, err := isServerConn(ctx, c)
		if err != nil {
			return err
		}
		if alone {
			sql = safeSearchPath + sql
		}
		_, err = c.Exec(ctx, sql)
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("outbox: open the pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("outbox: connect: %w", oneLine{err})
	}
	s, err := New(pool, opts)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.own = true
	return s, nil
}

// safeSearchPath sets the search path to the system schemas. Otherwise anyone who can create
// functions, operators or types in a schema of the path, or can set the path, like the owner
// of the database, could make the relay run them with its privileges. Pools that the
// application opened keep their path, since its own statements depend on it, and so do
// connections through a pooler, which may give them to other clients.
const safeSearchPath = pgrepl.ServersOwn + "; "

// isServerConn reports whether a connection leads directly to the server: a pooler reports
// another process id at login.
func isServerConn(ctx context.Context, c *pgx.Conn) (bool, error) {
	pid, err := simpleValue(ctx, c, "SELECT pg_catalog.pg_backend_pid()")
	return err == nil && string(pid) == strconv.FormatUint(uint64(c.PgConn().PID()), 10), err
}

// simpleValue returns the value that a query selects, as text; nil is NULL. It uses the simple
// protocol, with which nothing is prepared. pgx's mode of that name refuses sessions with
// standard_conforming_strings = off.
func simpleValue(ctx context.Context, c *pgx.Conn, query string) ([]byte, error) {
	results, err := c.PgConn().Exec(ctx, query).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, pgx.ErrNoRows
	}
	return results[0].Rows[0][0], nil
}

// setUTF8 sets the client encoding to UTF-8, whatever the encoding of the database or the
// role's default: messages are UTF-8.
func setUTF8(cfg *pgx.ConnConfig) { cfg.RuntimeParams["client_encoding"] = "UTF8" }

// New returns a store over a pool that the caller closes. Leases and tails open connections
// with the pool's configuration, outside the pool. If the database's encoding is not UTF-8,
// the pool must set client_encoding to UTF8.
func New(pool *pgxpool.Pool, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if err := checkName(opts.Table); err != nil {
		return nil, err
	}
	return &Store{
		catalog: catalog{pool: pool, table: opts.Table},
		locks: locks{
			connector:       connector{pool: pool, leaseTimeout: opts.LeaseTimeout, answerPatience: max(connectPatience, opts.LeaseTimeout)},
			standbyPatience: standbyPatience, leaderPatience: leaderPatience,
			standby: map[int]time.Time{}, listening: map[*pgx.Conn]context.CancelFunc{},
		},
		pool: pool, opts: opts, patience: slotPatience,
	}, nil
}

// Name is the table as [Options] name it.
func (s *Store) Name() string { return s.opts.Table }

// Close closes the pool if Open opened it. Leases are closed by their owners.
func (s *Store) Close() error {
	if s.own {
		s.pool.Close()
	}
	return nil
}
