package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A loginAttempt is a client that is logging in, and what is known of it so far. Its methods do
// not block, so that both a goroutine and an event loop can use them, except for those with
// a context.
type loginAttempt struct {
	s     *Server
	addr  net.Addr
	began time.Duration
	who   sight.Login

	start   *pgwire.Startup
	key     poolKey
	set     []session.Setting
	app     string
	counted bool // among the sessions

	// secret is what the client's proof is checked against, by which method: weir holds it itself,
	// or has it from the role status.
	secret pgwire.Secret
	method pgwire.AuthMethod
	held   bool
	// st is the client's role status, nil if unknown. seen is that of a user whom the
	// server checks, before the server has decided.
	st, seen *roleStatus
	recalled bool // st is an earlier answer of the server

	keys *pgwire.ClientKeys // what its proof has revealed
	// replaces: keys replace another password, and so far only LDAP has accepted them.
	replaces bool
	welcome  []byte // what the client is sent before its parameters
}

func newLoginAttempt(s *Server, addr net.Addr) *loginAttempt {
	return &loginAttempt{s: s, addr: addr, began: s.Monotonic(), who: sight.Login{Engine: Engine, Client: addr.String()}}
}

// ended logs how the login has ended, unless it ended with a session.
func (a *loginAttempt) ended(ctx context.Context, err error) {
	s := a.s
	if a.who.Err = err; err != nil && a.who.User != "" {
		s.cfg().Audit.Login(a.who)
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return
	}
	s.Failed.Add(1)
	level := slog.LevelInfo
	if isAway(err) {
		level = slog.LevelDebug // logged once for all: see availability
	}
	s.Log.Log(ctx, level, "login failed", "client", a.who.Client, "user", a.who.User, "database", a.who.Database, "error", err)
}

// leave removes the client from the sessions, if it was counted.
func (a *loginAttempt) leave() {
	if a.counted {
		a.counted = false
		a.s.Sessions.Add(-1)
	}
}

// introduce processes what the client says of itself. The error is for the client.
func (a *loginAttempt) introduce() *pgwire.Error {
	s, start := a.s, a.start
	a.who.User, a.who.Database = start.User, start.Database
	a.key = poolKey{database: start.Database, user: start.User}
	if s.Stopping() {
		return pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir is stopping")
	}
	a.counted = true
	if s.Sessions.Add(1) > int64(s.cfg().MaxClients) {
		e := pgwire.NewFatal(pgwire.CodeTooManyConnections, "weir: too many clients already")
		e.Detail = fmt.Sprintf("The limit is %d.", s.cfg().MaxClients)
		e.Hint = "Raise --max-clients, or the limit on open files."
		a.leave()
		return e
	}
	if v := start.Param("replication"); v != "" && v != "false" {
		return pgwire.NewFatal(pgwire.CodeFeatureNotSupported, "weir does not carry replication connections: connect to the server itself")
	}
	var err error
	if a.set, a.app, err = startSettings(start); err != nil {
		var e *pgwire.Error
		if !errors.As(err, &e) {
			e = pgwire.NewFatal(pgwire.CodeProtocolViolation, "%v", err)
		}
		return e
	}
	return nil
}

func errDisabled(database string) *pgwire.Error {
	return pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir: database %q takes no logins (DISABLE)", database)
}

// asks reports whether weir must know the client's role status. If not, the server checks
// it.
func (a *loginAttempt) asks() bool {
	cfg := a.s.cfg()
	if cfg.Auth != AuthLDAP {
		a.secret, a.held = a.s.creds.Secret(a.key.user)
	}
	return a.held || cfg.Auth != AuthRelay || cfg.AuthQuery != ""
}

