package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/outbox"
)

// schemaVersion is the version of the tables that this code creates and uses.
const schemaVersion = 1

// nowMicros is the current time in microseconds since 1970, with a resolution of 1 ms. It uses
// only functions that every SQLite has, because it is a default of producers' inserts.
const nowMicros = "(CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)"

// message defines the columns that all tables of messages have. The defaults let plain SQL
// insert only topic, msg_key and payload. Such rows have no bucket; readers compute it.
const message = `
  bucket INTEGER,
  id BLOB NOT NULL DEFAULT (randomblob(16)) CHECK (length(id) = 16),
  topic TEXT NOT NULL,
  msg_key TEXT NOT NULL DEFAULT '',
  payload BLOB NOT NULL,
  headers TEXT,
  dedup_key TEXT,
  created_at INTEGER NOT NULL DEFAULT ` + nowMicros

// messageColumns are the columns that a message keeps when it moves between tables.
const messageColumns = "bucket, id, topic, msg_key, payload, headers, dedup_key"

const autoincrement = " INTEGER PRIMARY KEY AUTOINCREMENT,"

// The tables and their indexes.
const (
	createMeta = `CREATE TABLE {meta} (
  one INTEGER PRIMARY KEY DEFAULT 1,
  version INTEGER NOT NULL DEFAULT 0,
  layout TEXT NOT NULL,
  shards INTEGER NOT NULL DEFAULT 0
)`
	createQueue     = "CREATE TABLE {outbox} (\n  seq" + autoincrement + message + "\n)"
	createHistory   = "CREATE TABLE {outbox} (\n  seq" + autoincrement + message + ",\n  status INTEGER NOT NULL DEFAULT 0,\n  done_at INTEGER\n)"
	indexHistory    = "CREATE INDEX {pending} ON {outbox} (seq) WHERE status = 0"
	createScheduled = "CREATE TABLE {scheduled} (\n  seq" + autoincrement + message + ",\n  available_at INTEGER NOT NULL\n)"
	indexScheduled  = "CREATE INDEX {scheduled_index} ON {scheduled} (available_at, seq)"
	createParked    = `CREATE TABLE {parked} (
  seq INTEGER PRIMARY KEY,
  attempts INTEGER NOT NULL,
  due_at INTEGER NOT NULL,
  error TEXT NOT NULL,
  id BLOB
)`
	// addNoteIDs upgrades tables of an older weir, whose relays work with the column, too.
	addNoteIDs = "ALTER TABLE {parked} ADD COLUMN id BLOB"
	createDead = "CREATE TABLE {dead} (\n  dead_seq" + autoincrement + "\n  seq INTEGER NOT NULL," + message + `,
  attempts INTEGER NOT NULL,
  reason TEXT NOT NULL,
  error TEXT NOT NULL,
  died_at INTEGER NOT NULL DEFAULT ` + nowMicros + "\n)"
	createLease = `CREATE TABLE {lease} (
  shard INTEGER PRIMARY KEY,
  owner TEXT NOT NULL DEFAULT '',
  epoch INTEGER NOT NULL DEFAULT 0,
  taken_at INTEGER
)`
)

// tables is the state of the tables that Migrate finds.
type tables struct {
	meta    *meta // nil: nothing is noted
	columns []string
	leases  int
	noteIDs bool // notes of attempts have the id of their row
}

// meta is the one row of the meta table.
type meta struct {
	version int
	layout  outbox.Layout
	shards  int
}

// checkVersion returns an error for tables that this version cannot use.
func (t *tables) checkVersion() error {
	switch {
	case t.meta == nil || t.columns == nil:
		return outbox.ErrNotMigrated
	case t.meta.version > schemaVersion:
		return fmt.Errorf("%w: the tables have version %d, this weir knows versions up to %d: use a newer one", outbox.ErrNewer, t.meta.version, schemaVersion)
	}
	return nil
}

func (t *tables) history() bool { return t.meta.layout == outbox.History }

// inspect reads the state of the tables.
func (s *Store) inspect(ctx context.Context, tx *sql.Tx) (*tables, error) {
	t := &tables{}
	rows, err := tx.QueryContext(ctx, "SELECT name FROM pragma_table_info(?) ORDER BY cid", s.base)
	if err != nil {
		return nil, fmt.Errorf("read columns: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("read columns: %w", err)
		}
		t.columns = append(t.columns, name)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read columns: %w", err)
	}
	var there bool
	if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?))", s.base+"_meta").Scan(&there); err != nil || !there {
		return t, err
	}
	var m meta
	var layout string
	err = tx.QueryRowContext(ctx, s.sql("SELECT version, layout, shards, (SELECT COUNT(*) FROM {lease}), "+
		"EXISTS (SELECT 1 FROM pragma_table_info(?) WHERE name = 'id') FROM {meta}"), s.base+"_parked").Scan(&m.version, &layout, &m.shards, &t.leases, &t.noteIDs)
	if err != nil {
		return nil, fmt.Errorf("read the meta table: %w", err)
	}
	if m.layout, err = outbox.ParseLayout(layout); err != nil {
		return nil, fmt.Errorf("read the meta table: %w", err)
	}
	t.meta = &m
	return t, nil
}

