package postgres

import (
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about what the server grants weir because of where weir is, and
// who weir is, without asking for a password (trust, peer, ident or cert in
// pg_hba.conf), and whom weir may lend that to. That a connection comes from a
// loopback address says little: a balancer, a tunnel or a sidecar on weir's host
// passes on connections from anywhere, and all of them come from there.

// mayBorrow tells whether a client may have what weir itself has without a
// password. That is a process of weir's own user, or of root, at the other end
// of a Unix socket: the kernel says who it is, and it could do whatever weir does.
// Others of the machine only where the operator says so.
func (s *Server) mayBorrow(conn net.Conn) bool {
	if uid, ok := peerUID(conn); ok && (uid == 0 || uid == uint32(os.Geteuid())) {
		return true
	}
	return s.cfg.TrustLoopback && isLocal(conn.RemoteAddr())
}

// peerUID is the user of the process at the other end of a Unix socket, as the
// kernel noted it when the connection was made.
func peerUID(conn net.Conn) (uint32, bool) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || credErr != nil {
		return 0, false
	}
	return cred.Uid, true
}

// isLocal tells whether an address is of the loopback or of a Unix socket.
func isLocal(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}

// borrowed is the refusal of a client that may not have what weir has.
func borrowed(user string) *pgwire.Error {
	e := pgwire.NewFatal(pgwire.CodeInvalidAuthorization,
		"weir does not let %q in: the server asks connections from weir's host for no password, and weir cannot know that this client may do the same", user)
	e.Hint = "Have the server ask weir's host for a password (pg_hba.conf), choose how weir itself checks clients (--auth), connect over a Unix socket as weir's own user, or let everybody in who can reach weir over a loopback address (--trust-loopback)."
	return e
}
