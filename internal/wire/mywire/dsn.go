package mywire

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"
)

// defaultPort is MySQL's.
const defaultPort = "3306"

// dsnKeys lists the parameters that weir supports, by the names of the mysql client's options
// and of go-sql-driver, with their synonyms. "-", "_" and upper case make no difference.
// Parameters that a client supports and weir does not are refused like misspelt ones: most of
// them promise security or a setting, and to ignore a promise is worse than to refuse it.
var dsnKeys = map[string]string{
	"socket":               "socket",
	"unixsocket":           "socket",
	"sslmode":              "sslmode",
	"tlsmode":              "sslmode",
	"tls":                  "tls",
	"ssl":                  "ssl",
	"sslverifyservercert":  "sslverifyservercert",
	"sslca":                "sslca",
	"sslcert":              "sslcert",
	"sslkey":               "sslkey",
	"tlsversion":           "tlsversion",
	"serverpublickeypath":  "serverpublickeypath",
	"timeout":              "timeout",
	"connecttimeout":       "timeout",
	"charset":              "charset",
	"defaultcharacterset":  "charset",
	"programname":          "programname",
	"clientfoundrows":      "clientfoundrows",
	"compress":             "compress",
	"targetsessionattrs":   "target",
	"allownativepasswords": "", // the rest concerns values of Go programs, or is the default here
	"checkconnliveness":    "",
	"columnswithalias":     "",
	"interpolateparams":    "",
	"loc":                  "",
	"maxallowedpacket":     "",
	"multistatements":      "",
	"parsetime":            "",
	"rejectreadonly":       "",
}

// ParseDSN parses where a MySQL or MariaDB server is and which user logs in: a URL (mysql:// or
// mariadb://, user:password@host:port/database?parameters) or go-sql-driver's form
// (user:password@tcp(host:port)/database?parameters); "" means the defaults. Missing parts come
// from MYSQL_HOST, MYSQL_TCP_PORT, MYSQL_UNIX_PORT and MYSQL_PWD, otherwise from Debian's path
// of the server's socket, otherwise the server is port 3306 of localhost.
//
// Errors name the faulty parameter and quote only values that cannot contain a secret.
func ParseDSN(dsn string) (ConnectConfig, error) {
	return parseDSN(dsn, environment)
}

// ParseHosts is ParseDSN for a string that may name several hosts: a:3306,b:3307 in place of
// one. It returns a configuration for each and the parameter target_session_attrs, unchecked,
// or "".
func ParseHosts(dsn string) (hosts []ConnectConfig, target string, err error) {
	d := &dsnParser{set: map[string]string{}, getenv: environment, several: true}
	first, err := d.parse(dsn)
	if err != nil {
		return nil, "", fmt.Errorf("parse MySQL DSN: %w", err)
	}
	hosts = []ConnectConfig{first}
	for _, s := range d.further {
		next := &dsnParser{set: maps.Clone(d.set), getenv: environment, several: true}
		next.cfg.User, next.cfg.Password, next.cfg.Database = first.User, first.Password, first.Database
		if err := next.address(s); err != nil {
			return nil, "", fmt.Errorf("parse MySQL DSN: %w", err)
		}
		cfg, err := next.config()
		if err != nil {
			return nil, "", fmt.Errorf("parse MySQL DSN: %w", err)
		}
		hosts = append(hosts, cfg)
	}
	return hosts, d.set["target"], nil
}

func environment(name string) string {
	if name == "" {
		return ""
	}
	return os.Getenv(name)
}

func parseDSN(dsn string, getenv func(string) string) (ConnectConfig, error) {
	d := &dsnParser{set: map[string]string{}, getenv: getenv}
	cfg, err := d.parse(dsn)
	if err != nil {
		return ConnectConfig{}, fmt.Errorf("parse MySQL DSN: %w", err)
	}
	return cfg, nil
}

// dsnParser parses one DSN.
type dsnParser struct {
	cfg    ConnectConfig
	host   string
	port   string
	set    map[string]string   // parameters by canonical name
	getenv func(string) string // for "" it returns the user
	// several: several hosts may be named, and which of them is wanted; further are all but the
	// first.
	several bool
	further []string
	// doubtful: an apparent parameter name may be the rest of a password that was not encoded.
	// Errors do not show it then.
	doubtful bool
}

