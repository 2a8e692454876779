package profile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/weirdb/weir/internal/measure"
)

// Target is a database that operations run against, or a simulated one (sleep). Create it with
// ParseTarget, then call Connect, and Close at the end.
type Target struct {
	// Engine is one of the Engine constants.
	Engine string
	dsn    string // in the form of the engine's drivers

	// Set by Connect.
	server measure.Server
	admin  *sql.DB // our own connections, outside the pool; nil for sleep
	most   int     // the number of connections that the server allows us; 0 if unknown
	local  local
}

// local describes a server that runs on this machine.
type local struct {
	pid    int    // of its main process; 0 if it is elsewhere or not visible
	tree   bool   // connections are processes below pid
	socket string // path of its Unix socket; "" if unknown
	tcp    string // HOST:PORT; "" if unknown
}

// ParseTarget parses a DSN: a URL of postgres, mysql, mariadb, oracle or sleep, or a libpq
// connection string. It does not connect.
func ParseTarget(dsn string) (*Target, error) {
	scheme, _, isURL := strings.Cut(dsn, ":")
	if !isURL && strings.Contains(dsn, "=") || strings.Contains(scheme, "=") {
		scheme = "postgres"
	}
	t := &Target{dsn: dsn}
	var err error
	switch scheme {
	case "postgres", "postgresql":
		t.Engine = EnginePostgres
		err = checkPostgres(dsn)
	case "mysql", "mariadb":
		t.Engine = scheme
		_, err = mysqlConfig(dsn)
	case "oracle":
		t.Engine = EngineOracle
		err = checkOracle(dsn)
	case "sleep":
		t.Engine = EngineSleep
		_, err = parseSleep(dsn)
	default:
		return nil, fmt.Errorf("DSN %s: want a URL of postgres, mysql, mariadb, oracle or sleep", redact(dsn))
	}
	if err != nil {
		return nil, fmt.Errorf("DSN %s: %w", redact(dsn), err)
	}
	return t, nil
}

// redact removes passwords from a DSN. If the DSN has another form than those that weir parses,
// it removes everything before the host.
func redact(dsn string) string {
	out := measure.RedactCommand([]string{dsn})[0]
	at := strings.LastIndexByte(dsn, '@')
	if at < 0 || out != dsn {
		return out
	}
	user := dsn[:at]
	if _, rest, ok := strings.Cut(user, "://"); ok {
		user = rest
	}
	if strings.Contains(user, ":") {
		return "***" + dsn[at:]
	}
	return out
}

// Connect connects to the server and finds out what it is.
func (t *Target) Connect(ctx context.Context) error {
	if t.Engine == EngineSleep {
		t.server = measure.Server{Name: "none", Version: "sleep"}
		return nil
	}
	dial := &dialer{clock: newClock(), unstamped: true}
	c, err := t.connector(poolConfig{max: 1, dial: dial, driver: Drivers(t.Engine)[0]})
	if err != nil {
		return err
	}
	t.admin = sql.OpenDB(c)
	t.admin.SetMaxOpenConns(adminConns)
	t.admin.SetMaxIdleConns(adminConns)
	if err := t.admin.PingContext(ctx); err != nil {
		return errors.Join(fmt.Errorf("reach %s at %s: %w", t.Engine, redact(t.dsn), err), t.Close())
	}
	if err := t.look(ctx); err != nil {
		return errors.Join(fmt.Errorf("read the version of %s: %w", t.Engine, err), t.Close())
	}
	return nil
}

// adminConns are for set-up, for reading counters, and for observing what the server waits for.
const adminConns = 2

// connector returns the driver's connector for connections that are not traced.
func (t *Target) connector(c poolConfig) (sqlConnector, error) {
	switch t.Engine {
	case EnginePostgres:
		return pgxConnector(t.dsn, c)
	case EngineMariaDB, EngineMySQL:
		return mysqlConnector(t.dsn, c)
	default:
		return oracleConnector(t.dsn, c)
	}
}

func (t *Target) look(ctx context.Context) error {
	switch t.Engine {
	case EnginePostgres:
		return t.lookPostgres(ctx)
	case EngineMariaDB, EngineMySQL:
		return t.lookMySQL(ctx)
	default:
		return t.lookOracle(ctx)
	}
}

// Close closes the connections that Connect opened.
func (t *Target) Close() error {
	if t.admin == nil {
		return nil
	}
	return t.admin.Close()
}

// Server describes the server, after Connect.
func (t *Target) Server() measure.Server { return t.server }

// ErrTooManyConnections says that a pool is larger than the server allows.
var ErrTooManyConnections = errors.New("more connections than the server allows")

// Fits returns why pools with that many connections cannot be opened.
func (t *Target) Fits(connections int) error {
	if t.most > 0 && connections+adminConns > t.most {
		return fmt.Errorf("a pool of %d and %d connections of weir's own: %w, which is %d (max_connections, less what is kept for administrators)",
			connections, adminConns, ErrTooManyConnections, t.most)
	}
	return nil
}

// usage reads what the server's processes have used; false if they are not visible from here.
func (t *Target) usage() (measure.Usage, bool) {
	if t.local.pid == 0 {
		return measure.Usage{}, false
	}
	read := measure.Process
	if t.local.tree {
		read = measure.Tree
	}
	u, err := read(t.local.pid)
	return u, err == nil
}

var plainName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// isLoopback reports whether a host name means this machine.
func isLoopback(host string) bool {
	if host == "localhost" || strings.HasPrefix(host, "/") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// environment returns the first of the variables that is set.
func environment(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

// parseURL parses a DSN that is a URL, and keeps a password in it out of the error.
func parseURL(dsn string) (*url.URL, error) {
	u, err := url.Parse(dsn)
	var bad *url.Error
	if errors.As(err, &bad) {
		return nil, bad.Err
	}
	return u, err
}

// PrepareLab enables statistics on a private server, which only its owner may do.
func (t *Target) PrepareLab(ctx context.Context) error {
	if t.Engine != EnginePostgres {
		return nil
	}
	var can bool
	err := t.admin.QueryRowContext(ctx, `SELECT pg_catalog.strpos(pg_catalog.current_setting('shared_preload_libraries'), 'pg_stat_statements')::bool`).Scan(&can)
	if err != nil || !can {
		return err
	}
	if _, err := t.admin.ExecContext(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`); err != nil {
		return fmt.Errorf("create extension: %w", err)
	}
	return nil
}
