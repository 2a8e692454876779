package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/proxy/ldap"
	"github.com/weirdb/weir/internal/wire/mywire"
)

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

// newLoginAttempt makes the login attempt of a client that has answered the greeting.
func newLoginAttempt(c *client, wire *mywire.Client, began time.Duration) *loginAttempt {
	s := c.l.srv
	c.caps, c.login.salt, c.login.tls = wire.Caps, wire.Salt, wire.Secure()
	c.login.packs = wire.Response.Caps.Has(mywire.CapCompress)
	wire.Response.Charset = s.collation(uint16(wire.Response.Charset))
	return &loginAttempt{c: c, wire: wire, began: began, key: poolKey{
		user: wire.Response.User, database: wire.Response.Database,
		caps: wire.Caps & classCaps, charset: wire.Response.Charset,
	}}
}

func (a *loginAttempt) server() *Server { return a.c.l.srv }

// authenticate checks the client, and whether the server accepts it. If weir cannot check as
// the server would, the server does.
func (a *loginAttempt) authenticate(ctx context.Context) error {
	s := a.server()
	cfg, user := s.cfg(), a.key.user
	if cfg.Auth == AuthTrust {
		if err := a.wire.Trust(ctx); err != nil {
			return err
		}
		return a.verifyWithServer(ctx, AuthTrust)
	}
	secret, listed := s.creds.Secret(user)
	if cfg.Auth == AuthLDAP {
		keys, err := a.askLDAP(ctx, cfg.LDAP)
		if err != nil {
			return err
		}
		if !listed { // otherwise weir logs in to the server with the password of the list
			if err := a.confirm(ctx, keys); err != nil {
				return err
			}
		}
		return a.verifyWithServer(ctx, AuthLDAP)
	}
	switch {
	case listed:
	case cfg.AuthQuery != "":
		var err error
		if secret, err = s.lookups.secret(ctx, user); err != nil {
			_ = a.wire.Refuse(ctx, mywire.NewError(mywire.ErrUnknown, "weir could not look up user '%s'", user))
			return fmt.Errorf("look up secret of %q: %w", user, err)
		}
	case cfg.Auth == AuthAuto:
		var rows [][]sql.NullString
		var known bool
		if secret, rows, known = a.stored(ctx); !known {
			return a.relay(ctx, rows)
		}
		if _, seen := s.known.welcomes.get(a.key, s.Monotonic()); !seen && !secret.Teaches() {
			return a.relay(ctx, rows) // weir could not log in to the server by itself
		}
	case cfg.Auth == AuthRelay:
		return a.relay(ctx, nil)
	}
	keys, err := a.wire.Authenticate(ctx, secret)
	if err != nil {
		return err
	}
	s.creds.Learn(user, keys)
	a.keys = keys
	return a.verifyWithServer(ctx, secret.Plugin())
}

// confirm learns the password that LDAP has accepted, for weir's logins to the server. If it
// replaces another one, the server must accept it first: until then weir opens connections with
// the old one.
func (a *loginAttempt) confirm(ctx context.Context, keys *mywire.ClientKeys) error {
	s := a.server()
	if known := s.creds.Keys(a.key.user); known != nil && !(known.HasPassword && known.Password == keys.Password) {
		askCtx, cancel := s.awaitServer(ctx)
		defer cancel()
		cfg, _, err := s.toHost(askCtx, s.connectConfig(a.key))
		if err == nil {
			cfg.Keys = keys
			var conn *mywire.Server
			if conn, err = s.connectTo(askCtx, a.key, cfg); err == nil {
				_ = conn.Close()
			}
		}
		if e := new(mywire.Error); mywire.CodeOf(err) == mywire.ErrAccessDenied && errors.As(err, &e) {
			_ = a.wire.Refuse(ctx, e)
			return fmt.Errorf("the server refuses %s: %w", a.key, e)
		}
		if err != nil {
			return nil // the server has said nothing about the password
		}
	}
	s.creds.Learn(a.key.user, keys)
	a.keys = keys
	return nil
}