func (d *dsnParser) parse(dsn string) (ConnectConfig, error) {
	var err error
	if rest, ok := cutScheme(dsn); ok {
		err = d.url(rest)
	} else if dsn != "" {
		err = d.driver(dsn)
	}
	if err != nil {
		return d.cfg, err
	}
	return d.config()
}

func cutScheme(dsn string) (rest string, ok bool) {
	for _, scheme := range []string{"mysql://", "mariadb://"} {
		if rest, ok := strings.CutPrefix(dsn, scheme); ok {
			return rest, true
		}
	}
	return dsn, false
}

// url parses what follows the scheme. net/url is no option: its errors quote the password.
func (d *dsnParser) url(s string) error {
	s, query, _ := strings.Cut(s, "?")
	d.doubtful = strings.ContainsRune(query, '@')
	authority, database, _ := strings.Cut(s, "/")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		name, password, _ := strings.Cut(authority[:at], ":")
		authority = authority[at+1:]
		if err := errors.Join(
			unescape("user", name, &d.cfg.User), unescape("password", password, &d.cfg.Password),
		); err != nil {
			return err
		}
	}
	if err := errors.Join(unescape("database", database, &d.cfg.Database), d.address(authority)); err != nil {
		return err
	}
	return d.query(query)
}

// unescape decodes a percent-encoded part.
func unescape(name, value string, dst *string) (err error) {
	if *dst, err = url.PathUnescape(value); err != nil {
		return fmt.Errorf("%s is not percent-encoded correctly", name)
	}
	return nil
}

// address parses host, host:port or [IPv6 address]:port.
func (d *dsnParser) address(s string) error {
	if first, rest, several := strings.Cut(s, ","); several {
		if !d.several {
			return errors.New("several hosts in one DSN are not supported: name one")
		}
		s, d.further = first, strings.Split(rest, ",")
	}
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || (end+1 < len(s) && s[end+1] != ':') {
			return errors.New("host: want [IPv6 address] or [IPv6 address]:port")
		}
		d.host, d.port = s[1:end], strings.TrimPrefix(s[end+1:], ":")
		return nil
	}
	d.host, d.port, _ = strings.Cut(s, ":")
	return unescape("host", d.host, &d.host)
}

// driver parses user:password@network(address)/database?parameters. Only the database and the
// parameters are encoded.
func (d *dsnParser) driver(s string) error {
	s, query, _ := strings.Cut(s, "?")
	slash := strings.LastIndexByte(s, '/')
	if slash < 0 {
		return errors.New("want a URL or user:password@tcp(host:port)/database (the slash is needed)")
	}
	if err := unescape("database", s[slash+1:], &d.cfg.Database); err != nil {
		return err
	}
	s = s[:slash]
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		d.cfg.User, d.cfg.Password, _ = strings.Cut(s[:at], ":")
		s = s[at+1:]
	}
	d.doubtful = strings.ContainsRune(query, '@')
	network, address, ok := strings.Cut(s, "(")
	if ok {
		if address, ok = strings.CutSuffix(address, ")"); !ok {
			return errors.New("want network(address): the closing parenthesis is missing")
		}
	}
	switch network {
	case "", "tcp", "tcp4", "tcp6":
		if err := d.address(address); err != nil {
			return err
		}
	case "unix":
		d.set["socket"] = cmp.Or(address, "/tmp/mysql.sock")
	default:
		return errors.New("network: want tcp or unix (a password with special characters needs the form of a URL)")
	}
	return d.query(query)
}

// query parses the parameters.
func (d *dsnParser) query(s string) error {
	for s != "" {
		var pair string
		pair, s, _ = strings.Cut(s, "&")
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return errors.New("a parameter has no value (a password with special characters must be percent-encoded)")
		}
		name, known := dsnKeys[strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(key))]
		switch {
		case !known && d.doubtful:
			return errors.New("a parameter is unknown or not supported, or a password with special characters is not percent-encoded")
		case !known:
			return fmt.Errorf("parameter %q is unknown or not supported", key)
		case name == "":
			continue
		}
		if err := unescape(key, value, &value); err != nil {
			return err
		}
		d.set[name] = value
	}
	return nil
}

