package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/outbox"
)

// Partition maintenance waits at most lockPatience for a lock, because producers queue up
// behind it, then pauses for lockPause, and gives up after lockAttempts. It does not ask
// for a lock that conflicts with a transaction older than lockPatience.
const (
	lockPatience = 50 * time.Millisecond
	lockPause    = 200 * time.Millisecond
	lockAttempts = 25
)

// maxPartitions bounds a plan: every read opens every partition.
const maxPartitions = 2000

// span is the time range of one partition: [from, to).
type span struct{ from, to time.Time }

func checkSpec(spec outbox.PartitionSpec) error {
	switch {
	case spec.Ahead < 0 || spec.Lookback < 0 || spec.Keep < 0:
		return errors.New("outbox: partitions: ahead, lookback and keep must not be negative")
	case spec.Keep > 0 && spec.Lookback > spec.Keep:
		return fmt.Errorf("outbox: partitions: a lookback of %v creates partitions that a keep of %v drops", spec.Lookback, spec.Keep)
	case spec.Period == outbox.Unpartitioned:
		return nil
	}
	days := (spec.Ahead + spec.Lookback).Hours() / 24
	if spec.Period == outbox.Monthly {
		days /= 28
	}
	if days > maxPartitions {
		return fmt.Errorf("outbox: partitions: more than %d of them by %v: use a longer period or a shorter time", maxPartitions, spec.Period)
	}
	return nil
}

// spans are the partitions that spec wants.
func spans(spec outbox.PartitionSpec, now time.Time) []span {
	var out []span
	for at := spec.Period.Start(now.Add(-spec.Lookback)); !at.After(now.Add(spec.Ahead)); at = spec.Period.Next(at) {
		out = append(out, span{at, spec.Period.Next(at)})
	}
	return out
}

func bound(t time.Time) string { return "'" + t.UTC().Format("2006-01-02 15:04:05") + "+00'" }

func (s span) values() string {
	return "FOR VALUES FROM (" + bound(s.from) + ") TO (" + bound(s.to) + ")"
}

func (s span) condition() string {
	return "created_at >= " + bound(s.from) + " AND created_at < " + bound(s.to)
}

func catchAllPartition(n names, parent string, p outbox.Period) string {
	return "CREATE TABLE " + ident(n.schema) + "." + ident(n.catchAll(p)) + " PARTITION OF " + parent + " DEFAULT" + hotStorage
}

// newPartition creates a partition of a table that no other session uses yet.
func newPartition(n names, parent string, p outbox.Period, s span) string {
	return "CREATE TABLE " + ident(n.schema) + "." + ident(n.partition(p, s.from)) + " PARTITION OF " + parent + " " + s.values() + hotStorage
}

// partition is a partition as the catalog describes it.
type partition struct {
	outbox.Partition
	quoted string
}

var boundPattern = regexp.MustCompile(`^FOR VALUES FROM \('([^']+)'\) TO \('([^']+)'\)$`)

// listPartitions reads the partitions from the catalog, ordered by time, the catch-all last.
func listPartitions(ctx context.Context, q querier, n names) ([]partition, error) {
	rows, err := q.Query(ctx, `
		SELECT c.relname, ns.nspname, pg_catalog.pg_get_expr(c.relpartbound, c.oid), greatest(c.reltuples, 0)::bigint
		FROM pg_catalog.pg_inherits i
		JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
		JOIN pg_catalog.pg_namespace ns ON ns.oid = c.relnamespace
		WHERE i.inhparent = to_regclass($1)`, n.q(""))
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	var out []partition
	var texts []string
	var name, schema, expr string
	var tuples int64
	_, err = pgx.ForEachRow(rows, []any{&name, &schema, &expr, &tuples}, func() error {
		p := partition{quoted: ident(schema) + "." + ident(name)}
		p.Name, p.Rows, p.CatchAll = name, tuples, expr == "DEFAULT"
		from, to := "", ""
		if b := boundPattern.FindStringSubmatch(expr); b != nil {
			from, to = b[1], b[2]
		} else if !p.CatchAll {
			return fmt.Errorf("partition %s has bounds that weir did not create: %s", name, expr)
		}
		out, texts = append(out, p), append(texts, from, to)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	if err := readBounds(ctx, q, out, texts); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b partition) int {
		switch {
		case a.CatchAll:
			return 1
		case b.CatchAll:
			return -1
		}
		return a.From.Compare(b.From)
	})
	return out, nil
}