// askLDAP requests the password from the client, and checks it with the LDAP server.
func (a *loginAttempt) askLDAP(ctx context.Context, d *ldap.Directory) (*mywire.ClientKeys, error) {
	return a.wire.AskPassword(ctx, func(ctx context.Context, password string) error {
		err := d.Check(ctx, a.key.user, password)
		if err == nil || errors.Is(err, ldap.ErrRefused) {
			return err
		}
		return fmt.Errorf("%w: %w", mywire.NewError(mywire.ErrUnknown, "weir cannot ask the LDAP server about user '%s': its log has the reason", a.key.user), err)
	})
}

// stored returns the secret by which the server checks a client's login, and the accounts that
// its name may mean; known is false if the server has to check itself. Accounts that were
// queried at a recent login serve a client that proves its password by them. Any other client
// may have a newer password, and weir queries its accounts.
func (a *loginAttempt) stored(ctx context.Context) (secret mywire.Secret, rows [][]sql.NullString, known bool) {
	s := a.server()
	user, accounts := a.key.user, &s.known.accounts
	now := s.Monotonic()
	if rows = accounts.Recent(user, s.cfg().LoginCheckInterval, now); rows != nil {
		if secret, known = accounts.Stored(user, rows, s.grants.hash(rows), now); known && a.wire.Proves(secret) {
			return secret, rows, true
		}
	}
	rows = s.lookups.accounts(ctx, user)
	if secret, known = accounts.Stored(user, rows, s.grants.hash(rows), s.Monotonic()); known {
		accounts.Store(user, rows, now)
	}
	return secret, rows, known
}

// verifyWithServer checks whether the server accepts a client that weir has authenticated, by logging in
// as that client: the database may not exist, or the user may lack access to it. If the server
// is unreachable at the moment, the client is accepted, and its statements wait for the server;
// if the server accepts connections but does not answer, the client gets an error.
func (a *loginAttempt) verifyWithServer(ctx context.Context, method string) error {
	s := a.server()
	if ok, seen := s.known.welcomes.get(a.key, s.Monotonic()); seen {
		a.ok = ok
		s.LoginChecks.Add(method, loginPooled)
		return nil
	}
	a.ok = mywire.OK{Status: mywire.StatusAutocommit}
	if !s.mayDial(a.key) {
		s.LoginChecks.Add(method, loginPooled)
		return nil
	}
	asked := s.Monotonic()
	askCtx, cancel := s.awaitServer(ctx)
	defer cancel()
	conn, endpoint, err := s.connect(askCtx, a.key)
	if mywire.CodeOf(err) == mywire.ErrAccessDenied && a.keys != nil && s.creds.Keys(a.key.user) == nil {
		// weir knew an older password, which serves more plugins than keys do.
		s.creds.Learn(a.key.user, a.keys)
		conn, endpoint, err = s.connect(askCtx, a.key)
	}
	hangs := s.hangs(ctx, askCtx, err)
	if err == nil {
		a.ok = conn.OK
		if e := s.checkGrants(ctx, a.key.user, conn, false); e != nil {
			_ = conn.Close()
			return a.turnAway(ctx, e)
		}
		s.known.welcomes.put(a.key, conn.OK, asked, s.Monotonic())
		a.donated, err = s.handOver(conn, a.key, endpoint)
	}
	var e *mywire.Error
	switch {
	case err == nil:
	case hangs != nil:
		return a.turnAway(ctx, hangs)
	case errors.Is(err, errOtherServer):
		e = mywire.NewError(mywire.ErrUnknown, "weir: %v", err)
	case errors.As(err, &e) && !passes(e.Code):
	default:
		s.Log.Debug("login not checked with the server", "user", a.key.user, "database", a.key.database, "error", err)
	}
	if e == nil {
		s.LoginChecks.Add(method, loginDialed)
	}
	if e != nil {
		_ = a.wire.Refuse(ctx, e)
		return fmt.Errorf("the server refuses %s: %w", a.key, e)
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

// turnAway refuses a client for a reason of weir's own.
func (a *loginAttempt) turnAway(ctx context.Context, e *mywire.Error) error {
	a.server().Refused.Add(1)
	_ = a.wire.Refuse(ctx, e) // the client may be gone; e is what matters
	return e
}
