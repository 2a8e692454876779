package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// superuser is the role that owns every lab server.
const superuser = "postgres"

// PostgresConfig describes a server. Its zero value is a durable server of the
// newest installed PostgreSQL on a free port, open to everyone on this machine.
type PostgresConfig struct {
	// Durability is what an acknowledged commit promises. Default: Prod.
	Durability Durability
	// FsyncLatency is added to every flush that succeeds, each on its own, as
	// on a cloud disk whose queue holds many requests. It needs Prod, since
	// Fast never flushes. Default: 0, the disk as it is.
	FsyncLatency time.Duration
	// CountFlushes keeps the number of flushes for Flushes. It needs a C
	// compiler, as FsyncLatency does. Default: false.
	CountFlushes bool
	// Settings are written to postgresql.conf last, and so win over the lab's
	// own; ALTER SYSTEM wins over both. Default: none.
	Settings map[string]string
	// MaxConnections is the server's max_connections. Default: 300.
	MaxConnections int
	// SharedBuffers is the server's shared_buffers. Default: "128MB".
	SharedBuffers string
	// Preload lists shared_preload_libraries; an empty non-nil list means none.
	// Default: pg_stat_statements when it is installed.
	Preload []string
	// Auth is how clients prove who they are. With Trust, every user of this
	// machine is superuser of the server. Default: Trust.
	Auth Auth
	// Password is the superuser's. Default: random, none with Trust.
	Password string
	// TLS says whether connections are encrypted. Default: TLSOff.
	TLS TLSMode
	// BinDir holds postgres and initdb. Default: see FindPostgres.
	BinDir string
	// Port to listen on. Default: a free one.
	Port int
	// Fresh runs initdb instead of copying a cached data directory. Copies all
	// have one system identifier, which tools that compare two clusters notice.
	// Default: false.
	Fresh bool
	// Log receives the server's log as it is written, beside the log file.
	// Default: nil.
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
	if c.FsyncLatency == 0 {
		return nil
	}
	if c.FsyncLatency < time.Microsecond {
		return fmt.Errorf("fsync latency %v: must be at least 1µs", c.FsyncLatency)
	}
	if c.Durability != Prod {
		return errors.New("fsync latency needs durability prod: a fast server never flushes")
	}
	if m, ok := c.Settings["wal_sync_method"]; ok && m != "fdatasync" && m != "fsync" {
		return fmt.Errorf("wal_sync_method %s: fsync latency can only delay fdatasync and fsync", m)
	}
	return nil
}

// Postgres is a running PostgreSQL server that belongs to this process. Its
// methods are safe for concurrent use.
type Postgres struct {
	cfg  PostgresConfig
	bin  postgresBinaries
	as   *identity
	dir  *runDir
	data string
	sock string
	env  []string
	log  *os.File
	tls  *authority
	port int

	mu      sync.Mutex // guards what follows, and start, stop, kill as whole steps
	proc    *process
	paused  []procID // what Pause has stopped
	stopped bool
}

// bindAttempts bounds the race for a free port: between our asking for one and
// the server's taking it, another process may.
const bindAttempts = 4

// StartPostgres starts a server and returns when it accepts connections, in
// about a second the first time and 0.2 s later. Cancelling ctx abandons the
// start; it does not end a server that runs: call Stop.
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
	dir, err := newRunDir(baseDir(cfg.Durability))
	if err != nil {
		return nil, err
	}
	p := &Postgres{cfg: cfg.withDefaults(bin), bin: bin, as: as, dir: dir, port: cfg.Port}
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare PostgreSQL: %w", err), p.discard())
	}
	for attempt := 1; ; attempt++ {
		err := p.launch(ctx)
		if err == nil {
			return p, nil
		}
		if cfg.Port == 0 && attempt < bindAttempts && strings.Contains(p.LogTail(20), "could not bind") {
			continue
		}
		return nil, errors.Join(err, p.discard())
	}
}

