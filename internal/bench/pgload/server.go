package pgload

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/measure"
)

// settings are those of PostgreSQL that decide what a figure means.
var settings = []string{
	"fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "wal_level", "wal_compression",
	"commit_delay", "commit_siblings", "shared_buffers", "wal_buffers", "max_wal_size", "checkpoint_timeout",
	"max_connections", "data_checksums", "autovacuum", "jit", "track_wal_io_timing",
}

// ServerInfo describes the server behind a connection.
func ServerInfo(ctx context.Context, conn *pgx.Conn) (measure.Server, error) {
	s := measure.Server{Name: "PostgreSQL", Settings: make(map[string]string)}
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&s.Version); err != nil {
		return s, fmt.Errorf("read server version: %w", err)
	}
	for _, name := range settings {
		var v *string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1, true)", name).Scan(&v); err != nil {
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
func Counters(ctx context.Context, conn *pgx.Conn) (bench.ServerCounters, error) {
	var c bench.ServerCounters
	// Without this a transaction sees the snapshot of its first look.
	if _, err := conn.Exec(ctx, "SELECT pg_stat_clear_snapshot()"); err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	err := conn.QueryRow(ctx, `SELECT w.wal_sync, w.wal_write, w.wal_bytes::bigint, w.wal_records, d.xact_commit, d.xact_rollback
		FROM pg_stat_wal w, pg_stat_database d WHERE d.datname = current_database()`).
		Scan(&c.Fsyncs, &c.LogWrites, &c.LogBytes, &c.LogRecords, &c.Commits, &c.Rollbacks)
	if err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	return c, nil
}

// CountersSince returns the difference of two readings for a number of
// operations.
func CountersSince(after, before bench.ServerCounters, ops int64) *bench.ServerCounters {
	return &bench.ServerCounters{
		Ops:        ops,
		Fsyncs:     after.Fsyncs - before.Fsyncs,
		LogWrites:  after.LogWrites - before.LogWrites,
		LogBytes:   after.LogBytes - before.LogBytes,
		LogRecords: after.LogRecords - before.LogRecords,
		Commits:    after.Commits - before.Commits,
		Rollbacks:  after.Rollbacks - before.Rollbacks,
	}
}