// judge decides how the client is checked: stepRelay by the server, stepProve by weir. st is its
// role status, or nil with the reason in err. late means that the
// time for the login is over; borrows reports whether the client may use what the server grants
// weir without a password. Otherwise the login ends with an error, and e for the client.
func (a *loginAttempt) judge(st *roleStatus, err error, late bool, borrows func() bool) (next step, e *pgwire.Error, _ error) {
	s, cfg := a.s, a.s.cfg()
	a.st = st
	// A user whose secret weir holds may log in while the server cannot be reached: the statements
	// wait for it.
	switch {
	case err == nil:
	case pgwire.CodeOf(err) == pgwire.CodeConnectionRejected: // by weir, see pooledVerdicts
		return 0, fatalOf(err, ""), err
	case a.held && !late:
		s.Log.Debug("login not looked up", "user", a.key.user, "error", err)
	case cfg.AuthQuery != "":
		return 0, fatalOf(err, "weir could not look up user %q", a.key.user), fmt.Errorf("look up secret of %q: %w", a.key.user, err)
	case isAway(err) || late:
		return 0, cannotReach(err), err
	case !cfg.relays():
		// The secret is the zero one, which fails like a wrong password.
	default:
		s.Log.Debug("login relayed", "user", a.key.user, "reason", err)
		return stepRelay, nil, nil
	}
	a.method = pgwire.AuthMethod(cfg.Auth)
	switch {
	case a.held:
	case cfg.AuthQuery != "":
		a.secret = st.secret
	case cfg.Auth == AuthAuto:
		if !st.sees {
			return stepRelay, nil, nil
		}
		a.method, a.secret = s.verdicts.methodOf(a.key, st, time.Now()), st.secret
		switch a.method {
		case pgwire.AuthTrust:
			if !borrows() {
				e := borrowed(a.key.user)
				return 0, e, e
			}
		case pgwire.AuthMD5, pgwire.AuthSCRAM:
		default: // the server has not decided yet, or it may ask LDAP
			a.seen = st
			return stepRelay, nil, nil
		}
	}
	if cfg.relays() && (a.held || cfg.AuthQuery != "") {
		a.method = a.secret.Method()
	}
	if a.byPassword() && st != nil && st.expired {
		a.secret = pgwire.Secret{} // as in the server, which the client sees as a wrong password
	}
	return stepProve, nil, nil
}

// byPassword reports whether the client is checked by the role's own password. LDAP checks
// another one, to which VALID UNTIL does not apply.
func (a *loginAttempt) byPassword() bool {
	return a.method != pgwire.AuthTrust && a.method != pgwire.AuthCert && a.method != AuthLDAP
}

// roleStatusMaxAge is how long a client may take to authenticate before weir queries the status
// of its role again.
const roleStatusMaxAge = time.Second

// outdated reports whether the client took so long to prove itself that the
// server's answer may be outdated.
func (a *loginAttempt) outdated() bool {
	keep := roleStatusMaxAge
	if a.recalled {
		keep = max(keep, a.s.cfg().LoginCheckInterval)
	}
	return a.st != nil && time.Since(a.st.heard) > keep
}

// heardAgain processes a newer role status. The error is for a client that has proved who it
// is with an earlier password, or as an earlier role.
func (a *loginAttempt) heardAgain(now *roleStatus) *pgwire.Error {
	if !a.held && now.same != a.st.same {
		return pgwire.NewFatal(pgwire.CodeInvalidAuthorization, "role %q has changed while it logged in; log in again", a.key.user)
	}
	a.st, a.recalled = now, false
	return nil
}

// accepted reports whether the client may log in without another question to the server.
// It has proved who it is. The error is for the client.
func (a *loginAttempt) accepted() (bool, *pgwire.Error) {
	if a.outdated() || a.replaces {
		return false, nil
	}
	a.s.creds.Learn(a.key.user, a.keys)
	if e := a.st.refusal(a.key, a.byPassword()); e != nil {
		return false, e
	}
	if role, _ := startRole(a.set); role != "" || !a.s.verdicts.granted(a.key, a.st, time.Now()) {
		return false, nil
	}
	a.s.LoginChecks.Add(string(a.method), loginPooled)
	return true, nil
}

