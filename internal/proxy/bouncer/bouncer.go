package bouncer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/pgbouncer"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/version"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// serverVersion is the server_version of the console, from which clients read the version
// of PgBouncer.
const serverVersion = "1.25.2/bouncer"

// Version is the answer to SHOW VERSION.
func Version() string { return "weir " + version.Number + " (speaks as PgBouncer 1.25.2)" }

// Options say how the proxy is run.
type Options struct {
	// Config is the configuration.
	Config *pgbouncer.Config
	// Stderr receives the log in addition to the logfile; nil for none.
	Stderr io.Writer
	// Verbose writes more into the log: 1 or more.
	Verbose int
	// TakeOver makes a process that serves the same configuration stop accepting clients,
	// and listens instead. That process ends when its clients have left.
	TakeOver bool
	// Signals receives the signals of the process.
	Signals <-chan os.Signal
}

// A Bouncer is a running proxy.
type Bouncer struct {
	opts  Options
	sink  *logSink
	level slog.LevelVar
	log   *slog.Logger
	auth  *authenticator
	srv   *postgres.Server
	socks sockets

	changing sync.Mutex // one change of the configuration at a time

	asking chan struct{}  // one for each question under way
	waits  sync.WaitGroup // of PAUSE, by signal

	consoleLogins, consoleQueries atomic.Uint64

	seenMu   sync.Mutex
	seenList map[string]uint64 // guarded by seenMu: logins, by database
}

// Run serves until a signal or ctx ends it.
func Run(ctx context.Context, o Options) error {
	b := &Bouncer{opts: o, sink: &logSink{out: o.Stderr}, seenList: make(map[string]uint64), asking: make(chan struct{}, maxAsking)}
	if err := b.sink.open(o.Config.Text("logfile")); err != nil {
		return err
	}
	st, err := load(o.Config)
	if err != nil {
		return err
	}
	b.log = slog.New(&handler{sink: b.sink, level: &b.level, st: func() *state { return b.current() }})
	b.verbose(o.Config)
	if err := b.writePID(); err != nil {
		return err
	}
	defer b.removePID()
	if o.TakeOver {
		if err := takeOver(ctx, o.Config); err != nil {
			return fmt.Errorf("take over from the process that runs: %w", err)
		}
	}
	if b.socks, err = listen(o.Config, o.TakeOver); err != nil {
		return err
	}
	defer b.socks.close()
	b.auth = newAuthenticator(b, st)
	cfg := b.config(st)
	cfg.Sockets = b.socks.list
	if b.srv, err = postgres.New(cfg); err != nil {
		return err
	}
	for _, n := range o.Config.Notes {
		b.log.Debug(n.Place.String() + ": " + n.Setting + " has no effect: " + n.Why)
	}
	b.log.Info("process up: " + Version() + ", listening on " + b.srv.Addr().String())
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer b.waits.Wait()
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- b.srv.Run(serving) }()
	b.fill(st)
	ending := ctx.Done() // by a signal that says how, or otherwise
	for {
		select {
		case err := <-ended:
			b.log.Info("process down")
			return err
		case sig := <-o.Signals:
			if sig == syscall.SIGTERM || sig == syscall.SIGINT {
				ending = nil
			}
			b.signal(serving, sig)
		case <-ending:
			ending = nil
			b.interrupted(serving)
		}
	}
}

func (b *Bouncer) current() *state {
	if b.auth == nil {
		return nil
	}
	return b.auth.state.Load()
}

// verbose sets the level of the log.
func (b *Bouncer) verbose(cfg *pgbouncer.Config) {
	b.level.Set(slog.LevelInfo)
	if max(cfg.Number("verbose"), b.opts.Verbose) > 0 {
		b.level.Set(slog.LevelDebug)
	}
}

// sameSignal is how long to wait, after the context has ended, for the signal that caused
// that.
const sameSignal = 100 * time.Millisecond

// interrupted is called when the context ends, because of a signal, which decides how to
// end, or for another reason.
func (b *Bouncer) interrupted(ctx context.Context) {
	select {
	case sig := <-b.opts.Signals:
		b.signal(ctx, sig)
	case <-time.After(sameSignal):
		b.End(core.ShutdownNow)
	}
}

