package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// login performs the handshake with one client and hands it to an event loop. It runs on a
// goroutine of its own with blocking reads. Logins that wait for nothing run on the loop
// (pending_login.go), and come here when they have to wait.
func (s *Server) login(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg().LoginTimeout)
	defer cancel()
	s.loginFailed(conn.RemoteAddr().String(), s.tryLogin(ctx, conn))
}

// loginFailed counts and logs a failed login. A client that disconnects without an answer, as
// health checks do, has not failed.
func (s *Server) loginFailed(addr string, err error) {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return
	}
	s.Failed.Add(1)
	s.Log.Info("login failed", "client", addr, "error", err)
}

func (s *Server) tryLogin(ctx context.Context, raw net.Conn) error {
	// Servers send these errors instead of their greeting.
	refuse := func(e *mywire.Error) error {
		s.Refused.Add(1)
		_, _ = raw.Write(mywire.AppendError(nil, 0, e)) // the client may be gone; e is what matters
		_ = raw.Close()
		return e
	}
	if s.Stopping() {
		return refuse(errShutdown())
	}
	if s.Sessions.Load() >= int64(s.cfg().MaxClients) {
		return refuse(errFull(s.cfg()))
	}
	began := s.Monotonic()
	leave := s.lobby.Enter(raw)
	defer leave()
	c := newClient(s.LeastLoaded())
	c.addr, c.login.borrows = raw.RemoteAddr().String(), core.MayBorrow(raw, s.cfg().TrustLoopback)
	c.id = s.register(c.l)
	wire, err := mywire.Accept(ctx, raw, s.accept(s.facts(ctx), c.id))
	if err != nil {
		s.Forget(c.id)
		_ = raw.Close()
		return err
	}
	leave()
	return s.answered(ctx, newLoginAttempt(c, wire, began))
}

// errFull is the error for a client when --max-clients is reached.
func errFull(cfg *Config) *mywire.Error {
	return mywire.NewError(mywire.ErrTooManyConnections, "Too many connections (--max-clients of weir is %d)", cfg.MaxClients)
}

// answered continues the login of a client that has answered the greeting.
func (s *Server) answered(ctx context.Context, a *loginAttempt) error {
	if s.Sessions.Add(1) > int64(s.cfg().MaxClients) {
		full := errFull(s.cfg())
		s.Left(a.c.id)
		s.Refused.Add(1)
		_ = a.wire.Refuse(ctx, full) // the client may be gone; full is what matters
		_ = a.wire.Conn.Close()
		return full
	}
	return a.enter(ctx)
}

// firstAnswer is how long a client may take to answer the greeting, TLS included. Servers allow
// the same (connect_timeout).
const firstAnswer = 10 * time.Second

// accept returns how weir greets a client: as the server would, as far as weir supports it.
func (s *Server) accept(server *mywire.Greeting, id uint32) mywire.AcceptConfig {
	cfg := mywire.AcceptConfig{
		ConnectionID: id, TLS: s.cfg().ClientTLS, TLSMode: s.cfg().ClientTLSMode,
		Timeout: min(s.cfg().LoginTimeout, cmp.Or(s.cfg().firstAnswer, firstAnswer)), Plugin: mywire.PluginNative,
	}
	carried := mywire.OfferedCaps | mywire.CapExtendedMetadata | mywire.CapBulkOperations | mywire.CapBulkUnitResults
	if s.cfg().LocalInfile {
		carried |= mywire.CapLocalFiles
	}
	if server == nil { // not connected yet: what every server of the last years has
		cfg.Caps = carried &^ mywire.CapsMariaDB
		return cfg
	}
	cfg.Version, cfg.Charset, cfg.Status = server.Version, server.Charset, server.Status
	cfg.Caps = server.Caps & carried
	switch {
	case !s.cfg().relays() && s.cfg().Auth != AuthTrust && s.cfg().Auth != AuthLDAP:
		cfg.Plugin = s.cfg().Auth
	case s.cfg().relays() && server.Plugin == mywire.PluginSHA2:
		cfg.Plugin = server.Plugin
	}
	return cfg
}

