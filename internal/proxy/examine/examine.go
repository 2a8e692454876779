// Package examine checks a configuration of the proxy against the servers that it names: their
// versions, roles, connections and settings, and what the user of the connection string may do
// there. It changes nothing. This is weir config check --connect.
package examine

import (
	"context"
	"crypto/tls"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/measure/check"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// patience is how long one server may take to answer an examination.
const patience = 10 * time.Second

// Config has the sides of a proxy. nil means that there is no such side.
type Config struct {
	Postgres *postgres.Config
	// DSN is the connection string of Postgres.Hosts.
	DSN   string
	MySQL *mysql.Config
}

// options are the same for both sides.
func (c *Config) options() *session.Options {
	if c.Postgres != nil {
		return &c.Postgres.Options
	}
	return &c.MySQL.Options
}

// Servers looks at the servers that a configuration names as the proxy would meet them.
func Servers(ctx context.Context, c Config) []check.Check {
	checks := []check.Check{openFiles(c.options())}
	if c.Postgres != nil {
		for _, h := range c.Postgres.Hosts {
			checks = append(checks, examinePostgres(ctx, &c, h.Address)...)
		}
	}
	if c.MySQL != nil {
		for _, h := range c.MySQL.Hosts {
			checks = append(checks, examineMySQL(ctx, &c, h)...)
		}
	}
	return checks
}

// openFiles compares what a process may open with what the limits may come to.
func openFiles(o *session.Options) check.Check {
	found := check.Check{Name: "open files", State: check.Yes, For: "a descriptor for each client and server connection"}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		found.State, found.Detail = check.No, err.Error()
		return found
	}
	need := uint64(o.MaxClients + o.PoolSize + 64)
	found.Detail = fmt.Sprintf("%d, for %d clients (--max-clients) and their server connections", limit.Max, o.MaxClients)
	if limit.Max < need {
		found.State = check.Limited
		found.Hint = fmt.Sprintf("at least LimitNOFILE=%d, or a smaller --max-clients", need)
	}
	return found
}

// examination collects the checks of one server.
type examination struct {
	name   string
	checks []check.Check
}

func (e *examination) add(state check.State, what, detail, use, hint string) {
	e.checks = append(e.checks, check.Check{Name: e.name + " " + what, State: state, Detail: detail, For: use, Hint: hint})
}

// fits compares the server's connections with the pools'.
func (e *examination) fits(o *session.Options, free int, detail string) {
	pool := o.PoolSize + o.ReservePoolSize
	state, hint := check.Yes, ""
	switch {
	case free < pool:
		state, hint = check.No, fmt.Sprintf("raise the server's max_connections, or --pool-size to at most %d", max(free, 1))
	case o.MaxDBConnections > free:
		state, hint = check.Limited, "--max-db-connections is more than the server has"
	case free < 2*pool && o.MaxDBConnections == 0:
		state, hint = check.Limited, "--pool-size is for each user and database: with two of them it is too many; --max-db-connections bounds the sum over users"
	}
	takes := fmt.Sprintf("a pool may take %d", pool)
	if o.AutoPool {
		takes = fmt.Sprintf("a pool begins with %d, and pools grow until three quarters are taken", pool)
	}
	e.add(state, "connections", detail+"; "+takes, "pools of each user and database, of every weir before this server", hint)
}

func examinePostgres(ctx context.Context, c *Config, address string) []check.Check {
	e := &examination{name: "postgres " + address}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cfg, err := pgx.ParseConfig(c.DSN)
	if err == nil {
		chooseHost(cfg, address)
		err = e.postgres(ctx, c, cfg)
	}
	if err != nil {
		e.add(check.No, "answers", err.Error(), "everything", "weir logs in as the user of --postgres: check address, password (PGPASSWORD, ~/.pgpass) and pg_hba.conf")
	}
	return e.checks
}

// chooseHost has pgx connect to one of several hosts, whatever it is.
func chooseHost(cfg *pgx.ConnConfig, address string) {
	cfg.ValidateConnect = nil
	for _, f := range cfg.Fallbacks {
		if hostPort(f.Host, f.Port) == address && hostPort(cfg.Host, cfg.Port) != address {
			cfg.Host, cfg.Port, cfg.TLSConfig = f.Host, f.Port, f.TLSConfig
		}
	}
	kept := cfg.Fallbacks[:0]
	for _, f := range cfg.Fallbacks {
		if f.Host == cfg.Host && f.Port == cfg.Port { // without TLS, where the mode allows it
			kept = append(kept, f)
		}
	}
	cfg.Fallbacks = kept
}

