package pgload

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// settings are those of PostgreSQL that decide what a figure means.
var settings = []string{
	"fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "wal_level", "wal_compression",
	"commit_delay", "commit_siblings", "shared_buffers", "wal_buffers", "max_wal_size", "checkpoint_timeout",
	"max_connections", "data_checksums", "autovacuum", "jit", "track_wal_io_timing",
}

// Meter reads what a server says of itself, over a session of its own.
type Meter struct{ conn *pgx.Conn }

// OpenMeter connects to the server itself.
func OpenMeter(ctx context.Context, dsn string) (*Meter, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	return &Meter{conn}, nil
}

// Close ends the session.
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

// Counters reads what the server has counted since its statistics began: log
// flushes and writes of the whole server, transactions of this database.
//
// A backend reports at most once a second while it works and up to ten seconds
// late when it falls idle, but at once when its session ends. So read before a
// run and after its sessions are closed. Behind a proxy that keeps its sessions,
// up to the last second of work is missing. Needs PostgreSQL 14, for
// pg_stat_wal; from 18 on the flushes have moved to pg_stat_io, and it fails.
func (m *Meter) Counters(ctx context.Context) (bench.ServerCounters, error) {
	var c bench.ServerCounters
	// Without this a transaction sees the snapshot of its first look.
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

// Idle is a session that does nothing.
type Idle struct{ conn *pgconn.PgConn }

// OpenIdle opens a session, asks it one question and leaves it alone.
func OpenIdle(ctx context.Context, dsn string) (*Idle, error) {
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := conn.Exec(ctx, "SELECT 1").ReadAll(); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx)) // the question has failed already
		return nil, fmt.Errorf("ask: %w", err)
	}
	return &Idle{conn}, nil
}

// Close ends the session.
func (i *Idle) Close(ctx context.Context) error { return i.conn.Close(ctx) }
