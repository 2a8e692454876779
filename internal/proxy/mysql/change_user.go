package mysql

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is COM_CHANGE_USER: a login on a connection that has one. The client
// leaves its loop for it, and comes back as another.

// changeUser has the client log in anew as its message asks. Nothing of the
// session may be under way, and nothing of it is left: the message is used up,
// and the client takes no further ones.
func (lg *login) changeUser(msg []byte) {
	c := lg.c
	payload, _, err := mywire.Payload(msg)
	if err != nil { // a packet of it is out of order
		c.protocolError("malformed packet")
		return
	}
	cu, err := mywire.ParseChangeUser(payload, c.caps)
	if err != nil {
		c.protocolError("a malformed COM_CHANGE_USER")
		return
	}
	c.state.enter(stateLeaving)
	c.l.Post(func() { // when the socket has dealt with what it has read
		if c.s.Closed {
			return
		}
		if len(c.s.In) > 0 {
			c.protocolError("a message behind COM_CHANGE_USER")
			return
		}
		lg.leave(cu)
	})
}

// leave takes the client off the loop and starts the login.
func (lg *login) leave(cu *mywire.ChangeUser) {
	c := lg.c
	l := c.l
	srv, again := l.srv, newClient(l)
	again.id, again.addr, again.caps = c.id, c.addr, c.caps
	again.login.salt, again.login.tls, again.login.borrows = lg.salt, lg.tls, lg.borrows
	c.p.Stats.Received += c.s.Taken
	c.p.Stats.Sent += c.s.Written
	srv.Crowd.Leave(c.p.key.database, c.p.key.user)
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
		srv.loginFailed(again.addr, srv.changedUser(ctx, again, conn, unwritten, cu))
	})
}

// changedUser leads the client through its new login.
func (s *Server) changedUser(ctx context.Context, c *client, conn *surfaced, unwritten []byte, cu *mywire.ChangeUser) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_, err := conn.Write(unwritten)
	if !stop() || err != nil {
		s.Left(c.id)
		_ = conn.Close()
		return fmt.Errorf("write what is due before a change of the user: %w", errors.Join(err, ctx.Err()))
	}
	wire := mywire.ChangedUser(conn, c.login.tls, c.login.salt, c.caps|mywire.CapPluginAuth, cu)
	// The challenge that the client has answered may be the server's, of its
	// first login: it is asked anew.
	wire.Response.Plugin, wire.Response.Auth = nobodysPlugin, nil
	wire.Response.Charset = s.collation(cu.Charset)
	v := &visitor{c: c, wire: wire, began: s.Monotonic(), again: true, key: poolKey{
		user: cu.User, database: cu.Database, caps: c.caps & classCaps, charset: wire.Response.Charset,
	}}
	return v.enter(ctx)
}

// surfaced is a connection that has been on a loop. Its far end is the client
// even where it leads to weir's own bridge to a TLS connection.
type surfaced struct {
	net.Conn
	remote net.Addr
}

// RemoteAddr is the client's address.
func (s *surfaced) RemoteAddr() net.Addr { return s.remote }

// SyscallConn gives access to the descriptor, for the way back to a loop.
func (s *surfaced) SyscallConn() (syscall.RawConn, error) {
	return s.Conn.(syscall.Conn).SyscallConn() // as every connection of net
}

// resurface makes a descriptor, which it takes over, a connection with the
// client at the given address.
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

// login is what a client is known by since its login.
type login struct {
	c *client

	salt []byte // the challenge that it has answered; COM_CHANGE_USER refers to it
	tls  bool   // somebody in between cannot listen
	// packs: has announced to compress what it sends, though that was not offered, and
	// has sent nothing yet.
	packs bool
	// borrows: may have what the server grants weir without a password; see trust.go.
	borrows bool
}

// refusesCompression tells a client that compresses its commands that weir does not
// read that, and reports whether it did.
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
