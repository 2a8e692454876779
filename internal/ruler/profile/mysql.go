package profile

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
)

// mysqlConfig converts a URL to the driver's configuration:
//
//	mysql://user:password@host:port/database?ssl-mode=REQUIRED
//
// The parameters socket, ssl-mode, ssl-ca, ssl-cert and ssl-key are those of the mysql client;
// all others are the driver's own. Defaults for missing parts come from MYSQL_HOST,
// MYSQL_TCP_PORT and MYSQL_PWD.
func mysqlConfig(dsn string) (*mysql.Config, error) {
	u, err := parseURL(dsn)
	if err != nil {
		return nil, err
	}
	q := u.Query()
	security, err := takeTLS(q, u.Hostname())
	if err != nil {
		return nil, err
	}
	socket := q.Get("socket")
	q.Del("socket")
	host := cmp.Or(u.Hostname(), environment("MYSQL_HOST"), "127.0.0.1")
	address := "tcp(" + net.JoinHostPort(host, cmp.Or(u.Port(), environment("MYSQL_TCP_PORT"), "3306")) + ")"
	if socket != "" {
		address = "unix(" + socket + ")"
	}
	cfg, err := mysql.ParseDSN(address + "/" + url.PathEscape(strings.TrimPrefix(u.Path, "/")) + "?" + q.Encode())
	if err != nil {
		return nil, err
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.Passwd = cmp.Or(cfg.Passwd, environment("MYSQL_PWD"))
	if security != nil {
		cfg.TLS = security
	}
	// The driver logs errors that are returned, too.
	cfg.Logger = log.New(io.Discard, "", 0)
	return cfg, nil
}

// takeTLS removes the mysql client's TLS parameters from q and applies them. Nil means no TLS.
func takeTLS(q url.Values, host string) (*tls.Config, error) {
	mode, ca, cert, key := q.Get("ssl-mode"), q.Get("ssl-ca"), q.Get("ssl-cert"), q.Get("ssl-key")
	for _, name := range []string{"ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"} {
		q.Del(name)
	}
	cfg := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	switch strings.ToUpper(mode) {
	case "", "DISABLED":
		if ca != "" || cert != "" {
			return nil, errors.New("ssl-ca and ssl-cert need an ssl-mode")
		}
		return nil, nil
	case "REQUIRED":
		cfg.InsecureSkipVerify = true
	case "VERIFY_CA":
		// VerifyConnection below checks the chain, but not the name.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(s tls.ConnectionState) error { return verifyChain(s, cfg.RootCAs) }
	case "VERIFY_IDENTITY":
	default:
		return nil, fmt.Errorf("ssl-mode %q: want DISABLED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY", mode)
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("read ssl-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read ssl-ca: no certificate in %s", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("read ssl-cert and ssl-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

func verifyChain(s tls.ConnectionState, roots *x509.CertPool) error {
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, c := range s.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(opts)
	return err
}

// mysqlConnector opens connections of database/sql over go-sql-driver.
func mysqlConnector(dsn string, c poolConfig) (sqlConnector, error) {
	cfg, err := mysqlConfig(dsn)
	if err != nil {
		return sqlConnector{}, fmt.Errorf("read DSN: %w", err)
	}
	cfg.DialFunc = c.dial.DialContext
	cfg.InterpolateParams = cfg.InterpolateParams || c.driver == DriverMySQLText
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return sqlConnector{}, fmt.Errorf("read DSN: %w", err)
	}
	return sqlConnector{Connector: connector, config: c, prepare: !cfg.InterpolateParams}, nil
}

// mysqlSettings are the settings that a figure depends on.
var mysqlSettings = []string{
	"innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "innodb_flush_method", "innodb_buffer_pool_size",
	"innodb_doublewrite", "max_connections", "performance_schema", "thread_handling", "tx_isolation", "transaction_isolation",
}

func (t *Target) lookMySQL(ctx context.Context) (err error) {
	own := []string{"pid_file", "datadir", "port", "socket"}
	if t.server, err = sqldb.Describe(ctx, t.admin, append(own, mysqlSettings...)...); err != nil {
		return err
	}
	// The server's own answer counts, whatever the URL says.
	if t.Engine = EngineMySQL; t.server.Name == "MariaDB" {
		t.Engine = EngineMariaDB
	}
	settings := t.server.Settings
	t.most, _ = strconv.Atoi(settings["max_connections"])
	t.locateMySQL(settings)
	maps.DeleteFunc(settings, func(name, _ string) bool { return slices.Contains(own, name) })
	return nil
}

// locateMySQL finds the server among the processes of this machine, by its PID file.
func (t *Target) locateMySQL(variables map[string]string) {
	cfg, err := mysqlConfig(t.dsn)
	if err != nil {
		return
	}
	host, _, err := net.SplitHostPort(cfg.Addr)
	if cfg.Net != "unix" && (err != nil || !isLoopback(host)) {
		return
	}
	path := variables["pid_file"]
	if !strings.HasPrefix(path, "/") {
		path = strings.TrimSuffix(variables["datadir"], "/") + "/" + path
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return
	}
	if name, _ := processName(pid); name != "mariadbd" && name != "mysqld" {
		return
	}
	t.local = local{pid: pid, tcp: net.JoinHostPort("127.0.0.1", variables["port"])}
	if isSocket(variables["socket"]) {
		t.local.socket = variables["socket"]
	}
}

var _ driver.Connector = sqlConnector{}
