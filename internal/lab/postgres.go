package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// superuser is the superuser of every lab server.
const superuser = "postgres"

// PostgresConfig describes a server. Its zero value is a server of the newest installed
// PostgreSQL like in production: durable, ready for logical replication, with
// pg_stat_statements, offering TLS, in a time zone that is not UTC; but on a free port and open
// to everyone on this machine.
type PostgresConfig struct {
	// Durability is the durability of an acknowledged commit. Default: Prod.
	Durability Durability
	// FsyncLatency is added to every successful flush, independently of others, as on a cloud
	// disk whose queue holds many requests. It needs Prod, since Fast never flushes. Default:
	// 0, the disk as it is.
	FsyncLatency time.Duration
	// CountFlushes counts flushes for Flushes. It needs a C compiler, as FsyncLatency does.
	// Default: false.
	CountFlushes bool
	// Settings are written to postgresql.conf last, so they override the lab's own; ALTER
	// SYSTEM overrides both. Default: none.
	Settings map[string]string
	// MaxConnections is the server's max_connections. Default: 300.
	MaxConnections int
	// SharedBuffers is the server's shared_buffers. Default: "128MB".
	SharedBuffers string
	// Preload lists shared_preload_libraries; an empty non-nil list means none. Default:
	// pg_stat_statements if it is installed.
	Preload []string
	// Auth is the authentication method. With Trust, every user of this machine is superuser of
	// the server. Default: Trust.
	Auth Auth
	// Password is the superuser's. Default: random; none with Trust.
	Password string
	// TLS says which connections are encrypted. Default: TLSOffered.
	TLS TLSMode
	// BinDir holds postgres and initdb. Default: see FindPostgres.
	BinDir string
	// Port to listen on. Default: a free one.
	Port int
	// Fresh runs initdb instead of copying a cached data directory. All copies have the same
	// system identifier, which tools that compare two clusters notice. Default: false.
	Fresh bool
	// Log receives the server's log as it is written, in addition to the log file. Default:
	// nil.
	Log io.Writer
}

func (c PostgresConfig) withDefaults(bin postgresBinaries) PostgresConfig {
	if c.MaxConnections == 0 {
		c.MaxConnections = 300
	}
	if c.SharedBuffers == "" {
		c.SharedBuffers = "128MB"
	}
	if c.Auth == "" {
		c.Auth = Trust
	}
	if c.Auth != Trust && c.Password == "" {
		c.Password = randomPassword()
	}
	if c.Preload == nil && bin.hasLibrary("pg_stat_statements") {
		c.Preload = []string{"pg_stat_statements"}
	}
	return c
}

func (c PostgresConfig) validate() error {
	switch c.Auth {
	case "", Trust, Password, MD5, SCRAM:
	default:
		return fmt.Errorf("auth %q: must be trust, password, md5 or scram-sha-256", c.Auth)
	}
	if c.MaxConnections < 0 {
		return fmt.Errorf("max connections %d: must not be negative", c.MaxConnections)
	}
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("port %d: must be 0 (any) to 65535", c.Port)
	}
	if strings.ContainsAny(c.Password, "\n\r\x00") {
		return errors.New("password: must be one line")
	}
	for name := range c.Settings {
		if !settingName.MatchString(name) {
			return fmt.Errorf("setting %q: not a parameter's name", name)
		}
	}
	if err := c.watch().validate(c.Durability); err != nil || c.FsyncLatency == 0 {
		return err
	}
	if m, ok := c.Settings["wal_sync_method"]; ok && m != "fdatasync" && m != "fsync" {
		return fmt.Errorf("wal_sync_method %s: fsync latency can only delay fdatasync and fsync", m)
	}
	return nil
}

// environment has the processes of a fast server, one for each connection, begin and end with
// less work: symbols are bound once, for all, and GnuTLS, which only LDAP over TLS uses, begins
// when it is called.
func (c PostgresConfig) environment() []string {
	if c.Durability != Fast {
		return nil
	}
	return []string{"LD_BIND_NOW=1", "GNUTLS_NO_IMPLICIT_INIT=1"}
}

func (c PostgresConfig) watch() diskWatch { return diskWatch{c.FsyncLatency, c.CountFlushes} }

// Postgres is a running PostgreSQL server that belongs to this process. Its
// methods are safe for concurrent use.
type Postgres struct {
	server
	cfg PostgresConfig
	bin postgresBinaries
}

