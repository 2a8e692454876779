package netloop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listen opens the address for clients: host:port, or the path of a Unix socket.
// Such a socket is open to every user of the machine, as those of the servers
// are; the directory can say otherwise. One that a killed process left behind is
// replaced.
func Listen(address string) (net.Listener, error) {
	if !strings.HasPrefix(address, "/") {
		return net.Listen("tcp", address)
	}
	ln, err := net.Listen("unix", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		info, statErr := os.Lstat(address)
		if statErr != nil || info.Mode().Type() != os.ModeSocket {
			return nil, err // a file, which would refuse connections as well
		}
		conn, dialErr := net.Dial("unix", address)
		if dialErr == nil {
			_ = conn.Close() // somebody lives there
			return nil, err
		}
		if !errors.Is(dialErr, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(address); err != nil {
			return nil, fmt.Errorf("remove abandoned socket: %w", err)
		}
		ln, err = net.Listen("unix", address)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(address, 0o777); err != nil {
		_ = ln.Close()
		return nil, err
	}
	return ln, nil
}

// Accept hands each client to serve, on a goroutine of its own that background
// waits for, until ctx ends and ln is closed.
func Accept(ctx context.Context, ln net.Listener, log *slog.Logger, background *sync.WaitGroup, serve func(net.Conn)) error {
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			var ne net.Error
			if errors.As(err, &ne) || errors.Is(err, os.ErrDeadlineExceeded) {
				// Out of file descriptors, most likely: pause, do not spin.
				log.Error("accept failed", "error", err)
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			return fmt.Errorf("accept client: %w", err)
		}
		background.Go(func() { serve(conn) })
	}
}

// Detach takes the file descriptor out of a connection that is logged in. A
// TLS connection cannot be handed to an event loop: it stays with two
// goroutines that copy between it and a socket pair, whose other end is
// returned; background waits for them. The connection is used up unless Detach
// fails.
func Detach(conn net.Conn, background *sync.WaitGroup) (int, error) {
	if sc, ok := conn.(syscall.Conn); ok {
		rc, err := sc.SyscallConn()
		if err != nil {
			return -1, fmt.Errorf("detach connection: %w", err)
		}
		fd := -1
		var dupErr error
		if err := rc.Control(func(p uintptr) { fd, dupErr = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
			return -1, fmt.Errorf("detach connection: %w", err)
		}
		if dupErr != nil {
			return -1, fmt.Errorf("detach connection: %w", dupErr)
		}
		return fd, conn.Close()
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("bridge TLS connection: %w", err)
	}
	f := os.NewFile(uintptr(fds[1]), "tls-bridge")
	inner, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		_ = unix.Close(fds[0])
		return -1, fmt.Errorf("bridge TLS connection: %w", err)
	}
	background.Go(func() { copyAndClose(inner, conn) })
	background.Go(func() { copyAndClose(conn, inner) })
	return fds[0], nil
}

// copyAndClose copies until either side ends, then closes both, which ends the
// copy in the other direction. Whose fault it was is seen by the loop as a
// closed connection; there is nothing more to say.
func copyAndClose(dst, src net.Conn) {
	buf := make([]byte, 16<<10)
	_, _ = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf)
	_ = dst.Close()
	_ = src.Close()
}
