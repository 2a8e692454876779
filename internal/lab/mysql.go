package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Flavor is MariaDB or MySQL, which speak the same protocol.
type Flavor string

// The flavors; the values are those of `weir lab up --engine`.
const (
	FlavorMariaDB Flavor = "mariadb"
	FlavorMySQL   Flavor = "mysql"
)

// title is the flavor's name in messages.
func (f Flavor) title() string {
	if f == FlavorMariaDB {
		return "MariaDB"
	}
	return "MySQL"
}

// MySQLConfig describes a MariaDB or MySQL server. Its zero value is a server like in
// production: durable, with a binary log, GTIDs and the performance schema, offering TLS, in a
// time zone that is not UTC; but on a free port and open to everyone on this machine.
type MySQLConfig struct {
	// Durability is the durability of an acknowledged commit. Default: Prod.
	Durability Durability
	// FsyncLatency is added to every successful flush, independently of others, as on a cloud
	// disk whose queue holds many requests. It affects everything that waits for the disk: the
	// redo log, the binary log, the data files. It needs Prod, since Fast never flushes.
	// Default: 0, the disk as it is.
	FsyncLatency time.Duration
	// CountFlushes counts flushes for Flushes. It needs a C compiler, as FsyncLatency does.
	// Default: false.
	CountFlushes bool
	// Settings are written to the option file last, so they override the lab's own; both '_'
	// and '-' are allowed in their names. Default: none.
	Settings map[string]string
	// MaxConnections is the server's max_connections. Default: 300.
	MaxConnections int
	// BufferPool is the server's innodb_buffer_pool_size. Default: "128M".
	BufferPool string
	// NoBinlog turns off the binary log, which is otherwise kept in row format with GTIDs and
	// log_slave_updates, and flushed at each commit with Prod. Default: false.
	NoBinlog bool
	// NoPerformanceSchema turns off the performance schema, which costs MySQL
	// about 240 MB of memory. Default: false.
	NoPerformanceSchema bool
	// Light makes MariaDB cheap to start, for tests, which start hundreds: without the
	// performance schema, which is MariaDB's default, and with the 16 MB redo log of the cached
	// data directory. It does not change MySQL, whose performance schema has information that
	// MariaDB has elsewhere. Default: false.
	Light bool
	// Password is root's. Default: none, so that every user of this machine
	// is root of the server.
	Password string
	// TLS says which connections over TCP are encrypted. Default: TLSOffered.
	TLS TLSMode
	// BinDir holds mariadbd or mysqld. Default: see FindMySQL.
	BinDir string
	// Port to listen on. Default: a free one.
	Port int
	// Fresh initialises a data directory instead of copying a cached one.
	// Default: false.
	Fresh bool
	// Log receives the server's log as it is written, in addition to the log file. Default:
	// nil.
	Log io.Writer
}

func (c MySQLConfig) withDefaults() MySQLConfig {
	if c.MaxConnections == 0 {
		c.MaxConnections = 300
	}
	if c.BufferPool == "" {
		c.BufferPool = "128M"
	}
	return c
}

func (c MySQLConfig) watch() diskWatch { return diskWatch{c.FsyncLatency, c.CountFlushes} }

func (c MySQLConfig) validate() error {
	if c.MaxConnections < 0 {
		return fmt.Errorf("max connections %d: must not be negative", c.MaxConnections)
	}
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("port %d: must be 0 (any) to 65535", c.Port)
	}
	if strings.ContainsAny(c.Password, "\n\r\x00") {
		return errors.New("password: must be one line")
	}
	for name, value := range c.Settings {
		if !optionName.MatchString(name) {
			return fmt.Errorf("setting %q: not an option's name", name)
		}
		if c.FsyncLatency > 0 && optionKey(name) == "innodb_flush_method" && undelayed(value) {
			return fmt.Errorf("innodb_flush_method %s: fsync latency can only delay fdatasync and fsync", value)
		}
	}
	return c.watch().validate(c.Durability)
}

// MySQL is a running MariaDB or MySQL server that belongs to this process. Its
// methods are safe for concurrent use.
type MySQL struct {
	server
	cfg MySQLConfig
	bin mysqlBinaries
}

// mysqlRoot is the superuser of every lab server of the MySQL family.
const mysqlRoot = "root"

