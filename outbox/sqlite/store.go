package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/weirdb/weir/outbox"
)

// Options say which outbox a store works on, and how. The zero value is right
// for most.
type Options struct {
	// Table is the outbox table; names of the others are made from it.
	// Default: outbox.DefaultTable.
	Table string
	// Owner identifies this process in the lease table. Default: host:pid.
	Owner string
	// BusyTimeout is how long a statement is retried while others write.
	// Default: 30 s.
	BusyTimeout time.Duration
}

func (o Options) withDefaults() Options {
	o.Table = cmp.Or(o.Table, outbox.DefaultTable)
	o.BusyTimeout = cmp.Or(o.BusyTimeout, 30*time.Second)
	if o.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Owner = host + ":" + strconv.Itoa(os.Getpid())
	}
	return o
}

// Store is an outbox in a SQLite file. It is safe for concurrent use.
type Store struct {
	path     string // absolute
	opts     Options
	base     string // the table's name without a schema
	handles  atomic.Pointer[handles]
	replacer *strings.Replacer
	// following is held while another file is opened.
	following sync.Mutex
	// beforeStep, for tests, sees every statement of Migrate before it runs; its
	// error ends Migrate.
	beforeStep func(text string) error
}

var _ outbox.Store = (*Store)(nil)

// Open opens the file at path, and creates it if it does not exist.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if path == "" || strings.Contains(path, ":memory:") {
		return nil, fmt.Errorf("outbox: open %q: want the path of a file: a database in memory belongs to one connection", path)
	}
	absolute, err := filepath.Abs(strings.TrimPrefix(path, "file:"))
	if err != nil {
		return nil, fmt.Errorf("outbox: open %s: %w", path, err)
	}
	s := &Store{path: absolute, opts: opts, base: strings.TrimPrefix(opts.Table, "main.")}
	if s.base == "" || strings.ContainsAny(s.base, ".\x00") {
		return nil, fmt.Errorf("outbox: table %q: want a name without a schema", opts.Table)
	}
	pairs := []string{"{outbox}", quote(s.base), "{pending}", quote(s.base + "_pending")}
	for _, suffix := range suffixes {
		pairs = append(pairs, "{"+suffix[1:]+"}", quote(s.base+suffix), "{"+suffix[1:]+"_index}", quote(s.base+suffix+"_index"))
	}
	s.replacer = strings.NewReplacer(pairs...)
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(s.fail("open", s.explainOpen(err)), s.Close())
	}
	return s, nil
}

