package mysql

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/ldap"
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
	return s.answered(ctx, newVisitor(c, wire, began))
}

// errFull is the error for a client when --max-clients is reached.
func errFull(cfg *Config) *mywire.Error {
	return mywire.NewError(mywire.ErrTooManyConnections, "Too many connections (--max-clients of weir is %d)", cfg.MaxClients)
}

// newVisitor makes the login attempt of a client that has answered the greeting.
func newVisitor(c *client, wire *mywire.Client, began time.Duration) *loginAttempt {
	s := c.l.srv
	c.caps, c.login.salt, c.login.tls = wire.Caps, wire.Salt, wire.Secure()
	c.login.packs = wire.Response.Caps.Has(mywire.CapCompress)
	wire.Response.Charset = s.collation(uint16(wire.Response.Charset))
	return &loginAttempt{c: c, wire: wire, began: began, key: poolKey{
		user: wire.Response.User, database: wire.Response.Database,
		caps: wire.Caps & classCaps, charset: wire.Response.Charset,
	}}
}

// answered continues the login of a client that has answered the greeting.
func (s *Server) answered(ctx context.Context, v *loginAttempt) error {
	if s.Sessions.Add(1) > int64(s.cfg().MaxClients) {
		full := errFull(s.cfg())
		s.Left(v.c.id)
		s.Refused.Add(1)
		_ = v.wire.Refuse(ctx, full) // the client may be gone; full is what matters
		_ = v.wire.Conn.Close()
		return full
	}
	return v.enter(ctx)
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

// A loginAttempt is a client between its answer to the greeting and its place on a loop.
type loginAttempt struct {
	c     *client
	wire  *mywire.Client
	began time.Duration
	key   poolKey
	again bool // it is a COM_CHANGE_USER
	// former is the session that continues if the COM_CHANGE_USER fails; nil if the session
	// ends then. refused: it has failed.
	former  *formerSession
	refused bool
	keys    *mywire.ClientKeys // what it has just proved to weir; or nil
	// ok is the server's OK for such a login, once it is known.
	ok mywire.OK
	// donated is the connection that the login has opened, for the pool; or nil.
	donated *backendConn
}

func (v *loginAttempt) server() *Server { return v.c.l.srv }

// enter authenticates a client and posts it to its loop, or serves it the console. If it
// returns an error, the client has got an error, and is disconnected.
func (v *loginAttempt) enter(ctx context.Context) (err error) {
	s := v.server()
	who := sight.Login{Engine: Engine, User: v.key.user, Database: v.key.database, Client: v.c.addr, Again: v.again}
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
		if v.donated != nil {
			v.donated.close()
		}
		if in || !v.returnToFormer(ctx, err) {
			s.Left(v.c.id)
			_ = v.wire.Conn.Close()
		}
	}()
	if core.IsAdminDatabase(v.key.database) {
		name := v.key.database
		if err := v.authenticateAdmin(ctx); err != nil {
			return err
		}
		s.Logins.Add(1)
		welcomed()
		return s.serveConsole(ctx, v, name)
	}
	if open, err := s.Admit(ctx, v.key.database); err != nil {
		return v.turnAway(ctx, mywire.NewError(mywire.ErrTooManyConnections, "weir: %v", err))
	} else if !open {
		return v.turnAway(ctx, mywire.NewError(mywire.ErrDBAccessDenied, "weir: database '%s' takes no logins (DISABLE)", v.key.database))
	}
	if err := v.authenticate(ctx); err != nil {
		return err
	}
	err = v.sit(func() {
		handed = true
		s.Logins.Add(1)
		welcomed()
	})
	if e := (*mywire.Error)(nil); errors.As(err, &e) {
		return v.turnAway(ctx, e)
	}
	return err
}