// enter authenticates a client and posts it to its loop, or serves it the console. If it
// returns an error, the client has got an error, and is disconnected.
func (a *loginAttempt) enter(ctx context.Context) (err error) {
	s := a.server()
	who := sight.Login{Engine: Engine, User: a.key.user, Database: a.key.database, Client: a.c.addr, Again: a.again}
	in := false
	welcomed := func() {
		in = true
		s.cfg().Audit.Login(who)
	}
	defer func() {
		if who.Err = err; err != nil && !in {
			s.cfg().Audit.Login(who)
		}
	}()
	handed := false
	defer func() {
		if handed {
			return
		}
		if a.donated != nil {
			a.donated.close()
		}
		if in || !a.returnToFormer(ctx, err) {
			s.Left(a.c.id)
			_ = a.wire.Conn.Close()
		}
	}()
	if core.IsAdminDatabase(a.key.database) {
		name := a.key.database
		if err := a.authenticateAdmin(ctx); err != nil {
			return err
		}
		s.Logins.Add(1)
		welcomed()
		return s.serveConsole(ctx, a, name)
	}
	if open, err := s.Admit(ctx, a.key.database); err != nil {
		return a.turnAway(ctx, mywire.NewError(mywire.ErrTooManyConnections, "weir: %v", err))
	} else if !open {
		return a.turnAway(ctx, mywire.NewError(mywire.ErrDBAccessDenied, "weir: database '%s' takes no logins (DISABLE)", a.key.database))
	}
	if err := a.authenticate(ctx); err != nil {
		return err
	}
	err = a.sit(func() {
		handed = true
		s.Logins.Add(1)
		welcomed()
	})
	if e := (*mywire.Error)(nil); errors.As(err, &e) {
		return a.turnAway(ctx, e)
	}
	return err
}

// nobodysPlugin is the name of a plugin that no account has. A server answers a client that
// names it by a request to switch plugins, with a challenge of its own. That lets weir relay a
// client that it has greeted before it knew which server plugin applies.
const nobodysPlugin = "weir_relay"

// relay lets the server authenticate the client, and keeps the connection: for users whose
// secrets weir does not hold it is the only source of connections. rows are the accounts that
// the user may mean, if weir knows them.
func (a *loginAttempt) relay(ctx context.Context, rows [][]sql.NullString) error {
	s := a.server()
	cfg := s.connectConfig(a.key)
	overUnix := cfg.Network == "unix" || cfg.Network == "" && (cfg.Address[0] == '/' || cfg.Address[0] == '@')
	if overUnix && !a.c.login.borrows {
		// A server may accept the user at the other end of a Unix socket as the proof, even
		// with a wrong password. That user is weir's, not the client's.
		return a.turnAway(ctx, mywire.NewError(mywire.ErrAccessDenied,
			"weir reaches the server by a Unix socket, where the server may go by weir's own user and not by the password of '%s': have --mysql name a TCP address, give weir the user's password (--mysql-auth-file), connect to weir over a Unix socket as its own user, or trust all that reach a loopback address (--trust-loopback)", a.key.user))
	}
	asked := s.Monotonic()
	pending, endpoint, hangs, err := s.dialForLogin(ctx, cfg)
	if err != nil {
		e := cmp.Or(hangs, unreachable(err))
		_ = a.wire.Refuse(ctx, e)
		return err
	}
	s.known.note(pending.Greeting, s.Monotonic())
	// Drivers understand the request even if they do not announce plugins.
	a.wire.Caps |= mywire.CapPluginAuth
	a.wire.Response.Plugin, a.wire.Response.Auth = nobodysPlugin, nil
	res, err := mywire.Relay(ctx, a.wire, pending)
	if err != nil {
		return err
	}
	if !res.Proved && !a.c.login.borrows {
		_ = res.Server.Close()
		return a.turnAway(ctx, errBorrowed(a.key.user))
	}
	if !res.Proved && !overUnix {
		res.Keys = mywire.PasswordKeys("")
	}
	s.creds.Learn(a.key.user, res.Keys)
	a.ok = res.Server.OK
	if e := s.checkGrants(ctx, a.key.user, res.Server, s.known.accounts.Changed(a.key.user, rows, s.grants.hash(rows))); e != nil {
		_ = res.Server.Close()
		return a.turnAway(ctx, e)
	}
	if res.Proved {
		s.known.accounts.Learn(ctx, a.key.user, rows, res.Server, s.grants.hash(rows), s.Monotonic())
	}
	plugin := res.Server.Plugin
	if a.donated, err = s.handOver(res.Server, a.key, endpoint); err != nil {
		return a.turnAway(ctx, mywire.NewError(mywire.ErrUnknown, "weir: %v", err))
	}
	s.known.welcomes.put(a.key, a.ok, asked, s.Monotonic())
	s.LoginChecks.Add(plugin, loginRelayed)
	return nil
}

