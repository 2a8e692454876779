//go:build linux

package proxycmd

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/proxy/examine"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/process"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/proxy/userlist"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// proxyLoader reads the options of `weir proxy`.
func proxyLoader() *cli.Loader[proxyConfig] {
	return &cli.Loader[proxyConfig]{
		Options: proxyOptions(), Groups: proxyGroups, Prefix: "WEIR_", Getenv: os.Getenv,
		FileHelp: "YAML file with any of these options; WEIR_CONFIG names one too",
	}
}

// loadProxy adds up the configuration. Its errors are the user's to correct.
func loadProxy(l *cli.Loader[proxyConfig]) (c proxyConfig, err error) {
	if c.found, err = l.Load(&c); err != nil {
		return proxyConfig{}, err
	}
	c.pgDSN.source, c.myDSN.source, c.ldap.source = c.found["postgres"].Source, c.found["mysql"].Source, c.found["ldap"].Source
	return c, c.complete(l.Getenv)
}

// complete turns what the options name into what the proxy needs: the servers'
// addresses from their DSNs, users and certificates from their files.
func (c *proxyConfig) complete(getenv func(string) string) error {
	c.pgDSN.wanted, c.myDSN.wanted = c.pgDSN.text != "", c.myDSN.text != ""
	if !c.pgDSN.wanted && !c.myDSN.wanted {
		c.pgDSN.wanted = cmp.Or(getenv("PGHOST"), getenv("PGHOSTADDR")) != ""
		c.myDSN.wanted = cmp.Or(getenv("MYSQL_HOST"), getenv("MYSQL_UNIX_PORT")) != ""
	}
	if !c.pgDSN.wanted && !c.myDSN.wanted {
		return errors.New("no server: give --postgres or --mysql a connection string, such as postgres://user@host:5432/database or mysql://user@host:3306/database")
	}
	cert, err := c.tls.load()
	if err != nil {
		return err
	}
	c.pg.Options, c.my.Options = c.shared, c.shared
	c.pg.AdminUsers, c.my.AdminUsers = c.admins, c.admins
	c.pg.ClientTLS, c.my.ClientTLS = cert, cert
	if c.pg.LDAP, err = c.ldap.directory(); err != nil {
		return err
	}
	c.my.LDAP = c.pg.LDAP
	if c.pgDSN.wanted {
		if err := c.completePostgres(); err != nil {
			return err
		}
	}
	if c.myDSN.wanted {
		return c.completeMySQL()
	}
	return nil
}

func (c *proxyConfig) completePostgres() (err error) {
	if hasScheme(c.pgDSN.text, "mysql", "mariadb") {
		return fmt.Errorf("%s: that is a server of MySQL or MariaDB: name it with --mysql", cmp.Or(c.pgDSN.source, "--postgres"))
	}
	source := cmp.Or(c.pgDSN.source, "server from PG* variables")
	var target string
	if c.pg.Hosts, target, err = pgwire.ParseHosts(c.pgDSN.text); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	c.pg.Postgres = c.pg.Hosts[0]
	for _, host := range c.pg.Hosts {
		if isSelf(host.Address, c.pg.Listen) {
			return fmt.Errorf("%s: at %s weir itself is to listen (--listen-postgres %s), so that it would connect to itself", source, host.Address, c.pg.Listen)
		}
	}
	if c.pg.Target, err = hostTarget(target, c.pg.Several()); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	c.pgDSN.visible = c.pgDSN.source == "--postgres" && showsPassword(c.pgDSN.text, c.pg.Postgres.Password)
	if c.pg.Users, err = userlist.Read(c.pgUsers, postgresUser); err != nil {
		return fmt.Errorf("--auth-file: %w", err)
	}
	return c.pg.Validate()
}

func (c *proxyConfig) completeMySQL() (err error) {
	if hasScheme(c.myDSN.text, "postgres", "postgresql") {
		return fmt.Errorf("%s: that is a server of PostgreSQL: name it with --postgres", cmp.Or(c.myDSN.source, "--mysql"))
	}
	source := cmp.Or(c.myDSN.source, "server from MYSQL_* variables")
	var target string
	if c.my.Hosts, target, err = mywire.ParseHosts(c.myDSN.text); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	c.my.MySQL = c.my.Hosts[0]
	for _, host := range c.my.Hosts {
		if isSelf(host.Address, c.my.Listen) {
			return fmt.Errorf("%s: at %s weir itself is to listen (--listen-mysql %s), so that it would connect to itself", source, host.Address, c.my.Listen)
		}
	}
	if c.my.Target, err = hostTarget(target, c.my.Several()); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	c.myDSN.visible = c.myDSN.source == "--mysql" && showsPassword(c.myDSN.text, c.my.MySQL.Password)
	if c.my.Users, err = userlist.Read(c.myUsers, mysqlUser); err != nil {
		return fmt.Errorf("--mysql-auth-file: %w", err)
	}
	return c.my.Validate()
}

// process returns what a process is run from.
func (c *proxyConfig) process() process.Config {
	out := process.Config{
		Admin: c.admin, Takeover: c.takeover, ShutdownDelay: c.shutdownDelay, AuditLog: c.audit, LogLevel: c.logLevel,
		Warnings: c.warnings(),
	}
	out.Postgres, out.MySQL = c.sides()
	return out
}

