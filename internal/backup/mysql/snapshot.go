package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

const (
	// startAttempts bounds how often the start is repeated because tables were created, dropped
	// or changed during it.
	startAttempts = 10

	// pinBatch is the number of tables that one statement pins.
	pinBatch = 100
)

// A lockedOutError says that a lock was not granted in the time that one attempt may wait for it.
type lockedOutError struct {
	error
	waited time.Duration
}

func (e lockedOutError) Unwrap() error { return e.error }

// errMoved is returned if the tables are not those that were listed.
var errMoved = errors.New("databases or tables are made, dropped or altered faster than they can be pinned")

// start pins all tables, takes one view of their rows in all sessions, and lists the tables
// that it shows. If tables are created, dropped or changed meanwhile, it notices that and
// starts again.
//
// A statement that alters a pinned table waits for us, and our lock waits for that statement, in
// front of all writes. So an attempt waits for the lock for a second only, then gives up
// its pins, which lets the statement go on. The next attempt waits twice as long. If there was such
// a statement, it pins when it has the lock: then no other can come between, but writes wait until
// all is pinned.
func (r *runner) start(ctx context.Context) error {
	// All of them must exist while the lock lasts, including those that only work if more
	// workers bring more throughput.
	for range r.opts.Adapt.Most(r.opts.Jobs) {
		s, err := my.Connect(ctx, r.cfg, "")
		if err != nil {
			return err
		}
		r.workers = append(r.workers, s)
	}
	for attempt := 1; ; attempt++ {
		err := r.attempt(ctx)
		if err == nil {
			return nil
		}
		if locked := (lockedOutError{}); errors.As(err, &locked) && r.starting.again(locked.waited, r.opts.LockWait) {
			attempt--
		} else if attempt == startAttempts || !errors.Is(err, errMoved) && !moved(err) {
			return err
		}
		if err := r.tables.release(); err != nil {
			return err
		}
		r.tables = nil
		for _, s := range r.sessions() {
			if err := s.Exec(ctx, "ROLLBACK"); err != nil {
				return err
			}
		}
	}
}

// starting is how the start takes its locks. Only the time that it waits for them counts against
// --lock-wait-timeout, not the time that it takes to pin many tables.
type starting struct {
	lockFirst bool          // to pin under the lock
	lockedOut int           // attempts that did not get a lock in time
	waited    time.Duration // in those attempts
	altered   verdict       // whether a statement that alters a table waited in the last of them
}

// A verdict is the answer to a question that an account may not have the right to ask.
type verdict int

const (
	unknown verdict = iota
	no
	yes
)

// again notes that an attempt was locked out, chooses how the next one begins, and reports whether
// there is time for one. Where it is unknown whether a table is altered, every other attempt pins
// first.
func (s *starting) again(waited, limit time.Duration) bool {
	s.lockedOut++
	s.waited += waited
	s.lockFirst = !s.lockFirst && (s.altered == yes || s.altered == unknown && s.lockedOut > 1)
	return limit <= 0 || s.waited < limit
}

// patience returns for how many seconds an attempt waits for a lock that blocks writers.
func (s *starting) patience(limit time.Duration) int64 {
	seconds := int64(1) << min(s.lockedOut, 16)
	if limit > 0 {
		seconds = min(seconds, int64((limit-s.waited)/time.Second))
	}
	return max(1, seconds)
}

// dml matches statements that wait for a table that we have just locked, and do not alter it.
var dml = regexp.MustCompile(`(?i)^[\s(]*(INSERT|UPDATE|DELETE|REPLACE|SELECT|WITH|LOAD)\b`)

// altering reports whether a session waits to alter a table: for those that read it, and these pin
// all tables.
func altering(ctx context.Context, r *runner) (verdict, error) {
	v := no
	err := r.main.QueryNamed(ctx, "SHOW PROCESSLIST", func(row map[string]string) error {
		if strings.HasPrefix(row["state"], "Waiting for table metadata lock") && !dml.MatchString(row["info"]) {
			v = yes
		}
		return nil
	})
	if err != nil || v == yes {
		return v, err
	}
	// An account without PROCESS is shown its own sessions.
	all, err := rightsOf(ctx, r.main)
	if my.ErrorCode(err) != 0 || err == nil && !all.have("", "", "PROCESS") {
		return unknown, nil
	}
	return v, err
}

