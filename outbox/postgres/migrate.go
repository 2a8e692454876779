package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/outbox"
)

// maxShards keeps the locks of all leases well within the server's lock table.
const maxShards = 1024

// Migrate creates the tables, or changes what is older than this version or differs from the
// plan. It is one transaction, so an interrupted migration has no effect, except for a
// conversion (plan.Convert), which continues when Migrate is called again.
//
// A conversion moves the delivered rows into a new table in batches, without locks that block
// other sessions; until it ends they are missing from List, Requeue and Purge. At the end it
// locks the table, copies the pending rows and puts the new table in its place, with the
// owner and privileges of the old one. It fails and changes nothing if views or foreign keys
// refer to the old table.
func (s *Store) Migrate(ctx context.Context, plan outbox.Plan) ([]string, error) {
	if err := checkPlan(plan); err != nil {
		return nil, err
	}
	n, err := s.tables(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Check(ctx); err != nil { // the migration lock belongs to the session
		return nil, err
	}
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, s.wrap("connect to migrate", err)
	}
	defer c.Release()
	unlock, err := lockMigration(ctx, c, n)
	if err != nil {
		return nil, s.wrap("lock the migration of", err)
	}
	defer unlock()
	m := &migration{store: s, names: n, plan: plan, conn: c.Conn()}
	if err := m.run(ctx); err != nil {
		return m.done, s.wrap("migrate", err)
	}
	return m.done, nil
}

// lockMigration prevents other migrations and partition maintenance until unlock. If unlock
// fails, it closes the connection, which unlocks as well.
func lockMigration(ctx context.Context, c *pgxpool.Conn, n names) (unlock func(), err error) {
	if _, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", n.migrationKey()); err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := c.Exec(ctx, "SELECT pg_advisory_unlock($1)", n.migrationKey()); err != nil {
			_ = c.Conn().Close(ctx) // the lock goes with the session, whatever closing says
		}
	}, nil
}

func checkPlan(plan outbox.Plan) error {
	period := plan.Partition.Period
	switch {
	case plan.Shards < 0 || plan.Shards > maxShards:
		return fmt.Errorf("outbox: %d shards: want 1 to %d, or 0 to leave them as they are", plan.Shards, maxShards)
	case plan.Layout == outbox.Queue && period != outbox.Unpartitioned:
		return errors.New("outbox: layout queue has no partitions: rows leave it when they are delivered; partition layout history")
	case plan.Convert && period == outbox.Unpartitioned:
		return errors.New("outbox: a conversion needs a period, day or month")
	}
	return checkSpec(plan.Partition)
}

// migration is one run of Migrate.
type migration struct {
	store *Store
	names names
	plan  outbox.Plan
	conn  *pgx.Conn
	tx    pgx.Tx // that exec executes in
	done  []string
}

// exec records a statement, and executes it unless this is a dry run.
func (m *migration) exec(ctx context.Context, sql string, args ...any) error {
	if !m.plan.DryRun {
		if _, err := m.tx.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("%.60s: %w", sql, err)
		}
	}
	m.done = append(m.done, sql)
	return nil
}

// inTx runs f in a transaction, which exec uses.
func (m *migration) inTx(ctx context.Context, f func() error) error {
	tx, err := m.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	m.tx = tx
	noted := len(m.done)
	err = f()
	if err == nil {
		if err = tx.Commit(ctx); err == nil {
			return nil
		}
		err = fmt.Errorf("commit: %w", err)
	}
	m.done = m.done[:noted]
	return errors.Join(err, rollback(ctx, tx))
}

// rollback rolls back a transaction, unless its connection is closed.
func rollback(ctx context.Context, tx pgx.Tx) error {
	if tx.Conn().IsClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

func (m *migration) run(ctx context.Context) error {
	old, err := readMeta(ctx, m.conn, m.names)
	switch {
	case err == nil:
	case isUndefined(err) || errors.Is(err, outbox.ErrNotMigrated):
		if err := m.inTx(ctx, func() error { return m.create(ctx) }); err != nil || m.plan.DryRun {
			return err
		}
		_, err := m.store.refresh(ctx, m.conn)
		return err
	default:
		return err
	}
	if err := m.check(old); err != nil {
		return err
	}
	if err := m.complete(ctx); err != nil {
		return err
	}
	if err := m.inTx(ctx, func() error { return m.adapt(ctx, old) }); err != nil {
		return err
	}
	if err := m.convert(ctx, old); err != nil || m.plan.DryRun {
		return err
	}
	_, err = m.store.refresh(ctx, m.conn)
	return err
}

// check refuses what a migration cannot change.
func (m *migration) check(old meta) error {
	if old.layout != m.plan.Layout {
		return fmt.Errorf("the tables have layout %v, and a change of layout to %v is not possible: use another table", old.layout, m.plan.Layout)
	}
	period := m.plan.Partition.Period
	if period != outbox.Unpartitioned && period != old.period && !m.plan.Convert {
		return fmt.Errorf("the table is partitioned by %v, not by %v: a conversion copies every row, and must be requested (Plan.Convert, --convert)",
			old.period, period)
	}
	return nil
}

// complete returns an error if one of the tables was dropped.
func (m *migration) complete(ctx context.Context) error {
	for _, suffix := range []string{"", outbox.ScheduledSuffix, "_parked", "_dead", "_lease"} {
		var there bool
		if err := m.conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", m.names.q(suffix)).Scan(&there); err != nil {
			return fmt.Errorf("look for the tables: %w", err)
		}
		if !there {
			return fmt.Errorf("table %s is gone: restore it, or drop the others, %s among them, and migrate again",
				m.names.q(suffix), m.names.q("_meta"))
		}
	}
	return nil
}

