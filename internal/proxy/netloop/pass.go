package netloop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file passes sockets to another process, and takes them back if that fails.

// A Pausable is a listener that can pause accepting. Clients that connect meanwhile wait in
// the socket, or are accepted by another process that has it, too.
// Safe for concurrent use.
type Pausable struct {
	addr net.Addr

	mu      sync.Mutex
	open    chan struct{} // guarded by mu: closed while connections are accepted
	ln      net.Listener  // guarded by mu: nil once a porch accepts: see bare
	fd      int           // guarded by mu: the socket from then on, -1 if it is closed
	unlinks bool          // guarded by mu: Close removes the path of the Unix socket
}

// NewPausable returns ln as a Pausable, which accepts.
func NewPausable(ln net.Listener) *Pausable {
	if p, ok := ln.(*Pausable); ok {
		return p
	}
	_, local := ln.(*net.UnixListener)
	p := &Pausable{ln: ln, addr: ln.Addr(), open: make(chan struct{}), fd: -1, unlinks: local}
	close(p.open)
	return p
}

// Addr implements net.Listener.
func (p *Pausable) Addr() net.Addr { return p.addr }

// Accept implements net.Listener.
func (p *Pausable) Accept() (net.Conn, error) {
	for {
		p.mu.Lock()
		open, ln := p.open, p.ln
		p.mu.Unlock()
		if ln == nil {
			return nil, net.ErrClosed // a porch accepts instead
		}
		<-open
		conn, err := ln.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) { // otherwise the error comes from Pause
			return conn, err
		}
	}
}

// bare takes the socket out of package net, which polls every socket that it has: each
// connection would wake up a thread for nothing.
func (p *Pausable) bare() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ln == nil {
		return nil
	}
	fd, err := p.descriptor()
	if err != nil {
		return err
	}
	if u, ok := p.ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	err = p.ln.Close()
	p.ln, p.fd = nil, fd
	return err
}

// Pause stops accepting.
func (p *Pausable) Pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		return nil // already paused
	}
	if err := p.deadline(time.Unix(1, 0)); err != nil {
		return err
	}
	p.open = make(chan struct{})
	return nil
}

// Paused reports whether accepting is paused.
func (p *Pausable) Paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		return false
	default:
		return true
	}
}

// Resume ends Pause.
func (p *Pausable) Resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		return nil
	default:
	}
	err := p.deadline(time.Time{})
	close(p.open)
	return err
}

// deadline is called with mu held.
func (p *Pausable) deadline(at time.Time) error {
	if p.ln == nil {
		return nil // a porch looks at open
	}
	ln, ok := p.ln.(interface{ SetDeadline(at time.Time) error })
	if !ok {
		return fmt.Errorf("a listener of %s cannot be paused", p.addr.Network())
	}
	return ln.SetDeadline(at)
}

// Close implements net.Listener.
func (p *Pausable) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.close()
	select {
	case <-p.open:
	default:
		close(p.open) // Accept finds the listener closed
	}
	return err
}

func (p *Pausable) close() error {
	if p.ln != nil {
		return p.ln.Close()
	}
	if p.fd < 0 {
		return net.ErrClosed
	}
	err := os.NewSyscallError("close", unix.Close(p.fd))
	p.fd = -1
	if u, ok := p.addr.(*net.UnixAddr); ok && p.unlinks && !strings.HasPrefix(u.Name, "@") {
		_ = os.Remove(u.Name) // as package net does
	}
	return err
}

// KeepsPath says that Close must not remove the path of a Unix socket, since another
// process listens there, too.
func (p *Pausable) KeepsPath(keeps bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unlinks = !keeps
	if u, ok := p.ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(!keeps)
	}
}

// Descriptor returns a copy of the socket, which the caller must close. The socket stays
// non-blocking: os.File's Fd would change that.
func (p *Pausable) Descriptor() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.descriptor()
}

func (p *Pausable) descriptor() (int, error) {
	if p.ln == nil {
		fd, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
		return fd, os.NewSyscallError("fcntl", err)
	}
	sc, ok := p.ln.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("a listener of %s has no descriptor", p.addr.Network())
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	if err := rc.Control(func(p uintptr) { fd, dupErr = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, dupErr
}

// ListenerOf makes a listener of a socket's descriptor, which it takes over.
func ListenerOf(fd int, name string) (*Pausable, error) {
	f := os.NewFile(uintptr(fd), name)
	ln, err := net.FileListener(f) // has a copy of it
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	p := NewPausable(ln)
	p.unlinks = false // package net does not remove the path, either
	return p, nil
}

// Depart is Release for a socket that another process will continue with. It also returns
// input that was read and not consumed, and output that was not written.
func (s *Sock) Depart() (fd int, in, out []byte) {
	in, out = append(in, s.In...), append(out, s.Out[s.outOff:]...)
	fd = s.fd
	s.Release()
	return fd, in, out
}

// Return gives the socket that Watch has made of a departed one its input and output back:
// the input is processed when Consume is called, the output is written.
func (s *Sock) Return(in, out []byte) {
	if len(in) > 0 {
		s.In = append(s.l.bufs.get(), in...)
	}
	if len(out) > 0 {
		s.Write(out)
	}
}

// Bridged reports whether the socket is the inner end of a TLS connection: see Detach. The
// state of such a connection is not all in the socket.
func (s *Sock) Bridged() bool {
	at, err := unix.Getsockname(s.fd)
	u, local := at.(*unix.SockaddrUnix)
	return err != nil || local && u.Name == "" // a client's has the address that it has connected to
}