func (d *dsnParser) config() (ConnectConfig, error) {
	cfg := &d.cfg
	if cfg.User == "" {
		if cfg.User = cmp.Or(d.getenv(""), osUser()); cfg.User == "" {
			return *cfg, errors.New("no user name, and the operating system's is not known")
		}
	}
	cfg.Password = cmp.Or(cfg.Password, d.getenv("MYSQL_PWD"))
	for _, step := range []func() error{d.where, d.session, d.security} {
		if err := step(); err != nil {
			return *cfg, err
		}
	}
	return *cfg, cfg.withDefaults().validate()
}

// defaultSockets are the distributions' paths of the server's socket.
var defaultSockets = []string{"/run/mysqld/mysqld.sock", "/var/lib/mysql/mysql.sock", "/tmp/mysql.sock"}

// where sets Network and Address. A named host is connected over TCP, "localhost" too: that it
// means the socket is a peculiarity of the mysql client.
func (d *dsnParser) where() error {
	if socket := d.set["socket"]; socket != "" {
		d.cfg.Network, d.cfg.Address = "unix", socket
		return nil
	}
	host := cmp.Or(d.host, d.getenv("MYSQL_HOST"))
	if strings.HasPrefix(host, "/") { // a socket, percent-encoded in a URL
		d.cfg.Network, d.cfg.Address = "unix", host
		return nil
	}
	if host == "" && d.port == "" && d.getenv("MYSQL_TCP_PORT") == "" {
		socket := d.getenv("MYSQL_UNIX_PORT")
		if i := slices.IndexFunc(defaultSockets, exists); socket == "" && i >= 0 {
			socket = defaultSockets[i]
		}
		if socket != "" {
			d.cfg.Network, d.cfg.Address = "unix", socket
			return nil
		}
	}
	port := cmp.Or(d.port, d.getenv("MYSQL_TCP_PORT"), defaultPort)
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		// Not quoted: in mysql://user:pass/word@host it is half a password.
		return errors.New("port: want a number from 1 to 65535")
	}
	d.cfg.Network, d.cfg.Address = "tcp", net.JoinHostPort(cmp.Or(host, "localhost"), port)
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func osUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

// charsets are the character sets whose default collation's number fits into a login.
var charsets = map[string]byte{
	"utf8mb4": CharsetUTF8MB4, "utf8": CharsetUTF8, "utf8mb3": CharsetUTF8, "latin1": CharsetLatin1, "binary": CharsetBinary, "ascii": 11,
}

// session sets what the login sends to the server, and the timeout.
func (d *dsnParser) session() error {
	if v := d.set["charset"]; v != "" {
		first, _, _ := strings.Cut(v, ",") // go-sql-driver accepts a list to try
		n, ok := charsets[strings.ToLower(first)]
		if !ok {
			return fmt.Errorf("charset %q: want utf8mb4, utf8, latin1, ascii or binary", first)
		}
		d.cfg.Charset = n
	}
	if v := d.set["programname"]; v != "" {
		d.cfg.Attrs = []Attr{{"program_name", v}}
	}
	if v := d.set["timeout"]; v != "" {
		timeout, err := time.ParseDuration(v)
		if err != nil {
			n, err := strconv.Atoi(v)
			if err != nil {
				return fmt.Errorf("timeout %q: want seconds, or a duration such as 5s", v)
			}
			timeout = time.Duration(n) * time.Second
		}
		d.cfg.Timeout = max(timeout, 0)
	}
	if v := d.set["target"]; v != "" && v != "any" && !d.several {
		return fmt.Errorf("target_session_attrs %q is not supported: want any", v)
	}
	if found, err := d.flag("clientfoundrows"); err != nil {
		return err
	} else if found {
		d.cfg.Caps = WantedCaps | CapFoundRows
	}
	if compress, err := d.flag("compress"); err != nil || compress {
		return errors.Join(err, errors.New("compress: compression is not supported"))
	}
	return nil
}

// flag returns a parameter that is on or off.
func (d *dsnParser) flag(name string) (bool, error) {
	switch strings.ToLower(d.set[name]) {
	case "", "0", "false", "off", "no":
		return false, nil
	case "1", "true", "on", "yes":
		return true, nil
	}
	return false, fmt.Errorf("%s: want true or false", name)
}
