package pgbouncer

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/ldap"
	"github.com/weirdb/weir/internal/proxy/netloop"
)

// A Config is a checked configuration. It is immutable: With and Reread return a new one.
type Config struct {
	// File is the path of the ini file.
	File string
	// Databases are those of [databases] by name, without *, which is Auto.
	Databases map[string]*Database
	Auto      *Database // nil: there is none
	Users     map[string]*User
	Peers     map[int]Peer
	// Notes are the settings that have no effect, with the reason.
	Notes []Note

	values map[string]string // of [pgbouncer], without defaults
	places map[string]Place
	HBA    *HBA // of auth_hba_file, nil without
	Maps   IdentMaps
	LDAP   *ldap.Options // of auth_ldap_options, nil with another auth_type than ldap
}

// A Note is a setting that weir accepts without effect.
type Note struct {
	Place
	Setting, Why string
}

// A Database is one that clients may connect to. Numbers that are not given are -1.
type Database struct {
	Name string // as clients name it, "*" for all others
	Place

	Hosts      []string // "": the Unix socket's default directory
	Port       int
	DBName     string // on the server; "": the name that the client gave
	User       string // "": the client's own
	Password   string
	RoundRobin bool // else the hosts are tried in their order

	AuthUser, AuthDBName, AuthQuery string
	ConnectQuery                    string
	Params                          [][2]string // client_encoding and the like
	Mode                            string      // "": as the user or all have it

	PoolSize, MinPoolSize, ReservePoolSize int
	MaxConnections, MaxClients             int
	QueryWaitTimeout                       time.Duration // -1: not given
	ServerLifetime                         time.Duration // 0: not given
}

// A User has its own limits. Numbers that are not given are -1, times 0.
type User struct {
	Name string
	Place

	Mode                       string
	PoolSize, ReservePoolSize  int
	MaxConnections, MaxClients int

	TransactionTimeout, IdleTransactionTimeout, QueryTimeout, ClientIdleTimeout time.Duration

	QueryWaitTimeout time.Duration // -1: not given
}

// A Peer is another process behind the same address, which gets the cancel requests of its
// own clients.
type Peer struct {
	ID   int
	Host string
	Port int
}

// Read reads an ini file and the files that it names.
func Read(file string) (*Config, error) {
	text, err := readFile(file)
	if err != nil {
		return nil, err
	}
	return parse(file, text, readFile)
}

func parse(file, text string, read func(string) (string, error)) (*Config, error) {
	entries, err := parseINI(file, text, read)
	if err != nil {
		return nil, err
	}
	c := &Config{
		File: file, Databases: make(map[string]*Database), Users: make(map[string]*User), Peers: make(map[int]Peer),
		values: make(map[string]string), places: make(map[string]Place),
	}
	var errs []error
	for _, e := range entries {
		if err := c.take(e); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", e.Place, e.key, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.values)) {
		if s := find(name); s.note() != "" {
			c.Notes = append(c.Notes, Note{c.places[name], name, s.note()})
		}
	}
	return c, c.load()
}

func (c *Config) take(e entry) (err error) {
	switch e.section {
	case "databases":
		d, err := parseDatabase(e.key, e.value)
		if err != nil {
			return err
		}
		d.Place = e.Place
		if e.key == "*" {
			c.Auto = d
		} else {
			c.Databases[e.key] = d
		}
	case "users":
		u, err := parseUser(e.key, e.value)
		if err != nil {
			return err
		}
		u.Place = e.Place
		c.Users[e.key] = u
	case "peers":
		p, err := parsePeer(e.key, e.value)
		if err != nil {
			return err
		}
		c.Peers[p.ID] = p
	case "pgbouncer":
		if err := c.set(e.key, e.value); err != nil {
			return err
		}
		c.places[e.key] = e.Place
	case "":
		return errors.New("it stands before the first section: put [pgbouncer] or [databases] above it")
	default:
		return fmt.Errorf("section [%s] is unknown: there are [databases], [users], [peers] and [pgbouncer]", e.section)
	}
	return err
}

func (c *Config) set(name, value string) error {
	s := find(name)
	if s == nil {
		return errors.New("PgBouncer has no such setting")
	}
	if err := s.check(value); err != nil {
		return err
	}
	c.values[name] = value
	return nil
}