// authenticate checks the client, and whether the server accepts it. If weir cannot check as
// the server would, the server does.
func (v *loginAttempt) authenticate(ctx context.Context) error {
	s := v.server()
	cfg, user := s.cfg(), v.key.user
	if cfg.Auth == AuthTrust {
		if err := v.wire.Trust(ctx); err != nil {
			return err
		}
		return v.verifyWithServer(ctx, AuthTrust)
	}
	secret, listed := s.creds.Secret(user)
	if cfg.Auth == AuthLDAP {
		keys, err := v.askLDAP(ctx, cfg.LDAP)
		if err != nil {
			return err
		}
		if !listed { // otherwise weir logs in to the server with the password of the list
			if err := v.confirm(ctx, keys); err != nil {
				return err
			}
		}
		return v.verifyWithServer(ctx, AuthLDAP)
	}
	switch {
	case listed:
	case cfg.AuthQuery != "":
		var err error
		if secret, err = s.lookups.secret(ctx, user); err != nil {
			_ = v.wire.Refuse(ctx, mywire.NewError(mywire.ErrUnknown, "weir could not look up user '%s'", user))
			return fmt.Errorf("look up secret of %q: %w", user, err)
		}
	case cfg.Auth == AuthAuto:
		var rows [][]sql.NullString
		var known bool
		if secret, rows, known = v.stored(ctx); !known {
			return v.relay(ctx, rows)
		}
		if _, seen := s.known.welcomes.get(v.key, s.Monotonic()); !seen && !secret.Teaches() {
			return v.relay(ctx, rows) // weir could not log in to the server by itself
		}
	case cfg.Auth == AuthRelay:
		return v.relay(ctx, nil)
	}
	keys, err := v.wire.Authenticate(ctx, secret)
	if err != nil {
		return err
	}
	s.creds.Learn(user, keys)
	v.keys = keys
	return v.verifyWithServer(ctx, secret.Plugin())
}

// confirm learns the password that LDAP has accepted, for weir's logins to the server. If it
// replaces another one, the server must accept it first: until then weir opens connections with
// the old one.
func (v *loginAttempt) confirm(ctx context.Context, keys *mywire.ClientKeys) error {
	s := v.server()
	if known := s.creds.Keys(v.key.user); known != nil && !(known.HasPassword && known.Password == keys.Password) {
		askCtx, cancel := s.awaitServer(ctx)
		defer cancel()
		cfg, _, err := s.toHost(askCtx, s.connectConfig(v.key))
		if err == nil {
			cfg.Keys = keys
			var conn *mywire.Server
			if conn, err = s.connectTo(askCtx, v.key, cfg); err == nil {
				_ = conn.Close()
			}
		}
		if e := new(mywire.Error); mywire.CodeOf(err) == mywire.ErrAccessDenied && errors.As(err, &e) {
			_ = v.wire.Refuse(ctx, e)
			return fmt.Errorf("the server refuses %s: %w", v.key, e)
		}
		if err != nil {
			return nil // the server has said nothing about the password
		}
	}
	s.creds.Learn(v.key.user, keys)
	v.keys = keys
	return nil
}

// askLDAP requests the password from the client, and checks it with the LDAP server.
func (v *loginAttempt) askLDAP(ctx context.Context, d *ldap.Directory) (*mywire.ClientKeys, error) {
	return v.wire.AskPassword(ctx, func(ctx context.Context, password string) error {
		err := d.Check(ctx, v.key.user, password)
		if err == nil || errors.Is(err, ldap.ErrRefused) {
			return err
		}
		return fmt.Errorf("%w: %w", mywire.NewError(mywire.ErrUnknown, "weir cannot ask the LDAP server about user '%s': its log has the reason", v.key.user), err)
	})
}

// stored returns the secret by which the server checks a client's login, and the accounts that
// its name may mean; known is false if the server has to check itself. Accounts that were
// queried at a recent login serve a client that proves its password by them. Any other client
// may have a newer password, and weir queries its accounts.
func (v *loginAttempt) stored(ctx context.Context) (secret mywire.Secret, rows [][]sql.NullString, known bool) {
	s := v.server()
	user, a := v.key.user, &s.known.accounts
	now := s.Monotonic()
	if rows = a.Recent(user, s.cfg().LoginCheckInterval, now); rows != nil {
		if secret, known = a.Stored(user, rows, s.grants.hash(rows), now); known && v.wire.Proves(secret) {
			return secret, rows, true
		}
	}
	rows = s.lookups.accounts(ctx, user)
	if secret, known = a.Stored(user, rows, s.grants.hash(rows), s.Monotonic()); known {
		a.Store(user, rows, now)
	}
	return secret, rows, known
}

