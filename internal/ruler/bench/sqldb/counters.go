package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Counters reads the server's counters.
//
// PostgreSQL: log flushes and writes of the whole server since its statistics were reset,
// transactions and pages of this database, and the length of the log. A session reports all but
// the last at most once a second while it works and up to ten seconds late when it becomes idle,
// but at once when it ends. So read them before a run and after its sessions are closed. Behind a
// proxy that keeps its sessions open, up to the last second of work is missing.
//
// MySQL and MariaDB: InnoDB's counters since the server's start. MariaDB 10.11 does not distinguish
// flushes of the log from those of data files: Fsyncs then includes both. Commits counts
// statements with something to commit, including reads.
func Counters(ctx context.Context, db *sql.DB) (c bench.ServerCounters, err error) {
	read := postgresCounters
	if isMySQL(db) {
		read = mysqlCounters
	}
	if c, err = read(ctx, db); err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	return c, nil
}

// Names in these queries, and operators too, are qualified with pg_catalog: the connecting user
// is often a superuser, and the owner of a database controls its search path.
func postgresCounters(ctx context.Context, db *sql.DB) (c bench.ServerCounters, err error) {
	err = db.QueryRowContext(ctx, `SELECT xact_commit, xact_rollback, blks_hit OPERATOR(pg_catalog.+) blks_read, blks_read FROM pg_catalog.pg_stat_database
		WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()`).
		Scan(&c.Commits, &c.Rollbacks, &c.PageRequests, &c.PageReads)
	if err != nil {
		return c, err
	}
	// pg_stat_wal exists since version 14; version 18 has writes and flushes in pg_stat_io
	// instead.
	const records = `SELECT wal_records, CASE WHEN pg_catalog.pg_is_in_recovery() THEN wal_bytes
		ELSE pg_catalog.pg_current_wal_insert_lsn() OPERATOR(pg_catalog.-) '0/0'::pg_catalog.pg_lsn END::bigint`
	err = db.QueryRowContext(ctx, records+`, wal_sync, wal_write FROM pg_catalog.pg_stat_wal`).Scan(&c.LogRecords, &c.LogBytes, &c.Fsyncs, &c.LogWrites)
	if err == nil {
		return c, nil
	}
	return c, db.QueryRowContext(ctx, records+`, io.fsyncs, io.writes FROM pg_catalog.pg_stat_wal, (
		SELECT coalesce(pg_catalog.sum(fsyncs), 0)::bigint AS fsyncs, coalesce(pg_catalog.sum(writes), 0)::bigint AS writes
		FROM pg_catalog.pg_stat_io WHERE object OPERATOR(pg_catalog.=) 'wal') io`).Scan(&c.LogRecords, &c.LogBytes, &c.Fsyncs, &c.LogWrites)
}

func mysqlCounters(ctx context.Context, db *sql.DB) (c bench.ServerCounters, err error) {
	all, err := pairs(ctx, db, "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Innodb%' OR Variable_name LIKE 'Handler%'")
	if err != nil {
		return c, err
	}
	for _, f := range []struct {
		into  *int64
		names []string // the first one that the server has counts
	}{
		{&c.Fsyncs, []string{"Innodb_os_log_fsyncs", "Innodb_data_fsyncs"}},
		{&c.LogWrites, []string{"Innodb_log_writes"}},
		{&c.LogBytes, []string{"Innodb_os_log_written"}},
		{&c.LogRecords, []string{"Innodb_log_write_requests"}},
		{&c.Commits, []string{"Handler_commit"}},
		{&c.Rollbacks, []string{"Handler_rollback"}},
		{&c.PageRequests, []string{"Innodb_buffer_pool_read_requests"}},
		{&c.PageReads, []string{"Innodb_buffer_pool_reads"}},
	} {
		if *f.into, err = first(all, f.names); err != nil {
			return c, err
		}
	}
	return c, nil
}

func first(all map[string]string, names []string) (int64, error) {
	for _, name := range names {
		if v, ok := all[name]; ok {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("the server has no %s", strings.Join(names, " and no "))
}

// The settings that a figure depends on; a server has most of them.
var (
	postgresSettings = []string{
		"fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "wal_level", "wal_compression",
		"commit_delay", "commit_siblings", "shared_buffers", "wal_buffers", "max_wal_size", "checkpoint_timeout",
		"max_connections", "data_checksums", "autovacuum", "jit", "track_wal_io_timing",
	}
	mysqlSettings = []string{
		"innodb_flush_log_at_trx_commit", "innodb_flush_method", "innodb_doublewrite", "innodb_buffer_pool_size",
		"innodb_log_file_size", "innodb_redo_log_capacity", "innodb_log_buffer_size", "innodb_autoinc_lock_mode",
		"innodb_use_native_aio", "log_bin", "sync_binlog", "binlog_format", "autocommit", "sql_mode", "tx_isolation",
		"transaction_isolation", "max_connections", "max_allowed_packet", "thread_handling", "performance_schema",
	}
)

// Meter reads a server's own counters, over its own session.
type Meter struct{ db *sql.DB }

// NewMeter returns a meter over a pool, which it owns.
func NewMeter(db *sql.DB) *Meter { return &Meter{db} }

// Server describes the server.
func (m *Meter) Server(ctx context.Context) (measure.Server, error) {
	if isMySQL(m.db) {
		return Describe(ctx, m.db, mysqlSettings...)
	}
	return Describe(ctx, m.db, postgresSettings...)
}

// Counters reads the server's counters.
func (m *Meter) Counters(ctx context.Context) (bench.ServerCounters, error) {
	return Counters(ctx, m.db)
}

// Close closes the pool.
func (m *Meter) Close(context.Context) error { return m.db.Close() }
