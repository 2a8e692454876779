package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// login leads one client through startup and authentication and hands it to
// an event loop. It runs on a goroutine of its own with blocking reads, because
// logins are rare and intricate; nothing of it is on the data path.
func (s *Server) login(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg().LoginTimeout)
	defer cancel()
	who := sight.Login{Engine: Engine, Client: conn.RemoteAddr().String()}
	err := s.tryLogin(ctx, conn, &who)
	if who.Err = err; err != nil && who.User != "" {
		s.cfg().Audit.Login(who)
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return
	}
	s.Failed.Add(1)
	level := slog.LevelInfo
	if isAway(err) {
		level = slog.LevelDebug // said once for all: see away
	}
	s.Log.Log(ctx, level, "login failed", "client", conn.RemoteAddr().String(), "user", who.User, "database", who.Database, "error", err)
}

func (s *Server) tryLogin(ctx context.Context, raw net.Conn, who *sight.Login) error {
	began := s.Monotonic()
	spoke := s.lobby.Enter(raw)
	conn, start, err := pgwire.Accept(ctx, raw, s.cfg().accept())
	spoke()
	if err != nil {
		_ = raw.Close()
		return err
	}
	handed := false
	defer func() {
		if !handed {
			_ = conn.Close()
		}
	}()
	if start.Kind == pgwire.StartupCancel {
		s.cancel(start.CancelPID, start.CancelSecret)
		return nil
	}
	who.User, who.Database = start.User, start.Database
	if s.cfg().Door != nil {
		handed = true
		return s.Way.enter(ctx, conn, raw.RemoteAddr(), start)
	}
	refuse := func(e *pgwire.Error) error {
		s.Refused.Add(1)
		_, _ = conn.Write(pgwire.AppendError(nil, e)) // the client may be gone; e is what matters
		return e
	}
	if s.Stopping() {
		return refuse(pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir is stopping"))
	}
	if s.Sessions.Add(1) > int64(s.cfg().MaxClients) {
		s.Sessions.Add(-1)
		e := pgwire.NewFatal(pgwire.CodeTooManyConnections, "weir: too many clients already")
		e.Detail = fmt.Sprintf("The limit is %d.", s.cfg().MaxClients)
		e.Hint = "Raise --max-clients, or the limit on open files."
		return refuse(e)
	}
	defer func() {
		if !handed {
			s.Sessions.Add(-1)
		}
	}()
	if start.Param("replication") != "" && start.Param("replication") != "false" {
		return refuse(pgwire.NewFatal(pgwire.CodeFeatureNotSupported, "weir does not carry replication connections: connect to the server itself"))
	}
	set, app, err := startSettings(start)
	if err != nil {
		var e *pgwire.Error
		if errors.As(err, &e) {
			return refuse(e)
		}
		return refuse(pgwire.NewFatal(pgwire.CodeProtocolViolation, "%v", err))
	}
	key := poolKey{start.Database, start.User}
	if core.IsAdminDatabase(start.Database) {
		if err := s.authenticateAdmin(ctx, conn, start); err != nil {
			return err
		}
		s.Logins.Add(1)
		s.cfg().Audit.Login(*who)
		operator := core.Operator{User: who.User, Client: who.Client}
		who.User = "" // whatever ends the console now is no login's failure
		return s.serveConsole(conn, operator)
	}
	if open, err := s.Admit(ctx, start.Database); err != nil {
		_ = refuse(pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir: %v", err))
		return err
	} else if !open {
		return refuse(pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir: database %q takes no logins (DISABLE)", start.Database))
	}
	donated, welcome, st, err := s.authenticate(ctx, conn, start)
	if err != nil {
		return err
	}
	defer func() {
		if donated != nil && !handed {
			donated.close()
		}
	}()
	if err := s.Crowd.Enter(s.Options(), key.database, key.user); err != nil {
		return refuse(pgwire.NewFatal(pgwire.CodeTooManyConnections, "weir: %v", err))
	}
	fd, err := netloop.Detach(conn, &s.Background)
	if err != nil {
		s.Crowd.Leave(key.database, key.user)
		return err
	}
	l := s.LeastLoaded()
	id, secret, err := s.register(l, start.Version)
	if err != nil {
		s.Crowd.Leave(key.database, key.user)
		_ = unix.Close(fd)
		return err
	}
	c := newClient(l)
	c.login.began = began
	c.login.welcome = welcome
	c.id, c.login.secret, c.app, c.settings.startApp, c.addr = id, secret, app, app, raw.RemoteAddr().String()
	handed = true
	s.Logins.Add(1)
	s.cfg().Audit.Login(*who)
	l.Given() // given back by OnClosed
	if !l.Post(func() { l.admit(c, fd, key, set, donated, st) }) {
		_ = unix.Close(fd)
		s.Left(id)
		s.Crowd.Leave(key.database, key.user)
		if donated != nil {
			donated.close()
		}
	}
	return nil
}

// startSettings turns a startup packet into session settings.
func startSettings(start *pgwire.Startup) (list []session.Setting, app string, err error) {
	add := func(name, value string) {
		name = strings.ToLower(name)
		if name == "application_name" {
			app = value
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

// admit makes a logged-in client a client of the loop. st is its standing when it was
// checked, nil if that is not known.
func (l *loop) admit(c *client, fd int, key poolKey, list []session.Setting, donated *backendConn, st *roleStanding) {
	c.p = l.pool(key)
	c.since, c.idleSince = l.Now, l.Now
	c.settings.start = l.Settings.Intern(list)
	c.set = c.settings.start
	if c.mode() == session.ModeSession {
		c.pins.held = pinMode
	}
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.Log.Error("cannot watch client socket", "error", err)
		_ = unix.Close(fd)
		l.srv.Left(c.id)
		l.srv.Crowd.Leave(key.database, key.user)
		l.Taken()
		if donated != nil {
			donated.close()
		}
		return
	}
	c.s = s
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
		if params := donated.params; !c.p.Holding().TakeIn(donated) {
			c.p.fresh(params)
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
	// The first client with these settings: the server itself must say what
	// they are, or refuse them.
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

// authenticate checks the client, and that the server would have it. Where weir
// cannot check as the server would, the server does. A connection that it has
// opened is returned to be kept, and what the client is still to be told, and its standing
// when it was checked, if weir has asked.
func (s *Server) authenticate(ctx context.Context, conn net.Conn, start *pgwire.Startup) (_ *backendConn, welcome []byte, st *roleStanding, err error) {
	cfg, key := s.cfg(), poolKey{start.Database, start.User}
	relay := func(seen *roleStanding) (*backendConn, []byte, *roleStanding, error) {
		donated, err := s.relay(ctx, conn, start, seen)
		return donated, nil, st, err // which leaves nothing to be told
	}
	secret, held := s.creds.Secret(start.User)
	if !held && cfg.Auth == AuthRelay && cfg.AuthQuery == "" {
		return relay(nil)
	}
	// Who has a secret that weir holds may log in while the server is away: the
	// statements wait for it.
	st, err = s.lookups.ask(ctx, key, !held)
	switch {
	case err == nil:
	case held && ctx.Err() == nil:
		s.Log.Debug("login not looked up", "user", key.user, "error", err)
	case cfg.AuthQuery != "":
		_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "weir could not look up user %q", start.User)))
		return nil, nil, nil, fmt.Errorf("look up secret of %q: %w", start.User, err)
	case isAway(err) || ctx.Err() != nil:
		_, _ = conn.Write(pgwire.AppendError(nil, cannotReach(err)))
		return nil, nil, nil, err
	case !cfg.relays():
		// The secret is the zero one, which fails as a wrong password does.
	default:
		s.Log.Debug("login relayed", "user", key.user, "reason", err)
		return relay(nil)
	}
	method := pgwire.AuthMethod(cfg.Auth)
	switch {
	case held:
	case cfg.AuthQuery != "":
		secret = st.secret
	case cfg.Auth == AuthAuto:
		if !st.sees {
			return relay(nil)
		}
		method, secret = s.verdicts.methodOf(key, st, time.Now()), st.secret
		switch method {
		case pgwire.AuthTrust:
			if !core.MayBorrow(conn, cfg.TrustLoopback) {
				e := borrowed(start.User)
				_, _ = conn.Write(pgwire.AppendError(nil, e))
				return nil, nil, nil, e
			}
		case pgwire.AuthMD5, pgwire.AuthSCRAM:
		default: // the server has not been heard yet, or it may ask somebody else (LDAP)
			return relay(st)
		}
	}
	if cfg.relays() && (held || cfg.AuthQuery != "") {
		method = secret.Method()
	}
	byPassword := method != pgwire.AuthTrust && method != pgwire.AuthCert
	if byPassword && st != nil && st.expired {
		secret = pgwire.Secret{} // as in the server, and to the client a wrong password
	}
	keys, welcome, err := pgwire.Check(ctx, conn, start.User, method, secret)
	if err != nil {
		return nil, nil, nil, err
	}
	if st != nil && time.Since(st.heard) > standingKeep {
		// The client took its time to prove itself, and what the server says of it may
		// be otherwise by now.
		now, err := s.lookups.ask(ctx, key, !held)
		if err == nil && !held && now.mark != st.mark {
			err = pgwire.NewFatal(pgwire.CodeInvalidAuthorization, "role %q has changed while it logged in; log in again", start.User)
		}
		if err != nil && !held {
			_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "weir could not look up user %q", start.User)))
			return nil, nil, nil, fmt.Errorf("look up %q again: %w", start.User, err)
		}
		if err == nil {
			st = now
		}
	}
	s.creds.Learn(start.User, keys)
	donated, err := s.vouch(ctx, key, st, byPassword)
	if pgwire.CodeOf(err) == pgwire.CodeInvalidPassword && keys != nil && s.creds.Keys(start.User) == nil {
		// An older password was known, which serves more methods than keys do.
		s.creds.Learn(start.User, keys)
		donated, err = s.vouch(ctx, key, st, byPassword)
	}
	if err != nil {
		_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "weir could not ask the server whether %q may log in", start.User)))
		return nil, nil, nil, fmt.Errorf("ask the server about %q: %w", start.User, err)
	}
	way := loginPooled
	if donated != nil {
		way = loginDialed
	}
	s.Checks.Add(string(method), way)
	return donated, welcome, st, nil
}

