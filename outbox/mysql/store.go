package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/outbox"
)

// Options say which outbox a store works on, and how. The zero value is right
// for most.
type Options struct {
	// Table is the outbox table, "name" or "schema.name"; names of the others
	// are made from it. At most 54 characters. Default: outbox.DefaultTable.
	Table string
	// MaxTxAge is used if the account lacks PROCESS: the relay then gives up a
	// gap after this time, so no transaction that inserts may stay open longer.
	// Default: 5 min.
	MaxTxAge time.Duration
	// Owner identifies this process in the lease table. Default: host:pid.
	Owner string
}

func (o Options) withDefaults() Options {
	o.Table = cmp.Or(o.Table, outbox.DefaultTable)
	o.MaxTxAge = cmp.Or(o.MaxTxAge, 5*time.Minute)
	if o.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Owner = host + ":" + strconv.Itoa(os.Getpid())
	}
	return o
}

// Store is an outbox in MySQL or MariaDB. It is safe for concurrent use.
type Store struct {
	*pool
	names
	opts Options
	wire *mywire.ConnectConfig // for the log; nil if only db is known
	// beforeStep is called by tests before every statement of Migrate; its error
	// ends Migrate.
	beforeStep func(text string) error
	// standbyPatience is the constant, except in tests.
	standbyPatience time.Duration
	// syncTimeout is how long the relay's own change may take to appear in the log.
	syncTimeout time.Duration

	describing sync.Mutex
	server     *server // the last one that was described: see serverOf
}

var (
	_ outbox.Store       = (*Store)(nil)
	_ outbox.Partitioner = (*Store)(nil)
	_ outbox.Announcer   = (*Store)(nil)
	_ outbox.Checker     = (*Store)(nil)
)

// Open connects to the database that dsn names, a URL
// (mysql://user:password@host:3306/database) or in go-sql-driver's form, in a
// pool of the store's own. Close closes it.
func Open(ctx context.Context, dsn string, opts Options) (*Store, error) {
	wire, err := mywire.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("outbox: open: %w", err)
	}
	db, err := openPool(wire)
	if err != nil {
		return nil, fmt.Errorf("outbox: open: %w", err)
	}
	s, err := New(db, opts)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	s.wire, s.owned = &wire, true
	if _, err := s.describeServer(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// New returns a store over the caller's pool, whatever its parameters; Close does not close the
// pool. The store changes the settings of the connections that it takes, and closes them
// afterwards. It cannot follow the log: use Open for that.
func New(db *sql.DB, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	names, err := namesOf(opts.Table)
	if err != nil {
		return nil, err
	}
	return &Store{pool: newPool(db), names: names, opts: opts, standbyPatience: standbyPatience, syncTimeout: defaultSyncTimeout}, nil
}

// Name is the table as [Options] name it.
func (s *Store) Name() string { return s.opts.Table }

// Close closes the sessions that are idle, and the pool if Open made it.
func (s *Store) Close() error {
	if err := s.close(); err != nil {
		return s.fail("close the pool of", err)
	}
	return nil
}

// fail adds the step and the table to an error. A missing table means that the tables were not
// migrated.
func (s *Store) fail(step string, err error) error {
	if isError(err, errNoTable) {
		err = fmt.Errorf("%w (%w)", outbox.ErrNotMigrated, err)
	}
	return fmt.Errorf("outbox: %s %s: %w", step, s.opts.Table, err)
}