// How a login was decided, as a label of metrics.
const (
	loginPooled  = "pooled"  // without a connection to the server
	loginDialed  = "dialed"  // by weir, which also logged in to the server
	loginRelayed = "relayed" // by the server
)

// nobodysPlugin is the name of a plugin that no account has. A server answers a client that
// names it by a request to switch plugins, with a challenge of its own. That lets weir relay a
// client that it has greeted before it knew which server plugin applies.
const nobodysPlugin = "weir_relay"

// relay lets the server authenticate the client, and keeps the connection: for users whose
// secrets weir does not hold it is the only source of connections. rows are the accounts that
// the user may mean, if weir knows them.
func (v *loginAttempt) relay(ctx context.Context, rows [][]sql.NullString) error {
	s := v.server()
	cfg := s.connectConfig(v.key)
	overUnix := cfg.Network == "unix" || cfg.Network == "" && (cfg.Address[0] == '/' || cfg.Address[0] == '@')
	if overUnix && !v.c.login.borrows {
		// A server may accept the user at the other end of a Unix socket as the proof, even
		// with a wrong password. That user is weir's, not the client's.
		return v.turnAway(ctx, mywire.NewError(mywire.ErrAccessDenied,
			"weir reaches the server by a Unix socket, where the server may go by weir's own user and not by the password of '%s': have --mysql name a TCP address, give weir the user's password (--mysql-auth-file), connect to weir over a Unix socket as its own user, or trust all that reach a loopback address (--trust-loopback)", v.key.user))
	}
	asked := s.Monotonic()
	pending, endpoint, hangs, err := s.dialForLogin(ctx, cfg)
	if err != nil {
		e := cmp.Or(hangs, unreachable(err))
		_ = v.wire.Refuse(ctx, e)
		return err
	}
	s.known.note(pending.Greeting, s.Monotonic())
	// Drivers understand the request even if they do not announce plugins.
	v.wire.Caps |= mywire.CapPluginAuth
	v.wire.Response.Plugin, v.wire.Response.Auth = nobodysPlugin, nil
	res, err := mywire.Relay(ctx, v.wire, pending)
	if err != nil {
		return err
	}
	if !res.Proved && !v.c.login.borrows {
		_ = res.Server.Close()
		return v.turnAway(ctx, errBorrowed(v.key.user))
	}
	if !res.Proved && !overUnix {
		res.Keys = mywire.PasswordKeys("")
	}
	s.creds.Learn(v.key.user, res.Keys)
	v.ok = res.Server.OK
	if e := s.checkGrants(ctx, v.key.user, res.Server, s.known.accounts.Changed(v.key.user, rows, s.grants.hash(rows))); e != nil {
		_ = res.Server.Close()
		return v.turnAway(ctx, e)
	}
	if res.Proved {
		s.known.accounts.Learn(ctx, v.key.user, rows, res.Server, s.grants.hash(rows), s.Monotonic())
	}
	plugin := res.Server.Plugin
	if v.donated, err = s.handOver(res.Server, v.key, endpoint); err != nil {
		return v.turnAway(ctx, mywire.NewError(mywire.ErrUnknown, "weir: %v", err))
	}
	s.known.welcomes.put(v.key, v.ok, asked, s.Monotonic())
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

// turnAway refuses a client for a reason of weir's own.
func (v *loginAttempt) turnAway(ctx context.Context, e *mywire.Error) error {
	v.server().Refused.Add(1)
	_ = v.wire.Refuse(ctx, e) // the client may be gone; e is what matters
	return e
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

// A loginCache remembers which logins the server has accepted, so that not each of them costs a
// connection to the server.
type loginCache struct {
	mu   sync.Mutex
	seen map[poolKey]cachedLogin // guarded by mu
	// forgot is when everything was removed: results of earlier logins do not count. Guarded by
	// mu.
	forgot time.Duration
}

type cachedLogin struct {
	ok mywire.OK
	at time.Duration
}

const (
	// welcomeKeep is how long an accepted login stays valid, and so how long a locked or
	// expired account and a dropped database still accept logins. A storm of logins costs one
	// connection in that time.
	welcomeKeep = time.Second
	// maxWelcomes bounds the logins that are remembered.
	maxWelcomes = 1000
)

func (w *loginCache) get(key poolKey, now time.Duration) (mywire.OK, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	have, ok := w.seen[key]
	return have.ok, ok && now-have.at < welcomeKeep
}

// put records that the server has accepted a login that began at asked.
func (w *loginCache) put(key poolKey, ok mywire.OK, asked, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if asked <= w.forgot {
		return
	}
	if w.seen == nil || len(w.seen) >= maxWelcomes {
		w.seen = make(map[poolKey]cachedLogin)
	}
	ok.Info, ok.State = bytes.Clone(ok.Info), bytes.Clone(ok.State)
	w.seen[key] = cachedLogin{ok, now}
}

func (w *loginCache) forget(now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, w.forgot = nil, now
}

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

// verifyWithServer checks whether the server accepts a client that weir has authenticated, by logging in
// as that client: the database may not exist, or the user may lack access to it. If the server
// is unreachable at the moment, the client is accepted, and its statements wait for the server;
// if the server accepts connections but does not answer, the client gets an error.
func (v *loginAttempt) verifyWithServer(ctx context.Context, method string) error {
	s := v.server()
	if ok, seen := s.known.welcomes.get(v.key, s.Monotonic()); seen {
		v.ok = ok
		s.LoginChecks.Add(method, loginPooled)
		return nil
	}
	v.ok = mywire.OK{Status: mywire.StatusAutocommit}
	if !s.mayDial(v.key) {
		s.LoginChecks.Add(method, loginPooled)
		return nil
	}
	asked := s.Monotonic()
	askCtx, cancel := s.awaitServer(ctx)
	defer cancel()
	conn, endpoint, err := s.connect(askCtx, v.key)
	if mywire.CodeOf(err) == mywire.ErrAccessDenied && v.keys != nil && s.creds.Keys(v.key.user) == nil {
		// weir knew an older password, which serves more plugins than keys do.
		s.creds.Learn(v.key.user, v.keys)
		conn, endpoint, err = s.connect(askCtx, v.key)
	}
	hangs := s.hangs(ctx, askCtx, err)
	if err == nil {
		v.ok = conn.OK
		if e := s.checkGrants(ctx, v.key.user, conn, false); e != nil {
			_ = conn.Close()
			return v.turnAway(ctx, e)
		}
		s.known.welcomes.put(v.key, conn.OK, asked, s.Monotonic())
		v.donated, err = s.handOver(conn, v.key, endpoint)
	}
	var e *mywire.Error
	switch {
	case err == nil:
	case hangs != nil:
		return v.turnAway(ctx, hangs)
	case errors.Is(err, errOtherServer):
		e = mywire.NewError(mywire.ErrUnknown, "weir: %v", err)
	case errors.As(err, &e) && !passes(e.Code):
	default:
		s.Log.Debug("login not checked with the server", "user", v.key.user, "database", v.key.database, "error", err)
	}
	if e == nil {
		s.LoginChecks.Add(method, loginDialed)
	}
	if e != nil {
		_ = v.wire.Refuse(ctx, e)
		return fmt.Errorf("the server refuses %s: %w", v.key, e)
	}
	return nil
}

// passes reports whether a server that refuses a connection with this error number is only too
// busy.
func passes(code uint16) bool {
	switch code {
	case mywire.ErrTooManyConnections, mywire.ErrUserLimit, mywire.ErrResourceLimit, mywire.ErrServerShutdown:
		return true
	}
	return false
}