// StartPostgres starts a server and returns when it accepts connections, in about a second the
// first time and 0.2 s later. Cancelling ctx aborts the start; it does not stop a running
// server: call Stop.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure PostgreSQL: %w", err)
	}
	bin, err := findPostgres(ctx, cfg.BinDir)
	if err != nil {
		return nil, err
	}
	as, err := unprivileged("postgres")
	if err != nil {
		return nil, err
	}
	p := &Postgres{cfg: cfg.withDefaults(bin), bin: bin}
	p.server = server{
		title: "PostgreSQL", stopSignal: syscall.SIGINT, crashSignal: syscall.SIGQUIT, portInUse: "could not bind",
		port: cfg.Port, anyPort: cfg.Port == 0, watch: cfg.watch(), logCopy: cfg.Log,
		as: as, env: p.cfg.environment(), launch: p.start,
	}
	if err := p.begin(ctx, cfg.Durability, p.prepare); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Postgres) prepare(ctx context.Context) error {
	if err := p.prepareRunDir(ctx, p.cfg.TLS, superuser); err != nil {
		return err
	}
	if err := initData(ctx, p.bin.cluster(), p.data, p.as, p.cfg.Durability, p.cfg.Fresh); err != nil {
		return err
	}
	if p.cfg.Password != "" {
		if err := p.setPassword(ctx); err != nil {
			return err
		}
	}
	return p.writeHBA()
}

// setPassword sets the superuser's password before the server first runs, in PostgreSQL's
// single-user mode, so that no one can ever log in without it.
func (p *Postgres) setPassword(ctx context.Context) error {
	encryption := "scram-sha-256"
	if p.cfg.Auth == MD5 {
		encryption = "md5"
	}
	quoted := "'" + strings.ReplaceAll(p.cfg.Password, "'", "''") + "'"
	_, err := runCommand(ctx, command{
		path: p.bin.path("postgres"),
		args: []string{
			"--single", "-F", "-D", p.data,
			"-c", "password_encryption=" + encryption, "-c", "log_min_messages=fatal", "postgres",
		},
		dir: p.data, as: p.as,
		stdin: strings.NewReader("ALTER ROLE " + superuser + " PASSWORD " + quoted + "\n"),
	})
	if err != nil {
		return fmt.Errorf("set password: %w", err)
	}
	return nil
}

// start starts the server process and waits until it accepts connections.
func (p *Postgres) start(ctx context.Context) error {
	if err := p.choosePort(); err != nil {
		return err
	}
	if err := p.writeConf(); err != nil {
		return err
	}
	// Readiness is checked on the Unix socket: another server may have taken the TCP port.
	socket := fmt.Sprintf("%s/.s.PGSQL.%d", p.sock, p.port)
	return p.run(ctx, p.bin.path("postgres"), []string{"-D", p.data}, func(*process) bool { return probePostgres(socket) == nil })
}

// BinDir holds the programs of the server's own version, such as pg_dump.
func (p *Postgres) BinDir() string { return p.bin.dir }

// Version is the server's version, such as "15.18".
func (p *Postgres) Version() string { return p.bin.version.String() }

// User is the superuser's name.
func (p *Postgres) User() string { return superuser }

// Password is the superuser's password; with Trust it is empty unless configured.
func (p *Postgres) Password() string { return p.cfg.Password }

// CreateDatabase is a statement that creates a database cheaply, for tests, by copying the
// template's files. From version 15 on, the default strategy of CREATE DATABASE writes each of
// their blocks to the log, which takes twice the work and 7 MB of log.
func (p *Postgres) CreateDatabase(name string) string {
	if p.bin.version.atLeast(15, 0) {
		return "CREATE DATABASE " + name + " STRATEGY file_copy"
	}
	return "CREATE DATABASE " + name
}

// DSN is the URL of database db for the superuser, with everything that password and TLS need.
// It contains the password: do not log it.
func (p *Postgres) DSN(db string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: p.Addr(), Path: "/" + db}
	if p.cfg.Password != "" {
		u.User = url.UserPassword(superuser, p.cfg.Password)
	}
	q := url.Values{"sslmode": {"disable"}}
	if p.cfg.TLS.inDSN() {
		q = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {p.tls.caCert}}
	}
	if p.cfg.TLS == TLSMutual {
		pair := p.tls.pair(superuser)
		q.Set("sslcert", pair.Cert)
		q.Set("sslkey", pair.Key)
	}
	u.RawQuery = q.Encode()
	return u.String()
}
