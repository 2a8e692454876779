package mysql

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles COM_CHANGE_USER: a login on an existing connection. The client leaves its
// loop for it, and returns as another user.

// changeUser starts the login that the client's message requests. The session must have nothing
// in flight, and nothing of it remains: the message is consumed, and the client executes no
// further ones.
func (lg *login) changeUser(msg []byte) {
	c := lg.c
	payload, _, err := mywire.Payload(msg)
	if err != nil { // one of its packets is out of order
		c.protocolError("malformed packet")
		return
	}
	cu, err := mywire.ParseChangeUser(payload, c.caps)
	if err != nil {
		c.protocolError("a malformed COM_CHANGE_USER")
		return
	}
	before := lg.session()
	c.state.enter(stateLeaving)
	c.l.Post(func() { // after the socket has processed what it has read
		if c.s.Closed {
			return
		}
		if len(c.s.In) > 0 {
			c.protocolError("a message behind COM_CHANGE_USER")
			return
		}
		lg.leave(cu, before)
	})
}

// A formerSession is the session with which a client continues if its COM_CHANGE_USER is
// refused. MySQL ends the session then; MariaDB resets it as COM_RESET_CONNECTION does, except
// for the character sets, which become the server's.
type formerSession struct {
	key        poolKey
	set, start *session.Set
}

// maxFailedChanges is how many failed changes of the user MariaDB allows a session. It refuses
// further ones without a check.
const maxFailedChanges = 3

// refusedRest is how long MariaDB delays a client that it has refused a change of the user, to
// slow down attempts to guess passwords. weir sends the error first, and rests afterwards.
const refusedRest = time.Second

// session returns the session with which the client would continue: nil if its session would
// end, or if weir could not restore it.
func (lg *login) session() *formerSession {
	c := lg.c
	server := c.l.srv.known.get()
	if server == nil || !server.IsMariaDB() || c.pins.held&^pinMode != 0 {
		return nil
	}
	return &formerSession{key: c.p.key, set: c.set, start: c.settings.start}
}

// restoreSession restores the session of before the COM_CHANGE_USER.
func (c *client) restoreSession(f *formerSession) {
	c.set, c.settings.start = f.set, f.start
	if c.login.awaitsFacts = c.p.facts.base == nil; c.login.awaitsFacts {
		return // the values for a reset are not known yet: see login.reset
	}
	c.resetSession()
	for _, name := range charsetNames {
		if value, ok := c.p.facts.charsets[name]; ok {
			c.set = c.p.settings.With(c.set, session.Setting{Name: name, Value: value, Literal: true})
		}
	}
	c.settings.readMode()
}

// reset completes restoreSession once the pool knows the server, if it did not at that time.
func (lg *login) reset() {
	if c := lg.c; lg.awaitsFacts && c.p.facts.base != nil {
		c.restoreSession(&formerSession{set: c.set, start: c.settings.start})
	}
}

// leave takes the client off the loop and starts the login.
func (lg *login) leave(cu *mywire.ChangeUser, before *formerSession) {
	c := lg.c
	l := c.l
	srv, again := l.srv, newClient(l)
	again.id, again.addr, again.caps = c.id, c.addr, c.caps
	again.login.salt, again.login.tls, again.login.borrows, again.login.failed = lg.salt, lg.tls, lg.borrows, lg.failed
	c.p.Stats.Received += c.s.Taken
	c.p.Stats.Sent += c.s.Written
	srv.SessionCounts.Leave(c.p.key.database, c.p.key.user)
	fd, unwritten := c.s.Release()
	delete(l.Clients, c.id)
	l.Taken()
	c.stmts.forget()
	srv.Background.Go(func() {
		ctx, cancel := context.WithTimeout(srv.DialCtx, srv.cfg().LoginTimeout)
		defer cancel()
		conn, err := resurface(fd, again.addr)
		if err != nil {
			srv.Left(again.id)
			srv.Log.Error("cannot take a client off its loop", "client", again.addr, "error", err)
			return
		}
		if err := srv.cfg().Keepalive.Accepted(conn.Conn); err != nil { // package net has set its own
			srv.Log.Warn("a client's connection does not notice when it is dead", "client", again.addr, "error", err)
		}
		srv.loginFailed(again.addr, srv.changedUser(ctx, again, conn, unwritten, cu, before))
	})
}

