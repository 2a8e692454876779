package profile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
)

func checkPostgres(dsn string) error {
	_, err := pgx.ParseConfig(dsn)
	return err
}

// pgxConnector opens connections of database/sql over pgx.
func pgxConnector(dsn string, c poolConfig) (sqlConnector, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return sqlConnector{}, fmt.Errorf("read DSN: %w", err)
	}
	cfg.DialFunc = c.dial.DialContext
	return sqlConnector{Connector: stdlib.GetConnector(*cfg), config: c}, nil // pgx itself prepares statements
}

// pqConnector opens connections of database/sql over lib/pq.
func pqConnector(dsn string, c poolConfig) (sqlConnector, error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return sqlConnector{}, fmt.Errorf("read DSN: %w", err)
	}
	connector.Dialer(pqDialer{c.dial})
	return sqlConnector{Connector: connector, config: c, prepare: true}, nil
}

// postgresSettings are the settings that a figure depends on.
var postgresSettings = []string{
	"fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "shared_buffers", "max_connections",
	"wal_level", "track_wal_io_timing", "jit", "ssl",
}

func (t *Target) lookPostgres(ctx context.Context) (err error) {
	own := []string{"port", "superuser_reserved_connections", "unix_socket_directories"}
	if t.server, err = sqldb.Describe(ctx, t.admin, append(own, postgresSettings...)...); err != nil {
		return err
	}
	settings := t.server.Settings
	limit, _ := strconv.Atoi(settings["max_connections"])
	reserved, _ := strconv.Atoi(settings["superuser_reserved_connections"])
	t.most = max(limit-reserved, 0)
	t.locatePostgres(ctx, settings["port"], settings["unix_socket_directories"])
	maps.DeleteFunc(settings, func(name, _ string) bool { return slices.Contains(own, name) })
	return nil
}

// locatePostgres finds the server among the processes of this machine: it is the parent of our
// own backend. Process numbers in a container differ from ours, so the process must also look
// like a server.
func (t *Target) locatePostgres(ctx context.Context, port, socketDirs string) {
	cfg, err := pgx.ParseConfig(t.dsn)
	if err != nil || !isLoopback(cfg.Host) {
		return
	}
	var backend int
	if t.admin.QueryRowContext(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&backend) != nil {
		return
	}
	name, parent := processName(backend)
	if name != "postgres" {
		return
	}
	if name, _ := processName(parent); name != "postgres" {
		return
	}
	t.local = local{pid: parent, tree: true, tcp: net.JoinHostPort("127.0.0.1", port)}
	for _, dir := range splitList(socketDirs) {
		path := filepath.Join(dir, ".s.PGSQL."+port)
		if isSocket(path) {
			t.local.socket = path
			break
		}
	}
}

// pqDialer is a dialer in the form that lib/pq needs. lib/pq only calls DialContext.
type pqDialer struct{ *dialer }

var errNoContext = errors.New("dialling without a context is not supported")

func (pqDialer) Dial(string, string) (net.Conn, error) { return nil, errNoContext }

func (pqDialer) DialTimeout(string, string, time.Duration) (net.Conn, error) {
	return nil, errNoContext
}