// verifyWithServer asks the server about a client that has proved who it is. A connection that
// was opened for that is returned to be kept. The client was sent any error.
func (a *loginAttempt) verifyWithServer(ctx context.Context, conn net.Conn) (*backendConn, error) {
	s, key := a.s, a.key
	if a.outdated() {
		now, err := s.lookups.ask(ctx, key, a.waitsFor(hasLeft))
		if err == nil {
			if e := a.heardAgain(now); e != nil {
				err = e
			}
		}
		if err != nil && !a.held {
			_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "weir could not look up user %q", key.user)))
			return nil, fmt.Errorf("look up %q again: %w", key.user, err)
		}
	}
	if a.replaces {
		if err := a.confirm(ctx); err != nil {
			_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "weir could not ask the server whether %q may log in", key.user)))
			return nil, fmt.Errorf("ask the server about %q: %w", key.user, err)
		}
	}
	s.creds.Learn(key.user, a.keys)
	donated, err := s.verifyWithServer(ctx, key, a.st, a.byPassword())
	if pgwire.CodeOf(err) == pgwire.CodeInvalidPassword && a.keys != nil && s.creds.Keys(key.user) == nil {
		// An older password was known, which serves more methods than keys do.
		s.creds.Learn(key.user, a.keys)
		donated, err = s.verifyWithServer(ctx, key, a.st, a.byPassword())
	}
	if err != nil {
		_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "weir could not ask the server whether %q may log in", key.user)))
		return nil, fmt.Errorf("ask the server about %q: %w", key.user, err)
	}
	if role, _ := startRole(a.set); role != "" {
		if donated != nil {
			donated.close()
		}
		if donated, err = a.asRole(ctx, role); err != nil {
			_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "")))
			return nil, err
		}
	}
	way := loginPooled
	if donated != nil {
		way = loginDialed
	}
	s.LoginChecks.Add(string(a.method), way)
	return donated, nil
}

// asRole opens a connection with the role of the client's startup message, so that no client
// has a pool for a role that the server does not know, or that the user may not have. The error
// is the server's refusal; if there is no connection for another reason, the client logs in
// and waits for one, and gets the refusal, if any, then.
func (a *loginAttempt) asRole(ctx context.Context, role string) (*backendConn, error) {
	key := poolKey{a.key.database, a.key.user, role}
	if !a.s.mayDial(key) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.s.cfg().ConnectTimeout)
	defer cancel()
	conn, err := a.s.dialBackend(ctx, key)
	switch pgwire.CodeOf(err) {
	case pgwire.CodeInsufficientPrivilege, pgwire.CodeInvalidParameterValue:
		return nil, fmt.Errorf("open a connection with role %q: %w", role, err)
	}
	if err != nil {
		a.s.Log.Debug("no connection with the role of a startup message", "user", key.user, "database", key.database, "role", role, "error", err)
	}
	return conn, nil
}

// confirm asks the server about a password that LDAP has accepted, and that will replace the
// one that weir opens connections with. The error is for the client, if the
// server does not accept it. If the server gives no answer, the old password stays.
func (a *loginAttempt) confirm(ctx context.Context) error {
	s := a.s
	ctx, cancel := context.WithTimeout(ctx, s.cfg().ConnectTimeout)
	defer cancel()
	cfg := s.backendConfig(a.key)
	cfg.Password, cfg.Keys = a.keys.Password, a.keys
	be, _, err := s.connect(ctx, cfg)
	switch {
	case err == nil:
		_ = be.Conn.Close()
	case pgwire.CodeOf(err) == pgwire.CodeInvalidPassword || pgwire.CodeOf(err) == pgwire.CodeInvalidAuthorization:
		return err
	default:
		a.keys = nil
	}
	return nil
}

// client makes a logged-in client a client of a loop.
func (a *loginAttempt) client(l *loop) (*client, error) {
	s := a.s
	id, secret, err := s.register(l, a.start.Version)
	if err != nil {
		return nil, err
	}
	c := newClient(l)
	c.login.began, c.login.welcome = a.began, a.welcome
	c.id, c.login.secret, c.app, c.settings.startApp, c.addr = id, secret, a.app, a.app, a.who.Client
	return c, nil
}

// cameIn counts a successful login.
func (a *loginAttempt) cameIn() {
	a.s.Logins.Add(1)
	a.s.cfg().Audit.Login(a.who)
}
