package proxybench

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

// A copier is what is left of a proxy that knows no protocol: one thread that waits,
// reads and writes, and a connection to the server for each of a client. Its calls go
// past Go's scheduler and its memory is never collected, so that it costs what the
// kernel does.
type copier struct {
	server unix.Sockaddr
	family int
	epoll  int
	accept int           // the socket that listens
	others map[int32]int // of each connection the one that its bytes go to
	buf    []byte

	clients map[int32]bool
	out     []byte                          // a grouper's
	seen    func(from int32, b []byte) bool // takes what is not to be copied; may be nil
	turned  func() error                    // when a turn's events are done; may be nil
}

// copyBytes copies between the clients that connect and the server at address, until
// standard input ends, or joins their INSERTs. The address that it listens on goes to out.
func copyBytes(address string, group bool, out io.Writer) error {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	server, family, err := sockaddr(address)
	if err != nil {
		return fmt.Errorf("copy bytes: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("copy bytes: %w", err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("copy bytes: %w", err)
	}
	defer file.Close()
	c := &copier{server: server, family: family, accept: int(file.Fd()), others: make(map[int32]int), buf: make([]byte, 64<<10), clients: make(map[int32]bool)}
	if group {
		newGrouper(c)
	}
	if c.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("copy bytes: epoll: %w", err)
	}
	defer unix.Close(c.epoll)
	for _, fd := range []int{c.accept, int(os.Stdin.Fd())} {
		if err := c.watch(fd); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return fmt.Errorf("copy bytes: %w", err)
	}
	return c.run(int32(os.Stdin.Fd()))
}

func sockaddr(address string) (unix.Sockaddr, int, error) {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, 0, err
	}
	if ip := a.IP.To4(); ip != nil {
		return &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip)}, unix.AF_INET, nil
	}
	return &unix.SockaddrInet6{Port: a.Port, Addr: [16]byte(a.IP.To16())}, unix.AF_INET6, nil
}

func (c *copier) watch(fd int) error {
	err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	if err != nil {
		return fmt.Errorf("copy bytes: watch a connection: %w", err)
	}
	return nil
}

func (c *copier) run(input int32) error {
	events := make([]unix.EpollEvent, 256)
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(c.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), ^uintptr(0), 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return fmt.Errorf("copy bytes: epoll: %w", e)
		}
		for _, ev := range events[:n] {
			switch ev.Fd {
			case input:
				return nil
			case int32(c.accept):
				if err := c.take(); err != nil {
					return err
				}
			default:
				c.move(ev.Fd)
			}
		}
		if c.turned != nil {
			if err := c.turned(); err != nil {
				return err
			}
		}
	}
}

// take accepts a client and connects to the server for it.
func (c *copier) take() error {
	client, _, err := unix.Accept4(c.accept, unix.SOCK_CLOEXEC)
	if err != nil {
		return nil // it has left again
	}
	server, err := unix.Socket(c.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(client)
		return fmt.Errorf("copy bytes: connect to the server: %w", err)
	}
	if err := unix.Connect(server, c.server); err != nil {
		_ = unix.Close(client)
		_ = unix.Close(server)
		return fmt.Errorf("copy bytes: connect to the server: %w", err)
	}
	for _, fd := range []int{client, server} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return fmt.Errorf("copy bytes: %w", err)
		}
		if err := c.watch(fd); err != nil {
			return err
		}
	}
	c.others[int32(client)], c.others[int32(server)] = server, client
	c.clients[int32(client)] = true
	return nil
}

// move copies what a connection has sent, and ends both when it has ended.
func (c *copier) move(from int32) {
	to, ok := c.others[from]
	if !ok {
		return // ended by an event before this one
	}
	n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(from), uintptr(unsafe.Pointer(&c.buf[0])), uintptr(len(c.buf)))
	if e == unix.EINTR {
		return
	}
	if e != 0 || n == 0 {
		c.end(from, int32(to))
		return
	}
	if c.seen != nil && c.seen(from, c.buf[:n]) {
		return
	}
	for done := uintptr(0); done < n; {
		// The connection blocks, so a client that does not read stops the copier:
		// the load reads.
		wrote, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(to), uintptr(unsafe.Pointer(&c.buf[done])), n-done)
		if e != 0 && e != unix.EINTR {
			c.end(from, int32(to))
			return
		}
		if e == 0 {
			done += wrote
		}
	}
}

func (c *copier) end(fds ...int32) {
	for _, fd := range fds {
		delete(c.others, fd)
		delete(c.clients, fd)
		_ = unix.Close(int(fd))
	}
}