// explainOpen adds the reason to SQLite's error that it cannot open a file.
func (s *Store) explainOpen(err error) error {
	var e *driver.Error
	if !errors.As(err, &e) || e.Code()&0xff != lib.SQLITE_CANTOPEN {
		return err
	}
	if _, missing := os.Stat(filepath.Dir(s.path)); missing != nil {
		return fmt.Errorf("%w: %w", err, missing)
	}
	f, why := os.OpenFile(s.path, os.O_RDWR, 0)
	if why == nil {
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("%w: %w", err, why)
}

// suffixes of the tables beside the outbox table.
var suffixes = []string{outbox.ScheduledSuffix, "_parked", "_dead", "_lease", "_meta"}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// maxReaders is the most concurrent reading statements.
const maxReaders = 4

func (s *Store) connect(ctx context.Context) (err error) {
	// The driver waits only briefly, because a wait inside SQLite cannot be canceled;
	// Store.retry waits longer.
	dsn := (&url.URL{Scheme: "file", OmitHost: true, Path: s.path}).String() + "?_pragma=busy_timeout(20)&_pragma=synchronous(NORMAL)"
	h := &handles{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if h.writer, err = sql.Open("sqlite", dsn+"&_txlock=immediate"); err != nil {
		return err
	}
	h.writer.SetMaxOpenConns(1)
	if h.readers, err = sql.Open("sqlite", dsn+"&_pragma=query_only(1)"); err != nil {
		return err
	}
	h.readers.SetMaxOpenConns(maxReaders)
	h.readers.SetMaxIdleConns(maxReaders)
	var mode string
	err = s.retry(ctx, func() error { return h.writer.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode) })
	if err != nil {
		return fmt.Errorf("set WAL mode: %w", err)
	}
	if mode != "wal" {
		return fmt.Errorf("the file stays in journal mode %s: WAL is required, which network file systems do not support", mode)
	}
	if h.file, err = os.Stat(s.path); err != nil {
		return fmt.Errorf("look at the file: %w", err)
	}
	s.handles.Store(h)
	return nil
}

// handles are the connections to a file. If the file at the path is replaced, they still use the
// old file, which no other process finds.
type handles struct {
	writer, readers *sql.DB
	file            os.FileInfo
}

func (h *handles) close() error {
	var errs []error
	for _, db := range []*sql.DB{h.readers, h.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// errReplaced says that another file, or none, is at the path.
var errReplaced = errors.New("the file of the database has been removed or replaced")

// checkFile returns errReplaced if the open file is not the one at the path.
func (s *Store) checkFile() error {
	now, err := os.Stat(s.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look at the file: %w", err)
	}
	if err != nil || !os.SameFile(now, s.handles.Load().file) {
		return errReplaced
	}
	return nil
}

// reopenIfReplaced opens the file that is at the path now, if it is another one. Statements on
// the old connections then fail.
func (s *Store) reopenIfReplaced(ctx context.Context) error {
	s.following.Lock()
	defer s.following.Unlock()
	err := s.checkFile()
	if !errors.Is(err, errReplaced) {
		return err
	}
	if _, err := os.Stat(s.path); err != nil {
		return errReplaced // connecting would make an empty one
	}
	old := s.handles.Load()
	if err := s.connect(ctx); err != nil {
		return err
	}
	return old.close()
}

// sql replaces {outbox}, {parked}, ... by the names of the tables.
func (s *Store) sql(text string) string { return s.replacer.Replace(text) }

// Name is the table as [Options] name it.
func (s *Store) Name() string { return s.opts.Table }

// Close closes the store's connections.
func (s *Store) Close() error {
	if h := s.handles.Load(); h != nil {
		if err := h.close(); err != nil {
			return s.fail("close", err)
		}
	}
	return nil
}

// fail adds the step and the table to an error.
func (s *Store) fail(step string, err error) error {
	var e *driver.Error
	if errors.As(err, &e) && strings.Contains(e.Error(), "no such table") {
		err = fmt.Errorf("%w (%w)", outbox.ErrNotMigrated, err)
	}
	return fmt.Errorf("outbox: %s %s: %w", step, s.opts.Table, err)
}

// isBusy reports whether a lock is held by another connection.
func isBusy(err error) bool {
	var e *driver.Error
	if !errors.As(err, &e) {
		return false
	}
	primary := e.Code() & 0xff
	return primary == lib.SQLITE_BUSY || primary == lib.SQLITE_LOCKED
}

// retry repeats f while another connection holds a lock, up to Options.BusyTimeout.
func (s *Store) retry(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(s.opts.BusyTimeout)
	for {
		err := f()
		if err != nil && ctx.Err() != nil {
			return errors.Join(err, ctx.Err()) // SQLite's error is only "interrupted"
		}
		if !isBusy(err) || time.Now().After(deadline) {
			return err
		}
		pause := time.NewTimer(rand.N(10 * time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

// write runs f in a transaction that takes the write lock when it begins.
func (s *Store) write(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.retry(ctx, func() error {
		tx, err := s.handles.Load().writer.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := f(tx); err != nil {
			return errors.Join(err, rollback(tx))
		}
		return tx.Commit()
	})
}

// read runs f in a read transaction: one snapshot.
func (s *Store) read(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.retry(ctx, func() error {
		tx, err := s.handles.Load().readers.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		return errors.Join(f(tx), rollback(tx))
	})
}

// rollback rolls back a transaction, unless it has ended because of its context.
func rollback(tx *sql.Tx) error {
	if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// exec runs a statement, after sql.
func (s *Store) exec(ctx context.Context, tx *sql.Tx, text string, args ...any) error {
	_, err := tx.ExecContext(ctx, s.sql(text), args...)
	return err
}
