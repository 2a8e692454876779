package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// PgBouncerConfig describes a PgBouncer, the pooler that weir's proxy is
// compared with, in front of a lab server.
type PgBouncerConfig struct {
	// PoolMode is transaction, session or statement. Default: "transaction".
	PoolMode string
	// PoolSize is how many server connections one user and database may have.
	// Default: 20.
	PoolSize int
	// MaxClients is the largest number of client connections. Default: 2000.
	MaxClients int
	// PreparedStatements is how many prepared statements are kept per server connection;
	// versions before 1.21 cannot keep any. -1 means none. Default: 200.
	PreparedStatements int
	// Users are the clients, with their passwords or the server's stored secrets; they are
	// checked if Settings has an auth_type that does so. PgBouncer also logs in to the server
	// with them. Default: only the superuser.
	Users map[string]string
	// Settings are added to the configuration and override the lab's own. Default: none.
	Settings map[string]string
	// Binary is the program. Default: $WEIR_PGBOUNCER, the PATH, /usr/sbin.
	Binary string
	// Port to listen on. Default: a free one.
	Port int
	// Log receives the log as it is written, in addition to the log file. Default: nil.
	Log io.Writer
}

func (c PgBouncerConfig) withDefaults() PgBouncerConfig {
	if c.PoolMode == "" {
		c.PoolMode = "transaction"
	}
	if c.PoolSize == 0 {
		c.PoolSize = 20
	}
	if c.MaxClients == 0 {
		c.MaxClients = 2000
	}
	if c.PreparedStatements == 0 {
		c.PreparedStatements = 200
	}
	return c
}

func (c PgBouncerConfig) validate() error {
	switch c.PoolMode {
	case "", "transaction", "session", "statement":
	default:
		return fmt.Errorf("pool mode %q: must be transaction, session or statement", c.PoolMode)
	}
	if c.PoolSize < 0 || c.MaxClients < 0 || c.Port < 0 || c.Port > 65535 {
		return errors.New("pool size, clients and port must not be negative")
	}
	for name, secret := range c.Users {
		if strings.ContainsAny(name+secret, "\n\r\x00") {
			return fmt.Errorf("user %q: name or secret does not fit one line", name)
		}
	}
	for name, value := range c.Settings {
		if !settingName.MatchString(name) || strings.ContainsAny(value, "\n\r") {
			return fmt.Errorf("setting %q: name or value does not fit one line", name)
		}
	}
	return nil
}

// PgBouncer is a running PgBouncer that belongs to this process. Clients need no password;
// PgBouncer has the server's.
type PgBouncer struct {
	cfg     PgBouncerConfig
	version version
	dir     *runDir
	work    string // the subdirectory of PgBouncer's user
	as      *identity
	port    int
	held    *Ports // reserves port, if it was chosen
	log     *os.File
	proc    *process
}

// StartPgBouncer starts a PgBouncer in front of server and returns when it
// accepts connections.
func StartPgBouncer(ctx context.Context, server *Postgres, cfg PgBouncerConfig) (*PgBouncer, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure PgBouncer: %w", err)
	}
	binary, v, err := findPgBouncer(ctx, cfg.Binary)
	if err != nil {
		return nil, err
	}
	as, err := unprivileged("postgres")
	if err != nil {
		return nil, err
	}
	dir, err := newRunDir(baseDir(Fast))
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{cfg: cfg.withDefaults(), version: v, dir: dir, as: as, port: cfg.Port}
	if server.cfg.TLS == TLSMutual {
		return nil, errors.Join(errors.New("configure PgBouncer: servers that ask for client certificates are not supported"), dir.remove())
	}
	if err := b.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare PgBouncer: %w", err), b.discard())
	}
	for attempt := 1; ; attempt++ {
		err := b.launch(ctx, binary, server)
		if err == nil {
			return b, nil
		}
		if cfg.Port == 0 && attempt < bindAttempts && strings.Contains(b.LogTail(20), portTaken) {
			continue
		}
		return nil, errors.Join(err, b.discard())
	}
}

// portTaken is what PgBouncer logs about a port in use.
const portTaken = "ddress already in use"