// servers returns what config check --connect looks at.
func (c *proxyConfig) servers() examine.Config {
	out := examine.Config{DSN: c.pgDSN.text}
	out.Postgres, out.MySQL = c.sides()
	return out
}

// sides returns copies of those that are wanted.
func (c *proxyConfig) sides() (pg *postgres.Config, my *mysql.Config) {
	if c.pgDSN.wanted {
		side := c.pg
		pg = &side
	}
	if c.myDSN.wanted {
		side := c.my
		my = &side
	}
	return pg, my
}

// warnings names the passwords that are on the command line.
func (c *proxyConfig) warnings() (list []string) {
	if c.pgDSN.visible {
		list = append(list, "the password in --postgres can be read by every user of this machine; use PGPASSWORD, the password file, WEIR_POSTGRES or --config")
	}
	if c.myDSN.visible {
		list = append(list, "the password in --mysql can be read by every user of this machine; use MYSQL_PWD, WEIR_MYSQL or --config")
	}
	if c.ldap.visible {
		list = append(list, "the password in --ldap can be read by every user of this machine; use WEIR_LDAP or --config")
	}
	return list
}

// isSelf reports whether a server's address is the one of a listener, as far as their
// texts show.
func isSelf(server, listener string) bool {
	host, port, err := net.SplitHostPort(server)
	at, same, failed := net.SplitHostPort(listener)
	if err != nil || failed != nil || port != same || port == "0" {
		return false
	}
	here := []string{"localhost", "127.0.0.1", "::1"}
	every := at == "" || at == "0.0.0.0" || at == "::"
	return host == at || slices.Contains(here, host) && (every || slices.Contains(here[:2], at) && host != "::1")
}

// hostTarget is which of the hosts is wanted. Of several it is the one that takes
// writes, unless the connection string says otherwise: libpq's own default, any, would
// send them to whichever answers first.
func hostTarget(attrs string, several bool) (upstream.Target, error) {
	if attrs == "" && several {
		return upstream.TargetReadWrite, nil
	}
	return upstream.ParseTarget(attrs)
}

// hasScheme reports whether a DSN is a URL of one of the given schemes.
func hasScheme(dsn string, schemes ...string) bool {
	scheme, _, found := strings.Cut(dsn, "://")
	return found && slices.Contains(schemes, strings.ToLower(scheme))
}

// showsPassword reports whether the password stands in the DSN, rather than in
// the environment or the password file.
func showsPassword(dsn, password string) bool {
	return password != "" && (strings.Contains(dsn, password) || strings.Contains(dsn, url.PathEscape(password)) ||
		strings.Contains(dsn, url.QueryEscape(password)))
}

// postgresUser makes a user of a list's entry. A secret is a password, an md5
// hash or a SCRAM secret as in pg_authid.rolpassword.
func postgresUser(name, text string) (postgres.User, error) {
	secret, err := pgwire.ParseSecret(text)
	return postgres.User{Name: name, Secret: secret}, err
}

// mysqlUser makes a user of a list's entry. A secret is a password or a hash as in
// mysql.user, also in hexadecimal digits behind 0x: those of caching_sha2_password
// hold bytes of any kind, and servers print them so.
func mysqlUser(name, text string) (mysql.User, error) {
	if digits, ok := strings.CutPrefix(text, "0x"); ok {
		if hash, err := hex.DecodeString(digits); err == nil && strings.HasPrefix(string(hash), "$A$") {
			text = string(hash)
		}
	}
	secret, err := mywire.ParseSecret(text)
	return mysql.User{Name: name, Secret: secret}, err
}

// listBatch reads the list under batch: which writes without a hint join a group;
// the first rule that fits decides.
func listBatch(f *cli.File, list *yaml.Node) (string, func(*proxyConfig)) {
	var rules []session.BatchRule
	for _, n := range list.Content {
		if n = cli.Resolve(n); n.Kind != yaml.MappingNode {
			f.Fail(n, "batch: want rules of the form {database: NAME, user: NAME, batch: off|auto|DURATION}")
			continue
		}
		var r session.BatchRule
		decided := false
		f.Pairs(n, func(key, value *yaml.Node) {
			if value.Kind != yaml.ScalarNode {
				f.Fail(key, "%s: want a single value", key.Value)
				return
			}
			switch key.Value {
			case "database":
				r.Database = value.Value
			case "user":
				r.User = value.Value
			case "batch":
				b, err := parseBatch(value.Value)
				if err != nil {
					f.Fail(key, "batch %q: %v", value.Value, err)
				}
				r.Batch, r.Window, decided = b.Batch, b.Window, true
			default:
				f.Fail(key, "unknown key %q of a batch rule%s", key.Value, cli.Suggest(key.Value, []string{"database", "user", "batch"}))
			}
		})
		if !decided {
			f.Fail(n, "a batch rule says nothing: add batch: off, auto or a duration")
		}
		rules = append(rules, r)
	}
	return fmt.Sprint(rules), func(c *proxyConfig) { c.shared.Batch = rules }
}

// listAdmins reads the list under admin_users.
func listAdmins(f *cli.File, list *yaml.Node) (string, func(*proxyConfig)) {
	var names []string
	for _, n := range list.Content {
		if n = cli.Resolve(n); n.Kind != yaml.ScalarNode {
			f.Fail(n, "admin_users: want names")
			return "", nil
		}
		names = append(names, n.Value)
	}
	return fmt.Sprint(names), func(c *proxyConfig) { c.admins = names }
}
