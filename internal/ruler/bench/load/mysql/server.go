package myload

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// settings are those that a figure depends on; a server has most of them.
var settings = []string{
	"innodb_flush_log_at_trx_commit", "innodb_flush_method", "innodb_doublewrite", "innodb_buffer_pool_size",
	"innodb_log_file_size", "innodb_redo_log_capacity", "innodb_log_buffer_size", "innodb_autoinc_lock_mode",
	"innodb_use_native_aio", "log_bin", "sync_binlog", "binlog_format", "autocommit", "sql_mode", "tx_isolation",
	"transaction_isolation", "max_connections", "max_allowed_packet", "thread_handling", "performance_schema",
}

// Meter reads a server's own counters, over its own session.
type Meter struct{ session *session }

// OpenMeter connects to the server directly.
func OpenMeter(ctx context.Context, dsn string) (*Meter, error) {
	s, err := open(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	return &Meter{s}, nil
}

func (m *Meter) Close(ctx context.Context) error { return m.session.Close(ctx) }

// pairs queries names and values, by lower-case name.
func (m *Meter) pairs(ctx context.Context, sql string) (map[string]string, error) {
	out := make(map[string]string)
	err := m.session.rows(ctx, sql, func(columns [][]byte) error {
		if len(columns) != 2 {
			return fmt.Errorf("%d columns instead of a name and a value", len(columns))
		}
		out[strings.ToLower(string(columns[0]))] = string(columns[1])
		return nil
	})
	return out, err
}

// Server describes the server.
func (m *Meter) Server(ctx context.Context) (measure.Server, error) {
	s := measure.Server{Name: "MySQL", Settings: make(map[string]string)}
	all, err := m.pairs(ctx, "SHOW GLOBAL VARIABLES")
	if err != nil {
		return s, fmt.Errorf("read settings: %w", err)
	}
	s.Version = all["version"]
	if strings.Contains(s.Version, "MariaDB") {
		s.Name = "MariaDB"
	}
	for _, name := range settings {
		if v, ok := all[name]; ok {
			s.Settings[name] = v
		}
	}
	return s, nil
}

// Counters reads InnoDB's counters since the server's start. MariaDB 10.11 does not distinguish
// flushes of the log from those of data files: Fsyncs then includes both. Commits counts
// statements with something to commit, including reads.
func (m *Meter) Counters(ctx context.Context) (bench.ServerCounters, error) {
	var c bench.ServerCounters
	all, err := m.pairs(ctx, "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Innodb%' OR Variable_name LIKE 'Handler%'")
	if err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	for _, f := range []struct {
		into  *int64
		names []string // the first one that the server has counts
	}{
		{&c.Fsyncs, []string{"innodb_os_log_fsyncs", "innodb_data_fsyncs"}},
		{&c.LogWrites, []string{"innodb_log_writes"}},
		{&c.LogBytes, []string{"innodb_os_log_written"}},
		{&c.LogRecords, []string{"innodb_log_write_requests"}},
		{&c.Commits, []string{"handler_commit"}},
		{&c.Rollbacks, []string{"handler_rollback"}},
		{&c.PageRequests, []string{"innodb_buffer_pool_read_requests"}},
		{&c.PageReads, []string{"innodb_buffer_pool_reads"}},
	} {
		if *f.into, err = first(all, f.names); err != nil {
			return c, fmt.Errorf("read counters: %w", err)
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

// OpenIdle opens a session, runs one query and leaves it idle.
func OpenIdle(ctx context.Context, dsn string) (*Idle, error) {
	s, err := open(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := s.exec(ctx, "SELECT 1"); err != nil {
		_ = s.Close(ctx) // the query has failed already
		return nil, fmt.Errorf("ask: %w", err)
	}
	s.in, s.packet = nil, nil // there may be thousands of these sessions
	return &Idle{s}, nil
}

// Idle is an idle session.
type Idle struct{ session *session }

func (i *Idle) Close(ctx context.Context) error { return i.session.Close(ctx) }
