package mysql

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file runs logins on the event loop: a client that connects for each transaction costs no
// goroutine, and wakes no thread. It handles clients whose first message proves what weir knows
// already, if the server has accepted such a login recently. All other logins, and unusual
// ones, continue on a goroutine: see Server.tryLogin.

// A pendingLogin is a client that is logging in on a loop.
type pendingLogin struct {
	core.PendingLogin
	c       *client
	l       *loop
	began   time.Duration
	greeter *mywire.Greeter
}

// canMeet reports whether loops run logins: weir knows the server's greeting, which is not
// stale, and has no audit log to wait for.
func canMeet(s *Server) bool {
	return s.cfg().Audit == nil && s.known.get() != nil && !s.known.stale(s.Monotonic())
}

// meet begins the login of a client on the loop with the fewest clients. l is the loop that has
// accepted it.
func (s *Server) meet(l *loop, fd int, from net.Addr, until context.Context) {
	s.Arriving.Add(1)
	if _, local := from.(*net.UnixAddr); local || s.Stopping() || s.Sessions.Load() >= int64(s.cfg().MaxClients) {
		s.Background.Go(func() {
			defer s.Arriving.Add(-1)
			conn, err := netloop.Connection(fd)
			if err != nil {
				s.Log.Error("cannot take a client off its loop", "client", from.String(), "error", err)
				return
			}
			s.login(until, conn)
		})
		return
	}
	best := s.LeastLoaded()
	best.Given()
	if best == l {
		l.meet(fd, from, until)
	} else if !best.Post(func() { best.meet(fd, from, until) }) {
		best.Taken()
		s.Arriving.Add(-1)
		_ = unix.Close(fd)
	}
}

func (l *loop) meet(fd int, from net.Addr, until context.Context) {
	s := l.srv
	abandon := func() {
		l.Taken()
		s.Arriving.Add(-1)
		_ = unix.Close(fd)
	}
	if l.Draining() {
		abandon()
		return
	}
	g := &pendingLogin{c: newClient(l), l: l, began: s.Monotonic()}
	g.From, g.Until = from, until
	var err error
	if g.Sock, err = l.WatchAccepted(fd, g); err != nil {
		abandon()
		s.Log.Error("cannot watch client socket", "error", err)
		return
	}
	cfg := s.cfg()
	g.c.addr, g.c.login.borrows = from.String(), core.MayBorrowOn(fd, from, cfg.TrustLoopback)
	g.c.id = s.register(l)
	accept := s.accept(s.known.get(), g.c.id)
	g.Deadline = g.began + accept.Timeout
	g.greeter = mywire.NewGreeter(accept)
	l.logins.Welcome(&g.PendingLogin, g, &l.Loop.Loop, &s.lobby)
	g.Sock.Write(g.greeter.Greeting())
}

// Take implements core.Login.
func (g *pendingLogin) Take(p []byte) int {
	n, wire, err := g.greeter.Take(p)
	switch {
	case err != nil:
		g.Then(func() { g.goElsewhere(nil) })
	case wire != nil:
		g.Then(func() { g.answered(wire) })
	}
	return n
}

// Lost implements core.Login.
func (g *pendingLogin) Lost(err error) {
	g.left(true)
	g.failed(err)
}

// failed logs the end of the login. The loop does not wait for the log.
func (g *pendingLogin) failed(err error) {
	g.l.srv.Background.Go(func() { g.l.srv.loginFailed(g.c.addr, err) })
}

// answered continues the login of a client that has answered the greeting.
func (g *pendingLogin) answered(wire *mywire.Client) {
	s := g.l.srv
	g.Spoke()
	a := newLoginAttempt(g.c, wire, g.began)
	database, user := a.key.database, a.key.user
	if core.IsAdminDatabase(database) || s.Stopping() || !a.proves() {
		g.goElsewhere(a)
		return
	}
	if gate := s.GateOf(database); gate.Paused || gate.Disabled {
		g.goElsewhere(a)
		return
	}
	if s.Sessions.Add(1) > int64(s.cfg().MaxClients) || s.SessionCounts.Enter(s.Options(), database, user) != nil {
		s.Sessions.Add(-1)
		g.goElsewhere(a) // which sends the reason
		return
	}
	g.l.Given() // OnClosed takes it back
	g.left(false)
	s.Logins.Add(1)
	g.l.met++
	c := g.c
	g.l.prepare(a)
	c.s = g.Sock
	c.s.Handle(c)
	c.s.Suspends(true)
	g.l.seat(a)
	c.s.Consume()
}

// proves reports whether the client's first message proves its password by what weir knows, and
// whether the server has accepted such a login recently.
func (a *loginAttempt) proves() bool {
	s := a.c.l.srv
	cfg, now := s.cfg(), s.Monotonic()
	ok, seen := s.known.welcomes.get(a.key, now)
	if !seen {
		return false
	}
	a.ok = ok
	if a.wire.Response.Plugin != mywire.PluginNative && len(a.wire.Response.Auth) > 0 {
		return false // a client that sent another plugin's proof waits for an answer to it
	}
	if cfg.Auth == AuthTrust {
		s.LoginChecks.Add(AuthTrust, loginPooled)
		return true
	}
	if cfg.Auth == AuthLDAP {
		return false // LDAP needs the password
	}
	secret, known := s.creds.Secret(a.key.user)
	if !known && cfg.AuthQuery == "" && cfg.Auth == AuthAuto {
		if rows := s.known.accounts.Recent(a.key.user, cfg.LoginCheckInterval, now); rows != nil {
			secret, known = s.known.accounts.Stored(a.key.user, rows, s.grants.hash(rows), now)
		}
	}
	if !known || s.creds.Keys(a.key.user) == nil || !a.wire.Proves(secret) {
		return false
	}
	s.LoginChecks.Add(secret.Plugin(), loginPooled)
	return true
}

// End implements core.Login.
func (g *pendingLogin) End(err error) {
	g.left(true)
	g.failed(err)
	g.Sock.Close(err)
}

// left removes the login from the loop's. It frees the client's id if the client has
// disconnected.
func (g *pendingLogin) left(gone bool) {
	g.PendingLogin.Leave()
	g.l.Taken()
	g.l.srv.Arriving.Add(-1)
	if gone {
		g.l.srv.Forget(g.c.id)
	}
}

// goElsewhere moves the login to a goroutine. a has answered the greeting; nil means that its
// answer is still to be read.
func (g *pendingLogin) goElsewhere(a *loginAttempt) {
	s := g.l.srv
	s.Arriving.Add(1)
	g.Deadline = g.began + s.cfg().LoginTimeout // it was that of the first answer
	g.left(false)
	s.Surface(&g.PendingLogin, g.c.addr, func(ctx context.Context, conn net.Conn) {
		s.loginFailed(g.c.addr, g.goOn(ctx, a, conn))
	}, func() { s.Forget(g.c.id) })
}

// goOn is the rest of a login, which may block.
func (g *pendingLogin) goOn(ctx context.Context, a *loginAttempt, conn net.Conn) error {
	s := g.l.srv
	if a != nil {
		a.wire.Reached(conn)
		return s.answered(ctx, a)
	}
	leave := s.lobby.Enter(conn)
	wire, err := g.greeter.Accept(ctx, conn)
	leave()
	if err != nil {
		s.Forget(g.c.id)
		_ = conn.Close()
		return err
	}
	return s.answered(ctx, newLoginAttempt(g.c, wire, g.began))
}
