package postgres

import (
	"context"
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file lets another package decide who may log in and where connections go: one that has
// its own rules for that, as PgBouncer's configuration has.

// An Authenticator replaces Config.Auth, Users, AuthQuery and
// AdminUsers, and Config.Postgres. Its methods are called on
// many goroutines at a time.
type Authenticator interface {
	// Enter takes a client through its login, up to AuthenticationOk, which it has
	// sent. A client that it refuses has got the error.
	Enter(ctx context.Context, v LoginRequest) (*AcceptedLogin, error)
	// Cancel executes a cancel request for a client that is not in this
	// process. It returns when that has been done.
	Cancel(ctx context.Context, id uint32, secret []byte)
	// NewID proposes an id for a client, by which others name it.
	NewID() uint32
	// Route says where the connections of a pool go.
	Route(database, user string) Route
}

// A LoginRequest is a client that logs in.
type LoginRequest struct {
	Conn     net.Conn // as pgwire.Accept returned it
	Addr     net.Addr
	Start    *pgwire.Startup
	Stopping bool // the server accepts no clients any more
}

// An AcceptedLogin says what the client gets: a session of a pool, or what Serve does.
type AcceptedLogin struct {
	// Serve, unless it is nil, runs the client's session. It closes nothing.
	Serve func(ctx context.Context) error

	// Database and User name the session's pool; Login is the name that the client gave.
	Database, User, Login string
	Settings              []session.Setting
	App                   string
	// Mode is how long the client keeps a backend. Default: Options.Mode.
	Mode session.Mode
	// Greeting is sent before the parameters. Default: nothing.
	Greeting []byte
	// Left is called when the session has ended, of whatever kind. Default: nothing.
	Left func()
}

func (e *AcceptedLogin) left() {
	if e.Left != nil {
		e.Left()
	}
}

// A Route says where the connections of a pool go.
type Route struct {
	// Hosts are tried one after the other. Their user is the pool's.
	Hosts []pgwire.ConnectConfig
	// Setup is a query that is run on each new connection. Default: none.
	Setup string
	// From is the index of the host that is tried first. Chosen is called with the one that was
	// reached, unless it is nil.
	From   int
	Chosen func(host int)
}

// AuthServices are what a server offers its Authenticator.
type AuthServices struct{ s *Server }

// enter is a login through the Authenticator.
func (w *AuthServices) enter(ctx context.Context, conn net.Conn, addr net.Addr, start *pgwire.Startup) (err error) {
	s := w.s
	began := s.Monotonic()
	s.Sessions.Add(1)
	handed := false
	var entry *AcceptedLogin
	defer func() {
		if !handed {
			_ = conn.Close()
			s.Sessions.Add(-1)
			if entry != nil {
				entry.left()
			}
		}
	}()
	v := LoginRequest{Conn: conn, Addr: addr, Start: start, Stopping: s.Stopping()}
	if entry, err = s.cfg().Authenticator.Enter(ctx, v); err != nil {
		return err
	}
	s.Logins.Add(1)
	if entry.Serve != nil {
		return entry.Serve(s.DialCtx)
	}
	fd, err := netloop.Detach(s.DialCtx, conn, &s.Background)
	if err != nil {
		return err
	}
	l := s.LeastLoaded()
	id, secret, err := s.register(l, start.Version)
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	c := newClient(l)
	c.id, c.login.secret, c.app, c.settings.startApp, c.addr = id, secret, entry.App, entry.App, addr.String()
	c.login.entry, c.login.began = entry, began
	handed = true
	l.Given() // OnClosed takes it back
	if !l.Post(func() {
		l.admit(c, fd, nil, poolKey{database: entry.Database, user: entry.User}, entry.Settings, nil, nil)
	}) {
		_ = unix.Close(fd)
		s.Left(id)
		entry.left()
	}
	return nil
}

// mode is how long the client keeps a backend.
func (c *client) mode() session.Mode {
	if e := c.login.entry; e != nil && e.Mode != "" {
		return e.Mode
	}
	return c.l.cfg.Mode
}

// dialRoute opens one backend at the Authenticator's route, and logs in.
func (w *AuthServices) dialRoute(ctx context.Context, key poolKey) (conn *backendConn, err error) {
	s := w.s
	r := s.cfg().Authenticator.Route(key.database, key.user)
	err = errNoRoute
	address := ""
	for i := range r.Hosts {
		at := (r.From + i) % len(r.Hosts)
		host := r.Hosts[at]
		host.User, address = key.user, host.Address
		if host.Password == "" && host.Keys == nil {
			host.Password, host.Keys = s.creds.of(key.user)
		}
		host.Params = key.startup(host.Params)
		if conn, err = w.dialHost(ctx, host, r.Setup); err == nil && r.Chosen != nil {
			r.Chosen(at)
		}
		if errors.Is(err, pgwire.ErrNoPassword) {
			err = pgwire.NewFatal(pgwire.CodeInvalidPassword, "wrong password type: %v", err)
		}
		if err == nil || refuses(err) {
			break
		}
		s.Log.Debug("server connection failed", "database", key.database, "user", key.user, "address", host.Address, "because", err.Error())
	}
	if err != nil {
		s.Log.Info("server login failed", "database", key.database, "user", key.user, "address", address, "error", err)
		return nil, err
	}
	s.Log.Debug("server connection opened", "database", key.database, "user", key.user, "address", conn.endpoint.Address, "pid", conn.pid)
	return conn, nil
}

var errNoRoute = pgwire.NewFatal(pgwire.CodeInvalidDatabase, "the database is configured no longer")

func (w *AuthServices) dialHost(ctx context.Context, host pgwire.ConnectConfig, setup string) (*backendConn, error) {
	s := w.s
	be, err := pgwire.Connect(ctx, host)
	if err != nil {
		return nil, err
	}
	if setup != "" {
		if err := runSetup(ctx, be.Conn, setup); err != nil {
			_ = be.Conn.Close()
			return nil, err
		}
	}
	e := upstreamEndpoint(host.Address, be.Conn)
	conn, err := s.handOver(be, e, "")
	if err == nil {
		conn.via = &host
	}
	return conn, err
}

// Serve runs an Authenticator's own console: answer executes one command. If the client
// hangs up, its command is cancelled.
func (w *AuthServices) Serve(conn net.Conn, version string, answer func(ctx context.Context, sql string) (core.Answer, error)) error {
	return serveAnswers(w.s, conn, version, answer)
}

// Learn keeps what a login through the Authenticator has revealed about a user's password.
func (w *AuthServices) Learn(user string, keys *pgwire.ClientKeys) { w.s.creds.Learn(user, keys) }

// KeysOf returns what weir can log in with as a user: "" and nil if it has nothing.
func (w *AuthServices) KeysOf(user string) (password string, keys *pgwire.ClientKeys) {
	return w.s.creds.of(user)
}

// A QueryError is the server's answer to a query of QueryRow.
type QueryError struct{ Err error }

func (e *QueryError) Error() string { return e.Err.Error() }
func (e *QueryError) Unwrap() error { return e.Err }

// QueryRow runs a query as a user on a connection of its own, and returns the first
// row, nil if there is none. If the server refuses the query the error is a
// *QueryError.
func (w *AuthServices) QueryRow(ctx context.Context, r Route, user, sql string, params ...string) (row [][]byte, err error) {
	s := w.s
	ctx, cancel := context.WithTimeout(ctx, s.cfg().ConnectTimeout)
	defer cancel()
	err = errNoRoute
	var be *pgwire.Backend
	for i := range r.Hosts {
		host := r.Hosts[(r.From+i)%len(r.Hosts)]
		host.User = user
		if host.Password == "" && host.Keys == nil {
			host.Password, host.Keys = s.creds.of(user)
		}
		if be, err = pgwire.Connect(ctx, host); err == nil || refuses(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	defer be.Conn.Close()
	if row, err = queryOne(ctx, be.Conn, sql, params...); pgwire.CodeOf(err) != "" {
		err = &QueryError{err}
	}
	return row, err
}

// Exec runs a command on a connection.
func Exec(ctx context.Context, be *pgwire.Backend, sql string) error {
	return runSetup(ctx, be.Conn, sql)
}

// worded gives an error PgBouncer's words and code if clients log in through an
// Authenticator: applications look for them.
func (l *loop) worded(words string, e *pgwire.Error) *pgwire.Error {
	if l.cfg.Authenticator != nil {
		e.Code, e.Message, e.Detail, e.Hint = pgwire.CodeProtocolViolation, words, "", ""
	}
	return e
}

// closedBecause is why a connection to the server has ended, in PgBouncer's words.
func closedBecause(b *backend, err error) string {
	switch {
	case b.Retired:
		return "database configuration changed"
	case err != nil && !errors.Is(err, io.EOF):
		return "server conn crashed? " + err.Error()
	case b.p.l.Now-b.Born > b.p.Limits.ServerLifetime:
		return "server lifetime over"
	case b.Mode == core.ModeFree && b.p.l.Now-b.FreeSince > b.p.Limits.ServerIdleTimeout:
		return "server idle timeout"
	}
	return "server connection closed"
}

// Open creates the pool of a user in a database, to keep connections open.
func (w *AuthServices) Open(database, user string) {
	w.s.Loops[0].Post(func() { w.s.Loops[0].pool(poolKey{database: database, user: user}) })
}

// CloseFast disconnects the clients of a database, or of all for "", that hold a backend
// although they have nothing in flight.
func (w *AuthServices) CloseFast(ctx context.Context, database, because string) error {
	s := w.s
	for _, l := range s.Loops {
		if err := l.Call(ctx, func() {
			for _, c := range l.Clients {
				if (database == "" || c.p.key.database == database) && c.link != nil && c.tx == pgwire.StatusIdle && c.link.Depth() == 0 {
					c.fatal(pgwire.NewFatal(pgwire.CodeProtocolViolation, "%s", because))
				}
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// MakeRoom closes free backends of a login whose pools have more than most.
func (w *AuthServices) MakeRoom(ctx context.Context, database, user string, most int) {
	s, login := w.s, poolKey{database: database, user: user}
	for _, l := range s.Loops {
		if l.Call(ctx, func() {
			have := 0
			for key, p := range l.Pools {
				if key.login() == login {
					have += len(p.Backends)
				}
			}
			for key, p := range l.Pools {
				for key.login() == login && len(p.Free) > 0 && have > most {
					l.srv.Log.Debug("server connection evicted", "database", database, "user", user, "address", p.Free[0].Endpoint.Address)
					p.Free[0].Goodbye() // which removes it from p.Free
					have--
				}
			}
		}) != nil {
			break
		}
	}
}
