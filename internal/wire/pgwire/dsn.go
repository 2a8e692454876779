package pgwire

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// dsnKeys lists the connection parameters of libpq that weir supports, each with its
// environment variable. Other parameters of libpq are rejected like misspelled ones: most of
// them promise security or routing, and to ignore a promise is worse than to refuse it.
var dsnKeys = map[string]string{
	"host":                      "PGHOST",
	"hostaddr":                  "PGHOSTADDR",
	"port":                      "PGPORT",
	"user":                      "PGUSER",
	"password":                  "PGPASSWORD",
	"passfile":                  "PGPASSFILE",
	"dbname":                    "PGDATABASE",
	"application_name":          "PGAPPNAME",
	"fallback_application_name": "",
	"options":                   "PGOPTIONS",
	"client_encoding":           "PGCLIENTENCODING",
	"replication":               "",
	"connect_timeout":           "PGCONNECT_TIMEOUT",
	"sslmode":                   "PGSSLMODE",
	"sslnegotiation":            "PGSSLNEGOTIATION",
	"sslrootcert":               "PGSSLROOTCERT",
	"sslcert":                   "PGSSLCERT",
	"sslkey":                    "PGSSLKEY",
	"ssl_min_protocol_version":  "PGSSLMINPROTOCOLVERSION",
	"channel_binding":           "PGCHANNELBINDING",
	"gssencmode":                "PGGSSENCMODE",
	"target_session_attrs":      "PGTARGETSESSIONATTRS",
	"max_protocol_version":      "PGMAXPROTOCOLVERSION",
}

// ParseDSN parses a libpq connection string: a URL (postgres:// or postgresql://) or
// "key=value" pairs; "" is all defaults. Parameters that it does not set come from the PG*
// environment variables, the password file, and libpq's defaults, in this order. PGTZ and
// PGDATESTYLE become parameters. One host only.
//
// Errors name the invalid parameter and contain only values that cannot be secrets.
func ParseDSN(dsn string) (ConnectConfig, error) {
	d := &dsnParser{set: map[string]string{}, getenv: os.Getenv}
	cfg, err := d.parse(dsn)
	if err != nil {
		return ConnectConfig{}, fmt.Errorf("parse PostgreSQL DSN: %w", err)
	}
	return cfg, nil
}

// ParseHosts is ParseDSN for a string with several hosts, as libpq accepts it: host=a,b
// port=5432,5433 or postgres://a:5432,b:5433/. It returns a configuration for each, and the
// unchecked value of target_session_attrs, or "".
func ParseHosts(dsn string) (hosts []ConnectConfig, target string, err error) {
	d := &dsnParser{set: map[string]string{}, getenv: os.Getenv, several: true}
	if hosts, target, err = d.hosts(dsn); err != nil {
		return nil, "", fmt.Errorf("parse PostgreSQL DSN: %w", err)
	}
	return hosts, target, nil
}

// DSNParams returns the parameters that a connection string sets, by their libpq names and
// without defaults, to be passed on to a program of PostgreSQL.
func DSNParams(dsn string) (map[string]string, error) {
	d := &dsnParser{set: map[string]string{}, getenv: func(string) string { return "" }}
	if _, err := d.parse(dsn); err != nil {
		return nil, fmt.Errorf("parse PostgreSQL DSN: %w", err)
	}
	return d.set, nil
}

// dsnParser parses one DSN.
type dsnParser struct {
	set    map[string]string // parameters in the string
	getenv func(string) string
	// several hosts are allowed, with any target_session_attrs.
	several bool
	// doubtful means that what looks like the name of a parameter may be part of a password
	// that was not quoted. Errors do not show it then.
	doubtful bool
}

func (d *dsnParser) parse(dsn string) (ConnectConfig, error) {
	if err := d.read(dsn); err != nil {
		return ConnectConfig{}, err
	}
	return d.config()
}

// read records the parameters of the string.
func (d *dsnParser) read(dsn string) error {
	if rest, ok := cutScheme(dsn); ok {
		return d.url(rest)
	}
	return d.pairs(dsn)
}

// hosts returns a configuration for each host. A single port applies to all hosts; otherwise
// there is one for each.
func (d *dsnParser) hosts(dsn string) (configs []ConnectConfig, target string, err error) {
	if err := d.read(dsn); err != nil {
		return nil, "", err
	}
	target = d.get("target_session_attrs")
	d.set["target_session_attrs"] = "any"
	lists := map[string][]string{}
	n := 1
	for _, key := range []string{"host", "hostaddr", "port"} {
		lists[key] = strings.Split(d.get(key), ",")
		if key != "port" {
			n = max(n, len(lists[key]))
		}
	}
	for _, key := range []string{"host", "hostaddr", "port"} {
		if k := len(lists[key]); k != n && (k != 1 || key != "port" && lists[key][0] != "") {
			return nil, "", fmt.Errorf("%s: %d values for %d hosts", key, k, n)
		}
	}
	for i := range n {
		for key, list := range lists {
			d.set[key] = list[min(i, len(list)-1)]
		}
		cfg, err := d.config()
		if err != nil {
			return nil, "", err
		}
		configs = append(configs, cfg)
	}
	return configs, target, nil
}

