// Package sqldb opens pools of connections to database servers, and reads what a server says
// about itself: its version, its settings and its counters. The benchmarks and weir profile use
// it for everything except the load.
package sqldb

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// OpenPostgres opens a pool that keeps up to n connections.
func OpenPostgres(dsn string, n int) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	return pooled(stdlib.OpenDB(*cfg), n), nil
}

// OpenMySQL opens a pool that keeps up to n connections, without TLS.
func OpenMySQL(dsn string, n int) (*sql.DB, error) {
	cfg, err := MySQLConfig(dsn)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	return pooled(sql.OpenDB(connector), n), nil
}

func pooled(db *sql.DB, n int) *sql.DB {
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db
}

// MySQLConfig returns the driver's configuration for a DSN that [mywire.ParseDSN] reads.
func MySQLConfig(dsn string) (*mysql.Config, error) {
	c, err := mywire.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	switch c.TLSMode {
	case mywire.TLSRequired, mywire.TLSVerifyCA, mywire.TLSVerifyIdentity:
		return nil, fmt.Errorf("tls mode %s: the load speaks to servers without TLS only", c.TLSMode)
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = c.User, c.Password, c.Database
	cfg.Net, cfg.Addr = cmp.Or(c.Network, "tcp"), c.Address
	cfg.Logger = &mysql.NopLogger{} // every error is returned as well
	return cfg, nil
}

// isMySQL tells the two protocols apart.
func isMySQL(db *sql.DB) bool {
	_, ok := db.Driver().(*mysql.MySQLDriver)
	return ok
}

// Describe returns the server's name and version, and its settings of the given names. Settings
// that it does not have are missing.
func Describe(ctx context.Context, db *sql.DB, names ...string) (measure.Server, error) {
	s := measure.Server{Name: "PostgreSQL"}
	version, query, args := "server_version", `SELECT name, pg_catalog.current_setting(name) FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=) ANY($1)`, []any(nil)
	if isMySQL(db) {
		s.Name, version, query = "MySQL", "version", "SHOW GLOBAL VARIABLES"
	}
	names = append(slices.Clone(names), version)
	if !isMySQL(db) {
		args = []any{names}
	}
	var err error
	if s.Settings, err = pairs(ctx, db, query, args...); err != nil {
		return s, fmt.Errorf("read settings: %w", err)
	}
	maps.DeleteFunc(s.Settings, func(name, _ string) bool { return !slices.Contains(names, name) })
	s.Version = s.Settings[version]
	delete(s.Settings, version)
	if strings.Contains(strings.ToLower(s.Version), "mariadb") {
		s.Name = "MariaDB"
	}
	return s, nil
}

// pairs queries names and values.
func pairs(ctx context.Context, db *sql.DB, query string, args ...any) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		out[name] = value
	}
	return out, rows.Err()
}
