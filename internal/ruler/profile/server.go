package profile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
)

// serverWatch reads the server's own statistics during a run. If something cannot be read, the
// run continues and lists it as unavailable.
type serverWatch struct {
	target *Target
	ctx    context.Context
	deep   *deepWatch // nil unless Config.Deep is set

	mu          sync.Mutex // guards all below
	before      bench.ServerCounters
	counted     bool
	open, shut  statementTimes
	timed       bool
	unavailable []string
}

// statementTimes are the server's statistics, in seconds, about the statements of this user in
// this database, or of all users.
type statementTimes struct {
	calls                     int64
	execution, planning, lock float64
	logSync, logWrite         float64
	logTimed                  bool
	source                    string
}

// watchServer starts to watch the server, also by eBPF if requested.
func (t *Target) watchServer(ctx context.Context, c Config) *serverWatch {
	w := &serverWatch{target: t, ctx: ctx}
	if t.admin == nil {
		return w
	}
	var err error
	if w.before, err = t.counters(ctx); err != nil {
		w.miss("counters of the log", err)
	} else {
		w.counted = true
	}
	switch {
	case !c.Deep:
	case c.Cold && t.local.tree:
		w.miss("inside the server by eBPF", errNotSeen)
	default:
		w.deep = t.startDeep()
	}
	return w
}

func (w *serverWatch) miss(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unavailable = append(w.unavailable, what+": "+oneLine(err.Error()))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (w *serverWatch) windowOpens() {
	if w.target.admin == nil {
		return
	}
	var err error
	if w.open, err = w.target.statementTimes(w.ctx); err != nil {
		w.miss("execution inside the server", err)
	} else {
		w.timed = true
	}
	if w.deep != nil {
		w.deep.windowOpens()
	}
}

func (w *serverWatch) windowCloses() {
	if w.deep != nil {
		w.deep.windowCloses()
	}
	if !w.timed {
		return
	}
	var err error
	ctx, cancel := w.afterwards()
	defer cancel()
	if w.shut, err = w.target.statementTimes(ctx); err != nil {
		w.timed = false
		w.miss("execution inside the server", err)
	}
}

// afterwards is the context of queries at the end of a run. They are made even if the run was
// interrupted, but do not wait for a server that does not answer.
func (w *serverWatch) afterwards() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(w.ctx), statsTimeout)
}

// statsTimeout limits the wait for the server's statistics.
const statsTimeout = 3 * time.Second

