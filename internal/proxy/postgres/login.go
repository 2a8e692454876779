package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/pgwire"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
)

// login leads one client through startup and authentication and hands it to
// an event loop. It runs on a goroutine of its own with blocking reads, because
// logins are rare and intricate; nothing of it is on the data path.
func (s *Server) login(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LoginTimeout)
	defer cancel()
	err := s.tryLogin(ctx, conn)
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return
	}
	s.failed.Add(1)
	s.log.Info("login failed", "client", conn.RemoteAddr().String(), "error", err)
}

func (s *Server) tryLogin(ctx context.Context, raw net.Conn) error {
	conn, start, err := pgwire.Accept(ctx, raw, s.cfg.accept())
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
		s.refused.Add(1)
		_, _ = conn.Write(pgwire.AppendError(nil, e)) // the client may be gone; e is what matters
		return e
	}
	if s.stopping.Load() {
		return refuse(pgwire.NewFatal(pgwire.CodeCannotConnectNow, "weir is stopping"))
	}
	if s.sessions.Add(1) > int64(s.cfg.MaxClients) {
		s.sessions.Add(-1)
		e := pgwire.NewFatal(pgwire.CodeTooManyConnections, "weir: too many clients already")
		e.Detail = fmt.Sprintf("The limit is %d.", s.cfg.MaxClients)
		e.Hint = "Raise --max-clients, or the limit on open files."
		return refuse(e)
	}
	defer func() {
		if !handed {
			s.sessions.Add(-1)
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
	if start.Database == adminDatabase {
		if err := s.authenticateAdmin(ctx, conn, start); err != nil {
			return err
		}
		s.logins.Add(1)
		return s.serveAdmin(conn)
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
	fd, err := netloop.Detach(conn, &s.background)
	if err != nil {
		return err
	}
	l := s.leastLoaded()
	id, secret, err := s.newID(l)
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	c := &client{
		l: l, id: id, secret: secret, app: app, startApp: app, tx: pgwire.StatusIdle,
		addr: raw.RemoteAddr().String(),
	}
	handed = true
	s.logins.Add(1)
	l.load.Add(1) // given back by OnClosed
	if !l.Post(func() { l.admit(c, fd, key, set, donated) }) {
		_ = unix.Close(fd)
		s.left(id)
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
	c.startSet = l.settings.Intern(list)
	c.set = c.startSet
	if l.srv.cfg.Mode == session.ModeSession {
		c.pins = pinMode
	}
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.log.Error("cannot watch client socket", "error", err)
		_ = unix.Close(fd)
		l.srv.left(c.id)
		l.load.Add(-1)
		if donated != nil {
			donated.close()
		}
		return
	}
	c.s = s
	l.clients[c.id] = c
	if donated != nil {
		// A user whose secret weir does not know: every login brings a
		// connection, which is kept while the pool has room.
		if len(c.p.backends)+c.p.dialing < c.p.size {
			c.p.adopt(donated)
		} else {
			donated.close()
		}
	}
	if l.Draining() {
		c.fatal(errShutdown())
		return
	}
	if params, ok := c.p.greeting[c.set]; ok {
		c.greet(params)
		return
	}
	// The first client with these settings: the server itself must say what
	// they are, or refuse them.
	c.waiting = true
	c.p.enqueue(waiter{c: c})
}

// greet completes the login: parameters, cancel key, ready.
func (c *client) greet(params []pgwire.Param) {
	out := c.s.OutBuf()
	for _, p := range params {
		if p.Name == "application_name" && c.app != "" {
			p.Value = c.app
		}
		out = pgwire.AppendParameterStatus(out, p.Name, p.Value)
	}
	out = pgwire.AppendBackendKeyData(out, c.id, c.secret)
	c.s.Out = pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)
	c.s.Touch()
	c.greeted = true
	c.resume()
}

// backendConn is a logged-in connection on its way into a pool.
type backendConn struct {
	fd     int
	pid    uint32
	secret []byte
	params map[string]string
}

func (c *backendConn) close() { _ = unix.Close(c.fd) }

// dialBackend opens and logs in one backend.
func (s *Server) dialBackend(ctx context.Context, key poolKey) (*backendConn, error) {
	cfg := s.cfg.Postgres
	cfg.User, cfg.Database = key.user, key.database
	cfg.Password, cfg.Keys = s.creds.of(key.user)
	be, err := pgwire.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return s.handOver(be)
}

func (s *Server) handOver(be *pgwire.Backend) (*backendConn, error) {
	fd, err := netloop.Detach(be.Conn, &s.background)
	if err != nil {
		_ = be.Conn.Close()
		return nil, err
	}
	params := make(map[string]string, len(be.Params))
	for _, p := range be.Params {
		params[p.Name] = p.Value
	}
	return &backendConn{fd: fd, pid: be.PID, secret: be.Secret, params: params}, nil
}

// credentials are what weir can log in to the server with, by user.
type credentials struct {
	mu      sync.Mutex
	known   map[string]pgwire.ClientKeys // guarded by mu
	open    map[string]bool              // guarded by mu: the server asks these users nothing
	secrets map[string]pgwire.Secret     // guarded by mu: from the user list and the DSN
}

func (c *credentials) init(cfg *Config) {
	c.known = make(map[string]pgwire.ClientKeys)
	c.open = make(map[string]bool)
	c.list(cfg.Users, cfg.Postgres)
}

// list makes users, and the DSN's own, those whose secrets weir holds. What
// it knows of users who are listed no more, or with another password, is
// forgotten. Keys learned from a SCRAM login stay until the next one brings
// others: without keys a pool could open no backend in between.
func (c *credentials) list(users []User, dsn pgwire.ConnectConfig) {
	secrets := make(map[string]pgwire.Secret, len(users)+1)
	known := make(map[string]pgwire.ClientKeys)
	for _, u := range users {
		secrets[u.Name] = u.Secret
		if plain, ok := u.Secret.Plain(); ok {
			known[u.Name] = pgwire.ClientKeys{Password: plain}
		}
	}
	if dsn.User != "" && dsn.Password != "" {
		known[dsn.User] = pgwire.ClientKeys{Password: dsn.Password}
		if _, listed := secrets[dsn.User]; !listed {
			if secret, err := pgwire.ParseSecret(dsn.Password); err == nil {
				secrets[dsn.User] = secret
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for user, old := range c.secrets {
		now, listed := secrets[user]
		was, wasPlain := old.Plain()
		is, isPlain := now.Plain()
		if !listed || wasPlain != isPlain || (isPlain && was != is) {
			delete(c.known, user)
		}
	}
	maps.Copy(c.known, known)
	c.secrets = secrets
}

// secret returns what weir holds of a user's password by itself.
func (c *credentials) secret(user string) (pgwire.Secret, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	secret, ok := c.secrets[user]
	return secret, ok
}

// SetUsers replaces the user list; see Config.Users. Logins from now on are
// checked against it; sessions that exist stay. Safe for concurrent use.
func (s *Server) SetUsers(users []User) { s.creds.list(users, s.cfg.Postgres) }

func (c *credentials) of(user string) (string, *pgwire.ClientKeys) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.known[user]; ok {
		return k.Password, &k
	}
	return "", nil
}

func (c *credentials) learn(user string, k *pgwire.ClientKeys) {
	if k == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.known[user]; ok && old.Password != "" && k.Password == "" {
		return // a password serves more methods than keys
	}
	c.known[user] = *k
}

func (c *credentials) learnOpen(user string, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[user] = open
}

// mayDial tells whether weir can open backends for a pool by itself. It cannot
// for users whose logins it only relays by SCRAM or md5: their pools are fed by
// the logins.
func (s *Server) mayDial(key poolKey) bool {
	c := &s.creds
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[key.user]; ok {
		return true
	}
	return c.open[key.user] || s.cfg.Auth == string(pgwire.AuthTrust) || s.cfg.Auth == string(pgwire.AuthCert)
}

// authenticate checks the client. Where weir holds no secret of the user and
// the mode is relay, the server checks, on a connection that is then returned
// to be kept.
func (s *Server) authenticate(ctx context.Context, conn net.Conn, start *pgwire.Startup) (*backendConn, error) {
	secret, ok := s.creds.secret(start.User)
	if !ok && s.cfg.AuthQuery != "" {
		found, err := s.lookUpSecret(ctx, start.User)
		if err != nil {
			_, _ = conn.Write(pgwire.AppendError(nil, pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir could not look up user %q", start.User)))
			return nil, fmt.Errorf("look up secret of %q: %w", start.User, err)
		}
		secret, ok = found, true // the zero secret of an unknown user fails as a wrong password does
	}
	method := pgwire.AuthMethod(s.cfg.Auth)
	if s.cfg.Auth == AuthRelay {
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
	s.creds.learn(start.User, keys)
	return nil, nil
}

// relay has the server authenticate the client.
func (s *Server) relay(ctx context.Context, conn net.Conn, start *pgwire.Startup) (*backendConn, error) {
	cfg := s.cfg.Postgres
	cfg.User, cfg.Database = start.User, start.Database
	cfg.Timeout = s.cfg.ConnectTimeout
	server, err := pgwire.Open(ctx, cfg)
	if err != nil {
		e := pgwire.NewFatal(pgwire.CodeConnectionUnable, "weir cannot reach the server: %v", err)
		e.Hint = "Check that the server runs and that weir's --postgres names it."
		_, _ = conn.Write(pgwire.AppendError(nil, e))
		return nil, err
	}
	res, err := pgwire.RelayAuth(ctx, conn, server)
	if err != nil {
		_ = server.Close()
		return nil, err
	}
	if res.Method == pgwire.AuthTrust && !isLocal(conn.RemoteAddr()) {
		// The server trusts the host that it sees, which is weir's, not the
		// client's.
		_ = server.Close()
		e := pgwire.NewFatal(pgwire.CodeInvalidAuthorization, "weir does not let %q in from another host: the server asks connections from weir's host for no password", start.User)
		e.Hint = "Have the server ask for one (pg_hba.conf), or choose how weir itself authenticates (--auth)."
		_, _ = conn.Write(pgwire.AppendError(nil, e))
		return nil, e
	}
	s.creds.learn(start.User, res.Keys)
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
	return s.handOver(be)
}

// lookUpSecret runs the auth query as the DSN's user.
func (s *Server) lookUpSecret(ctx context.Context, user string) (pgwire.Secret, error) {
	cfg := s.cfg.Postgres
	if cfg.Password == "" {
		cfg.Password, cfg.Keys = s.creds.of(cfg.User)
	}
	be, err := pgwire.Connect(ctx, cfg)
	if err != nil {
		return pgwire.Secret{}, err
	}
	defer func() { _ = be.Conn.Close() }()
	row, err := queryOne(ctx, be.Conn, s.cfg.AuthQuery, user)
	if err != nil || row == nil {
		return pgwire.Secret{}, err
	}
	if len(row) != 2 {
		return pgwire.Secret{}, fmt.Errorf("the auth query returned %d columns; want name and secret", len(row))
	}
	return pgwire.ParseSecret(string(row[1]))
}