// StartMariaDB starts a MariaDB server and returns when it accepts connections, in about two
// seconds the first time and 0.2 s later. Cancelling ctx aborts the start; it does not stop a
// running server: call Stop.
func StartMariaDB(ctx context.Context, cfg MySQLConfig) (*MySQL, error) {
	return startMySQL(ctx, FlavorMariaDB, cfg)
}

// StartMySQL is StartMariaDB for MySQL, which takes about six seconds the first
// time and 1 s later.
func StartMySQL(ctx context.Context, cfg MySQLConfig) (*MySQL, error) {
	return startMySQL(ctx, FlavorMySQL, cfg)
}

func startMySQL(ctx context.Context, flavor Flavor, cfg MySQLConfig) (*MySQL, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure %s: %w", flavor.title(), err)
	}
	bin, err := findMySQL(ctx, flavor, cfg.BinDir)
	if err != nil {
		return nil, err
	}
	as, err := unprivileged("mysql")
	if err != nil {
		return nil, err
	}
	m := &MySQL{cfg: cfg.withDefaults(), bin: bin}
	m.server = server{
		title: flavor.title(), stopSignal: syscall.SIGTERM, crashSignal: syscall.SIGKILL, portInUse: "Address already in use",
		port: cfg.Port, anyPort: cfg.Port == 0, watch: cfg.watch(), logCopy: cfg.Log,
		as: as, launch: m.start,
	}
	if err := m.begin(ctx, cfg.Durability, m.prepare); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *MySQL) prepare(ctx context.Context) error {
	if err := m.prepareRunDir(ctx, m.cfg.TLS, mysqlRoot); err != nil {
		return err
	}
	if _, err := m.dir.sub("tmp", m.as, 0o700); err != nil {
		return err
	}
	if err := m.place(m.accountsFile(), []byte(m.accounts())); err != nil {
		return err
	}
	return initData(ctx, m.bin.cluster(), m.data, m.as, m.cfg.Durability, m.cfg.Fresh)
}

// start starts the server process and waits until it accepts connections.
func (m *MySQL) start(ctx context.Context) error {
	if err := m.choosePort(); err != nil {
		return err
	}
	options, err := m.writeOptions()
	if err != nil {
		return err
	}
	// Readiness is checked on the Unix socket: another server may have taken the TCP port.
	return m.run(ctx, m.bin.server, []string{"--defaults-file=" + options}, func(*process) bool {
		return probeMySQL(ctx, m.Socket(), m.cfg.Password) == nil
	})
}

// Flavor says whether the server is MariaDB or MySQL.
func (m *MySQL) Flavor() Flavor { return m.bin.flavor }

// Socket is the path of the server's Unix socket.
func (m *MySQL) Socket() string { return filepath.Join(m.sock, "mysql.sock") }

// Version is the server's version, such as "10.11.19".
func (m *MySQL) Version() string { return m.bin.full }

// Client is the path of the command line client of the server's own version (mariadb or mysql),
// or "" if it is not installed.
func (m *MySQL) Client() string { return m.bin.client }

// User is the name of the superuser.
func (m *MySQL) User() string { return mysqlRoot }

// Password is root's password, empty unless it was configured.
func (m *MySQL) Password() string { return m.cfg.Password }

// DSN is the URL of database db ("" for none) for root over TCP, with everything that password
// and TLS need; the parameters have the names of the mysql client's options. It contains the
// password: do not log it.
func (m *MySQL) DSN(db string) string {
	u := url.URL{Scheme: "mysql", User: url.User(mysqlRoot), Host: m.Addr(), Path: "/" + db}
	if m.cfg.Password != "" {
		u.User = url.UserPassword(mysqlRoot, m.cfg.Password)
	}
	q := url.Values{"ssl-mode": {"DISABLED"}}
	if m.cfg.TLS.inDSN() {
		q = url.Values{"ssl-mode": {"VERIFY_IDENTITY"}, "ssl-ca": {m.tls.caCert}}
	}
	if m.cfg.TLS == TLSMutual {
		pair := m.tls.pair(mysqlRoot)
		q.Set("ssl-cert", pair.Cert)
		q.Set("ssl-key", pair.Key)
	}
	u.RawQuery = q.Encode()
	return u.String()
}