func (r *runner) sessions() []*my.Session { return append(slices.Clone(r.workers), r.main) }

// moved reports whether an error says that a table has changed.
func moved(err error) bool {
	const tableDefinitionChanged = 1412
	switch my.ErrorCode(err) {
	case mywire.ErrNoSuchTable, mywire.ErrUnknownDatabase, tableDefinitionChanged:
		return true
	}
	return false
}

func (r *runner) attempt(ctx context.Context) error {
	before, err := r.list(ctx)
	if err != nil {
		return err
	}
	lock, err := pinAndLock(ctx, r, before)
	if err != nil {
		return err
	}
	if err := r.snap(ctx, before, lock); err != nil {
		return err
	}
	if others, err := (chooser{r}).others(ctx); err != nil || others {
		return cmp.Or(err, errMoved)
	}
	after, err := r.list(ctx)
	if err != nil {
		return err
	}
	if !slices.EqualFunc(before, after, same) {
		return errMoved
	}
	return r.adopt(ctx, after)
}

// pinAndLock pins the tables in all sessions, and takes the lock that blocks commits: nil if there
// are no tables.
func pinAndLock(ctx context.Context, r *runner, tables []*table) (lock *hold, err error) {
	pin := func() error {
		return r.each(ctx, func(ctx context.Context, s *my.Session) error {
			return r.pin(ctx, s, tables, "START TRANSACTION READ ONLY")
		})
	}
	switch {
	case len(tables) == 0:
		return nil, pin()
	case !r.starting.lockFirst:
		if err := pin(); err != nil {
			return nil, err
		}
		lock, err = r.lock(ctx, tables)
		if errors.As(err, new(lockedOutError)) {
			var e error
			r.starting.altered, e = altering(ctx, r)
			err = errors.Join(err, e)
		}
		return lock, err
	}
	if lock, err = r.lock(ctx, tables); err != nil {
		return nil, err
	}
	if err := pin(); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	return lock, nil
}

// lockWait returns for how many seconds a session waits for the lock of one table.
func lockWait(r *runner) int64 {
	if r.opts.LockWait > 0 {
		return max(1, int64(r.opts.LockWait/time.Second))
	}
	return int64(365 * 24 * time.Hour / time.Second)
}

// each runs f on all sessions concurrently. An error of one does not interrupt the others: all
// sessions are used again.
func (r *runner) each(ctx context.Context, f func(context.Context, *my.Session) error) error {
	var group errgroup.Group
	for _, s := range r.sessions() {
		group.Go(func() error { return f(ctx, s) })
	}
	return group.Wait()
}

