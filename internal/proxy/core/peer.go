package core

import (
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// MayBorrow reports whether a client may use what the server grants weir itself without a
// password. It may if it is a process of weir's own user, or of root, at the other end of a
// Unix socket: the kernel identifies it, and such a process could do whatever weir can.
// Other clients may only if the operator trusts loopback addresses. A loopback address proves
// little: a balancer, a tunnel or a sidecar on weir's host forwards connections from
// anywhere, and all of them come from there.
func MayBorrow(conn net.Conn, trustLoopback bool) bool {
	uid, ok := PeerUID(conn)
	return ok && isOurs(uid) || trustLoopback && isLocal(conn.RemoteAddr())
}

// MayBorrowOn is MayBorrow for the client at an address, by the descriptor of its
// connection.
func MayBorrowOn(fd int, from net.Addr, trustLoopback bool) bool {
	if _, local := from.(*net.UnixAddr); local {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil && isOurs(cred.Uid) {
			return true
		}
	}
	return trustLoopback && isLocal(from)
}

func isOurs(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// PeerUID is the user of the process at the other end of a Unix socket, as the
// kernel noted it when the connection was made; ok is false for other connections.
func PeerUID(conn net.Conn) (uid uint32, ok bool) {
	if s, surfaced := conn.(*netloop.Surfaced); surfaced {
		conn = s.NetConn()
	}
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

// isLocal reports whether an address is a loopback address or a Unix socket.
func isLocal(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}
