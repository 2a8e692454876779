package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

const (
	// startAttempts is how often the start is attempted if tables are created or dropped during
	// it. Each attempt takes as long as the locks; if ten of them fail, tables are created
	// faster than they can be listed.
	startAttempts = 10

	// lockBatch is the number of tables in one LOCK TABLE.
	lockBatch = 500
)

// start opens the main session, locks all selected tables, takes the snapshot and lists what it
// shows. The locks are taken before the snapshot exists, which LOCK TABLE does not need.
//
// If a table is dropped or created in between, that is noticed and the start is repeated.
// pg_dump, which takes the snapshot first, shows a table as empty that is rewritten between its
// snapshot and its lock.
func (d *database) start(ctx context.Context) (err error) {
	if d.main = d.firstIn(d.name); d.main == nil {
		if d.main, err = d.connect(ctx, d.name); err != nil {
			return err
		}
	}
	for attempt := 1; ; attempt++ {
		before, err := d.list(ctx)
		if err != nil {
			return err
		}
		d.callWorkers(ctx, before)
		// Without the tools there is no reason to wait for locks, or to make others wait.
		if err := d.tools(); err != nil {
			return err
		}
		err = d.lockAndSnap(ctx, before)
		if again(err) && attempt < startAttempts {
			if err := d.main.Exec(ctx, "ROLLBACK"); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if d.tables, err = d.list(ctx); err != nil {
			return err
		}
		locked := make(map[uint32]bool, len(before))
		for _, t := range before {
			locked[t.oid] = true
		}
		var late []*table
		for _, t := range d.tables {
			if !locked[t.oid] {
				late = append(late, t)
			}
		}
		if len(late) == 0 {
			return d.measure(ctx)
		}
		if attempt == startAttempts {
			return fmt.Errorf("tables are made faster than they can be locked, the last one %s", late[0].name())
		}
		if err := d.main.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
	}
}

// again reports whether a lock failed because a table does not exist any more, or because a
// transaction that alters several tables waited for our locks.
func again(err error) bool {
	switch pg.ErrorCode(err) {
	case pgwire.CodeUndefinedTable, "3F000", "40P01": // invalid_schema_name, deadlock_detected
		return true
	}
	return false
}

func (d *database) lockAndSnap(ctx context.Context, tables []*table) error {
	level := "REPEATABLE READ, READ ONLY"
	if d.opts.Deferrable {
		level = "SERIALIZABLE, READ ONLY, DEFERRABLE"
	}
	if err := d.main.Exec(ctx, "BEGIN ISOLATION LEVEL "+level); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if d.opts.LockWait > 0 {
		if err := d.main.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", d.opts.LockWait.Milliseconds())); err != nil {
			return err
		}
	}
	for len(tables) > 0 {
		n := min(lockBatch, len(tables))
		if err := d.lock(ctx, tables[:n]); err != nil {
			return err
		}
		tables = tables[n:]
	}
	if err := d.main.Exec(ctx, "SET LOCAL lock_timeout = 0"); err != nil {
		return err
	}
	row, err := d.main.Row(ctx, `SELECT pg_catalog.pg_export_snapshot(), pg_catalog.txid_current_snapshot(),
		CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END,
		pg_catalog.to_char(pg_catalog.clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
		EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'public')`)
	if err != nil {
		return fmt.Errorf("export snapshot: %w", err)
	}
	d.snapshot = row[0]
	d.position = archive.Position{Snapshot: row[1], LSN: row[2]}
	d.noPublic = row[4] == "f"
	d.same = map[string]string{attrSnapshot: d.shows()}
	if d.position.Time, err = time.Parse(time.RFC3339Nano, row[3]); err != nil {
		return fmt.Errorf("export snapshot: time of the server: %w", err)
	}
	return nil
}

// shows returns the identity of the snapshot, as chunks record it: the server and its visible
// transactions.
func (d *database) shows() string { return d.server.SystemID + "/" + d.position.Snapshot }

// lock locks tables against being altered or dropped. ONLY, because children are in the list
// themselves.
func (d *database) lock(ctx context.Context, tables []*table) error {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = "ONLY " + t.sql()
	}
	err := d.main.Exec(ctx, "LOCK TABLE "+strings.Join(names, ", ")+" IN ACCESS SHARE MODE")
	switch pg.ErrorCode(err) {
	case "":
		return err
	case pgwire.CodeLockNotAvailable:
		return fmt.Errorf("lock tables for reading within %v: %w (another session alters a table; --lock-wait-timeout says how long to wait)", d.opts.LockWait, err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("lock tables for reading: %w (a backup needs to read all tables that it is to hold; leave them out with --exclude-table or --exclude-schema)", err)
	}
	return fmt.Errorf("lock tables for reading: %w", err)
}