func (b *PgBouncer) prepare() (err error) {
	if b.work, err = b.dir.sub("w", b.as, 0o755); err != nil {
		return err
	}
	b.log, err = os.OpenFile(filepath.Join(b.dir.path, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	return nil
}

func (b *PgBouncer) launch(ctx context.Context, binary string, server *Postgres) (err error) {
	if b.cfg.Port == 0 {
		before := b.held
		b.held, err = ReservePorts(1)
		if err = errors.Join(err, before.Release()); err != nil {
			return err
		}
		b.port = b.held.numbers[0]
	}
	ini := filepath.Join(b.work, "pgbouncer.ini")
	users := filepath.Join(b.work, "users.txt")
	err = errors.Join(
		b.write(ini, b.config(server, users)),
		b.write(users, b.userList(server.Password())),
	)
	if err != nil {
		return err
	}
	var out io.Writer = b.log
	if b.cfg.Log != nil {
		out = io.MultiWriter(b.log, b.cfg.Log)
	}
	b.proc, err = startProcess(command{path: binary, args: []string{ini}, dir: b.work, as: b.as, out: out})
	if err != nil {
		return err
	}
	err = b.dir.register(b.proc.id)
	if err == nil {
		err = awaitPostgres(ctx, b.proc, b.work, b.port)
	}
	if err == nil && strings.Contains(b.LogTail(20), portTaken) {
		// PgBouncer continues with only its Unix socket.
		err = fmt.Errorf("port %d is in use", b.port)
	}
	if err != nil {
		b.proc.killTree()
		return fmt.Errorf("await PgBouncer: %w\n%s", err, b.LogTail(10))
	}
	return nil
}

// userList is the auth file. PgBouncer quotes by doubling quotes.
func (b *PgBouncer) userList(password string) string {
	users := map[string]string{superuser: password}
	maps.Copy(users, b.cfg.Users)
	var s strings.Builder
	for _, name := range slices.Sorted(maps.Keys(users)) {
		fmt.Fprintf(&s, "\"%s\" \"%s\"\n", strings.ReplaceAll(name, `"`, `""`), strings.ReplaceAll(users[name], `"`, `""`))
	}
	return s.String()
}

func (b *PgBouncer) config(server *Postgres, users string) string {
	var s bytes.Buffer
	fmt.Fprintf(&s, "[databases]\n* = host=%s port=%d\n[pgbouncer]\n", server.Host(), server.Port())
	settings := map[string]string{
		"listen_addr":               "127.0.0.1",
		"listen_port":               strconv.Itoa(b.port),
		"unix_socket_dir":           b.work,
		"auth_type":                 "trust",
		"auth_file":                 users,
		"admin_users":               superuser,
		"pool_mode":                 b.cfg.PoolMode,
		"default_pool_size":         strconv.Itoa(b.cfg.PoolSize),
		"max_client_conn":           strconv.Itoa(b.cfg.MaxClients),
		"ignore_startup_parameters": "extra_float_digits",
		"server_tls_sslmode":        "disable",
	}
	if b.cfg.PreparedStatements > 0 && b.version.atLeast(1, 21) {
		settings["max_prepared_statements"] = strconv.Itoa(b.cfg.PreparedStatements)
	}
	if server.cfg.TLS.inDSN() {
		settings["server_tls_sslmode"] = "verify-full"
		settings["server_tls_ca_file"] = server.CACert()
	}
	maps.Copy(settings, b.cfg.Settings)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&s, "%s = %s\n", name, settings[name])
	}
	return s.String()
}

func (b *PgBouncer) write(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := b.as.chown(path); err != nil {
		return fmt.Errorf("hand over %s: %w", filepath.Base(path), err)
	}
	return nil
}

func (b *PgBouncer) discard() error {
	if b.log != nil {
		_ = b.log.Close()
	}
	return errors.Join(b.dir.remove(), b.held.Release())
}

// Stop stops PgBouncer, dropping its clients, and removes its directory. If ctx ends first,
// PgBouncer is killed.
func (b *PgBouncer) Stop(ctx context.Context) error {
	// Version 1.23 changed the signal for an immediate shutdown: from there on SIGTERM waits
	// until all clients have left.
	sig := syscall.SIGTERM
	if b.version.atLeast(1, 23) {
		sig = syscall.SIGQUIT
	}
	err := b.proc.signal(sig)
	select {
	case <-b.proc.done:
	case <-ctx.Done():
		b.proc.killTree()
		err = errors.Join(err, fmt.Errorf("stop PgBouncer: %w (killed instead)", context.Cause(ctx)))
	}
	return errors.Join(err, b.discard())
}

// Kill kills PgBouncer with SIGKILL. Stop is still needed.
func (b *PgBouncer) Kill() { b.proc.killTree() }

// PID is PgBouncer's process id.
func (b *PgBouncer) PID() int { return b.proc.id.pid }

// Port is the TCP port that PgBouncer listens on.
func (b *PgBouncer) Port() int { return b.port }

// Addr is the address that PgBouncer listens on, for net.Dial.
func (b *PgBouncer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// Version is PgBouncer's version without its patch level, such as "1.18".
func (b *PgBouncer) Version() string { return b.version.String() }

// DSN is the URL of database db for the superuser, through PgBouncer; database pgbouncer is its
// console.
func (b *PgBouncer) DSN(db string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: b.Addr(), Path: "/" + db, RawQuery: "sslmode=disable"}
	return u.String()
}

// LogTail returns the last n lines of the log.
func (b *PgBouncer) LogTail(n int) string { return tailFile(b.log, n) }