// Migrate implements [outbox.Store]. It is one transaction.
func (s *Store) Migrate(ctx context.Context, plan outbox.Plan) (done []string, err error) {
	if plan.DryRun {
		err = s.read(ctx, func(tx *sql.Tx) error {
			t, err := s.inspect(ctx, tx)
			if err == nil {
				done, err = s.steps(t, plan)
			}
			return err
		})
	} else {
		err = s.write(ctx, func(tx *sql.Tx) error {
			done = nil
			steps, err := s.migrate(ctx, tx, plan)
			done = steps
			return err
		})
	}
	if err != nil {
		return nil, s.fail("migrate", err)
	}
	return done, nil
}

func (s *Store) migrate(ctx context.Context, tx *sql.Tx, plan outbox.Plan) (steps []string, err error) {
	t, err := s.inspect(ctx, tx)
	if err != nil {
		return nil, err
	}
	if steps, err = s.steps(t, plan); err != nil {
		return nil, err
	}
	if t.meta != nil && plan.Shards != 0 && plan.Shards != t.meta.shards {
		// The range of a shard must not change while a relay leads it.
		var locks []*fileLock
		defer func() {
			for _, lock := range locks {
				err = errors.Join(err, lock.Close())
			}
		}()
		for shard := range max(t.meta.shards, plan.Shards) {
			lock, err := s.lock(shard)
			if err != nil {
				return nil, fmt.Errorf("change %d shards to %d: shard %d: %w: stop the relays first", t.meta.shards, plan.Shards, shard, err)
			}
			locks = append(locks, lock)
		}
	}
	for _, text := range steps {
		if s.beforeStep != nil {
			if err := s.beforeStep(text); err != nil {
				return nil, err
			}
		}
		if _, err := tx.ExecContext(ctx, text); err != nil {
			line, _, _ := strings.Cut(text, "\n")
			return nil, fmt.Errorf("%s: %w", line, err)
		}
	}
	return steps, nil
}

// steps returns the statements that change the tables to what plan wants. All tables are
// created together or not at all.
func (s *Store) steps(t *tables, plan outbox.Plan) ([]string, error) {
	if err := t.check(plan); err != nil {
		return nil, err
	}
	var out []string
	add := func(texts ...string) {
		for _, text := range texts {
			out = append(out, s.sql(text))
		}
	}
	m := t.meta
	if m == nil {
		m = &meta{}
		add(createMeta, fmt.Sprintf("INSERT INTO {meta} (layout) VALUES ('%s')", plan.Layout))
		if plan.Layout == outbox.History {
			add(createHistory, indexHistory)
		} else {
			add(createQueue)
		}
		add(createScheduled, indexScheduled, createParked, createDead, createLease)
	} else if !t.noteIDs {
		add(addNoteIDs)
	}
	shards := max(1, cmp.Or(plan.Shards, m.shards))
	if t.leases < shards {
		values := make([]string, 0, shards)
		for shard := t.leases; shard < shards; shard++ {
			values = append(values, fmt.Sprintf("(%d)", shard))
		}
		add("INSERT INTO {lease} (shard) VALUES " + strings.Join(values, ", "))
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
	switch {
	case plan.Partition.Period != outbox.Unpartitioned:
		return errors.New("SQLite has no partitions")
	case plan.Shards < 0 || plan.Shards > outbox.Buckets:
		return fmt.Errorf("%d shards: want 1 to %d", plan.Shards, outbox.Buckets)
	case t.meta == nil && t.columns != nil:
		return errors.New("a table of this name exists and is not an outbox: there is no meta table")
	case t.meta == nil:
		return nil
	case t.meta.layout != plan.Layout:
		return fmt.Errorf("the tables have layout %s, not %s, which cannot be changed: create another outbox table and let the relay empty this one", t.meta.layout, plan.Layout)
	case !slices.Contains(t.columns, "seq"):
		return errors.New("the outbox table is missing, but its other tables exist")
	}
	return t.checkVersion()
}

// withTables runs f in a read transaction, with the state of the tables.
func (s *Store) withTables(ctx context.Context, step string, f func(tx *sql.Tx, t *tables) error) error {
	err := s.read(ctx, func(tx *sql.Tx) error {
		t, err := s.inspect(ctx, tx)
		if err == nil {
			err = t.checkVersion()
		}
		if err != nil {
			return err
		}
		return f(tx, t)
	})
	if err != nil {
		return s.fail(step, err)
	}
	return nil
}

// Describe implements [outbox.Store].
func (s *Store) Describe(ctx context.Context) (d outbox.Description, err error) {
	err = s.read(ctx, func(tx *sql.Tx) error {
		t, err := s.inspect(ctx, tx)
		if err != nil {
			return err
		}
		if t.meta == nil || t.columns == nil {
			return outbox.ErrNotMigrated
		}
		d = outbox.Description{Version: t.meta.version, Layout: t.meta.layout, Shards: t.meta.shards, CanTail: errNoLog}
		var version string
		if err := tx.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version); err != nil {
			return err
		}
		d.Server = "SQLite " + version
		return nil
	})
	if err != nil {
		return outbox.Description{}, s.fail("describe", err)
	}
	return d, nil
}

// errNoLog is the error of Tail.
var errNoLog = &outbox.TailError{Reason: "SQLite has no log to follow"}

// Claim implements [outbox.Store]. SQLite has no row locks.
func (s *Store) Claim(context.Context, outbox.ClaimRequest) (outbox.Claim, error) {
	return nil, s.fail("claim rows of", outbox.ErrNoSkipLocked)
}
