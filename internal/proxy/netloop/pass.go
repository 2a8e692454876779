package netloop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file is what it takes to pass sockets to another process, and to go on with them
// where that comes to nothing.

// A Pausable is a listener that can be told to accept nobody for a while. Who connects
// meanwhile waits in the socket, or is accepted by another process that has it, too.
// Safe for concurrent use.
type Pausable struct {
	net.Listener

	mu   sync.Mutex
	open chan struct{} // guarded by mu: closed while connections are accepted
}

// NewPausable returns ln as a Pausable, which accepts.
func NewPausable(ln net.Listener) *Pausable {
	p := &Pausable{Listener: ln, open: make(chan struct{})}
	close(p.open)
	return p
}

// Accept implements net.Listener.
func (p *Pausable) Accept() (net.Conn, error) {
	for {
		p.mu.Lock()
		open := p.open
		p.mu.Unlock()
		<-open
		conn, err := p.Listener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) { // that is Pause
			return conn, err
		}
	}
}

// Pause has nobody accepted from now on.
func (p *Pausable) Pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		return nil // it is paused already
	}
	if err := p.deadline(time.Unix(1, 0)); err != nil {
		return err
	}
	p.open = make(chan struct{})
	return nil
}

// Paused tells whether nobody is to be accepted.
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

func (p *Pausable) deadline(at time.Time) error {
	ln, ok := p.Listener.(interface{ SetDeadline(at time.Time) error })
	if !ok {
		return fmt.Errorf("a listener of %s cannot be paused", p.Addr().Network())
	}
	return ln.SetDeadline(at)
}

// Close implements net.Listener.
func (p *Pausable) Close() error {
	err := p.Listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		close(p.open) // Accept finds the listener closed
	}
	return err
}

// KeepsPath says whether the path of a Unix socket outlives the listener, since another
// process listens there, too.
func (p *Pausable) KeepsPath(keeps bool) {
	if u, ok := p.Listener.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(!keeps)
	}
}

// Descriptor returns a copy of the socket, which is the caller's to close. The socket
// stays what it is: os.File's Fd would have it block.
func (p *Pausable) Descriptor() (int, error) {
	sc, ok := p.Listener.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("a listener of %s has no descriptor", p.Addr().Network())
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
	return NewPausable(ln), nil
}

// Depart is Release for a socket that another process goes on with. It also returns what
// was read of it and not consumed.
func (s *Sock) Depart() (fd int, in, out []byte) {
	in, out = append(in, s.In...), append(out, s.Out[s.outOff:]...)
	fd = s.fd
	s.Release()
	return fd, in, out
}

// Return gives a socket that Watch has made what Depart has returned of it: what was read
// is looked at when Consume is called, what was not written is written.
func (s *Sock) Return(in, out []byte) {
	if len(in) > 0 {
		s.In = append(s.l.bufs.get(), in...)
	}
	if len(out) > 0 {
		s.Write(out)
	}
}

// Bridged tells whether the socket is the inner end of a TLS connection: see Detach. All
// that this process knows of such a connection is not in the socket.
func (s *Sock) Bridged() bool {
	at, err := unix.Getsockname(s.fd)
	u, local := at.(*unix.SockaddrUnix)
	return err != nil || local && u.Name == "" // a client's is where it has connected to
}
