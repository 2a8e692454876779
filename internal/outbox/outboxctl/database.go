// Package outboxctl operates outboxes: it opens the store of a connection string, runs a relay
// with its maintenance, and serves metrics and a status page. Package outbox handles the
// messages; internal/outbox/cmd reads command lines and files.
package outboxctl

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/mysql"
	"github.com/weirdb/weir/outbox/postgres"
	"github.com/weirdb/weir/outbox/sqlite"
)

// Engine is a kind of database.
type Engine string

// The engines that have a store.
const (
	Postgres Engine = "postgres"
	MySQL    Engine = "mysql"
	SQLite   Engine = "sqlite"
)

// Database is where an outbox is. The zero value is none.
type Database struct {
	Engine Engine
	// Text is the connection string, for SQLite the path. It may hold a password.
	Text string
	// Address is Text without user and password, for display.
	Address string
	// ShowsPassword reports whether Text itself holds the password, rather than
	// the environment or a password file.
	ShowsPassword bool
}

// StoreOptions are further options of a store. The zero value is right for most.
type StoreOptions struct {
	// Table is the outbox table. Default: outbox.DefaultTable.
	Table string
	// Notify makes Migrate create the trigger that notifies relays of commits.
	// PostgreSQL only. Default: none.
	Notify bool
	// MaxTxAge is mysql.Options.MaxTxAge. Default: that one's.
	MaxTxAge time.Duration
	// Create creates a missing SQLite file. Default: it must exist.
	Create bool
}

// keywords matches the start of a libpq connection string of keywords.
var keywords = regexp.MustCompile(`^\s*[a-z_]+\s*=`)

// kind matches the scheme of a URL.
var kind = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+]*$`)

// ParseDatabase reads a connection string: a URL (postgres://, mysql://,
// mariadb://, sqlite:path), libpq's keywords, go-sql-driver's form, or the path
// of a SQLite file. Empty text means the server that PG* or MYSQL_* variables
// name. Errors hold no password.
func ParseDatabase(text string, getenv func(string) string) (Database, error) {
	scheme, rest, isURL := strings.Cut(text, "://")
	scheme = strings.ToLower(scheme)
	switch {
	case text == "":
		return fromEnvironment(getenv)
	case isURL && slices.Contains([]string{"postgres", "postgresql"}, scheme):
		return parsePostgres(scheme + "://" + rest)
	case !isURL && keywords.MatchString(text):
		return parsePostgres(text)
	case isURL && slices.Contains([]string{"mysql", "mariadb"}, scheme),
		!isURL && (strings.Contains(text, "@tcp(") || strings.Contains(text, "@unix(")):
		return parseMySQL(text)
	case isURL && scheme == "sqlite":
		return parseSQLite(rest)
	}
	path := strings.TrimPrefix(strings.TrimPrefix(text, "sqlite:"), "file:")
	if before, _, colon := strings.Cut(path, ":"); colon && kind.MatchString(before) {
		return Database{}, fmt.Errorf("unknown kind of database %q: want postgres://, mysql://, mariadb://, sqlite:PATH or a path", before)
	}
	return parseSQLite(path)
}

func fromEnvironment(getenv func(string) string) (Database, error) {
	pg := cmp.Or(getenv("PGHOST"), getenv("PGHOSTADDR"), getenv("PGSERVICE")) != ""
	my := cmp.Or(getenv("MYSQL_HOST"), getenv("MYSQL_UNIX_PORT")) != ""
	switch {
	case pg && my:
		return Database{}, errors.New("PG* and MYSQL_* variables name a server each: say which is meant, by postgres:// or mysql://")
	case pg:
		return parsePostgres("postgres://")
	case my:
		return parseMySQL("")
	}
	return Database{}, errors.New("no database: want postgres://user@host:5432/database, mysql://user@host:3306/database, or sqlite:PATH")
}

func parsePostgres(text string) (Database, error) {
	cfg, err := pgxpool.ParseConfig(text)
	if err != nil {
		// Errors of pgx may quote a password; those of pgwire do not.
		if _, err := pgwire.ParseDSN(text); err != nil {
			return Database{}, err
		}
		return Database{}, errors.New("not understood as a connection string of PostgreSQL: want postgres://user@host:5432/database")
	}
	c := cfg.ConnConfig
	return Database{
		Engine: Postgres, Text: text,
		Address:       fmt.Sprintf("postgres://%s/%s", net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), c.Database),
		ShowsPassword: shows(text, c.Password),
	}, nil
}

func parseMySQL(text string) (Database, error) {
	c, err := mywire.ParseDSN(text)
	if err != nil {
		return Database{}, err
	}
	return Database{
		Engine: MySQL, Text: text,
		Address:       fmt.Sprintf("mysql://%s/%s", c.Address, c.Database),
		ShowsPassword: shows(text, c.Password),
	}, nil
}

func parseSQLite(path string) (Database, error) {
	if path == "" || strings.Contains(path, ":memory:") {
		return Database{}, errors.New("sqlite: want the path of a file")
	}
	return Database{Engine: SQLite, Text: path, Address: "sqlite:" + path}, nil
}

func shows(text, password string) bool {
	return password != "" && (strings.Contains(text, password) ||
		strings.Contains(text, url.PathEscape(password)) || strings.Contains(text, url.QueryEscape(password)))
}

// Open connects. The store is the caller's to close.
func (d Database) Open(ctx context.Context, o StoreOptions) (outbox.Store, error) {
	switch d.Engine {
	case Postgres:
		return as(postgres.Open(ctx, d.Text, postgres.Options{Table: o.Table, Notify: o.Notify}))
	case MySQL:
		return as(mysql.Open(ctx, d.Text, mysql.Options{Table: o.Table, MaxTxAge: o.MaxTxAge}))
	case SQLite:
		if _, err := os.Stat(d.Text); !o.Create && errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: there is no file %s", outbox.ErrNotMigrated, d.Text)
		}
		return as(sqlite.Open(ctx, d.Text, sqlite.Options{Table: o.Table}))
	}
	return nil, errors.New("no database")
}

// as returns a nil Store for an error, rather than one that holds a nil pointer.
func as[S outbox.Store](s S, err error) (outbox.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Errors of a server that may accept connections soon: it is starting or stopping, or has too
// many connections.
var (
	transientPostgres = []string{"57P03", "57P01", "57P02", "53300"}
	transientMySQL    = []uint16{1040, 1053, 1203, 1205, 1213, 1317, 1926, 1927, 3169, 4031}
)

// IsAway reports whether an error of Open says that the server cannot be reached, or
// shuts down, so that waiting may help. It does not if the server refuses a login, a
// database or tables are missing, or settings are invalid.
func IsAway(err error) bool {
	var pg *pgconn.PgError
	var my *mysqldriver.MySQLError
	var network net.Error
	switch {
	case errors.Is(err, outbox.ErrNotMigrated), errors.Is(err, outbox.ErrNewer):
		return false
	case errors.As(err, &pg):
		return slices.Contains(transientPostgres, pg.Code) || strings.HasPrefix(pg.Code, "08")
	case errors.As(err, &my):
		return slices.Contains(transientMySQL, my.Number)
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, driver.ErrBadConn), errors.Is(err, mysqldriver.ErrInvalidConn), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNREFUSED):
		return true
	}
	return outbox.IsUnavailable(err)
}
