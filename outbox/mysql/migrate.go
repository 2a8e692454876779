package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

// tables is the state of the tables that Migrate finds.
type tables struct {
	meta       *meta           // nil if there is none
	columns    []string        // of the outbox table; nil if it does not exist
	others     map[string]bool // the other tables that exist, by suffix
	noteIDs    bool            // table _parked has column id
	leases     int
	partitions []outbox.Partition
	now        time.Time // the server's
	oldest     time.Time // creation of the oldest row; only set for a conversion
}

// meta is the one row of the meta table.
type meta struct {
	version int // 0 if the migration is not complete
	layout  outbox.Layout
	shards  int // 0 if not set yet
}

// checkVersion returns an error for tables that this version cannot use.
func (t *tables) checkVersion() error {
	switch {
	case t.meta == nil || t.meta.version == 0 || t.columns == nil:
		return outbox.ErrNotMigrated
	case t.meta.version > schemaVersion:
		return fmt.Errorf("%w: the tables have version %d, this weir knows versions up to %d: use a newer one", outbox.ErrNewer, t.meta.version, schemaVersion)
	}
	return nil
}

// Migrate implements [outbox.Store]. Each statement commits on its own and can be repeated,
// and each run executes what is missing, so the next run completes an interrupted one. To
// convert the table to partitions (Plan.Convert), the server copies it; producers wait
// until it is done.
func (s *Store) Migrate(ctx context.Context, plan outbox.Plan) ([]string, error) {
	if err := s.Check(ctx); err != nil { // the migration lock belongs to the session
		return nil, err
	}
	var done []string
	m := migration{s}
	err := s.with(ctx, func(c *session) error {
		v, err := s.serverOf(ctx, c)
		if err != nil {
			return err
		}
		if plan.DryRun {
			t, err := m.inspectFor(ctx, c, v, plan)
			if err != nil {
				return err
			}
			done, err = m.steps(t, plan)
			return err
		}
		done, err = m.migrate(ctx, c, v, plan)
		return err
	})
	if err != nil {
		return done, s.fail("migrate", err)
	}
	return done, nil
}

// migration runs Migrate for a store.
type migration struct{ *Store }

// migrate works under an advisory lock of its session.
func (s migration) migrate(ctx context.Context, c *session, v *server, plan outbox.Plan) (done []string, err error) {
	const patience = 60 // seconds
	name := v.lockName(s.Store, "migrate")
	if got, err := c.lock(ctx, name, patience); err != nil {
		return nil, err
	} else if !got {
		return nil, fmt.Errorf("another migration holds the lock for longer than %d s", patience)
	}
	defer func() { err = errors.Join(err, c.unlock(ctx, name)) }()
	t, err := s.inspectFor(ctx, c, v, plan)
	if err != nil {
		return nil, err
	}
	steps, err := s.steps(t, plan)
	if err != nil {
		return nil, err
	}
	free, err := s.lockShards(ctx, c, v, t, plan)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, free()) }()
	for _, text := range steps {
		if s.beforeStep != nil {
			if err := s.beforeStep(text); err != nil {
				return done, err
			}
		}
		if err := c.ddl(ctx, text, 10); err != nil {
			return done, fmt.Errorf("%s: %w", firstLine(text), err)
		}
		done = append(done, text)
	}
	return done, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// lockShards takes the locks of all old and new shards if their number is about to change:
// the range of a shard must not change while a relay leads it.
func (s migration) lockShards(ctx context.Context, c *session, v *server, t *tables, plan outbox.Plan) (free func() error, err error) {
	var names []string
	free = func() error {
		var errs []error
		for _, name := range names {
			errs = append(errs, c.unlock(ctx, name))
		}
		return errors.Join(errs...)
	}
	if t.meta == nil || t.meta.shards == 0 || plan.Shards == 0 || plan.Shards == t.meta.shards {
		return free, nil
	}
	for shard := range max(t.meta.shards, plan.Shards) {
		name := v.shardLock(s.Store, shard)
		got, err := c.lock(ctx, name, 0)
		if err != nil || !got {
			if err == nil {
				err = fmt.Errorf("change %d shards to %d: shard %d: %w: stop the relays first", t.meta.shards, plan.Shards, shard, outbox.ErrHeld)
			}
			return nil, errors.Join(err, free())
		}
		names = append(names, name)
	}
	return free, nil
}

