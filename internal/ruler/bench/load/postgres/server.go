package pgload

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// settings are the settings of PostgreSQL that a figure depends on.
var settings = []string{
	"fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "wal_level", "wal_compression",
	"commit_delay", "commit_siblings", "shared_buffers", "wal_buffers", "max_wal_size", "checkpoint_timeout",
	"max_connections", "data_checksums", "autovacuum", "jit", "track_wal_io_timing",
}

// Meter reads a server's own counters, over its own session.
type Meter struct{ conn *pgx.Conn }

// OpenMeter connects to the server directly.
func OpenMeter(ctx context.Context, dsn string) (*Meter, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	return &Meter{conn}, nil
}

func (m *Meter) Close(ctx context.Context) error { return m.conn.Close(ctx) }

// Server describes the server.
func (m *Meter) Server(ctx context.Context) (measure.Server, error) {
	s := measure.Server{Name: "PostgreSQL", Settings: make(map[string]string)}
	if err := m.conn.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&s.Version); err != nil {
		return s, fmt.Errorf("read server version: %w", err)
	}
	for _, name := range settings {
		var v *string
		if err := m.conn.QueryRow(ctx, "SELECT current_setting($1, true)", name).Scan(&v); err != nil {
			return s, fmt.Errorf("read setting %s: %w", name, err)
		}
		if v != nil {
			s.Settings[name] = *v
		}
	}
	return s, nil
}

// Counters reads the server's counters since its statistics were reset: log flushes and writes
// of the whole server, transactions of this database.
//
// A backend reports at most once a second while it works and up to ten seconds late when it
// becomes idle, but at once when its session ends. So read the counters before a run and after
// its sessions are closed. Behind a proxy that keeps its sessions open, up to the last second
// of work is missing. It needs PostgreSQL 14 to 17, for pg_stat_wal; version 18 moved the
// flushes to pg_stat_io, and Counters fails.
func (m *Meter) Counters(ctx context.Context) (bench.ServerCounters, error) {
	var c bench.ServerCounters
	// Without this, a transaction keeps the snapshot of its first read.
	if _, err := m.conn.Exec(ctx, "SELECT pg_stat_clear_snapshot()"); err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	err := m.conn.QueryRow(ctx, `SELECT w.wal_sync, w.wal_write, w.wal_bytes::bigint, w.wal_records, d.xact_commit, d.xact_rollback,
		d.blks_hit + d.blks_read, d.blks_read
		FROM pg_stat_wal w, pg_stat_database d WHERE d.datname = current_database()`).
		Scan(&c.Fsyncs, &c.LogWrites, &c.LogBytes, &c.LogRecords, &c.Commits, &c.Rollbacks, &c.PageRequests, &c.PageReads)
	if err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	return c, nil
}

// Idle is an idle session.
type Idle struct{ conn *pgconn.PgConn }

// OpenIdle opens a session, runs one query and leaves it idle.
func OpenIdle(ctx context.Context, dsn string) (*Idle, error) {
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := conn.Exec(ctx, "SELECT 1").ReadAll(); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx)) // the query has failed already
		return nil, fmt.Errorf("ask: %w", err)
	}
	return &Idle{conn}, nil
}

func (i *Idle) Close(ctx context.Context) error { return i.conn.Close(ctx) }
