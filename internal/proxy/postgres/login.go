package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/ldap"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// login takes one client through startup and authentication and hands it to an event
// loop. It runs on a goroutine of its own with blocking reads: for clients with TLS, and
// if the balancer's header comes first or logins are audited. Other logins begin on the
// loop (pending_login.go), and continue here if they have to wait.
func (s *Server) login(ctx context.Context, raw net.Conn) {
	a := newLoginAttempt(s, raw.RemoteAddr())
	ctx, cancel := context.WithTimeout(ctx, s.cfg().LoginTimeout)
	defer cancel()
	a.ended(ctx, a.accept(ctx, raw))
}

// accept reads what the client sends before authentication, and continues.
func (a *loginAttempt) accept(ctx context.Context, raw net.Conn) error {
	spoke := a.s.lobby.Enter(raw)
	conn, start, err := pgwire.Accept(ctx, raw, a.s.cfg().accept())
	spoke()
	if err != nil {
		_ = raw.Close()
		return err
	}
	a.start = start
	return a.goOn(ctx, conn, stepIntroduce)
}

// A step is a step of a login.
type step uint8

const (
	stepAccept    step = iota // it has connected: see loginAttempt.accept
	stepIntroduce             // it has sent its startup message
	stepConsole               // it may want the console, or a paused database
	stepLookUp                // its role status is not known yet
	stepRelay                 // the server must check it
	stepProve                 // weir must check it
	stepHear                  // it has proved who it is, but its role status is not known yet
	stepVouch                 // it has proved who it is
)

// goOn is the rest of a login from a step on, on a goroutine that can wait.
func (a *loginAttempt) goOn(ctx context.Context, conn net.Conn, at step) (err error) {
	s := a.s
	handed := false
	var donated *backendConn
	defer func() {
		if handed {
			return
		}
		_ = conn.Close()
		a.leave()
		if donated != nil {
			donated.close()
		}
	}()
	refuse := func(e *pgwire.Error) error {
		_, _ = conn.Write(pgwire.AppendError(nil, e)) // the client may have left; e is what matters
		return e
	}
	if at == stepIntroduce {
		if a.start.Kind == pgwire.StartupCancel {
			s.cancel(a.start.CancelPID, a.start.CancelSecret)
			return nil
		}
		if s.cfg().Authenticator != nil {
			a.who.User, a.who.Database = a.start.User, a.start.Database
			handed = true
			return s.Way.enter(ctx, conn, a.addr, a.start)
		}
		if e := a.introduce(); e != nil {
			s.Refused.Add(1)
			return refuse(e)
		}
	}
	if at <= stepConsole {
		if core.IsAdminDatabase(a.key.database) {
			return a.console(ctx, conn)
		}
		if open, err := s.Admit(ctx, a.key.database); err != nil {
			s.Refused.Add(1)
			_ = refuse(pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir: %v", err))
			return err
		} else if !open {
			s.Refused.Add(1)
			return refuse(errDisabled(a.key.database))
		}
	}
	if at <= stepLookUp {
		at = stepRelay
		if a.asks() {
			var e *pgwire.Error
			st, err := a.recall(), error(nil)
			if st == nil {
				st, err = s.lookups.ask(ctx, a.key, a.waitsFor(a.s.askable()))
			}
			at, e, err = a.judge(st, err, ctx.Err() != nil, func() bool { return core.MayBorrow(conn, s.cfg().TrustLoopback) })
			if e != nil {
				_ = refuse(e)
			}
			if err != nil {
				return err
			}
		}
	}
	if at == stepRelay {
		if donated, err = s.relay(ctx, conn, a.start, a.seen); err != nil {
			return err
		}
	} else {
		if at == stepProve {
			if err := a.prove(ctx, conn); err != nil {
				return err
			}
		}
		if at == stepHear {
			if a.st, err = s.lookups.ask(ctx, a.key, nil); err != nil && ctx.Err() != nil {
				return err
			} else if err != nil {
				s.Log.Debug("login not looked up", "user", a.key.user, "error", err)
			}
		}
		if donated, err = a.verifyWithServer(ctx, conn); err != nil {
			return err
		}
	}
	if err := s.SessionCounts.Enter(s.Options(), a.key.database, a.key.user); err != nil {
		s.Refused.Add(1)
		return refuse(pgwire.NewFatal(pgwire.CodeTooManyConnections, "weir: %v", err))
	}
	l := s.LeastLoaded()
	c, err := a.client(l)
	if err != nil {
		s.SessionCounts.Leave(a.key.database, a.key.user)
		return err
	}
	unread := netloop.Unread(conn)
	fd, err := netloop.Detach(s.DialCtx, conn, &s.Background)
	if err != nil {
		s.SessionCounts.Leave(a.key.database, a.key.user)
		s.Forget(c.id)
		return err
	}
	handed = true
	a.cameIn()
	l.Given() // OnClosed takes it back
	if !l.Post(func() { l.admit(c, fd, unread, a.key, a.set, donated, a.st) }) {
		_ = unix.Close(fd)
		s.Left(c.id)
		s.SessionCounts.Leave(a.key.database, a.key.user)
		if donated != nil {
			donated.close()
		}
	}
	return nil
}

// prove makes the client prove who it is.
func (a *loginAttempt) prove(ctx context.Context, conn net.Conn) (err error) {
	if a.method != AuthLDAP {
		a.keys, a.welcome, err = pgwire.Check(ctx, conn, a.key.user, a.method, a.secret)
		return err
	}
	if a.keys, a.welcome, err = a.s.askLDAP(ctx, conn, a.key.user); err != nil {
		return err
	}
	if _, listed := a.s.creds.Secret(a.key.user); listed {
		a.keys = nil // weir logs in to the server with the password of the list
	} else if known := a.s.creds.Keys(a.key.user); known != nil && known.Password != a.keys.Password {
		a.replaces = true
	}
	return nil
}

// askLDAP asks the client for its password, and the LDAP server to check it. It returns what
// pgwire.AskPassword returns.
func (s *Server) askLDAP(ctx context.Context, conn net.Conn, user string) (*pgwire.ClientKeys, []byte, error) {
	return pgwire.AskPassword(ctx, conn, user, func(ctx context.Context, password string) error {
		err := s.cfg().LDAP.Check(ctx, user, password)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ldap.ErrRefused):
			return fmt.Errorf("%w: %w", pgwire.NewFatal(pgwire.CodeInvalidAuthorization, "LDAP authentication failed for user %q", user), err)
		}
		e := pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir cannot ask the LDAP server about user %q", user)
		e.Hint = "The log of weir has the reason."
		return fmt.Errorf("%w: %w", e, err)
	}, nil)
}