// pin begins a transaction and keeps the definitions of tables in it.
func (r *runner) pin(ctx context.Context, s *my.Session, tables []*table, begin string) error {
	wait := lockWait(r)
	if r.starting.lockFirst { // writers wait for this session
		wait = r.starting.patience(r.opts.LockWait)
	}
	for _, sql := range []string{
		fmt.Sprintf("SET SESSION lock_wait_timeout = %d", wait),
		"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
		begin,
	} {
		if err := s.Exec(ctx, sql); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
	}
	for batch := range slices.Chunk(tables, pinBatch) {
		parts := make([]string, len(batch))
		for i, t := range batch {
			parts[i] = "(SELECT SQL_NO_CACHE 1 FROM " + t.sql() + " LIMIT 0)"
			if i > 0 {
				parts[i] = "(SELECT 1 FROM " + t.sql() + " LIMIT 0)"
			}
		}
		if err := s.Exec(ctx, strings.Join(parts, " UNION ALL ")); err != nil {
			return r.unpinned(err)
		}
	}
	if r.starting.lockFirst {
		return s.Exec(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", lockWait(r)))
	}
	return nil
}

func (r *runner) unpinned(err error) error {
	switch {
	case my.ErrorCode(err) == mywire.ErrLockWaitTimeout:
		err = fmt.Errorf("pin tables within %v: %w (another session alters a table; --lock-wait-timeout says how long to wait)", r.opts.LockWait, err)
		if r.starting.lockFirst {
			return lockedOutError{err, time.Duration(r.starting.patience(r.opts.LockWait)) * time.Second}
		}
		return err
	case my.Denied(err):
		return fmt.Errorf("pin tables: %w (a backup needs to read all tables that it is to hold; leave them out with --exclude-table)", err)
	}
	return fmt.Errorf("pin tables: %w", err)
}

// snap takes the views of all sessions while commits are blocked.
func (r *runner) snap(ctx context.Context, tables []*table, lock *hold) (err error) {
	if lock == nil {
		return r.where(ctx, r.main)
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	if lock.name == noLock && r.maria {
		// This view, and only one that is made like this, comes with its position.
		if err := r.workers[0].Exec(ctx, "ROLLBACK"); err != nil {
			return fmt.Errorf("take the snapshot: %w", err)
		}
		if err := r.pin(ctx, r.workers[0], tables, "START TRANSACTION READ ONLY, WITH CONSISTENT SNAPSHOT"); err != nil {
			return err
		}
	}
	if plain := unsafeTables(tables); len(plain) > 0 && !r.opts.SchemaOnly && !r.opts.NoLockTables {
		if r.tables, err = lockTables(ctx, r, plain); err != nil {
			return err
		}
	}
	if i := slices.IndexFunc(tables, func(t *table) bool { return t.versioned() }); i >= 0 {
		sql := "SELECT SQL_NO_CACHE 1 FROM " + tables[i].sql() + " LIMIT 1"
		if err := r.each(ctx, func(ctx context.Context, s *my.Session) error { return s.Exec(ctx, sql) }); err != nil {
			return fmt.Errorf("take the snapshot: %w", err)
		}
	}
	if lock.name == noLock {
		err = r.whereAlone(ctx, r.workers[0])
	} else {
		err = r.where(ctx, lock.s)
	}
	if err != nil {
		return err
	}
	if err := lock.s.Exec(ctx, lock.unlock); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	r.result.LockHeld, r.result.Lock = time.Since(lock.since), lock.name
	return nil
}

// where records the position in the binary log that the views show.
func (r *runner) where(ctx context.Context, s *my.Session) error {
	logged, err := r.when(ctx, s)
	if err != nil || !logged {
		return err
	}
	gtid := "SELECT @@GLOBAL.gtid_executed"
	if r.maria {
		gtid = "SELECT @@GLOBAL.gtid_current_pos"
	}
	err = logEnd(ctx, s, &r.position)
	if my.Denied(err) {
		r.warn("the position in the binary log is unknown, and no log can be replayed on this backup: %v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask for the position in the binary log: %w", err)
	}
	row, err := s.Row(ctx, gtid)
	if err != nil {
		return fmt.Errorf("ask for the GTIDs: %w", err)
	}
	r.position.GTID = strings.Join(strings.Fields(row[0]), "")
	return judge(ctx, r, s)
}

// logEnd queries where the binary log ends.
func logEnd(ctx context.Context, s *my.Session, at *archive.Position) error {
	status := "SHOW MASTER STATUS"
	if !s.IsMariaDB() && s.Version() >= 80200 {
		status = "SHOW BINARY LOG STATUS"
	}
	return s.QueryNamed(ctx, status, func(row map[string]string) error {
		at.Binlog = row["file"]
		_, err := fmt.Sscan(row["position"], &at.Offset)
		return err
	})
}

// when records the server's time, and reports whether the server keeps a binary log.
func (r *runner) when(ctx context.Context, s *my.Session) (logged bool, err error) {
	row, err := s.Row(ctx, "SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ'), @@log_bin")
	if err != nil {
		return false, fmt.Errorf("ask for the time: %w", err)
	}
	r.position = archive.Position{}
	if r.position.Time, err = time.Parse(time.RFC3339Nano, row[0]); err != nil {
		return false, fmt.Errorf("ask for the time: %w", err)
	}
	return row[1] != "0", nil
}

// whereAlone records the position that the view of a session shows while others commit. MariaDB
// reports it. The position that any other server reports is from a moment before or after the
// view, and transactions between the two would be replayed twice, or lost.
func (r *runner) whereAlone(ctx context.Context, s *my.Session) error {
	logged, err := r.when(ctx, s)
	if err != nil || !logged {
		return err
	}
	status := map[string]string{}
	if r.maria {
		err = s.Query(ctx, "SHOW SESSION STATUS LIKE 'binlog_snapshot_%'", func(row []string) error {
			status[strings.ToLower(row[0])] = row[1]
			return nil
		})
		if err != nil {
			return fmt.Errorf("ask for the position in the binary log: %w", err)
		}
	}
	file := status["binlog_snapshot_file"]
	if file == "" {
		r.warn("the account may not lock tables: the position of the rows in the binary log is unknown, and no log can be replayed on this backup")
		return nil
	}
	if _, err := fmt.Sscan(status["binlog_snapshot_position"], &r.position.Offset); err != nil {
		return fmt.Errorf("ask for the position in the binary log: %w", err)
	}
	r.position.Binlog = file
	row, err := s.Row(ctx, fmt.Sprintf("SELECT BINLOG_GTID_POS(%s, %d)", my.Literal(file), r.position.Offset))
	if err != nil {
		return fmt.Errorf("ask for the GTIDs: %w", err)
	}
	r.position.GTID = row[0]
	return judge(ctx, r, s)
}

// hold is a lock that blocks all commits.
type hold struct {
	s      *my.Session
	name   string
	unlock string
	since  time.Time
}

func (h *hold) release() error { return h.s.Close() }

// lock takes the weakest lock that the account is allowed to take and that suffices.
func (r *runner) lock(ctx context.Context, tables []*table) (*hold, error) {
	s, err := my.Connect(ctx, r.cfg, "")
	if err != nil {
		return nil, err
	}
	h := &hold{s: s}
	if err := r.take(ctx, h, tables); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return h, nil
}

func (r *runner) take(ctx context.Context, h *hold, tables []*table) error {
	if err := h.s.Exec(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", r.starting.patience(r.opts.LockWait))); err != nil {
		return err
	}
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.sql() + " READ"
	}
	type kind struct {
		name, unlock string
		take         []string
	}
	kinds := []kind{{"flush tables with read lock", "UNLOCK TABLES", []string{"FLUSH TABLES WITH READ LOCK"}}}
	if r.maria && r.main.Version() >= 100400 {
		kinds = []kind{{"backup stage", "BACKUP STAGE END", []string{"BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT"}}}
	}
	kinds = append(kinds, kind{"lock tables", "UNLOCK TABLES", []string{"LOCK TABLES " + strings.Join(names, ", ")}})
	var denied error
	for _, k := range kinds {
		h.name, h.unlock, h.since = k.name, k.unlock, time.Now()
		var err error
		for _, sql := range k.take {
			if err == nil {
				err = h.s.Exec(ctx, sql)
			}
		}
		if err == nil {
			return nil
		}
		if my.ErrorCode(err) == mywire.ErrLockWaitTimeout {
			err = fmt.Errorf("hold back writes (%s) within %v: %w (a long statement is in the way; --lock-wait-timeout says how long to wait)", k.name, r.opts.LockWait, err)
			return lockedOutError{err, time.Since(h.since)}
		}
		if !my.Denied(err) {
			return fmt.Errorf("hold back writes (%s): %w", k.name, err)
		}
		denied = errors.Join(denied, err)
	}
	if len(r.workers) == 1 && len(unsafeTables(tables)) == 0 {
		return r.alone(h)
	}
	return fmt.Errorf("hold back writes for a moment, so that all sessions see the same: %w (the account needs RELOAD or LOCK TABLES; --jobs 1 does without)", denied)
}

// noLock is the name of a hold without a lock.
const noLock = "none"

// alone uses no lock: a single session sees one moment anyway, and the others only read
// definitions.
func (r *runner) alone(h *hold) error {
	h.name, h.unlock = noLock, "DO 0"
	return nil
}

// tableLocks lock tables without transactions.
type tableLocks struct {
	s     *my.Session
	since time.Time
}

func lockTables(ctx context.Context, r *runner, tables []*table) (*tableLocks, error) {
	s, err := my.Connect(ctx, r.cfg, "")
	if err != nil {
		return nil, err
	}
	list := make([]string, len(tables))
	for i, t := range tables {
		list[i] = t.sql() + " READ"
	}
	if r.opts.LockWait > 0 {
		err = s.Exec(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", max(1, int64(r.opts.LockWait/time.Second))))
	}
	if err == nil {
		err = s.Exec(ctx, "LOCK TABLES "+strings.Join(list, ", "))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock tables without transactions, %s: %w (--lock-tables=false copies them unlocked, --exclude-table leaves them out)",
			names(tables), err), s.Close())
	}
	return &tableLocks{s: s, since: time.Now()}, nil
}

// release lets others write again.
func (l *tableLocks) release() error {
	if l == nil {
		return nil
	}
	return l.s.Close()
}