func cutScheme(dsn string) (rest string, ok bool) {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		if rest, ok := strings.CutPrefix(dsn, scheme); ok {
			return rest, true
		}
	}
	return dsn, false
}

// put records a parameter; as in libpq, the last value counts.
func (d *dsnParser) put(key, value string) error {
	_, known := dsnKeys[key]
	switch {
	case !known && d.doubtful:
		return errors.New("a parameter is unknown or not supported, or a password with special characters is not quoted or percent-encoded")
	case !known:
		return fmt.Errorf("parameter %q is unknown or not supported (server settings go into options=-c name=value)", key)
	}
	d.set[key] = value
	return nil
}

// url parses what follows "postgres://". It does not use net/url, which rejects the
// percent-encoded socket directory that libpq allows as a host, and whose errors contain the
// password.
func (d *dsnParser) url(s string) error {
	s, query, _ := strings.Cut(s, "?")
	d.doubtful = strings.ContainsRune(query, '@')
	authority, dbname, _ := strings.Cut(s, "/")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		name, password, hasPassword := strings.Cut(authority[:at], ":")
		authority = authority[at+1:]
		if name != "" {
			if err := d.putEscaped("user", name); err != nil {
				return err
			}
		}
		if hasPassword {
			if err := d.putEscaped("password", password); err != nil {
				return err
			}
		}
	}
	host, port, err := d.authority(authority)
	if err != nil {
		return err
	}
	for _, p := range []Param{{"host", host}, {"port", port}, {"dbname", dbname}} {
		if p.Value == "" {
			continue // not set, while an empty parameter after "?" is set
		}
		if err := d.putEscaped(p.Name, p.Value); err != nil {
			return err
		}
	}
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return errors.New("a URL parameter has no value (a password with special characters must be percent-encoded)")
		}
		if key == "ssl" && value == "true" { // JDBC's spelling, which libpq accepts
			key, value = "sslmode", "require"
		}
		key, err := url.PathUnescape(key)
		if err != nil {
			return errors.New("the name of a URL parameter is not percent-encoded correctly")
		}
		if err := d.putEscaped(key, value); err != nil {
			return err
		}
	}
	return nil
}

// authority parses host:port, or a list of them, into a list of hosts and one of ports.
func (d *dsnParser) authority(s string) (host, port string, err error) {
	if !d.several && strings.ContainsRune(s, ',') {
		return "", "", errSeveralHosts
	}
	var hosts, ports []string
	for one := range strings.SplitSeq(s, ",") {
		h, p, err := splitHost(one)
		if err != nil {
			return "", "", err
		}
		hosts, ports = append(hosts, h), append(ports, p)
	}
	if port = strings.Join(ports, ","); strings.Trim(port, ",") == "" {
		port = ""
	}
	return strings.Join(hosts, ","), port, nil
}

// splitHost parses host, host:port or [IPv6 address]:port.
func splitHost(s string) (host, port string, err error) {
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || (end+1 < len(s) && s[end+1] != ':') {
			return "", "", errors.New("host: want [IPv6 address] or [IPv6 address]:port")
		}
		return s[1:end], strings.TrimPrefix(s[end+1:], ":"), nil
	}
	host, port, _ = strings.Cut(s, ":")
	return host, port, nil
}

// putEscaped records a percent-encoded value.
func (d *dsnParser) putEscaped(key, value string) error {
	value, err := url.PathUnescape(value)
	if err != nil {
		return fmt.Errorf("%s is not percent-encoded correctly", key)
	}
	return d.put(key, value)
}

// pairs parses "key = value key='quoted \' value'".
func (d *dsnParser) pairs(s string) error {
	const space = " \t\n\r\v\f"
	for {
		if s = strings.TrimLeft(s, space); s == "" {
			return nil
		}
		key, rest, ok := strings.Cut(s, "=")
		key = strings.TrimRight(key, space)
		if !ok || key == "" || strings.ContainsAny(key, space) {
			// The text may be the rest of a password with a space.
			return errors.New("want a URL such as postgres://user@host:5432/database, or key=value pairs (a value with spaces must be quoted)")
		}
		rest = strings.TrimLeft(rest, space)
		d.doubtful = d.doubtful || key == "password" && !strings.HasPrefix(rest, "'")
		value, rest, err := pairValue(rest, space)
		if err != nil {
			return err
		}
		if err := d.put(key, value); err != nil {
			return err
		}
		s = rest
	}
}