// console is a login to weir itself, and the session there.
func (a *loginAttempt) console(ctx context.Context, conn net.Conn) error {
	s := a.s
	if err := s.authenticateAdmin(ctx, conn, a.start); err != nil {
		return err
	}
	a.cameIn()
	operator := core.Operator{User: a.who.User, Client: a.who.Client}
	a.who.User = "" // later errors of the console are not login failures
	return s.serveConsole(conn, operator)
}

// startSettings turns a startup packet into session settings.
func startSettings(start *pgwire.Startup) (list []session.Setting, app string, err error) {
	add := func(name, value string) {
		name = strings.ToLower(name)
		switch name {
		case "application_name":
			app = value
			return
		case "session_authorization": // the server sets it to the session's user
			return
		}
		list = slices.DeleteFunc(list, func(s session.Setting) bool { return s.Name == name })
		list = append(list, session.Setting{Name: name, Value: value, Literal: true})
	}
	for _, p := range start.Params {
		switch p.Name {
		case "user", "database", "replication":
		case "options":
			opts, err := pgwire.ParseOptions(p.Value)
			if err != nil {
				return nil, "", err
			}
			for _, o := range opts {
				add(o.Name, o.Value)
			}
		default:
			add(p.Name, p.Value)
		}
	}
	return list, app, nil
}

// startRole removes the role from the settings of a startup message. An empty role stays
// there, for the server to refuse it: "" stands for pools without a role.
func startRole(list []session.Setting) (role string, rest []session.Setting) {
	i := slices.IndexFunc(list, func(s session.Setting) bool { return s.Name == roleName })
	if i < 0 || list[i].Value == "" {
		return "", list
	}
	return list[i].Value, slices.Concat(list[:i], list[i+1:])
}