// dialForLogin opens the connection on which a login is relayed. With several hosts it retries
// for as long as statements wait for a host that takes writes. hangs is the error for the
// client if the server has not answered in time; or nil.
func (s *Server) dialForLogin(ctx context.Context, cfg mywire.ConnectConfig) (pending *mywire.Pending, endpoint upstream.Endpoint, hangs *mywire.Error, err error) {
	patience := ctx
	if !s.Monitor.Static() {
		var cancel context.CancelFunc
		patience, cancel = context.WithTimeout(ctx, s.Patience())
		defer cancel()
	}
	trying := false
	defer func() {
		if trying {
			<-s.tries
		}
	}()
	for {
		once, cancel := s.awaitServer(patience)
		if endpoint, err = s.AwaitHost(once); err == nil {
			at := s.at(cfg, endpoint)
			here, leave := s.Monitor.While(once, endpoint)
			err = s.withRoom(here, cfg.User, func() (err error) {
				pending, err = mywire.Dial(here, at)
				return err
			})
			leave()
		}
		hangs = s.hangs(ctx, once, err)
		cancel()
		if err == nil {
			return pending, endpoint, nil, nil
		}
		s.suspect(err)
		if s.Monitor.Static() || !awaitsHost(err) {
			return nil, endpoint, hangs, err
		}
		if !trying {
			select {
			case <-patience.Done():
				return nil, endpoint, hangs, err
			case s.tries <- struct{}{}:
				trying = true
				continue
			}
		}
		select {
		case <-patience.Done():
			return nil, endpoint, hangs, err
		case <-time.After(triesPause):
		}
	}
}

const (
	// maxTries is how many logins at a time retry to reach a host: the others wait for them, so
	// that a server that comes back is not flooded.
	maxTries = 4
	// triesPause is how long each of them waits between two attempts.
	triesPause = 50 * time.Millisecond
)

// awaitsHost reports whether another host may accept a login that failed with err: no host
// serves, or the connection failed in a way that does not concern the user.
func awaitsHost(err error) bool {
	var e *mywire.Error
	if errors.As(err, &e) {
		return e.Code == mywire.ErrServerShutdown
	}
	for _, of := range []error{
		upstream.ErrNoHost, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF,
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ENOENT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// unreachable returns the error for a client when there is no connection to the server: the
// server's own error, if it has sent one.
func unreachable(err error) *mywire.Error {
	var e *mywire.Error
	if errors.As(err, &e) {
		return e
	}
	return mywire.NewError(mywire.ErrUnknown, "weir cannot reach the server: %v (check that it runs and that weir's --mysql names it)", err)
}

// How a login was decided, as a label of metrics.
const (
	loginPooled  = "pooled"  // without a connection to the server
	loginDialed  = "dialed"  // by weir, which also logged in to the server
	loginRelayed = "relayed" // by the server
)

// loginPatience is how long a login waits for the server. With the check of its greeting
// before, that is less than the ten seconds after which most clients give up without a reason.
const loginPatience = 6 * time.Second

// awaitServer bounds a login's wait for the server.
func (s *Server) awaitServer(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(s.cfg().ConnectTimeout, loginPatience))
}

// hangs returns the error for a client whose login the server has neither accepted nor refused
// in time; nil if it has, or if there is no host.
func (s *Server) hangs(login, wait context.Context, err error) *mywire.Error {
	if err == nil || wait.Err() == nil || login.Err() != nil || errors.Is(err, upstream.ErrNoHost) {
		return nil
	}
	return mywire.NewError(mywire.ErrUnknown, "weir: the server %s has not answered the login within %s (--connect-timeout, %s at most): it hangs, is overloaded, or its packets are dropped",
		s.cfg().MySQL.Address, min(s.cfg().ConnectTimeout, loginPatience), loginPatience)
}
