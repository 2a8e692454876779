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

// Target is a database that operations are run against, or none (sleep). Make one
// by ParseTarget, connect it, close it.
type Target struct {
	// Engine is one of the Engine constants.
	Engine string
	dsn    string // as the engine's drivers take it

	// Connect finds these out.
	server measure.Server
	admin  *sql.DB // connections of our own, beside the pool; nil for sleep
	most   int     // connections that the server lets us have; 0 if it does not say
	local  local
}

// local is what is known of a server that runs on this machine.
type local struct {
	pid    int    // of its main process; 0 if it is elsewhere or hidden
	tree   bool   // connections are processes below it
	socket string // path of its Unix socket; "" if it is elsewhere or has none
	tcp    string // HOST:PORT; "" if it has none
}

// ParseTarget reads a DSN: a URL of postgres, mysql, mariadb, oracle or sleep, or
// the words of a libpq connection string. It connects to nothing.
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

// redact takes passwords out of a DSN, also out of one that is written in another
// way than those that weir reads: there, all before the host is left out.
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

// Connect reaches the server and finds out what it is.
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
		return errors.Join(fmt.Errorf("ask %s what it is: %w", t.Engine, err), t.Close())
	}
	return nil
}

// adminConns are for what is done beside the operations: set-up, counters, and
// looking at what the server waits for.
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

// Server describes the server, once connected.
func (t *Target) Server() measure.Server { return t.server }

// ErrTooManyConnections says that a pool is larger than what the server allows.
var ErrTooManyConnections = errors.New("more connections than the server allows")

// Fits returns why pools of so many connections cannot be had.
func (t *Target) Fits(connections int) error {
	if t.most > 0 && connections+adminConns > t.most {
		return fmt.Errorf("a pool of %d and %d connections of weir's own: %w, which is %d (max_connections, less what is kept for administrators)",
			connections, adminConns, ErrTooManyConnections, t.most)
	}
	return nil
}

// usage reads what the server's processes have used; false when they cannot be
// seen from here.
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

// isLoopback reports whether a host is this machine, as far as its name says.
func isLoopback(host string) bool {
	if host == "localhost" || strings.HasPrefix(host, "/") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// environment returns the first of some variables that is set.
func environment(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

// parseURL reads a DSN that is a URL, and keeps a password in it out of the error.
func parseURL(dsn string) (*url.URL, error) {
	u, err := url.Parse(dsn)
	var bad *url.Error
	if errors.As(err, &bad) {
		return nil, bad.Err
	}
	return u, err
}

// PrepareLab sets up a private server for being looked into: what only its owner
// may do.
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