// standingKeep is how long a client may take to prove itself before weir asks for its
// standing again.
const standingKeep = time.Second

// How a login was decided, in metrics.
const (
	loginPooled  = "pooled"  // at no connection to the server
	loginDialed  = "dialed"  // by weir, and the server was asked with a connection of its own
	loginRelayed = "relayed" // by the server
)

// fatalOf is the server's own error, as one that ends the session, or one of
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

// cannotReach is what a client is told when there is no connection to the server.
func cannotReach(err error) *pgwire.Error {
	var e *pgwire.Error
	if errors.As(err, &e) {
		return fatalOf(err, "")
	}
	e = pgwire.NewFatal(pgwire.CodeConnectionUnable, "weir cannot reach the server: %v", err)
	e.Hint = "Check that the server runs and that weir's --postgres names it."
	return e
}

// relay has the server authenticate the client, whose standing is st, unless it is nil.
func (s *Server) relay(ctx context.Context, conn net.Conn, start *pgwire.Startup, st *roleStanding) (*backendConn, error) {
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
	var endpoint upstream.Endpoint
	var server net.Conn
	var res pgwire.RelayResult
	opened := false
	err := s.patiently(ctx, func() (err error) {
		opened = false
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
		opened = true
		// Only the server's side is given up with the host: the client may wait for
		// another one as long as it has been told nothing.
		stop := context.AfterFunc(here, func() { _ = server.SetDeadline(time.Unix(1, 0)) })
		res, err = pgwire.RelayAuth(ctx, conn, server, start.User, stored)
		if err == nil && !stop() {
			err = context.Cause(here)
		}
		if err == nil {
			return nil
		}
		stop()
		_ = server.Close()
		if errors.Is(err, pgwire.ErrNoAnswer) {
			opened = false
			if here.Err() != nil {
				return context.Cause(here)
			}
			s.suspect(err)
		}
		return err
	})
	key := poolKey{start.Database, start.User}
	if st != nil && res.Asked {
		s.verdicts.note(key, st, res.Method, false, time.Now())
	}
	switch {
	case err != nil && !opened:
		_, _ = conn.Write(pgwire.AppendError(nil, cannotReach(err)))
		return nil, err
	case isAway(err): // the one error that the client has not been told yet
		_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "the server takes no logins")))
		return nil, err
	case err != nil:
		return nil, err
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
	be, err := pgwire.FinishLogin(ctx, server)
	if err != nil {
		_ = server.Close()
		var e *pgwire.Error
		if errors.As(err, &e) {
			f := *e
			f.Severity, f.SeverityRaw = "FATAL", "FATAL"
			_, _ = conn.Write(pgwire.AppendError(nil, &f))
		}
		return nil, err
	}
	if err := s.checkRole(be, endpoint); err != nil {
		_ = be.Conn.Close()
		_, _ = conn.Write(pgwire.AppendError(nil, pgwire.NewFatal(pgwire.CodeCannotConnectNow, "%v", err)))
		return nil, err
	}
	donated, err := s.handOver(be, endpoint)
	if err != nil {
		return nil, err
	}
	s.Checks.Add(string(res.Method), loginRelayed)
	s.granted(key, st, donated)
	return donated, nil
}

// login is what a client is known by since its login, and what it was told then.
type login struct {
	c *client

	secret  []byte
	welcome []byte // what the client is to be told before its parameters
	began   time.Duration
	greeted bool
	entry   *Entry // of a client that came through the door
	// notified is since when it waited when it was last told that it waits.
	notified time.Duration
}
