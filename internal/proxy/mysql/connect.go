package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql/accounts"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file opens weir's own connections to the server.

// A dialer logs in to the server, and keeps what weir learns by that.
type dialer struct {
	srv   *Server
	known serverFacts
	shut  blockedHost
	tries chan struct{} // holds a token for each login that retries to reach a host
}

// serverFacts are the contents of the server's last greeting, which weir's own greeting to
// clients repeats.
type serverFacts struct {
	mu       sync.Mutex
	greeting *mywire.Greeting // guarded by mu: nil until a server was reached
	noted    time.Duration    // guarded by mu: when it was received

	asking sync.Mutex    // held by the goroutine that connects
	asked  time.Duration // guarded by asking: when that was last tried

	welcomes loginCache
	accounts accounts.Choices
}

func (f *serverFacts) get() *mywire.Greeting {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.greeting
}

func (f *serverFacts) note(g *mywire.Greeting, now time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.greeting, f.noted = g, now
}

// stale reports whether the server may send another greeting by now: another one may have taken
// its place, or its settings have changed.
func (f *serverFacts) stale(now time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now-f.noted > greetingKeep
}

// greetingKeep is how long weir repeats a greeting of the server to clients before a login
// makes it connect again.
const greetingKeep = 5 * time.Second

// facts returns the server's greeting; the first client has to wait for it. It is nil while no
// server could be reached.
func (d *dialer) facts(ctx context.Context) *mywire.Greeting {
	s := d.srv
	if g := s.known.get(); g != nil {
		if s.known.stale(s.Monotonic()) && s.known.asking.TryLock() {
			defer s.known.asking.Unlock()
			s.lookAgain(ctx)
		}
		return s.known.get()
	}
	s.known.asking.Lock()
	defer s.known.asking.Unlock()
	if g := s.known.get(); g != nil {
		return g
	}
	if asked := s.known.asked; asked > 0 && s.Monotonic()-asked < askAgain {
		return nil // the client before has just waited for it
	}
	if err := s.reach(ctx); err != nil {
		s.Log.Warn("the server cannot be asked what it is", "server", s.cfg().MySQL.Address, "error", err)
	}
	s.known.asked = s.Monotonic()
	return s.known.get()
}

// lookAgain fetches the server's greeting again. If the server does not answer soon, weir keeps
// the old one.
func (d *dialer) lookAgain(ctx context.Context) {
	s := d.srv
	if now := s.Monotonic(); s.known.asked > 0 && now-s.known.asked < askAgain {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, core.HealthPatience)
	defer cancel()
	if err := s.reach(ctx); err != nil {
		s.Log.Debug("the server's greeting is not known anew", "error", err)
	}
	s.known.asked = s.Monotonic()
}

// askAgain is how long weir does not try again after one client's login could not reach the
// server.
const askAgain = time.Second

// collation returns the server's collation for the number in a client's login: 0 stands for the
// server's own, and numbers above 255 do not fit in the login that weir sends.
func (d *dialer) collation(number uint16) byte {
	if number != 0 && number <= 255 {
		return byte(number)
	}
	if g := d.srv.known.get(); g != nil && g.Charset != 0 {
		return g.Charset
	}
	return mywire.CharsetUTF8MB4
}

// reach reports whether the server accepts connections. It logs in, or is refused: servers
// count clients that disconnect after the greeting, and block a host after max_connect_errors
// of them.
func (d *dialer) reach(ctx context.Context) error {
	conn, _, err := d.srv.visit(ctx)
	switch {
	case err == nil:
		return conn.Close()
	case refusesUser(mywire.CodeOf(err)):
		return nil // the server is up
	}
	return err
}

// visit logs in as the DSN's user, whose name may be empty, and records the greeting.
func (d *dialer) visit(ctx context.Context) (*mywire.Server, upstream.Endpoint, error) {
	s := d.srv
	cfg := s.cfg().MySQL
	cfg.Timeout = s.cfg().ConnectTimeout
	if cfg.Password == "" {
		cfg.Keys = s.creds.Keys(cfg.User)
	}
	cfg, e, err := s.toHost(ctx, cfg)
	if err != nil {
		return nil, e, err
	}
	pending, err := mywire.Dial(ctx, cfg)
	if err != nil {
		return nil, e, err
	}
	s.known.note(pending.Greeting, s.Monotonic())
	conn, err := pending.Login(ctx)
	return conn, e, err
}

