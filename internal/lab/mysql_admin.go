package lab

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MySQLUser is an account for a client of a lab server.
type MySQLUser struct {
	// Name of the account, which may log in from anywhere.
	Name string
	// Password is its password. An account with unix_socket or auth_socket has none: it is the
	// operating system's user of that name.
	Password string
	// Plugin is the authentication plugin; see AuthPlugins. Default: the
	// server's own default.
	Plugin string
	// RequireTLS only allows encrypted connections. Default: false.
	RequireTLS bool
}

// authPlugin is how to create an account with an authentication plugin.
type authPlugin struct {
	name    string
	library string // loaded first; "" if it is built in
	named   bool   // the plugin relies on the operating system instead of a password
}

// authPlugins lists the plugins that CreateUser supports, the default first.
func (b mysqlBinaries) authPlugins() []authPlugin {
	if b.flavor == FlavorMariaDB {
		plugins := []authPlugin{
			{name: "mysql_native_password"},
			{name: "ed25519", library: "auth_ed25519"},
			{name: "unix_socket", named: true},
		}
		if b.version.atLeast(11, 6) {
			plugins = append(plugins, authPlugin{name: "parsec", library: "auth_parsec"})
		}
		return plugins
	}
	return []authPlugin{ // MySQL 9 no longer has mysql_native_password
		{name: "caching_sha2_password"},
		{name: "sha256_password"},
		{name: "auth_socket", library: "auth_socket", named: true},
	}
}

// AuthPlugins lists the authentication plugins that CreateUser knows for this
// server, its default first.
func (m *MySQL) AuthPlugins() []string {
	var names []string
	for _, p := range m.bin.authPlugins() {
		names = append(names, p.name)
	}
	return names
}

// CreateUser creates an account with every privilege, and loads its authentication plugin if
// needed.
func (m *MySQL) CreateUser(ctx context.Context, u MySQLUser) error {
	statements, err := m.bin.createUser(u)
	if err != nil {
		return fmt.Errorf("create user %s: %w", u.Name, err)
	}
	if err := m.Exec(ctx, statements...); err != nil {
		return fmt.Errorf("create user %s: %w", u.Name, err)
	}
	return nil
}

// createUser is the SQL that creates an account.
func (b mysqlBinaries) createUser(u MySQLUser) ([]string, error) {
	account := quoteSQL(u.Name) + "@'%'"
	by := " IDENTIFIED BY " + quoteSQL(u.Password)
	var statements []string
	if u.Plugin != "" {
		plugins := b.authPlugins()
		i := slices.IndexFunc(plugins, func(p authPlugin) bool { return p.name == u.Plugin })
		if i < 0 {
			return nil, fmt.Errorf("authentication plugin %q: not one that %s has", u.Plugin, b.flavor.title())
		}
		if plugins[i].library != "" {
			statements = append(statements, b.loadPlugin(plugins[i]))
		}
		by = b.identified(plugins[i], u.Password)
	}
	if u.RequireTLS {
		by += " REQUIRE SSL"
	}
	return append(statements,
		"CREATE USER "+account+by,
		"GRANT ALL PRIVILEGES ON *.* TO "+account,
	), nil
}

func (b mysqlBinaries) loadPlugin(p authPlugin) string {
	if b.flavor == FlavorMariaDB {
		return "INSTALL SONAME " + quoteSQL(p.library)
	}
	return "INSTALL PLUGIN " + p.name + " SONAME " + quoteSQL(p.library+".so")
}

// identified is the clause that names a plugin and its password.
func (b mysqlBinaries) identified(p authPlugin, password string) string {
	switch {
	case b.flavor == FlavorMariaDB && p.named:
		return " IDENTIFIED VIA " + p.name
	case b.flavor == FlavorMariaDB:
		return " IDENTIFIED VIA " + p.name + " USING PASSWORD(" + quoteSQL(password) + ")"
	case p.named:
		return " IDENTIFIED WITH " + p.name
	}
	return " IDENTIFIED WITH " + p.name + " BY " + quoteSQL(password)
}

// Errors that mean that a plugin is loaded already.
const (
	errPluginInstalled = 1968 // MariaDB
	errFunctionExists  = 1125 // MySQL
)

// Exec runs statements as root, one after another in one session, through the Unix socket, so
// that neither TLS nor the limit on connections over TCP matters. Loading a plugin again is not
// an error.
func (m *MySQL) Exec(ctx context.Context, statements ...string) error {
	db, err := openRoot(m.Socket(), m.cfg.Password)
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", m.title, err)
	}
	defer conn.Close()
	for _, s := range statements {
		_, err := conn.ExecContext(ctx, s)
		if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && (e.Number == errPluginInstalled || e.Number == errFunctionExists) &&
			strings.HasPrefix(s, "INSTALL ") {
			continue
		}
		if err != nil {
			return fmt.Errorf("run %s: %w", firstWords(s), err)
		}
	}
	return nil
}

// firstWords is the start of a statement, without possible secrets.
func firstWords(s string) string {
	f := strings.Fields(s)
	return strings.Join(f[:min(2, len(f))], " ")
}

// openRoot opens sessions of root through a Unix socket.
func openRoot(socket, password string) (*sql.DB, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = mysqlRoot, password, "unix", socket
	cfg.Timeout = probePatience
	cfg.Logger = &mysql.NopLogger{} // every error is returned as well
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure client: %w", err)
	}
	return sql.OpenDB(connector), nil
}

// probePatience limits one attempt to connect: the kernel accepts connections for a server that
// does not.
const probePatience = time.Second

// probeMySQL logs in. A server that is starting or recovering does not listen, or sends no
// greeting. A server that refuses root, whose password a test may have changed, is ready.
func probeMySQL(ctx context.Context, socket, password string) error {
	db, err := openRoot(socket, password)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	err = db.PingContext(ctx)
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) {
		return nil
	}
	return err
}
