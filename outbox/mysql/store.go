package mysql

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/outbox/pooled"
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
	sessions
	db    *sql.DB
	opts  Options
	wire  *mywire.ConnectConfig // for the log; nil if only db is known
	owned bool                  // db was opened here
	// beforeStep is called by tests before every statement of Migrate; its error
	// ends Migrate.
	beforeStep func(text string) error
	// patience is leasePatience, longer in tests, so that a slow machine does not
	// look like a dead server.
	patience time.Duration
	// They are the constants, except in tests.
	standbyPatience, leaderPatience time.Duration
	// syncTimeout is how long the relay's own change may take to appear in the log.
	syncTimeout time.Duration
	schema      string // as named in Options.Table; "" is the session's database
	base        string
	replacer    *strings.Replacer

	pooled pooled.Check

	borrowing sync.Mutex    // held while idle connections are borrowed: see fresh
	looking   chan struct{} // has a value while a lease looks where the address leads
	looked    sight         // guarded by looking

	mu         sync.Mutex
	idle       []*session
	generation int    // of sessions: see expireSessions
	place      string // of sessions: see newSession
	closed     bool
	server     *server // the last one that was described: see serverOf
}

var (
	_ outbox.Store       = (*Store)(nil)
	_ outbox.Partitioner = (*Store)(nil)
	_ outbox.Announcer   = (*Store)(nil)
	_ outbox.Checker     = (*Store)(nil)
)

// maxTable is the longest name, in characters: the server's 64 less the longest
// suffix.
const maxTable = 64 - len(outbox.ScheduledSuffix)

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
	s := &Store{db: db, opts: opts, patience: leasePatience, standbyPatience: standbyPatience, leaderPatience: leaderPatience, syncTimeout: defaultSyncTimeout, looking: make(chan struct{}, 1)}
	s.sessions = s.session
	s.schema, s.base = splitTable(opts.Table)
	if n := len([]rune(s.base)); n == 0 || n > maxTable {
		return nil, fmt.Errorf("outbox: table %q: its name has %d characters, want 1 to %d", opts.Table, n, maxTable)
	}
	if strings.ContainsRune(opts.Table, 0) {
		return nil, fmt.Errorf("outbox: table %q: its name holds a NUL", opts.Table)
	}
	pairs := []string{"{outbox}", s.table("")}
	for _, suffix := range suffixes {
		pairs = append(pairs, "{"+suffix[1:]+"}", s.table(suffix))
	}
	s.replacer = strings.NewReplacer(pairs...)
	return s, nil
}

// suffixes of the tables beside the outbox table.
var suffixes = []string{outbox.ScheduledSuffix, "_parked", "_dead", "_lease", "_meta"}

func splitTable(name string) (schema, base string) {
	if schema, base, ok := strings.Cut(name, "."); ok {
		return schema, base
	}
	return "", name
}

// table quotes the name of one of the tables.
func (s *Store) table(suffix string) string {
	if s.schema == "" {
		return quote(s.base + suffix)
	}
	return quote(s.schema) + "." + quote(s.base+suffix)
}

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// sql replaces {outbox}, {parked}, ... by the names of the tables.
func (s *Store) sql(text string) string { return s.replacer.Replace(text) }

// Name is the table as [Options] name it.
func (s *Store) Name() string { return s.opts.Table }

// Close closes the sessions that are idle, and the pool if Open made it.
func (s *Store) Close() error {
	s.mu.Lock()
	idle := s.idle
	s.idle, s.closed = nil, true
	s.mu.Unlock()
	for _, c := range idle {
		c.discard()
	}
	if s.owned {
		if err := s.db.Close(); err != nil {
			return s.fail("close the pool of", err)
		}
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

// server describes a server.
type server struct {
	place    string // see placeText
	version  string // VERSION()
	mariadb  bool
	database string // that the tables are in
	process  bool   // the account sees all sessions and transactions
}

// title returns product and version.
func (v *server) title() string {
	if v.mariadb {
		number, _, _ := strings.Cut(v.version, "-")
		return "MariaDB " + number
	}
	return "MySQL " + v.version
}

// describeServer describes the server of the sessions.
func (s *Store) describeServer(ctx context.Context) (v *server, err error) {
	err = s.with(ctx, func(c *session) error {
		v, err = serverOf(ctx, s, c)
		return err
	})
	if err != nil {
		return nil, s.fail("look at the server of", err)
	}
	return v, nil
}

// serverOf describes the server of a session: an address may lead to a MariaDB now and to a MySQL
// later. It asks each server once, until Lead asks again.
func serverOf(ctx context.Context, s *Store, c *session) (*server, error) {
	s.mu.Lock()
	known := s.server
	s.mu.Unlock()
	if known != nil && known.place == c.place {
		return known, nil
	}
	return askServer(ctx, s, c)
}

// askServer is serverOf that always asks. It returns an error if the server is too old.
func askServer(ctx context.Context, s *Store, c *session) (*server, error) {
	v := &server{place: c.place}
	var database sql.NullString
	if err := c.QueryRowContext(ctx, "SELECT VERSION(), DATABASE()").Scan(&v.version, &database); err != nil {
		return nil, err
	}
	v.mariadb = strings.Contains(v.version, "MariaDB")
	v.database = cmp.Or(s.schema, database.String)
	switch err := c.exec(ctx, "SELECT COUNT(*) FROM information_schema.INNODB_TRX"); {
	case err == nil, isError(err, errConvert):
		v.process = true
	case !isError(err, errAccessDenied):
		return nil, err
	}
	if err := v.check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.server = v
	s.mu.Unlock()
	return v, nil
}

// check returns an error for servers without JSON_TABLE, default expressions or SKIP LOCKED.
func (v *server) check() error {
	if v.database == "" {
		return errors.New("no database: name one in the DSN, or the table as schema.name")
	}
	var major, minor int
	if _, err := fmt.Sscanf(v.version, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("the server's version %q is not understood: %w", v.version, err)
	}
	if v.mariadb && (major < 10 || major == 10 && minor < 11) || major < 8 {
		return fmt.Errorf("%s is too old: MySQL 8.0 or MariaDB 10.11 is needed", v.title())
	}
	return nil
}

// lockName returns the name of an advisory lock. Names are global to the server and have at most
// 64 characters.
func (v *server) lockName(s *Store, what string) string {
	sum := sha256.Sum256([]byte(v.database + "\x00" + s.base))
	return "weir:" + hex.EncodeToString(sum[:16]) + ":" + what
}

func (v *server) shardLock(s *Store, shard int) string {
	return v.lockName(s, strconv.Itoa(shard))
}
