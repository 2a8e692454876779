// Package postgres is the outbox store of PostgreSQL 13 and newer.
//
// # Tables
//
// Beside the outbox table itself (weir_outbox, unless [Options] say otherwise)
// are these: _scheduled holds what is not due, _parked the failed attempts,
// _dead the dead letters, _lease who leads which shard, _meta the version and
// options of the last migration. Producers need INSERT on the first two and nothing else:
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
// A row gets its number when it is inserted and becomes visible when its
// transaction commits, so numbers appear in any order. Transaction ids do not
// help to prove that a gap stays empty: nextval is called before the
// transaction has one. But an INSERT holds ROW EXCLUSIVE on the table from
// before nextval until after its commit is visible. So [lease.Mark] is the list
// of transactions that hold that lock, and it is settled when none of them does
// any longer. This rests on the sequence handing out its numbers one by one
// (CACHE 1), which Lead verifies, and on nothing but the INSERT calling nextval
// on it.
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

	// Notify has Migrate create a trigger that notifies those who called
	// [Store.Wake] once per INSERT statement. It costs producers: commits of
	// transactions that notify take turns. Default: none; a trigger that is
	// there stays.
	Notify bool

	// LeaseTimeout is how long the server may leave a leader's session without
	// an answer before the lease counts as lost. A session that the server or
	// the network closes is noticed at once. Default: 1 s.
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
	// patience is slotPatience; tests have less.
	patience time.Duration

	pooled pooled.Check

	mu    sync.Mutex
	names *names // nil until the schema is known
	meta  *meta  // nil until read; what may change of it is read again when it matters
}

var (
	_ outbox.Store       = (*Store)(nil)
	_ outbox.Partitioner = (*Store)(nil)
	_ outbox.Waker       = (*Store)(nil)
	_ outbox.Announcer   = (*Store)(nil)
	_ outbox.Checker     = (*Store)(nil)
)

// oneLine is an error of pgx in one line, in which each address that was tried stands
// once.
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
// with pool_max_conns and the like. Each lease and each tail also opens its own
// connections.
func Open(ctx context.Context, dsn string, opts Options) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("outbox: read the DSN: %w", err)
	}
	setUTF8(cfg.ConnConfig)
	// Two that promote, requeue or purge at once pass each other by, instead of
	// failing where the default is a stricter isolation.
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

// serversOwn leaves nothing but the server's own in the search path. Anybody who may create
// functions, operators or types in a schema of that path, or set the path, as the owner of a
// database may, would otherwise have them run with the rights of the relay. Pools that the
// application has made keep their path: all that it runs there itself is found by it. So do
// connections of a pooler: it could give them to others.
const safeSearchPath = pgrepl.ServersOwn + "; "

// direct reports whether a connection is one to the server: a pooler tells another process id.
func isServerConn(ctx context.Context, c *pgx.Conn) (bool, error) {
	results, err := c.PgConn().Exec(ctx, "SELECT pg_catalog.pg_backend_pid()").ReadAll()
	if err != nil {
		return false, err
	}
	pid := strconv.FormatUint(uint64(c.PgConn().PID()), 10)
	return len(results) == 1 && len(results[0].Rows) == 1 && string(results[0].Rows[0][0]) == pid, nil
}

// speakUTF8 asks for texts in UTF-8, whatever the encoding of the database or the
// role's default is: messages are UTF-8.
func setUTF8(cfg *pgx.ConnConfig) { cfg.RuntimeParams["client_encoding"] = "UTF8" }

// New returns a store over a pool that the caller closes. Leases and tails connect
// with the pool's configuration, not through the pool. If the database's encoding
// is not UTF-8, the pool's client_encoding must be.
func New(pool *pgxpool.Pool, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if err := checkName(opts.Table); err != nil {
		return nil, err
	}
	return &Store{pool: pool, opts: opts, patience: slotPatience}, nil
}

// Name is the table, as it was given.
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

// schemaOf is the schema in which the search path of the role, or of the application's pool, has
// a table, or else in which it makes one. That is asked without an operator: see serversOwn.
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

// ready returns the tables' names and how they were migrated, from memory if
// possible.
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

// refresh reads how the tables were migrated, and refuses those of a newer weir.
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

// wrap says what was done to which table. A table that does not exist is
// ErrNotMigrated.
func (s *Store) wrap(step string, err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000") {
		err = fmt.Errorf("%w (%w)", outbox.ErrNotMigrated, err)
	}
	return fmt.Errorf("outbox: %s %s: %w", step, s.opts.Table, err)
}
