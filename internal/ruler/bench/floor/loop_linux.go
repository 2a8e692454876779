package floor

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Loop waits for the connections of one thread.
type Loop struct {
	epoll    int
	listener int
}

// NewLoop makes a loop of the calling goroutine's thread, locks the goroutine to it, and turns
// off garbage collection.
func NewLoop() (*Loop, error) {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Loop{epoll: epoll, listener: -1}, nil
}

// Watch makes Run report when fd is readable.
func (l *Loop) Watch(fd int) error {
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch a connection: %w", err)
	}
	return nil
}

// Listen accepts clients. It writes the address to out.
func (l *Loop) Listen(out io.Writer) (err error) {
	if l.listener, err = Listen(out); err != nil {
		return err
	}
	return l.Watch(l.listener)
}

// Run runs until standard input ends. It calls accepted with each new connection, which is not
// watched yet, ready with each that is readable, and turned after each batch of readable
// connections.
func (l *Loop) Run(accepted, ready func(fd int) error, turned func() error) error {
	input := int(os.Stdin.Fd())
	if err := l.Watch(input); err != nil {
		return err
	}
	events := make([]unix.EpollEvent, 256)
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), ^uintptr(0), 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return fmt.Errorf("epoll: %w", e)
		}
		for _, ev := range events[:n] {
			fd, take := int(ev.Fd), ready
			if fd == input {
				return nil
			}
			if fd == l.listener {
				if fd, e = Accept(l.listener); e != 0 {
					continue // it has gone already
				}
				take = accepted
			}
			if err := take(fd); err != nil {
				return err
			}
		}
		if err := turned(); err != nil {
			return err
		}
	}
}

// Listen returns a blocking listening socket. It writes the address to out.
func Listen(out io.Writer) (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return -1, fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return -1, fmt.Errorf("listen: %w", err)
	}
	defer file.Close()
	fd, err := unix.Dup(int(file.Fd()))
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err == nil {
		_, err = fmt.Fprintln(out, l.Addr())
	}
	if err != nil {
		return -1, fmt.Errorf("listen: %w", err)
	}
	return fd, nil
}

// Accept accepts a connection.
func Accept(listener int) (int, unix.Errno) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	e, _ := err.(unix.Errno)
	return fd, e
}

// Connect connects to an address with a blocking socket.
func Connect(a *net.TCPAddr) (int, error) {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: a.Port, Addr: [16]byte(a.IP.To16())})
	if ip := a.IP.To4(); ip != nil {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip)}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("connect to %v: %w", a, err)
	}
	if err = unix.Connect(fd, to); err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("connect to %v: %w", a, err)
	}
	return fd, nil
}

// Read reads at least one byte, waiting for it; it returns 0 at the end.
func Read(fd int, b []byte) int {
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case e == unix.EINTR:
		case e != 0:
			return 0
		default:
			return int(n)
		}
	}
}

// Write writes all of b; false means that the other side has gone. A side that does not read
// blocks the program, which is fine for loads.
func Write(fd int, b []byte) bool {
	for len(b) > 0 {
		n, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case e == unix.EINTR:
		case e != 0:
			return false
		default:
			b = b[n:]
		}
	}
	return true
}