// pageBytes is the usual size of a page.
const pageBytes = 8 << 10

// callWorkers lets workers log in while the main session takes locks and the snapshot: as many
// as will have something to read, by the server's estimates of the tables.
func (d *database) callWorkers(ctx context.Context, tables []*table) {
	if d.opts.SchemaOnly {
		return
	}
	jobs := int64(0)
	for _, t := range tables {
		if !t.partitioned {
			jobs += 1 + max(0, t.pages)*pageBytes/backup.LeastChunkBytes // above 2^31 pages the server shows a negative number
		}
	}
	for i := range d.workers[:min(int64(d.pool.Start), jobs)] {
		d.workers[i].call(ctx)
	}
}

// worker is a session that reads with the snapshot of the main session.
type worker struct {
	d *database
	s *pg.Session

	// called receives the session of a worker that logs in early. Nil: call was not called, or
	// the session is s.
	called chan login

	// yields makes the main session read in its place.
	yields bool
}

// login is a session that was opened, or the error.
type login struct {
	s   *pg.Session
	err error
}

// call starts to log in.
func (w *worker) call(ctx context.Context) {
	if w.called != nil {
		return
	}
	w.called = make(chan login, 1)
	go func(called chan<- login) {
		s, err := w.d.connect(ctx, w.d.name)
		called <- login{s, err}
	}(w.called)
}

// login returns the session that call has started to open, or opens one.
func (w *worker) login(ctx context.Context) (*pg.Session, error) {
	if w.called == nil {
		return w.d.connect(ctx, w.d.name)
	}
	l := <-w.called
	w.called = nil
	return l.s, l.err
}

// begunError says that a lock ended a reading after part of it was used: that has to be undone
// before it is repeated.
type begunError struct{ error }

// again repeats the reading after a begunError, on the main session.
func (w *worker) again(err error, f func() error) error {
	if !errors.As(err, new(begunError)) {
		return err
	}
	w.yields = true
	defer func() { w.yields = false }()
	return f()
}

// open connects, unless that is done, and imports the snapshot.
func (w *worker) open(ctx context.Context) (err error) {
	if w.s != nil && w.s.Broken() == nil {
		return nil
	}
	if w.s, err = w.login(ctx); err != nil {
		return err
	}
	// A lock that the main session holds is granted at once, unless another session waits for a
	// stronger one: the worker would queue behind that session, which waits for the main
	// session. In that case the main session reads in its place.
	if err := w.s.Exec(ctx, "SET lock_timeout = "+strconv.Itoa(int(queuePatience.Milliseconds()))); err != nil {
		return err
	}
	return w.begin(ctx)
}

// queuePatience is how long a worker waits for a lock before the main session does its work.
const queuePatience = 300 * time.Millisecond

func (w *worker) begin(ctx context.Context) error {
	err := w.s.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET TRANSACTION SNAPSHOT "+pg.Literal(w.d.snapshot))
	if err != nil {
		return fmt.Errorf("take over the snapshot: %w", err)
	}
	return nil
}

// read runs f on the worker's session, or on the main session if a lock prevents the worker
// from reading. If a lock ends f after part of its output was used, as it may for a COPY that
// needs the index of a TOAST table after thousands of rows, it returns a begunError.
func (w *worker) read(ctx context.Context, f func(*pg.Session) error) error {
	if w.yields {
		return w.readMain(f)
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	err := f(w.s)
	begun := errors.As(err, new(begunError))
	if !begun && pg.ErrorCode(err) != pgwire.CodeLockNotAvailable || w.s.Broken() != nil {
		return err
	}
	if err := w.s.Exec(ctx, "ROLLBACK"); err != nil {
		return err
	}
	if err := w.begin(ctx); err != nil {
		return err
	}
	if begun {
		return err
	}
	return w.readMain(f)
}

func (w *worker) readMain(f func(*pg.Session) error) error {
	w.d.mainMu.Lock()
	defer w.d.mainMu.Unlock()
	return f(w.d.main)
}

func (w *worker) close() error {
	if w.called != nil {
		w.s = (<-w.called).s // if there is none, it was not needed
		w.called = nil
	}
	if w.s == nil {
		return nil
	}
	s := w.s
	w.s = nil
	return s.Close()
}

// errMoved says that another session has altered something that our locks do not protect. After
// starting over, the backup reads the altered state.
var errMoved = errors.New("definitions change while they are read")