// prepare fills the run directory with all that the server needs.
func (p *Postgres) prepare(ctx context.Context) (err error) {
	if p.data, err = p.dir.sub("data", p.as, 0o700); err != nil {
		return err
	}
	if p.sock, err = p.dir.sub("s", p.as, 0o755); err != nil {
		return err
	}
	if p.log, err = os.OpenFile(filepath.Join(p.dir.path, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	if p.cfg.TLS != TLSOff {
		if p.tls, err = newAuthority(p.dir.path); err != nil {
			return err
		}
		if err := p.tls.issueServer(p.as); err != nil {
			return err
		}
		if _, err := p.tls.issueClient(superuser); err != nil {
			return err
		}
	}
	if p.cfg.FsyncLatency > 0 || p.cfg.CountFlushes {
		if p.env, err = watchDisk(ctx, p.dir.path, p.cfg.FsyncLatency, p.cfg.CountFlushes, p.as); err != nil {
			return err
		}
	}
	if err := initData(ctx, p.bin, p.data, p.as, p.cfg.Fresh); err != nil {
		return err
	}
	if p.cfg.Password != "" {
		if err := p.setPassword(ctx); err != nil {
			return err
		}
	}
	return p.writeHBA()
}

// setPassword stores the superuser's password before the server first runs, in
// PostgreSQL's single-user mode: there is then no moment at which the server
// would let anybody in without it.
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

// launch starts the server process and waits until it accepts connections.
func (p *Postgres) launch(ctx context.Context) error {
	if p.cfg.Port == 0 && p.proc == nil { // a restart keeps its port
		port, err := freePort()
		if err != nil {
			return err
		}
		p.port = port
	}
	if err := p.writeConf(); err != nil {
		return err
	}
	var out io.Writer = p.log
	if p.cfg.Log != nil {
		out = io.MultiWriter(p.log, p.cfg.Log)
	}
	proc, err := startProcess(command{
		path: p.bin.path("postgres"), args: []string{"-D", p.data}, dir: p.data, env: p.env, as: p.as, out: out,
	})
	if err != nil {
		return err
	}
	if err := p.dir.register(proc.id); err != nil {
		proc.killTree()
		return err
	}
	if err := awaitPostgres(ctx, proc, p.sock, p.port); err != nil {
		proc.killTree()
		return fmt.Errorf("await PostgreSQL: %w\n%s", err, p.LogTail(10))
	}
	p.proc, p.paused = proc, nil
	return nil
}

// freePort asks the kernel for a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// discard removes what a failed start left.
func (p *Postgres) discard() error {
	if p.log != nil {
		_ = p.log.Close()
	}
	return p.dir.remove()
}

// Stop ends the server (PostgreSQL's fast shutdown: open sessions are told) and
// removes its directory. When ctx ends first it kills the server instead, and
// removes the directory all the same. A second call does nothing.
func (p *Postgres) Stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil
	}
	p.stopped = true
	err := p.shutdown(ctx)
	return errors.Join(err, p.discard())
}

func (p *Postgres) shutdown(ctx context.Context) error {
	p.resume()
	defer endStragglers(p.data) // of a postmaster that somebody else killed
	if err := p.proc.signal(syscall.SIGINT); err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	select {
	case <-p.proc.done:
		return nil
	case <-ctx.Done():
		p.proc.killTree()
		return fmt.Errorf("stop PostgreSQL: %w (killed instead)", context.Cause(ctx))
	}
}

// Kill crashes the server: the postmaster and all its children are stopped, then
// killed, and gone when Kill returns. The data directory stays for Restart.
func (p *Postgres) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proc.killTree()
	endStragglers(p.data)
	p.paused = nil
}

// Restart starts the server again on the same port and data directory, which
// after Kill means crash recovery. A server that still runs is shut down first.
func (p *Postgres) Restart(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return errors.New("restart PostgreSQL: it was stopped and its directory removed")
	}
	if err := p.shutdown(ctx); err != nil {
		return err
	}
	if err := p.launch(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

// Pause stops every process of the server: connections stay open, nobody
// answers. Sessions that connect meanwhile hang too.
func (p *Postgres) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == nil && p.proc.running() {
		p.paused = p.proc.tree()
	}
}

// Resume lets a paused server go on.
func (p *Postgres) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resume()
}

func (p *Postgres) resume() {
	for _, id := range p.paused {
		_ = id.signal(syscall.SIGCONT)
	}
	p.paused = nil
}

// Done is closed when the server process that runs now has ended, for whatever
// reason. After Restart there is a new one.
func (p *Postgres) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc.done
}

// PID is the postmaster's process id.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc.id.pid
}

// Host is the address that the server listens on.
func (p *Postgres) Host() string { return "127.0.0.1" }

// Port is the TCP port that the server listens on.
func (p *Postgres) Port() int { return p.port }

// Addr is Host and Port for net.Dial.
func (p *Postgres) Addr() string { return net.JoinHostPort(p.Host(), strconv.Itoa(p.port)) }

// SocketDir holds the server's Unix socket.
func (p *Postgres) SocketDir() string { return p.sock }

// DataDir is the server's data directory.
func (p *Postgres) DataDir() string { return p.data }

// BinDir holds the programs of the server's own version, such as pg_dump.
func (p *Postgres) BinDir() string { return p.bin.dir }

// Version is the server's version, such as "15.18".
func (p *Postgres) Version() string { return p.bin.version.String() }

// User is the superuser's name.
func (p *Postgres) User() string { return superuser }

// Password is the superuser's password, empty with Trust unless one was given.
func (p *Postgres) Password() string { return p.cfg.Password }

// DSN is the URL by which the superuser reaches database db, with all that
// password and TLS need. It holds the password: do not log it.
func (p *Postgres) DSN(db string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: p.Addr(), Path: "/" + db}
	if p.cfg.Password != "" {
		u.User = url.UserPassword(superuser, p.cfg.Password)
	}
	q := url.Values{"sslmode": {"disable"}}
	if p.tls != nil {
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

// LogTail returns the last n lines of the server's log.
func (p *Postgres) LogTail(n int) string { return tailFile(p.log, n) }

// tailWindow bounds what is read of a log's end.
const tailWindow = 256 << 10

func tailFile(f *os.File, n int) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	buf := make([]byte, min(info.Size(), tailWindow))
	got, err := f.ReadAt(buf, info.Size()-int64(len(buf)))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return lastLines(string(buf[:got]), n)
}