// signal does what PgBouncer does at a signal.
func (b *Bouncer) signal(ctx context.Context, sig os.Signal) {
	again := b.srv.Stopping()
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT:
		how := map[os.Signal]core.ShutdownMode{syscall.SIGTERM: core.ShutdownAfterClients, syscall.SIGINT: core.ShutdownAfterServers}[sig]
		if again {
			how = core.ShutdownNow
		}
		b.log.Info("got " + name(sig) + ", shutting down" + strings.TrimRight(", "+strings.ToLower(string(how)), ", "))
		b.End(how)
	case syscall.SIGHUP:
		b.log.Info("got SIGHUP, re-reading config")
		_ = b.Reload() // which has logged why not
	case syscall.SIGUSR1, syscall.SIGUSR2:
		if again {
			b.log.Info("got " + name(sig) + " while shutting down, ignoring")
			return
		}
		command := map[os.Signal]string{syscall.SIGUSR1: "PAUSE", syscall.SIGUSR2: "RESUME"}[sig]
		b.log.Info("got " + name(sig) + ": " + command)
		if err := b.pauseOrResume(ctx, sig); err != nil {
			b.log.Info(command+" refused", "error", err)
		}
	}
}

// pauseOrResume returns when the command is in effect. The next signal may be the other
// one, which must not overtake this one, and which ends the wait of PAUSE.
func (b *Bouncer) pauseOrResume(ctx context.Context, sig os.Signal) error {
	if sig == syscall.SIGUSR2 {
		_, err := b.srv.Command(ctx, "RESUME")
		return err
	}
	wait, err := b.srv.Hold(ctx, "")
	if err != nil {
		return err
	}
	b.waits.Go(func() {
		if err := wait(ctx); err != nil && ctx.Err() == nil {
			b.log.Info("PAUSE ended", "error", err)
		}
	})
	return nil
}

func name(sig os.Signal) string {
	return map[os.Signal]string{
		syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGUSR1: "SIGUSR1", syscall.SIGUSR2: "SIGUSR2",
	}[sig]
}

// End implements core.Process.
func (b *Bouncer) End(how core.ShutdownMode) { b.srv.End(how) }

// Reload implements core.Process: it reads the file again. If it is invalid,
// nothing changes.
func (b *Bouncer) Reload() error {
	b.changing.Lock()
	defer b.changing.Unlock()
	cfg, err := b.auth.state.Load().Reread()
	if err == nil {
		err = b.apply(cfg)
	}
	if err != nil {
		b.failed(err)
	}
	return err
}

func (b *Bouncer) failed(err error) {
	var setup *setupError
	if errors.As(err, &setup) {
		b.log.Error("TLS setup failed: " + err.Error())
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		b.log.Error(line)
	}
}

// set changes one setting.
func (b *Bouncer) set(key, value string) error {
	b.changing.Lock()
	defer b.changing.Unlock()
	cfg, err := b.auth.state.Load().With(key, value)
	if err == nil {
		err = b.apply(cfg)
	}
	var setup *setupError
	if errors.As(err, &setup) {
		// Certificate and key are set one after the other: until they match, the old
		// ones stay in use.
		b.log.Warn("TLS settings could not be applied, still using old configuration", "error", err)
		now := *b.auth.state.Load()
		now.Config = cfg
		if err := now.loadLDAP(); err != nil {
			return err
		}
		b.auth.state.Store(&now)
		return nil
	}
	if err != nil {
		b.failed(err)
	}
	return err
}

// apply makes a configuration the current one.
func (b *Bouncer) apply(cfg *pgbouncer.Config) error {
	st, err := load(cfg)
	if err != nil {
		return err
	}
	if err := b.sink.open(cfg.Text("logfile")); err != nil {
		return err
	}
	old := b.auth.state.Load()
	b.auth.state.Store(st)
	if err := b.srv.Reload(b.config(st)); err != nil {
		b.auth.state.Store(old)
		return err
	}
	b.verbose(cfg)
	b.renew(old, st)
	b.fill(st)
	return nil
}