// admit makes a logged-in client a client of the loop; unread was read from its socket but not
// processed. st is its role status when it was checked, nil if unknown.
func (l *loop) admit(c *client, fd int, unread []byte, key poolKey, list []session.Setting, donated *backendConn, st *roleStatus) {
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.Log.Error("cannot watch client socket", "error", err)
		_ = unix.Close(fd)
		l.srv.Left(c.id)
		l.srv.SessionCounts.Leave(key.database, key.user)
		l.Taken()
		if donated != nil {
			donated.close()
		}
		return
	}
	s.Return(unread, nil)
	c.s = s
	l.seat(c, key, list, donated, st)
}

// seat is admit for a client whose socket is on the loop.
func (l *loop) seat(c *client, key poolKey, list []session.Setting, donated *backendConn, st *roleStatus) {
	key.role, list = startRole(list)
	c.p = l.pool(key)
	c.since, c.idleSince = l.Now, l.Now
	c.settings.start = l.Settings.Intern(list)
	c.set = c.settings.start
	if c.mode() == session.ModeSession {
		c.pins.held = pinMode
	}
	l.Clients[c.id] = c
	if e := c.p.identity.compare(c.p, c, st); e != nil {
		if donated != nil {
			donated.close()
		}
		c.fatal(e)
		return
	}
	if donated != nil {
		// A user whose secret weir does not know: every login brings a
		// connection, which is kept while the pool has room.
		p := c.p
		if donated.role != key.role {
			p = l.pool(key.login())
		}
		if params := donated.params; !p.ConnManager().TakeIn(donated) {
			p.fresh(params)
		}
	}
	if l.Draining() {
		c.fatal(l.errShutdown())
		return
	}
	if params, ok := c.p.greeting[c.set]; ok {
		c.login.greet(params)
		return
	}
	// The first client with these settings: the server itself must report their values, or
	// refuse them.
	c.state = stateWaiting
	c.p.Enqueue(waiter{Client: c})
}

// greet completes the login: parameters, cancel key, ready.
func (lg *login) greet(params []pgwire.Param) {
	c := lg.c
	out := append(c.s.OutBuf(), lg.welcome...)
	lg.welcome = nil
	if lg.entry != nil {
		out = append(out, lg.entry.Greeting...)
	}
	for _, p := range params {
		c.texts.told(p.Name, p.Value)
		if p.Name == "application_name" && c.app != "" {
			p.Value = c.app
		}
		out = pgwire.AppendParameterStatus(out, p.Name, p.Value)
	}
	out = pgwire.AppendBackendKeyData(out, c.id, lg.secret)
	c.s.Out = pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)
	c.s.Touch()
	lg.greeted = true
	c.l.srv.LoginTimes.Add(c.p.key.database, c.l.Now-lg.began)
	c.resume()
}

// How a login was decided, in metrics.
const (
	loginPooled  = "pooled"  // without a connection to the server
	loginDialed  = "dialed"  // by weir, which opened a connection to ask the server
	loginRelayed = "relayed" // by the server
)

// fatalOf is the server's own error as one that ends the session, or an error of
// weir's with the given text.
func fatalOf(err error, format string, args ...any) *pgwire.Error {
	var e *pgwire.Error
	if !errors.As(err, &e) {
		return pgwire.NewFatal(pgwire.CodeConnectionFailure, format, args...)
	}
	f := *e
	f.Severity, f.SeverityRaw = "FATAL", "FATAL"
	return &f
}

// cannotReach is the client's error when there is no connection to the server.
func cannotReach(err error) *pgwire.Error {
	var e *pgwire.Error
	if errors.As(err, &e) {
		return fatalOf(err, "")
	}
	e = pgwire.NewFatal(pgwire.CodeConnectionUnable, "weir cannot reach the server: %v", err)
	e.Hint = "Check that the server runs and that weir's --postgres names it."
	return e
}