// readBounds parses the bounds on the server: they are written in the session's time zone
// and date style.
func readBounds(ctx context.Context, q querier, parts []partition, texts []string) error {
	rows, err := q.Query(ctx, `SELECT nullif(t, '')::timestamptz FROM unnest($1::text[]) WITH ORDINALITY AS u(t, i) ORDER BY i`, texts)
	if err != nil {
		return fmt.Errorf("read the bounds of partitions: %w", err)
	}
	times, err := pgx.CollectRows(rows, pgx.RowTo[*time.Time])
	if err != nil {
		return fmt.Errorf("read the bounds of partitions: %w", err)
	}
	for i := range parts {
		if from, to := times[2*i], times[2*i+1]; from != nil && to != nil {
			parts[i].From, parts[i].To = from.UTC(), to.UTC()
		}
	}
	return nil
}

// countCatchAll counts the rows of a catch-all, up to 1000.
func countCatchAll(ctx context.Context, q querier, quoted string) (rows int64, err error) {
	if err := q.QueryRow(ctx, "SELECT count(*) FROM (SELECT 1 FROM "+quoted+" LIMIT 1000) AS r").Scan(&rows); err != nil {
		return 0, fmt.Errorf("count the rows of the catch-all: %w", err)
	}
	return rows, nil
}

// Partitions implements [outbox.Partitioner]. It does not set HasPending.
func (s *Store) Partitions(ctx context.Context) ([]outbox.Partition, error) {
	n, _, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, s.wrap("connect to list the partitions of", err)
	}
	defer c.Release()
	parts, err := listPartitions(ctx, c, n)
	if err != nil {
		return nil, s.wrap("describe", err)
	}
	var out []outbox.Partition
	for _, p := range parts {
		if p.CatchAll {
			if p.Rows, err = countCatchAll(ctx, c, p.quoted); err != nil {
				return nil, s.wrap("describe", err)
			}
		}
		out = append(out, p.Partition)
	}
	return out, nil
}

// MaintainPartitions creates and drops partitions. A partition is created as a separate
// table and then attached, which locks only the catch-all. Dropping one locks the whole
// table while it checks that no row in it is pending. Neither waits long for its locks
// (see lockPatience): what cannot be locked now is left for the next run.
func (s *Store) MaintainPartitions(ctx context.Context, spec outbox.PartitionSpec) (outbox.PartitionReport, error) {
	var report outbox.PartitionReport
	if err := checkSpec(spec); err != nil {
		return report, err
	}
	n, err := s.tables(ctx)
	if err != nil {
		return report, err
	}
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return report, s.wrap("connect to maintain the partitions of", err)
	}
	defer c.Release()
	unlock, err := lockMigration(ctx, c, n)
	if err != nil {
		return report, s.wrap("lock the partitions of", err)
	}
	defer unlock()
	m, err := s.refresh(ctx, c)
	if err != nil {
		return report, err
	}
	if m.period != spec.Period || !m.partitioned() {
		return report, fmt.Errorf("outbox: maintain %s: it has partitions by %v, not by %v", s.Name(), m.period, spec.Period)
	}
	if err := maintain(ctx, c.Conn(), n, m, spec, &report); err != nil {
		return report, s.wrap("maintain the partitions of", err)
	}
	return report, nil
}