// load reads the files that settings name.
func (c *Config) load() (err error) {
	fail := func(name string, err error) error {
		if at, ok := c.places[name]; ok {
			return fmt.Errorf("%s: %s: %w", at, name, err)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	if c.Text("auth_dbname") == "pgbouncer" {
		return fail("auth_dbname", errors.New(`cannot use the reserved "pgbouncer" database as an auth_dbname`))
	}
	c.HBA, c.Maps, c.LDAP = nil, nil, nil
	switch c.Text("auth_type") {
	case "hba":
	case "ldap":
		if c.LDAP, err = ldap.Parse(c.Text("auth_ldap_options")); err != nil {
			return fail("auth_ldap_options", err)
		}
		return nil
	default:
		return nil
	}
	if c.Maps, err = readIdent(c.Text("auth_ident_file")); err != nil {
		return fail("auth_ident_file", err)
	}
	if c.HBA, err = readHBA(c.Text("auth_hba_file"), c.Maps); err != nil {
		return fail("auth_hba_file", err)
	}
	return nil
}

// With returns the configuration with one setting changed, as SET on the console does.
// Settings that apply at the next start stay as they are, silently, as in PgBouncer.
func (c *Config) With(name, value string) (*Config, error) {
	s := find(name)
	if s != nil && s.start {
		return c, nil
	}
	now := *c
	now.values, now.places = maps.Clone(c.values), maps.Clone(c.places)
	delete(now.places, name)
	if err := now.set(name, value); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &now, now.load()
}

// Reread reads the file again. As in PgBouncer, settings without a default keep
// what SET gave them, and those that need a restart stay.
func (c *Config) Reread() (*Config, error) {
	now, err := Read(c.File)
	if err != nil {
		return nil, err
	}
	for i := range settings {
		s := &settings[i]
		was, set := c.values[s.name]
		if _, given := now.values[s.name]; s.start || s.sticky && !given {
			delete(now.values, s.name)
			if set {
				now.values[s.name] = was
			}
		}
	}
	return now, now.load()
}

// Text returns the value of a setting, or its default.
func (c *Config) Text(name string) string {
	if v, ok := c.values[name]; ok {
		return v
	}
	return find(name).def
}

// Number returns the value of a setting that is a number or a switch.
func (c *Config) Number(name string) int {
	n, _ := parseNumber(c.Text(name)) // which was checked
	return n
}

// On reports whether a switch is on.
func (c *Config) On(name string) bool { return c.Number(name) != 0 }

// Time returns the value of a setting that is a time.
func (c *Config) Time(name string) time.Duration {
	d, _ := parseSeconds(c.Text(name)) // which was checked
	return d
}

// Keepalive returns the settings for dead peers. Those that are 0 get weir's defaults,
// which detect one sooner than the system's two hours.
func (c *Config) Keepalive() netloop.Keepalive {
	return netloop.Keepalive{
		Off:  !c.On("tcp_keepalive"),
		Idle: time.Duration(c.Number("tcp_keepidle")) * time.Second, Interval: time.Duration(c.Number("tcp_keepintvl")) * time.Second,
		Count:       c.Number("tcp_keepcnt"),
		UserTimeout: time.Duration(c.Number("tcp_user_timeout")) * time.Millisecond,
	}.WithDefaults()
}

// Protocols returns the TLS versions of one side: client or server.
func (c *Config) Protocols(side string) TLSRange {
	r, _ := parseProtocols(c.Text(side + "_tls_protocols")) // which was checked
	return r
}

// List returns the value of a setting that is a list of names.
func (c *Config) List(name string) []string {
	var list []string
	for n := range strings.SplitSeq(c.Text(name), ",") {
		if n = strings.TrimSpace(n); n != "" {
			list = append(list, n)
		}
	}
	return list
}

// Show calls f for each setting, by name.
func (c *Config) Show(f func(name, value, def string, changeable bool)) {
	for i := range settings {
		s := &settings[i]
		f(s.name, c.Text(s.name), s.def, !s.start)
	}
}

// Database returns the database of a name: the listed one, otherwise that of *.
func (c *Config) Database(name string) (*Database, bool) {
	if d, ok := c.Databases[name]; ok {
		return d, true
	}
	if c.Auto == nil || name == "" {
		return nil, false
	}
	d := *c.Auto
	d.Name = name
	return &d, true
}

// errReserved rejects a database with the console's name.
var errReserved = errors.New(`database name "pgbouncer" is reserved`)

func parseDatabase(name, connstr string) (*Database, error) {
	if name == "pgbouncer" {
		return nil, errReserved
	}
	pairs, err := parsePairs(connstr)
	if err != nil {
		return nil, err
	}
	d := &Database{
		Name: name, Port: 5432, RoundRobin: true, PoolSize: -1, MinPoolSize: -1, ReservePoolSize: -1, MaxConnections: -1, MaxClients: -1,
		QueryWaitTimeout: -1,
	}
	if name != "*" {
		d.DBName = name
	}
	for _, p := range pairs {
		if err := d.take(p); err != nil {
			return nil, fmt.Errorf("%s: %w", p.key, err)
		}
	}
	if len(d.Hosts) == 0 {
		d.Hosts = []string{""}
	}
	return d, nil
}

func (d *Database) take(p pair) (err error) {
	switch p.key {
	case "dbname":
		d.DBName = p.value
	case "host":
		d.Hosts = strings.Split(p.value, ",")
	case "port":
		if d.Port, err = strconv.Atoi(p.value); err != nil || d.Port < 1 || d.Port > 65535 {
			return errors.New("want a port from 1 to 65535")
		}
	case "user":
		d.User = p.value
	case "password":
		d.Password = p.value
	case "auth_user":
		d.AuthUser = p.value
	case "auth_dbname":
		d.AuthDBName = p.value
	case "auth_query":
		d.AuthQuery = p.value
	case "client_encoding", "datestyle", "timezone", "application_name":
		d.Params = append(d.Params, [2]string{p.key, p.value})
	case "connect_query":
		d.ConnectQuery = p.value
	case "pool_mode":
		d.Mode = p.value
		return word(p.value, "session", "transaction", "statement")
	case "load_balance_hosts":
		d.RoundRobin = p.value == "round-robin"
		return word(p.value, "round-robin", "disable")
	case "pool_size":
		d.PoolSize, err = parseNumber(p.value)
	case "min_pool_size":
		d.MinPoolSize, err = parseNumber(p.value)
	case "reserve_pool", "reserve_pool_size":
		d.ReservePoolSize, err = parseNumber(p.value)
	case "max_db_connections":
		d.MaxConnections, err = parseNumber(p.value)
	case "max_db_client_connections":
		d.MaxClients, err = parseNumber(p.value)
	case "query_wait_timeout":
		d.QueryWaitTimeout, err = parseSeconds(p.value)
	case "server_lifetime":
		d.ServerLifetime, err = parseSeconds(p.value)
	default:
		return errors.New("unrecognized connection parameter")
	}
	return err
}

func parseUser(name, text string) (*User, error) {
	pairs, err := parsePairs(text)
	if err != nil {
		return nil, err
	}
	u := &User{Name: name, PoolSize: -1, ReservePoolSize: -1, MaxConnections: -1, MaxClients: -1, QueryWaitTimeout: -1}
	for _, p := range pairs {
		if err := u.take(p); err != nil {
			return nil, fmt.Errorf("%s: %w", p.key, err)
		}
	}
	return u, nil
}

func (u *User) take(p pair) (err error) {
	switch p.key {
	case "pool_mode":
		u.Mode = p.value
		return word(p.value, "session", "transaction", "statement")
	case "pool_size":
		u.PoolSize, err = parseNumber(p.value)
	case "reserve_pool_size":
		u.ReservePoolSize, err = parseNumber(p.value)
	case "max_user_connections":
		u.MaxConnections, err = parseNumber(p.value)
	case "max_user_client_connections":
		u.MaxClients, err = parseNumber(p.value)
	case "transaction_timeout":
		u.TransactionTimeout, err = parseSeconds(p.value)
	case "idle_transaction_timeout":
		u.IdleTransactionTimeout, err = parseSeconds(p.value)
	case "query_timeout":
		u.QueryTimeout, err = parseSeconds(p.value)
	case "query_wait_timeout":
		u.QueryWaitTimeout, err = parseSeconds(p.value)
	case "client_idle_timeout":
		u.ClientIdleTimeout, err = parseSeconds(p.value)
	default:
		return errors.New("unrecognized user parameter")
	}
	return err
}

func parsePeer(name, text string) (p Peer, err error) {
	if p.ID, err = strconv.Atoi(name); err != nil || p.ID < 1 || p.ID > 0xffff {
		return p, errors.New("the id of a peer is a number from 1 to 65535")
	}
	pairs, err := parsePairs(text)
	if err != nil {
		return p, err
	}
	p.Port = 6432
	for _, kv := range pairs {
		switch kv.key {
		case "host":
			p.Host = kv.value
		case "port":
			if p.Port, err = strconv.Atoi(kv.value); err != nil || p.Port < 1 || p.Port > 65535 {
				return p, errors.New("port: want a port from 1 to 65535")
			}
		case "pool_size": // how many requests to cancel go at a time; weir does not queue them
		default:
			return p, fmt.Errorf("%s: unrecognized connection parameter", kv.key)
		}
	}
	if p.Host == "" {
		return p, errors.New("host was not provided for the peer")
	}
	return p, nil
}

// Address returns the address of a host of PgBouncer's configuration: host:port, or the
// path of a Unix socket.
func Address(host string, port int) string {
	switch {
	case host == "":
		return "/tmp/.s.PGSQL." + strconv.Itoa(port)
	case host[0] == '/' || host[0] == '@':
		return host + "/.s.PGSQL." + strconv.Itoa(port)
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
