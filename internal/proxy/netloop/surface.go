package netloop

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// A Surfaced is a connection that has been on a loop, for code that blocks. What the
// loop had read and not taken is read first.
type Surfaced struct {
	net.Conn
	remote net.Addr
	unread []byte
}

// Surface makes a connection with the client at an address of a descriptor, which it
// takes over, and of what was read from it.
func Surface(fd int, remote net.Addr, unread []byte) (*Surfaced, error) {
	conn, err := Connection(fd)
	if err != nil {
		return nil, err
	}
	return &Surfaced{Conn: conn, remote: remote, unread: unread}, nil
}

// Connection makes a connection of a descriptor, which it takes over.
func Connection(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "client")
	conn, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("make a connection of a socket: %w", err)
	}
	return conn, nil
}

// Read implements net.Conn.
func (s *Surfaced) Read(p []byte) (int, error) {
	if len(s.unread) == 0 {
		return s.Conn.Read(p)
	}
	n := copy(p, s.unread)
	s.unread = s.unread[n:]
	return n, nil
}

// RemoteAddr is the client's address.
func (s *Surfaced) RemoteAddr() net.Addr { return s.remote }

// NetConn is the connection itself.
func (s *Surfaced) NetConn() net.Conn { return s.Conn }

// SyscallConn gives access to the descriptor, for the way back to a loop.
func (s *Surfaced) SyscallConn() (syscall.RawConn, error) {
	return s.Conn.(syscall.Conn).SyscallConn() // as every connection of net
}

// Unread is what was read from a connection that goes back to a loop and not taken;
// nil of others.
func Unread(conn net.Conn) []byte {
	if s, ok := conn.(*Surfaced); ok {
		return s.unread
	}
	return nil
}
