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
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/internal/outbox/pooled"
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
	pool *pgxpool.Pool
	own  bool // the pool was opened here
	opts Options
	// patience is slotPatience, shorter in tests.
	patience time.Duration
	// They are the constants, except in tests.
	standbyPatience, leaderPatience time.Duration
	answerPatience                  time.Duration // connectPatience, or LeaseTimeout if that is longer

	pooled pooled.Check

	mu    sync.Mutex
	names *names // nil until the schema is known
	meta  *meta  // nil until read; what may change of it is read again when it matters
	// standby is since when Lead has asked for a shard through the pool only.
	standby map[int]time.Time
	// listening ends the connections of Wake.
	listening map[*pgx.Conn]context.CancelFunc
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
		pool: pool, opts: opts, patience: slotPatience,
		standbyPatience: standbyPatience, leaderPatience: leaderPatience, answerPatience: max(connectPatience, opts.LeaseTimeout),
		standby: map[int]time.Time{}, listening: map[*pgx.Conn]context.CancelFunc{},
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

// tables returns the names of the tables, with their schema.
func (s *Store) tables(ctx context.Context) (_ names, err error) {
	s.mu.Lock()
	known := s.names
	s.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	n := splitName(s.opts.Table)
	if n.schema == "" {
		if n.schema, err = s.schemaOf(ctx, n.table); err != nil {
			return n, s.wrap("find the schema of", err)
		}
	}
	s.mu.Lock()
	s.names = &n
	s.mu.Unlock()
	return n, nil
}

// schemaOf returns the schema in which the search path of the role, or of the application's
// pool, finds a table, or else the schema in which it would create one. The query uses no
// operator: see safeSearchPath.
func (s *Store) schemaOf(ctx context.Context, table string) (schema string, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Release()
	var oid *uint32
	var first *string
	look := func(q querier) error {
		return q.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid, pg_catalog.current_schema()", ident(table)).Scan(&oid, &first)
	}
	changed := false
	if s.own {
		if changed, err = isServerConn(ctx, conn.Conn()); err != nil {
			return "", err
		}
	}
	if changed {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SET LOCAL search_path TO DEFAULT"); err != nil {
				return err
			}
			return look(tx)
		})
	} else {
		err = look(conn)
	}
	switch {
	case err != nil:
		return "", err
	case oid != nil:
		err = conn.QueryRow(ctx, "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1", *oid).Scan(&schema)
		return schema, err
	case first == nil:
		return "", errors.New("no schema of the search path exists")
	}
	return *first, nil
}

// ready returns the tables' names and description, cached if possible.
func (s *Store) ready(ctx context.Context) (names, meta, error) {
	n, err := s.tables(ctx)
	if err != nil {
		return n, meta{}, err
	}
	s.mu.Lock()
	known := s.meta
	s.mu.Unlock()
	if known != nil {
		return n, *known, nil
	}
	m, err := s.refresh(ctx, s.pool)
	return n, m, err
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// refresh reads the description of the tables, and refuses tables of a newer weir.
func (s *Store) refresh(ctx context.Context, q querier) (meta, error) {
	n, err := s.tables(ctx)
	if err != nil {
		return meta{}, err
	}
	m, err := readMeta(ctx, q, n)
	if err != nil {
		return m, s.wrap("read the description of", err)
	}
	s.mu.Lock()
	s.meta = &m
	s.mu.Unlock()
	return m, nil
}

// wrap adds the step and the table to an error. A missing table is ErrNotMigrated.
func (s *Store) wrap(step string, err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000") {
		err = fmt.Errorf("%w (%w)", outbox.ErrNotMigrated, err)
	}
	return fmt.Errorf("outbox: %s %s: %w", step, s.opts.Table, err)
}
