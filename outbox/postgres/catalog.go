package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/outbox"
)

// catalog finds the tables, and remembers how they were migrated.
type catalog struct {
	pool  *pgxpool.Pool
	own   bool   // the pool was opened here
	table string // as Options name it

	mu    sync.Mutex
	names *names // nil until the schema is known
	meta  *meta  // nil until read; what may change of it is read again when it matters
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// tables returns the names of the tables, with their schema.
func (d *catalog) tables(ctx context.Context) (_ names, err error) {
	d.mu.Lock()
	known := d.names
	d.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	n := splitName(d.table)
	if n.schema == "" {
		if n.schema, err = d.schemaOf(ctx, n.table); err != nil {
			return n, d.wrap("find the schema of", err)
		}
	}
	d.mu.Lock()
	d.names = &n
	d.mu.Unlock()
	return n, nil
}

// schemaOf returns the schema in which the search path of the role, or of the application's
// pool, finds a table, or else the schema in which it would create one. The query uses no
// operator: see safeSearchPath.
func (d *catalog) schemaOf(ctx context.Context, table string) (schema string, err error) {
	conn, err := d.pool.Acquire(ctx)
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
	if d.own {
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
func (d *catalog) ready(ctx context.Context) (names, meta, error) {
	n, err := d.tables(ctx)
	if err != nil {
		return n, meta{}, err
	}
	d.mu.Lock()
	known := d.meta
	d.mu.Unlock()
	if known != nil {
		return n, *known, nil
	}
	m, err := d.refresh(ctx, d.pool)
	return n, m, err
}

// refresh reads the description of the tables, and refuses tables of a newer weir.
func (d *catalog) refresh(ctx context.Context, q querier) (meta, error) {
	n, err := d.tables(ctx)
	if err != nil {
		return meta{}, err
	}
	m, err := readMeta(ctx, q, n)
	if err != nil {
		return m, d.wrap("read the description of", err)
	}
	d.mu.Lock()
	d.meta = &m
	d.mu.Unlock()
	return m, nil
}

// wrap adds the step and the table to an error. A missing table is ErrNotMigrated.
func (d *catalog) wrap(step string, err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000") {
		err = fmt.Errorf("%w (%w)", outbox.ErrNotMigrated, err)
	}
	return fmt.Errorf("outbox: %s %s: %w", step, d.table, err)
}