// fill opens the connections that databases with a user of their own keep open before
// any client connects.
func (b *Bouncer) fill(st *state) {
	for name, db := range st.Databases {
		if db.User != "" && given(db.MinPoolSize, st.Number("min_pool_size")) > 0 {
			b.srv.Way.Open(name, db.User)
		}
	}
}

// renew replaces the connections of databases whose servers have changed.
func (b *Bouncer) renew(old, now *state) {
	for name := range b.auth.names(old) {
		was, _ := old.Database(name)
		is, ok := now.Database(name)
		if ok && was != nil && sameServer(was, is) && old.server.same(&now.server, old.Config, now.Config) {
			continue
		}
		if _, err := b.srv.Command(context.Background(), `RECONNECT "`+name+`"`); err != nil {
			b.log.Warn("RECONNECT "+name, "error", err)
		}
	}
}

func sameServer(a, b *pgbouncer.Database) bool {
	return strings.Join(a.Hosts, ",") == strings.Join(b.Hosts, ",") && a.Port == b.Port && a.DBName == b.DBName && a.User == b.User &&
		a.Password == b.Password && a.ConnectQuery == b.ConnectQuery && a.RoundRobin == b.RoundRobin && fmt.Sprint(a.Params) == fmt.Sprint(b.Params)
}

// same reports whether the TLS settings for servers are unchanged.
func (t *tlsSide) same(_ *tlsSide, was, is *pgbouncer.Config) bool {
	for _, name := range []string{"sslmode", "ca_file", "cert_file", "key_file", "protocols", "ciphers", "tls13_ciphers"} {
		if name = "server_tls_" + name; name == "server_tls_tls13_ciphers" {
			name = "server_tls13_ciphers"
		}
		if was.Text(name) != is.Text(name) {
			return false
		}
	}
	return true
}

// maxAsking bounds the connections for auth_query, which any unauthenticated client can
// cause.
const maxAsking = 8

// ask runs a query that returns one row, on a connection of its own.
func (b *Bouncer) ask(ctx context.Context, r postgres.Route, as, sql string, params ...string) ([][]byte, error) {
	select {
	case b.asking <- struct{}{}:
		defer func() { <-b.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return b.srv.Way.QueryRow(ctx, r, as, sql, params...)
}

// seen counts a login to a database.
func (b *Bouncer) seen(database string) {
	b.seenMu.Lock()
	defer b.seenMu.Unlock()
	b.seenList[database]++
}

// writePID writes the pidfile, unless the process that it names is still running.
func (b *Bouncer) writePID() error {
	path := b.opts.Config.Text("pidfile")
	if path == "" {
		return nil
	}
	if text, err := os.ReadFile(path); err == nil && !b.opts.TakeOver {
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil && pid != os.Getpid() && syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("pidfile: %s names process %d, which is running", path, pid)
		}
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		return fmt.Errorf("pidfile: %w", err)
	}
	return nil
}

func (b *Bouncer) removePID() {
	path := b.opts.Config.Text("pidfile")
	if text, err := os.ReadFile(path); path != "" && err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(os.Getpid()) {
		_ = os.Remove(path)
	}
}

// takeOverPatience bounds the requests to the process that will be replaced.
const takeOverPatience = 10 * time.Second

// takeOver makes the process on the Unix socket stop accepting clients.
func takeOver(ctx context.Context, cfg *pgbouncer.Config) error {
	dir := cfg.Text("unix_socket_dir")
	if dir == "" {
		return errors.New("it is asked on its Unix socket, and unix_socket_dir is empty")
	}
	ctx, cancel := context.WithTimeout(ctx, takeOverPatience)
	defer cancel()
	be, err := pgwire.Connect(ctx, pgwire.ConnectConfig{
		Address: pgbouncer.Address(dir, cfg.Number("listen_port")), User: consoleName, Database: consoleName,
	})
	if err != nil {
		return err
	}
	defer be.Conn.Close()
	return postgres.Exec(ctx, be, "SHUTDOWN WAIT_FOR_CLIENTS")
}