// lock tries to take an advisory lock and waits up to the given seconds. The server would grant a
// session a lock that it has: if it has it, another client of a pooler took it.
func (c *session) lock(ctx context.Context, name string, seconds int) (bool, error) {
	const own = -1
	var got *int64
	err := c.QueryRowContext(ctx, fmt.Sprintf("SELECT IF(IS_USED_LOCK('%s') = CONNECTION_ID(), %d, GET_LOCK('%s', %d))", name, own, name, seconds)).Scan(&got)
	if err != nil {
		return false, fmt.Errorf("take advisory lock: %w", err)
	}
	if got != nil && *got == own {
		c.pool.pooled.Moved()
		return false, fmt.Errorf("%w (this session shares a session of the server with another client, which already holds the lock)", outbox.ErrPooled)
	}
	return got != nil && *got == 1, nil
}

// unlock releases an advisory lock. If that fails, it ends the session.
func (c *session) unlock(ctx context.Context, name string) error {
	if c.gone {
		return nil
	}
	if err := c.exec(ctx, "DO RELEASE_LOCK('"+name+"')"); err != nil {
		c.discard()
		return fmt.Errorf("release advisory lock: %w", err)
	}
	return nil
}

// ddl runs a statement that may need an exclusive lock of the table. New statements queue up
// behind it while it waits for running ones, so it waits only briefly and retries.
func (c *session) ddl(ctx context.Context, text string, attempts int) error {
	const wait, pause = 2, 500 * time.Millisecond
	if err := c.exec(ctx, fmt.Sprintf("SET lock_wait_timeout = %d", wait)); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := c.exec(ctx, text)
		if isError(err, errLockWait) {
			if attempt < attempts {
				select {
				case <-time.After(pause):
					continue
				case <-ctx.Done():
					return errors.Join(err, ctx.Err())
				}
			}
			err = fmt.Errorf("transactions kept the table in use during %d attempts of %d s: %w", attempts, wait, err)
		}
		if err != nil {
			return err
		}
		return c.exec(ctx, settings[len(settings)-1])
	}
}