// refusesUser reports whether an error number concerns the user or the database of a login, and
// not the state of the server.
func refusesUser(code uint16) bool {
	switch code {
	case mywire.ErrAccessDenied, errAccessDeniedNoPassword, mywire.ErrDBAccessDenied, mywire.ErrUnknownDatabase:
		return true
	}
	return false
}

// errAccessDeniedNoPassword is MariaDB's and MySQL's error if the account does not use a
// password (ER_ACCESS_DENIED_NO_PASSWORD_ERROR).
const errAccessDeniedNoPassword = 1698

// backendConn is a logged-in connection on its way into a pool.
type backendConn struct {
	fd      int
	id      uint32 // the server's connection id
	port    int    // of weir's end
	caps    mywire.Caps
	status  mywire.Status
	version string
	mariadb bool

	endpoint upstream.Endpoint
}

func (c *backendConn) close() { _ = unix.Close(c.fd) }

// ownCaps are the capabilities of every backend, whatever its class.
const ownCaps = mywire.CapLongPassword | mywire.CapLongFlag | mywire.CapIgnoreSigpipe | mywire.CapTransactions |
	mywire.CapReserved | mywire.CapPluginAuth | mywire.CapPluginAuthLenenc | mywire.CapConnectAttrs |
	mywire.CapSessionTrack | mywire.CapsRequired

// connectConfig returns the configuration to connect as a pool's user.
func (d *dialer) connectConfig(key poolKey) mywire.ConnectConfig {
	s := d.srv
	cfg := s.cfg().MySQL
	cfg.User, cfg.Database, cfg.Charset = key.user, key.database, key.charset
	cfg.Password, cfg.Keys = "", s.creds.Keys(key.user)
	cfg.Caps = key.caps | ownCaps
	cfg.Timeout = s.cfg().ConnectTimeout
	return cfg
}

// connect logs in as a pool's user, with what weir knows about the password.
func (d *dialer) connect(ctx context.Context, key poolKey) (*mywire.Server, upstream.Endpoint, error) {
	s := d.srv
	cfg, e, err := s.toHost(ctx, s.connectConfig(key))
	if err != nil {
		return nil, e, err
	}
	ctx, cancel := s.Monitor.While(ctx, e)
	defer cancel()
	conn, err := s.connectTo(ctx, key, cfg)
	return conn, e, err
}

// connectTo logs in as a pool's user to a given server.
func (d *dialer) connectTo(ctx context.Context, key poolKey, cfg mywire.ConnectConfig) (*mywire.Server, error) {
	s := d.srv
	var conn *mywire.Server
	err := s.withRoom(ctx, key.user, func() (err error) {
		conn, err = mywire.Connect(ctx, cfg)
		return err
	})
	if err != nil {
		s.suspect(err)
		if mywire.CodeOf(err) == mywire.ErrAccessDenied {
			s.creds.Refuted(key.user, cfg.Keys)
		}
		return nil, err
	}
	s.known.note(conn.Greeting, s.Monotonic())
	return conn, nil
}

// dialBackend opens and logs in one backend.
func (d *dialer) dialBackend(ctx context.Context, key poolKey) (*backendConn, error) {
	s := d.srv
	conn, e, err := s.connect(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.handOver(conn, key, e)
}

// errOtherServer is why a session cannot go on: the new server lacks capabilities that were
// announced to the client.
var errOtherServer = errors.New("the server lacks capabilities that the one before it had: clients must connect again")

// handOver turns a logged-in connection into one for the pool, or closes it.
func (d *dialer) handOver(conn *mywire.Server, key poolKey, e upstream.Endpoint) (*backendConn, error) {
	s := d.srv
	if lacks := key.caps &^ conn.Caps; lacks != 0 {
		_ = conn.Close()
		s.known.note(conn.Greeting, s.Monotonic())
		return nil, fmt.Errorf("open backend: %w (%#x)", errOtherServer, uint64(lacks))
	}
	port := portOf(conn.Conn)
	fd, err := netloop.Detach(s.DialCtx, conn.Conn, &s.Background)
	if err != nil {
		_ = conn.Conn.Close()
		return nil, err
	}
	return &backendConn{
		fd: fd, id: conn.Greeting.ConnectionID, port: port, caps: conn.Caps, status: conn.OK.Status,
		version: conn.Greeting.Version, mariadb: conn.IsMariaDB(), endpoint: e,
	}, nil
}