// report adds the figures to s. all is the number of operations of the whole run.
func (w *serverWatch) report(s *bench.Sample, all int64) {
	b := s.Boundary
	if w.counted {
		ctx, cancel := w.afterwards()
		after, err := w.target.counters(ctx)
		cancel()
		if err != nil {
			w.miss("counters of the log", err)
		} else {
			s.Server = after.Since(w.before, all)
		}
	}
	if w.timed {
		w.inside(b, s.Ops)
	}
	if w.deep != nil {
		parts, missing := w.deep.report(s.Ops)
		if len(parts) > 0 {
			// The figures observed from outside are complete; the server's own are parts of
			// them.
			for i := range b.Inside {
				b.Inside[i].Nested = true
			}
			b.Inside = append(parts, b.Inside...)
		}
		b.Unavailable = append(b.Unavailable, missing...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	b.Unavailable = append(b.Unavailable, w.unavailable...)
}

// inside divides the server's counters by the operations of the window.
func (w *serverWatch) inside(b *bench.Boundary, ops int64) {
	if ops == 0 {
		return
	}
	add := func(name string, seconds float64, source string, nested bool) {
		if seconds > 0 {
			b.Inside = append(b.Inside, bench.ServerPart{Name: name, MeanNs: seconds / float64(ops) * 1e9, Source: source, Nested: nested})
		}
	}
	o, c := w.open, w.shut
	add("planning", c.planning-o.planning, c.source, false)
	add("execution", c.execution-o.execution, c.source, false)
	add("waiting for table locks", c.lock-o.lock, c.source, true)
	if c.logTimed && o.logTimed {
		add("log flush", c.logSync-o.logSync, "pg_stat_wal", false)
		add("log write", c.logWrite-o.logWrite, "pg_stat_wal", false)
	}
}

func (w *serverWatch) close() error {
	if w.deep != nil {
		return w.deep.close()
	}
	return nil
}

var errNotSeen = errors.New("processes that start within the window are not watched, and a cold run only has such processes")

var errNotOffered = errors.New("this engine does not offer it")

// counters reads the server's counters since its start.
func (t *Target) counters(ctx context.Context) (bench.ServerCounters, error) {
	switch t.Engine {
	case EnginePostgres, EngineMariaDB, EngineMySQL:
		return sqldb.Counters(ctx, t.admin)
	default:
		return bench.ServerCounters{}, errNotOffered
	}
}

// statementTimes reads the server's statistics about statements.
func (t *Target) statementTimes(ctx context.Context) (statementTimes, error) {
	switch t.Engine {
	case EnginePostgres:
		return t.postgresStatements(ctx)
	case EngineMariaDB, EngineMySQL:
		return t.mysqlStatements(ctx)
	default:
		return statementTimes{}, errNotOffered
	}
}

// postgresStatements qualifies names and operators, as package sqldb does.
//
// It reads pg_stat_statements. Its execution time does not include the commit.
func (t *Target) postgresStatements(ctx context.Context) (statementTimes, error) {
	s := statementTimes{source: "pg_stat_statements"}
	var schema string
	err := t.admin.QueryRowContext(ctx, `SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
		WHERE e.extname OPERATOR(pg_catalog.=) 'pg_stat_statements'`).Scan(&schema)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s, errors.New("pg_stat_statements is not in this database: add it to shared_preload_libraries and run CREATE EXTENSION pg_stat_statements")
	case err != nil:
		return s, err
	}
	err = t.admin.QueryRowContext(ctx, `SELECT coalesce(pg_catalog.sum(calls), 0)::bigint,
		coalesce(pg_catalog.sum(total_exec_time), 0) OPERATOR(pg_catalog./) 1e3::pg_catalog.float8, coalesce(pg_catalog.sum(total_plan_time), 0) OPERATOR(pg_catalog./) 1e3::pg_catalog.float8
		FROM `+pgx.Identifier{schema, "pg_stat_statements"}.Sanitize()+` s JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) s.dbid
		JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) s.userid AND r.rolname OPERATOR(pg_catalog.=) current_user
		WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AND s.query OPERATOR(pg_catalog.!~~) '%pg_stat_%'`).
		Scan(&s.calls, &s.execution, &s.planning)
	if err != nil {
		return s, fmt.Errorf("read pg_stat_statements: %w", err)
	}
	if t.server.Settings["track_wal_io_timing"] != "on" {
		return s, nil
	}
	if t.admin.QueryRowContext(ctx, `SELECT wal_sync_time OPERATOR(pg_catalog./) 1e3::pg_catalog.float8, wal_write_time OPERATOR(pg_catalog./) 1e3::pg_catalog.float8 FROM pg_catalog.pg_stat_wal`).Scan(&s.logSync, &s.logWrite) == nil {
		s.logTimed = true
	}
	return s, nil
}

// mysqlStatements reads the performance schema, whose times of statements include their commit.
// It covers all users.
func (t *Target) mysqlStatements(ctx context.Context) (statementTimes, error) {
	s := statementTimes{source: "performance_schema"}
	if t.server.Settings["performance_schema"] != "ON" {
		return s, errors.New("performance_schema is off; it can only be enabled when the server starts")
	}
	err := t.admin.QueryRowContext(ctx, `SELECT COALESCE(SUM(COUNT_STAR), 0), COALESCE(SUM(SUM_TIMER_WAIT), 0) / 1e12, COALESCE(SUM(SUM_LOCK_TIME), 0) / 1e12
		FROM performance_schema.events_statements_summary_global_by_event_name`).Scan(&s.calls, &s.execution, &s.lock)
	if err != nil {
		return s, fmt.Errorf("read performance_schema: %w", err)
	}
	return s, nil
}