func pairValue(s, space string) (value, rest string, err error) {
	quoted := strings.HasPrefix(s, "'")
	if quoted {
		s = s[1:]
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case quoted && c == '\'':
			return b.String(), s[i+1:], nil
		case !quoted && strings.IndexByte(space, c) >= 0:
			return b.String(), s[i:], nil
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return "", "", errors.New("unterminated quoted value")
	}
	return b.String(), "", nil
}

var errSeveralHosts = errors.New("several hosts in one DSN are not supported: name one")

// get returns a parameter from the string, or from the environment.
func (d *dsnParser) get(key string) string {
	if v, ok := d.set[key]; ok {
		return v
	}
	if env := dsnKeys[key]; env != "" {
		return d.getenv(env)
	}
	return ""
}

func (d *dsnParser) config() (ConnectConfig, error) {
	var cfg ConnectConfig
	host, port, err := d.address(&cfg)
	if err != nil {
		return cfg, err
	}
	if cfg.User = d.get("user"); cfg.User == "" {
		if cfg.User = osUser(); cfg.User == "" {
			return cfg, errors.New("no user name, and the operating system's is not known")
		}
	}
	cfg.Database = cmp.Or(d.get("dbname"), cfg.User)
	if cfg.Password = d.get("password"); cfg.Password == "" {
		if cfg.Password, err = d.filedPassword(host, port, cfg); err != nil {
			return cfg, err
		}
	}
	if err := d.session(&cfg); err != nil {
		return cfg, err
	}
	if err := d.security(&cfg, host); err != nil {
		return cfg, err
	}
	return cfg, cfg.withDefaults().validate()
}

// address sets Network and Address. It returns host and port in the form that the password file
// uses.
func (d *dsnParser) address(cfg *ConnectConfig) (host, port string, err error) {
	host, hostaddr, port := d.get("host"), d.get("hostaddr"), cmp.Or(d.get("port"), "5432")
	if strings.ContainsRune(host+hostaddr+port, ',') {
		return "", "", errSeveralHosts
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		// Not quoted: in postgres://user:pass/word@host it is half of a password.
		return "", "", errors.New("port: want a number from 1 to 65535")
	}
	if hostaddr != "" {
		if net.ParseIP(hostaddr) == nil {
			return "", "", fmt.Errorf("hostaddr %q is not an IP address", hostaddr)
		}
		cfg.Network, cfg.Address = "tcp", net.JoinHostPort(hostaddr, port)
		return cmp.Or(host, hostaddr), port, nil
	}
	host = cmp.Or(host, defaultHost())
	if strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") {
		cfg.Network, cfg.Address = "unix", host+"/.s.PGSQL."+port
		return host, port, nil
	}
	cfg.Network, cfg.Address = "tcp", net.JoinHostPort(host, port)
	return host, port, nil
}

// defaultHost returns the directory in which distributions put the server's socket, or
// localhost.
func defaultHost() string {
	for _, dir := range []string{"/var/run/postgresql", "/tmp"} {
		if sockets, _ := filepath.Glob(filepath.Join(dir, ".s.PGSQL.*")); len(sockets) > 0 {
			return dir
		}
	}
	return "localhost"
}

func osUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

// session sets the parameters of the startup packet, and the timeout.
func (d *dsnParser) session(cfg *ConnectConfig) error {
	for _, p := range []Param{
		{"application_name", cmp.Or(d.get("application_name"), d.get("fallback_application_name"))},
		{"client_encoding", d.get("client_encoding")},
		{"options", d.get("options")},
		{"replication", d.get("replication")},
		{"TimeZone", d.getenv("PGTZ")},
		{"DateStyle", d.getenv("PGDATESTYLE")},
	} {
		if p.Value != "" {
			cfg.Params = append(cfg.Params, p)
		}
	}
	if s := d.get("connect_timeout"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("connect_timeout %q: want seconds", s)
		}
		if n > 0 { // 0 or less: no limit
			cfg.Timeout = time.Duration(n) * time.Second
		}
	}
	switch v := d.get("max_protocol_version"); v {
	case "", "3.0":
	case "3.2", "latest":
		cfg.ProtocolVersion = Version32
	default:
		return fmt.Errorf("max_protocol_version %q: want 3.0, 3.2 or latest", v)
	}
	if v := d.get("target_session_attrs"); v != "" && v != "any" {
		return fmt.Errorf("target_session_attrs %q is not supported: want any", v)
	}
	if v := d.get("gssencmode"); v != "" && v != "disable" && v != "prefer" {
		return fmt.Errorf("gssencmode %q is not supported: want disable or prefer", v)
	}
	return nil
}