// relay lets the server authenticate the client, whose role status is st, unless that is nil.
func (s *Server) relay(ctx context.Context, conn net.Conn, start *pgwire.Startup, st *roleStatus) (*backendConn, error) {
	var stored *pgwire.Secret
	if st != nil {
		stored = &st.secret
		if st.expired {
			stored = new(pgwire.Secret) // as in the server
		}
	}
	base := s.cfg().Postgres
	base.User, base.Database = start.User, start.Database
	base.Timeout = s.cfg().ConnectTimeout
	list, _, err := startSettings(start)
	if err != nil {
		return nil, err
	}
	role, _ := startRole(list)
	base.Params = poolKey{role: role}.startup(base.Params)
	var endpoint upstream.Endpoint
	var server net.Conn
	var res pgwire.RelayResult
	var told error // sent to the client, so it is final
	var left error // the current host changed after the server had authenticated the client
	key := poolKey{database: start.Database, user: start.User}
	once := func() error {
		cfg, e, err := s.toHost(ctx, base)
		if err != nil {
			return err
		}
		endpoint = e
		here, cancel := s.Monitor.While(ctx, e)
		defer cancel()
		opening, cancelOpening := context.WithTimeout(here, base.Timeout)
		defer cancelOpening()
		if server, err = pgwire.Open(opening, cfg); err != nil {
			s.suspect(err)
			return err
		}
		// Only the server's side is abandoned with the host: the client may wait for
		// another one as long as nothing was sent to it.
		stop := context.AfterFunc(here, func() { _ = server.SetDeadline(time.Unix(1, 0)) })
		res, err = pgwire.RelayAuth(ctx, conn, server, start.User, stored)
		if err == nil {
			if !stop() {
				left = context.Cause(here)
			}
			return nil
		}
		stop()
		_ = server.Close()
		if !errors.Is(err, pgwire.ErrNoAnswer) {
			told = err
			return nil
		}
		if here.Err() != nil {
			return context.Cause(here)
		}
		s.suspect(err)
		return err
	}
	err = s.patiently(ctx, hasLeft, func() error { return s.withRoom(ctx, key, once) })
	if st != nil && res.Asked {
		s.verdicts.note(key, st, res.Method, false, time.Now())
	}
	switch {
	case err != nil:
		_, _ = conn.Write(pgwire.AppendError(nil, cannotReach(err)))
		return nil, err
	case told != nil:
		return nil, told
	}
	s.creds.learnOpen(start.User, res.Method == pgwire.AuthTrust)
	if res.Version != 0 {
		start.Version = min(start.Version, res.Version) // as the client was told
	}
	if res.Method == pgwire.AuthTrust && !core.MayBorrow(conn, s.cfg().TrustLoopback) {
		_ = server.Close()
		e := borrowed(start.User)
		_, _ = conn.Write(pgwire.AppendError(nil, e))
		return nil, e
	}
	s.creds.Learn(start.User, res.Keys)
	var donated *backendConn
	if err = left; err == nil {
		donated, err = s.finish(ctx, server, poolKey{key.database, key.user, role}, endpoint)
	} else {
		_ = server.Close()
	}
	if whose, full := lacksRoom(err, key); full && !s.mayDial(key) {
		s.makeRoom(ctx, key, whose) // for the next login
	} else if (full || hasLeft(err)) && s.mayDial(key) {
		// The server has authenticated the client, but then it was lost, or has no connection
		// left. The client waits for a connection that weir opens.
		donated, err = s.verifyWithServer(ctx, key, st, res.Method != pgwire.AuthTrust)
		if err == nil && donated == nil {
			return nil, nil
		}
	}
	if err != nil {
		_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "the connection to the server was lost during the login: %v", err)))
		return nil, err
	}
	s.LoginChecks.Add(string(res.Method), loginRelayed)
	s.granted(key, st, donated)
	return donated, nil
}

// finish takes over a connection on which the server has authenticated a client.
func (s *Server) finish(ctx context.Context, server net.Conn, key poolKey, endpoint upstream.Endpoint) (*backendConn, error) {
	be, err := pgwire.FinishLogin(ctx, server)
	if err != nil {
		_ = server.Close()
		return nil, err
	}
	checking, cancel := context.WithTimeout(ctx, s.cfg().ConnectTimeout)
	defer cancel()
	err = s.checkRole(be, endpoint)
	if err == nil {
		err = s.pooled.check(checking, s, s.at(s.backendConfig(key), endpoint), be, endpoint)
	}
	if err != nil {
		_ = be.Conn.Close()
		return nil, err
	}
	return s.handOver(be, endpoint, key.role)
}

// login is who a client is, and what it was told at its login.
type login struct {
	c *client

	secret  []byte
	welcome []byte // sent to the client before its parameters
	began   time.Duration
	greeted bool
	entry   *AcceptedLogin // of a client that the Authenticator has accepted
	// notified is since when the client had waited at the last notice about that.
	notified time.Duration
}
