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
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// login leads one client through startup and authentication and hands it to
// an event loop. It runs on a goroutine of its own with blocking reads, because
// logins are rare and intricate; nothing of it is on the data path.
func (s *Server) login(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg().LoginTimeout)
	defer cancel()
	err := s.tryLogin(ctx, conn)
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return
	}
	s.Failed.Add(1)
	level := slog.LevelInfo
	if isAway(err) {
		level = slog.LevelDebug // said once for all: see away
	}
	s.Log.Log(ctx, level, "login failed", "client", conn.RemoteAddr().String(), "error", err)
}

func (s *Server) tryLogin(ctx context.Context, raw net.Conn) error {
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
		return s.serveConsole(conn)
	}
	if open, err := s.Admit(ctx, start.Database); err != nil {
		_ = refuse(pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir: %v", err))
		return err
	} else if !open {
		return refuse(pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir: database %q takes no logins (DISABLE)", start.Database))
	}
	donated, err := s.authenticate(ctx, conn, start)
	if err != nil {
		return err
	}
	defer func() {
		if donated != nil && !handed {
			donated.close()
		}
	}()
	fd, err := netloop.Detach(conn, &s.Background)
	if err != nil {
		return err
	}
	l := s.LeastLoaded()
	id, secret, err := s.register(l)
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	c := newClient(l)
	c.id, c.login.secret, c.app, c.settings.startApp, c.addr = id, secret, app, app, raw.RemoteAddr().String()
	handed = true
	s.Logins.Add(1)
	l.Given() // given back by OnClosed
	if !l.Post(func() { l.admit(c, fd, key, set, donated) }) {
		_ = unix.Close(fd)
		s.Left(id)
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

// admit makes a logged-in client a client of the loop.
func (l *loop) admit(c *client, fd int, key poolKey, list []session.Setting, donated *backendConn) {
	c.p = l.pool(key)
	c.since, c.idleSince = l.Now, l.Now
	c.settings.start = l.Settings.Intern(list)
	c.set = c.settings.start
	if l.cfg.Mode == session.ModeSession {
		c.pins.held = pinMode
	}
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.Log.Error("cannot watch client socket", "error", err)
		_ = unix.Close(fd)
		l.srv.Left(c.id)
		l.Taken()
		if donated != nil {
			donated.close()
		}
		return
	}
	c.s = s
	l.Clients[c.id] = c
	if donated != nil {
		// A user whose secret weir does not know: every login brings a
		// connection, which is kept while the pool has room.
		if !c.p.Paused && c.p.Connections() < c.p.Size {
			c.p.Adopt(donated)
		} else {
			c.p.fresh(donated.params)
			donated.close()
		}
	}
	if l.Draining() {
		c.fatal(errShutdown())
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
	out := c.s.OutBuf()
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
	c.resume()
}

// authenticate checks the client, and that the server would have it. Where weir
// holds no secret of the user and the mode is relay, the server checks. A
// connection that came about by it is returned to be kept.
func (s *Server) authenticate(ctx context.Context, conn net.Conn, start *pgwire.Startup) (*backendConn, error) {
	secret, ok := s.creds.Secret(start.User)
	if !ok && s.cfg().AuthQuery != "" {
		found, err := s.lookUpSecret(ctx, start.User)
		if err != nil {
			_, _ = conn.Write(pgwire.AppendError(nil, pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir could not look up user %q", start.User)))
			return nil, fmt.Errorf("look up secret of %q: %w", start.User, err)
		}
		secret, ok = found, true // the zero secret of an unknown user fails as a wrong password does
	}
	method := pgwire.AuthMethod(s.cfg().Auth)
	if s.cfg().Auth == AuthRelay {
		if !ok {
			return s.relay(ctx, conn, start)
		}
		method = pgwire.AuthMD5 // which is SCRAM where the secret allows it
		if _, plain := secret.Plain(); plain {
			method = pgwire.AuthSCRAM
		}
	}
	keys, err := pgwire.Authenticate(ctx, conn, start.User, method, secret)
	if err != nil {
		return nil, err
	}
	s.creds.Learn(start.User, keys)
	byPassword := method != pgwire.AuthTrust && method != pgwire.AuthCert
	donated, err := s.vouch(ctx, poolKey{start.Database, start.User}, byPassword)
	if err != nil {
		_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "weir could not ask the server whether %q may log in", start.User)))
		return nil, fmt.Errorf("ask the server about %q: %w", start.User, err)
	}
	return donated, nil
}

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

// relay has the server authenticate the client.
func (s *Server) relay(ctx context.Context, conn net.Conn, start *pgwire.Startup) (*backendConn, error) {
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
		res, err = pgwire.RelayAuth(ctx, conn, server)
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
	switch {
	case err != nil && !opened:
		e := pgwire.NewFatal(pgwire.CodeConnectionUnable, "weir cannot reach the server: %v", err)
		e.Hint = "Check that the server runs and that weir's --postgres names it."
		_, _ = conn.Write(pgwire.AppendError(nil, e))
		return nil, err
	case isAway(err): // the one error that the client has not been told yet
		_, _ = conn.Write(pgwire.AppendError(nil, fatalOf(err, "the server takes no logins")))
		return nil, err
	case err != nil:
		return nil, err
	}
	if res.Method == pgwire.AuthTrust && !core.MayBorrow(conn, s.cfg().TrustLoopback) {
		_ = server.Close()
		e := borrowed(start.User)
		_, _ = conn.Write(pgwire.AppendError(nil, e))
		return nil, e
	}
	s.creds.Learn(start.User, res.Keys)
	s.creds.learnOpen(start.User, res.Method == pgwire.AuthTrust)
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
	return s.handOver(be, endpoint)
}

// login is what a client is known by since its login, and what it was told then.
type login struct {
	c *client

	secret  []byte
	greeted bool
}