// create creates all tables.
func (m *migration) create(ctx context.Context) error {
	n, plan := m.names, m.plan
	var taken bool
	if err := m.tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", n.q("")).Scan(&taken); err != nil {
		return fmt.Errorf("look for the table: %w", err)
	}
	if taken {
		return fmt.Errorf("table %s exists already and is not an outbox of weir", n.q(""))
	}
	partitioned := plan.Partition.Period != outbox.Unpartitioned
	statements := []string{bucketFunction(n), mainTable(n.q(""), plan.Layout, partitioned), bucketTrigger(n, n.q(""))}
	if plan.Layout == outbox.History {
		statements = append(statements, pendingIndex(n.q("")))
	}
	if partitioned {
		now, err := clock(ctx, m.tx)
		if err != nil {
			return err
		}
		statements = append(statements, catchAllPartition(n, n.q(""), plan.Partition.Period))
		for _, span := range spans(plan.Partition, now) {
			statements = append(statements, newPartition(n, n.q(""), plan.Partition.Period, span))
		}
	}
	statements = append(statements, sideTables(n)...)
	if m.store.opts.Notify {
		statements = append(statements, wakeFunction(n), wakeTrigger(n, n.q("")))
	}
	shards := max(1, plan.Shards)
	statements = append(statements, leases(n, shards), fmt.Sprintf(
		"INSERT INTO %s (version, layout, shards, period) VALUES (%d, '%v', %d, '%v')",
		n.q("_meta"), schemaVersion, plan.Layout, shards, plan.Partition.Period))
	for _, sql := range statements {
		if err := m.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// adapt changes the number of shards and adds what is missing: the trigger of Options.Notify
// and the column of ids in notes of an older weir.
func (m *migration) adapt(ctx context.Context, old meta) error {
	n := m.names
	if m.store.opts.Notify {
		there, err := hasWakeTrigger(ctx, m.tx, n)
		if err != nil {
			return err
		}
		if !there {
			for _, sql := range []string{wakeFunction(n), wakeTrigger(n, n.q(""))} {
				if err := m.exec(ctx, sql); err != nil {
					return err
				}
			}
		}
	}
	if !old.noteIDs {
		if err := m.exec(ctx, addNoteIDs(n)); err != nil {
			return err
		}
	}
	shards := m.plan.Shards
	if shards == 0 || shards == old.shards {
		return nil
	}
	// A leader depends on the number of shards: lock all of them until this transaction ends.
	for i := range max(shards, old.shards) {
		var free bool
		if err := m.tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", n.leaseKey(i)).Scan(&free); err != nil {
			return fmt.Errorf("lock shard %d: %w", i, err)
		}
		if !free {
			return fmt.Errorf("change the number of shards from %d to %d: shard %d is led: stop its relay: %w", old.shards, shards, i, outbox.ErrHeld)
		}
	}
	for _, sql := range []string{
		leases(n, shards),
		fmt.Sprintf("DELETE FROM %s WHERE shard >= %d", n.q("_lease"), shards),
		fmt.Sprintf("UPDATE %s SET shards = %d", n.q("_meta"), shards),
	} {
		if err := m.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// clock returns the database's time.
func clock(ctx context.Context, q querier) (time.Time, error) {
	var now time.Time
	if err := q.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return now, fmt.Errorf("ask for the time: %w", err)
	}
	return now.UTC(), nil
}

// Describe implements [outbox.Store].
func (s *Store) Describe(ctx context.Context) (outbox.Description, error) {
	m, err := s.refresh(ctx, s.pool)
	if err != nil {
		return outbox.Description{}, err
	}
	d := outbox.Description{
		Version: m.version, Layout: m.layout, Shards: m.shards, Period: m.period, SkipLocks: true,
	}
	var version string
	if err := s.pool.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return d, s.wrap("ask for the version of the server of", err)
	}
	d.Server = "PostgreSQL " + version
	n, err := s.tables(ctx)
	if err != nil {
		return d, err
	}
	wire, err := s.wireConfig(ctx)
	if err != nil {
		return d, s.wrap("describe", err)
	}
	report, err := pgrepl.Probe(ctx, wire, pgrepl.ProbeConfig{
		Table: pgrepl.Table{Namespace: n.schema, Name: n.table}, Publication: n.publication(),
	})
	switch {
	case err != nil:
		d.CanTail = &outbox.TailError{Reason: err.Error()}
	case !report.Possible():
		d.CanTail = &outbox.TailError{Reason: report.Reason()}
	case report.Version < tailVersion:
		d.CanTail = &outbox.TailError{Reason: tooOldToTail}
	}
	return d, nil
}