// changedUser runs the client's new login.
func (s *Server) changedUser(ctx context.Context, c *client, conn *surfaced, unwritten []byte, cu *mywire.ChangeUser, before *formerSession) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_, err := conn.Write(unwritten)
	if !stop() || err != nil {
		s.Left(c.id)
		_ = conn.Close()
		return fmt.Errorf("write what is due before a change of the user: %w", errors.Join(err, ctx.Err()))
	}
	wire := mywire.ChangedUser(conn, c.login.tls, c.login.salt, c.caps|mywire.CapPluginAuth, cu)
	// The challenge that the client has answered may be the server's, from its first login:
	// request a new answer.
	wire.Response.Plugin, wire.Response.Auth = nobodysPlugin, nil
	wire.Response.Charset = s.collation(cu.Charset)
	a := &loginAttempt{c: c, wire: wire, began: s.Monotonic(), again: true, former: before, key: poolKey{
		user: cu.User, database: cu.Database, caps: c.caps & classCaps, charset: wire.Response.Charset,
	}}
	if before != nil && c.login.failed >= maxFailedChanges {
		e := mywire.NewError(mywire.ErrUnknownCommand, "Unknown command")
		if _ = wire.Refuse(ctx, e); !a.returnToFormer(ctx, e) { // the client may be gone; e is what matters
			s.Left(c.id)
			_ = conn.Close()
		}
		return e
	}
	return a.enter(ctx)
}

// returnToFormer lets a client continue as its former user after it got err for its
// COM_CHANGE_USER. It reports whether the client does.
func (a *loginAttempt) returnToFormer(ctx context.Context, err error) bool {
	s, f := a.server(), a.former
	if code := mywire.CodeOf(err); f == nil || code == 0 || code == mywire.ErrBadHandshake || ctx.Err() != nil {
		return false
	}
	a.key, a.ok, a.donated = f.key, mywire.OK{}, nil
	a.c.login.failed++
	a.refused = true
	rest := time.NewTimer(refusedRest)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-s.DialCtx.Done():
	}
	return a.sit(func() {}) == nil
}

// surfaced is a connection that was on a loop. Its remote address is the client's even if it
// leads to weir's own bridge to a TLS connection.
type surfaced struct {
	net.Conn
	remote net.Addr
}

// RemoteAddr returns the client's address.
func (s *surfaced) RemoteAddr() net.Addr { return s.remote }

// SyscallConn gives access to the descriptor, to return to a loop.
func (s *surfaced) SyscallConn() (syscall.RawConn, error) {
	return s.Conn.(syscall.Conn).SyscallConn() // as every connection of net
}

// resurface turns a descriptor, which it takes over, into a connection with the client at the
// given address.
func resurface(fd int, addr string) (*surfaced, error) {
	f := os.NewFile(uintptr(fd), "client")
	conn, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("make a connection of a socket: %w", err)
	}
	s := &surfaced{Conn: conn, remote: conn.RemoteAddr()}
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		s.remote = net.TCPAddrFromAddrPort(ap)
	}
	return s, nil
}

// login is what weir knows about a client from its login.
type login struct {
	c *client

	salt []byte // the challenge that it has answered; COM_CHANGE_USER refers to it
	tls  bool   // the connection is encrypted
	// failed counts the refused changes of the user.
	failed int
	// awaitsFacts: a change of the user was refused before the pool had a backend, so the
	// values for a reset of the session are not known yet.
	awaitsFacts bool
	// packs: it has announced compression although weir did not offer that, and has sent
	// nothing yet.
	packs bool
	// borrows: it may use what the server grants weir without a password; see trust.go.
	borrows bool
}

// refusesCompression sends an error to a client that compresses its commands, which weir does
// not support, and reports whether it did.
func (lg *login) refusesCompression(p []byte) bool {
	c := lg.c
	lg.packs = false
	if !mywire.IsCompressed(p) {
		return false
	}
	c.s.Write(mywire.AppendCompressedError(nil, mywire.NewError(mywire.ErrNotSupportedYet,
		"weir does not offer compression, and the client compresses nevertheless: connect without it (compress=False)")))
	c.l.srv.Log.Info("client disconnected: it compresses, which was not offered", "client", c.addr, "user", c.p.key.user)
	c.s.CloseAfterFlush()
	return true
}