func maintain(ctx context.Context, c *pgx.Conn, n names, m meta, spec outbox.PartitionSpec, report *outbox.PartitionReport) error {
	now, err := clock(ctx, c)
	if err != nil {
		return err
	}
	parts, err := listPartitions(ctx, c, n)
	if err != nil {
		return err
	}
	if len(parts) == 0 || !parts[len(parts)-1].CatchAll {
		return errors.New("there is no catch-all partition: create one: ALTER TABLE … ATTACH PARTITION … DEFAULT")
	}
	rest := parts[len(parts)-1]
	for _, sp := range spans(spec, now) {
		if slices.ContainsFunc(parts, func(p partition) bool {
			return !p.CatchAll && p.From.Before(sp.to) && sp.from.Before(p.To)
		}) {
			continue
		}
		name := n.partition(m.period, sp.from)
		if err := retryLocked(ctx, c, func(tx pgx.Tx) error { return attach(ctx, tx, n, rest, name, sp) }); err != nil {
			return fmt.Errorf("create partition %s: %w", name, err)
		}
		report.Created = append(report.Created, name)
	}
	for _, p := range parts {
		if p.CatchAll || spec.Keep == 0 || p.To.After(now.Add(-spec.Keep)) {
			continue
		}
		dropped := false
		err := retryLocked(ctx, c, func(tx pgx.Tx) (err error) {
			dropped, err = dropUnlessPending(ctx, tx, n, p)
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("drop partition %s: %w", p.Name, err)
		case dropped:
			report.Dropped = append(report.Dropped, p.Name)
		default:
			report.Kept = append(report.Kept, p.Name)
		}
	}
	report.CatchAllRows, err = countCatchAll(ctx, c, rest.quoted)
	return err
}

// attach creates a partition and moves the rows of its time range out of the catch-all, in
// one transaction: a reader sees each row exactly once.
func attach(ctx context.Context, tx pgx.Tx, n names, rest partition, name string, sp span) error {
	quoted := ident(n.schema) + "." + ident(name)
	for _, sql := range []string{
		"CREATE TABLE " + quoted + " (LIKE " + n.q("") + " INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)" + hotStorage,
		"LOCK TABLE " + rest.quoted + " IN ACCESS EXCLUSIVE MODE",
		"WITH moved AS (DELETE FROM " + rest.quoted + " WHERE " + sp.condition() + " RETURNING " + historyColumns + ") INSERT INTO " +
			quoted + " (" + historyColumns + ") SELECT " + historyColumns + " FROM moved",
		"ALTER TABLE " + n.q("") + " ATTACH PARTITION " + quoted + " " + sp.values(),
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.40s: %w", sql, err)
		}
	}
	return nil
}

// dropUnlessPending drops a partition that has no pending rows. It checks before it locks
// the table, and again under the lock.
func dropUnlessPending(ctx context.Context, tx pgx.Tx, n names, p partition) (bool, error) {
	pending := func() (found bool, err error) {
		err = tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+p.quoted+" WHERE status = 0)").Scan(&found)
		return found, err
	}
	if found, err := pending(); found || err != nil {
		return false, err
	}
	if err := checkBlockingTx(ctx, tx, n); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE ONLY "+n.q("")+" IN ACCESS EXCLUSIVE MODE"); err != nil {
		return false, err
	}
	if found, err := pending(); found || err != nil {
		return false, err
	}
	_, err := tx.Exec(ctx, "DROP TABLE "+p.quoted)
	return err == nil, err
}

// blockingTx is the error for a transaction that a lock would have to wait for.
type blockingTx struct {
	pid *int32 // nil for a prepared transaction
	age time.Duration
}

func (h *blockingTx) Error() string {
	if h.pid == nil {
		return "a prepared transaction holds a lock on the table: see pg_prepared_xacts"
	}
	return fmt.Sprintf("process %d has had a transaction open on the table for %v: see pg_stat_activity", *h.pid, h.age.Round(time.Millisecond))
}

// checkBlockingTx returns a *blockingTx if a lock of the whole table would have to wait for
// an old transaction, with all other sessions behind it.
func checkBlockingTx(ctx context.Context, tx pgx.Tx, n names) error {
	var h blockingTx
	var micros int64
	err := tx.QueryRow(ctx, `SELECT l.pid, coalesce(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000, 0)::bigint
		FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a USING (pid)
		WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
		AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
		AND l.relation = to_regclass($1)
		AND (l.pid IS NULL OR a.xact_start < clock_timestamp() - $2 * interval '1 microsecond')
		ORDER BY a.xact_start NULLS FIRST LIMIT 1`, n.q(""), lockPatience.Microseconds()).Scan(&h.pid, &micros)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if h.age = time.Duration(micros) * time.Microsecond; err != nil {
		return fmt.Errorf("look for locks on the table: %w", err)
	}
	return &h
}

// retryLocked runs f in a transaction with a short lock timeout, and retries after a pause
// if it did not get its locks.
func retryLocked(ctx context.Context, c *pgx.Conn, f func(pgx.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", lockPatience.Milliseconds())); err != nil {
				return err
			}
			return f(tx)
		})
		if !isBusy(err) {
			return err
		}
		if attempt == lockAttempts {
			return fmt.Errorf("the table was in use each time in %d attempts; nothing was changed, try again later: %w", attempt, err)
		}
		timer := time.NewTimer(lockPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

// isBusy reports whether a lock was not available in time.
func isBusy(err error) bool {
	var pe *pgconn.PgError
	var h *blockingTx
	return errors.As(err, &h) || errors.As(err, &pe) && (pe.Code == "55P03" || pe.Code == "40P01")
}

// isUndefined reports whether a table or schema does not exist.
func isUndefined(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000")
}