// inspect reads the state of the tables.
func (s migration) inspect(ctx context.Context, c *session, v *server) (*tables, error) {
	t := &tables{others: map[string]bool{}}
	rows, err := c.QueryContext(ctx, `SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME IN (?, ?, ?, ?, ?, ?) ORDER BY ORDINAL_POSITION`,
		v.database, s.base, s.base+suffixes[0], s.base+suffixes[1], s.base+suffixes[2], s.base+suffixes[3], s.base+suffixes[4])
	if err != nil {
		return nil, fmt.Errorf("read columns: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var table, column string
		if err := rows.Scan(&table, &column); err != nil {
			return nil, fmt.Errorf("read columns: %w", err)
		}
		if suffix, _ := strings.CutPrefix(table, s.base); suffix != "" {
			t.others[suffix] = true
			t.noteIDs = t.noteIDs || suffix == "_parked" && column == "id"
		} else {
			t.columns = append(t.columns, column)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read columns: %w", err)
	}
	if err := s.inspectRows(ctx, c, t); err != nil {
		return nil, err
	}
	if t.partitions, err = (partitioning{s.Store, c, v}).list(ctx); err != nil {
		return nil, err
	}
	t.now, err = c.now(ctx)
	return t, err
}

// inspectFor is inspect. For a conversion it also finds the oldest row, which the partitions
// must reach back to.
func (s migration) inspectFor(ctx context.Context, c *session, v *server, plan outbox.Plan) (*tables, error) {
	t, err := s.inspect(ctx, c, v)
	if err != nil || t.columns == nil || !plan.Convert {
		return t, err
	}
	if period, err := periodOf(t.partitions); err == nil && period == plan.Partition.Period {
		return t, nil
	}
	var micros *int64
	if err := c.QueryRowContext(ctx, s.sql("SELECT "+micros1970("MIN(created_at)")+" FROM {outbox}")).Scan(&micros); err != nil {
		return nil, fmt.Errorf("find the oldest row: %w", err)
	}
	if micros != nil {
		t.oldest = time.UnixMicro(*micros).UTC()
	}
	return t, nil
}

// inspectRows reads the small tables.
func (s migration) inspectRows(ctx context.Context, c *session, t *tables) error {
	if t.others["_lease"] {
		if err := c.QueryRowContext(ctx, s.sql("SELECT COUNT(*) FROM {lease}")).Scan(&t.leases); err != nil {
			return fmt.Errorf("read leases: %w", err)
		}
	}
	if !t.others["_meta"] {
		return nil
	}
	var m meta
	var layout string
	err := c.QueryRowContext(ctx, s.sql("SELECT version, layout, shards FROM {meta}")).Scan(&m.version, &layout, &m.shards)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("read the meta table: %w", err)
	}
	if m.layout, err = outbox.ParseLayout(layout); err != nil {
		return fmt.Errorf("read the meta table: %w", err)
	}
	t.meta = &m
	return nil
}

// now returns the server's time.
func (c *session) now(ctx context.Context) (time.Time, error) {
	var micros int64
	if err := c.QueryRowContext(ctx, "SELECT "+micros1970("UTC_TIMESTAMP(6)")).Scan(&micros); err != nil {
		return time.Time{}, fmt.Errorf("read the server's clock: %w", err)
	}
	return time.UnixMicro(micros).UTC(), nil
}

// steps returns the statements that change the tables to what plan wants.
func (s migration) steps(t *tables, plan outbox.Plan) ([]string, error) {
	if err := t.check(plan); err != nil {
		return nil, err
	}
	var out []string
	add := func(text string) { out = append(out, s.sql(text)) }
	if !t.others["_meta"] {
		add(createMeta)
	}
	m := t.meta
	if m == nil {
		m = &meta{}
		add(fmt.Sprintf("INSERT INTO {meta} (layout) VALUES ('%s')", plan.Layout))
	}
	period, err := periodOf(t.partitions)
	switch want := plan.Partition.Period; {
	case t.columns == nil && plan.Layout == outbox.History:
		add(createHistory + t.partitionClause(plan.Partition))
	case t.columns == nil:
		add(createQueue)
	case want == outbox.Unpartitioned:
	case err != nil || want != period:
		add("ALTER TABLE {outbox}" + t.partitionClause(plan.Partition))
	}
	for i, text := range []string{createScheduled, createParked, createDead, createLease} {
		if !t.others[suffixes[i]] {
			add(text)
		}
	}
	if t.others["_parked"] && !t.noteIDs {
		add(addNoteIDs)
	}
	shards := max(1, cmp.Or(plan.Shards, m.shards))
	if t.leases < shards {
		values := make([]string, shards)
		for shard := range shards {
			values[shard] = fmt.Sprintf("(%d)", shard)
		}
		add("INSERT IGNORE INTO {lease} (shard) VALUES " + strings.Join(values, ", "))
	}
	if t.leases > shards {
		add(fmt.Sprintf("DELETE FROM {lease} WHERE shard >= %d", shards))
	}
	if m.shards != shards || m.version != schemaVersion {
		add(fmt.Sprintf("UPDATE {meta} SET shards = %d, version = %d", shards, schemaVersion))
	}
	return out, nil
}

// check returns an error for plans that are invalid or do not fit the existing tables.
func (t *tables) check(plan outbox.Plan) error {
	if t.meta != nil {
		if err := t.checkVersion(); err != nil && !errors.Is(err, outbox.ErrNotMigrated) {
			return err
		}
	}
	switch {
	case plan.Shards < 0 || plan.Shards > outbox.Buckets:
		return fmt.Errorf("%d shards: want 1 to %d", plan.Shards, outbox.Buckets)
	case t.meta != nil && t.meta.layout != plan.Layout:
		return fmt.Errorf("the tables have layout %s, not %s, which cannot be changed: create another outbox table and let the relay empty this one", t.meta.layout, plan.Layout)
	case plan.Layout != outbox.History && plan.Partition.Period != outbox.Unpartitioned:
		return errors.New("partitions need layout history: a queue holds what is pending only")
	case t.columns == nil:
		return nil
	}
	for _, column := range requiredColumns(plan.Layout) {
		if !slices.Contains(t.columns, column) {
			return fmt.Errorf("a table of this name exists and is not an outbox of layout %s: it has no column %s", plan.Layout, column)
		}
	}
	period, err := periodOf(t.partitions)
	if want := plan.Partition.Period; want != outbox.Unpartitioned && want != period && !plan.Convert {
		return errors.Join(err, fmt.Errorf("the table is partitioned by %s, not by %s: a conversion copies every row while producers wait, and must be requested (Plan.Convert, --convert)", period, want))
	}
	return nil
}

// Describe implements [outbox.Store].
func (s *Store) Describe(ctx context.Context) (outbox.Description, error) {
	d := outbox.Description{SkipLocks: true}
	err := s.with(ctx, func(c *session) error {
		v, err := s.serverOf(ctx, c)
		if err != nil {
			return err
		}
		d.Server = v.title()
		if !v.process {
			d.Server += fmt.Sprintf(" (without PROCESS: a gap is given up after %v)", s.opts.MaxTxAge)
		}
		t, err := migration{s}.inspect(ctx, c, v)
		if err != nil {
			return err
		}
		if err := t.checkVersion(); errors.Is(err, outbox.ErrNotMigrated) {
			return err
		}
		d.Version, d.Layout, d.Shards = t.meta.version, t.meta.layout, t.meta.shards
		d.Period, err = periodOf(t.partitions)
		return err
	})
	if err != nil {
		return outbox.Description{}, s.fail("describe", err)
	}
	d.CanTail = s.canTail(ctx)
	return d, nil
}