func hostPort(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return fmt.Sprintf("%s/.s.PGSQL.%d", host, port)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("%s:%d", host, port)
}

func (e *examination) postgres(ctx context.Context, c *Config, cfg *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var version string
	var number, limit, reserved, used int
	var standby, sees, flushes, messages bool
	var fsync, commit, idleLimit, statementLimit string
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	// The rights are mostly a superuser's, and users who may create something in a schema of
	// the path could have it called.
	if _, err := tx.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp"); err != nil {
		return err
	}
	err = tx.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('server_version_num')::int,
		current_setting('max_connections')::int,
		current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0),
		(SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())::int,
		pg_catalog.pg_is_in_recovery(),
		pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'SELECT'),
		current_setting('fsync')::bool,
		has_function_privilege('pg_catalog.pg_logical_emit_message(boolean,text,text)', 'EXECUTE'),
		current_setting('fsync'), current_setting('synchronous_commit'),
		coalesce(current_setting('idle_session_timeout', true), '0'), current_setting('statement_timeout')`).Scan(
		&version, &number, &limit, &reserved, &used, &standby, &sees, &flushes, &messages, &fsync, &commit, &idleLimit, &statementLimit)
	if err != nil {
		return fmt.Errorf("look at the server: %w", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		return err
	}
	state, hint := check.Yes, ""
	if number < 130000 {
		state, hint = check.Limited, "weir is tested with PostgreSQL 13 and newer"
	}
	e.add(state, "answers", "PostgreSQL "+version+", as "+cfg.User, "everything", hint)
	role := "takes writes"
	if standby {
		role = "a standby"
	}
	e.add(check.Yes, "role", role, "which host connections go to (target_session_attrs)", "")
	e.fits(c.options(), limit-reserved, fmt.Sprintf("max_connections %d less %d reserved, %d in use", limit, reserved, used))
	switch {
	case sees:
		e.add(check.Yes, "logins", "may read pg_authid: logins cost the server no connection", "pooled logins", "")
	case c.Postgres.AuthQuery != "" || len(c.Postgres.Users) > 0:
		e.add(check.Yes, "logins", "by --auth-query or --auth-file", "pooled logins", "")
	default:
		e.add(check.Limited, "logins", cfg.User+" may not read pg_authid: each login is passed on to the server",
			"pooled logins", "GRANT SELECT ON pg_authid TO "+pgx.Identifier{cfg.User}.Sanitize()+", or --auth-query, or --auth-file")
	}
	if flushes && commit != "off" {
		e.add(check.Yes, "durability", "fsync "+fsync+", synchronous_commit "+commit, "that what is acknowledged survives a crash", "")
	} else {
		e.add(check.Limited, "durability", "fsync "+fsync+", synchronous_commit "+commit, "that what is acknowledged survives a crash",
			"the server acknowledges what a crash may lose, and groups of writes gain little: there is no flush to share")
	}
	if !messages && !c.Postgres.NoSoloLane {
		e.add(check.Limited, "solo lane", "the function pg_logical_emit_message may not be called", "groups of writes other than INSERTs of one shape", "GRANT EXECUTE on it, or --no-solo-lane")
	}
	if idleLimit != "0" {
		e.add(check.Limited, "idle sessions", "idle_session_timeout "+idleLimit, "server connections that stay open", "the server closes weir's free connections: set it to 0 for the users behind weir; --server-idle-timeout is weir's own")
	}
	return nil
}

func examineMySQL(ctx context.Context, c *Config, host mywire.ConnectConfig) []check.Check {
	e := &examination{name: "mysql " + host.Address}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := e.mysql(ctx, c, host); err != nil {
		e.add(check.No, "answers", err.Error(), "everything", "weir logs in as the user of --mysql: check address, password (MYSQL_PWD) and the account's host")
	}
	return e.checks
}

// mysqlDriver is the driver's configuration for a host of weir's.
func mysqlDriver(host mywire.ConnectConfig) *driver.Config {
	cfg := driver.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName, cfg.Addr, cfg.Net = host.User, host.Password, host.Database, host.Address, host.Network
	if cfg.Net == "" {
		cfg.Net = "tcp"
		if strings.HasPrefix(host.Address, "/") {
			cfg.Net = "unix"
		}
	}
	cfg.Timeout, cfg.ReadTimeout = patience, patience
	switch host.TLSMode {
	case "", mywire.TLSPreferred:
		cfg.TLSConfig = "preferred"
	case mywire.TLSDisabled:
	case mywire.TLSRequired:
		cfg.TLSConfig = "skip-verify"
	default:
		cfg.TLS = host.TLSConfig.Clone()
		if cfg.TLS == nil {
			cfg.TLS = &tls.Config{}
		}
	}
	return cfg
}

func (e *examination) mysql(ctx context.Context, c *Config, host mywire.ConnectConfig) error {
	connector, err := driver.NewConnector(mysqlDriver(host))
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var version string
	var limit, userLimit, flush int
	var readOnly string
	err = conn.QueryRowContext(ctx, "SELECT VERSION(), @@GLOBAL.max_connections, @@GLOBAL.max_user_connections, @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.read_only").
		Scan(&version, &limit, &userLimit, &flush, &readOnly)
	if err != nil {
		return fmt.Errorf("look at the server: %w", err)
	}
	e.add(check.Yes, "answers", version+", as "+host.User, "everything", "")
	role := "takes writes"
	if readOnly != "0" && !strings.EqualFold(readOnly, "OFF") { // MariaDB has words for it from 12.0.1 on
		role = "read_only"
	}
	e.add(check.Yes, "role", role, "which host connections go to (target_session_attrs)", "")
	free, detail := limit, fmt.Sprintf("max_connections %d", limit)
	if userLimit > 0 {
		free, detail = min(free, userLimit), detail+fmt.Sprintf(", max_user_connections %d", userLimit)
	}
	e.fits(c.options(), free, detail)
	e.mysqlPrivileges(ctx, c, conn, host.User, strings.Contains(version, "MariaDB"))
	durable := flush == 1
	settings := "innodb_flush_log_at_trx_commit " + strconv.Itoa(flush)
	var binlog, sync int
	if err := conn.QueryRowContext(ctx, "SELECT @@GLOBAL.log_bin, @@GLOBAL.sync_binlog").Scan(&binlog, &sync); err == nil && binlog != 0 {
		durable = durable && sync == 1
		settings += ", sync_binlog " + strconv.Itoa(sync)
	}
	if durable {
		e.add(check.Yes, "durability", settings, "that what is acknowledged survives a crash", "")
	} else {
		e.add(check.Limited, "durability", settings, "that what is acknowledged survives a crash",
			"the server acknowledges what a crash may lose, and groups of writes gain less: there is no flush to share")
	}
	return nil
}

// mysqlPrivileges tries what weir asks of the server as its own user.
func (e *examination) mysqlPrivileges(ctx context.Context, c *Config, conn *sql.Conn, user string, mariadb bool) {
	table := "mysql.user"
	if mariadb {
		table = "mysql.global_priv"
	}
	var one int
	err := conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+table).Scan(&one)
	switch {
	case err == nil:
		e.add(check.Yes, "logins", "may read "+table+": logins cost the server no connection", "pooled logins", "")
	case c.MySQL.AuthQuery != "" || len(c.MySQL.Users) > 0:
		e.add(check.Yes, "logins", "by --mysql-auth-query or --mysql-auth-file", "pooled logins", "")
	default:
		e.add(check.Limited, "logins", user+" may not read "+table+": each login is passed on to the server",
			"pooled logins", "GRANT SELECT ON "+table+" TO its account, or --mysql-auth-query, or --mysql-auth-file")
	}
	err = conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))").Scan(&one)
	if err == nil && one > 0 {
		e.add(check.Yes, "triggers", "sees those of all databases", "sharing of sessions that write", "")
		return
	}
	e.add(check.Limited, "triggers", user+" does not see those of all databases: sessions that write keep their connection",
		"sharing of sessions that write", "GRANT TRIGGER ON *.* TO its account, or --mysql-trust-functions '*'")
}
