package netloop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listen opens the address for clients: host:port, or the path of a Unix socket.
// Such a socket is open to every user of the machine, as those of the database servers
// are; the permissions of its directory can restrict that. A socket that a killed process
// left behind is replaced.
//
// An address fd:NAME is a socket that the process was started with, by systemd's
// protocol: its name there, or its number. It stays open while weir is restarted.
//
// With reusePort several processes may listen on one TCP address, and the kernel
// divides connections among them: a new weir can start before the old one ends.
func Listen(address string, reusePort bool) (net.Listener, error) {
	if name, ok := strings.CutPrefix(address, "fd:"); ok {
		return inherited(name)
	}
	if !strings.HasPrefix(address, "/") {
		// Connections inherit these options, so they are set once here.
		lc := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if e := c.Control(func(fd uintptr) { err = prepare(int(fd), reusePort) }); e != nil {
				return e
			}
			return os.NewSyscallError("setsockopt", err)
		}}
		return lc.Listen(context.Background(), "tcp", address)
	}
	ln, err := net.Listen("unix", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		info, statErr := os.Lstat(address)
		if statErr != nil || info.Mode().Type() != os.ModeSocket {
			return nil, err // a file, which would refuse connections as well
		}
		conn, dialErr := net.Dial("unix", address)
		if dialErr == nil {
			_ = conn.Close() // another process listens there
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

// prepare sets the options of a TCP listener: keepalive as in package net.
func prepare(fd int, reusePort bool) error {
	if err := (Keepalive{}).WithDefaults().set(fd); err != nil || !reusePort {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// firstInherited is the number of the first socket that a process is started with:
// see sd_listen_fds(3).
const firstInherited = 3

// inherited returns a socket that the process was started with, by its name or number.
func inherited(name string) (net.Listener, error) {
	if pid := os.Getenv("LISTEN_PID"); pid != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("fd:%s: this process was given no sockets (LISTEN_PID is %q)", name, pid)
	}
	count, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || count < 1 {
		return nil, fmt.Errorf("fd:%s: this process was given no sockets (LISTEN_FDS is %q)", name, os.Getenv("LISTEN_FDS"))
	}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	number := slices.Index(names, name) + firstInherited
	if number < firstInherited {
		if number, err = strconv.Atoi(name); err != nil {
			return nil, fmt.Errorf("fd:%s: the sockets are called %q", name, names)
		}
	}
	if number < firstInherited || number >= firstInherited+count {
		return nil, fmt.Errorf("fd:%s: want %d to %d", name, firstInherited, firstInherited+count-1)
	}
	ln, err := ListenerOf(number, "fd:"+name)
	if err != nil {
		return nil, fmt.Errorf("fd:%s: %w", name, err)
	}
	return ln, nil
}

// Accept passes each client to serve, on a goroutine of its own that background
// waits for, until ctx ends and ln is closed.
func Accept(ctx context.Context, ln net.Listener, log *slog.Logger, background *sync.WaitGroup, serve func(net.Conn)) error {
	var failed int     // attempts since the last client
	var told time.Time // when that was last logged
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			var ne net.Error
			if errors.As(err, &ne) || errors.Is(err, os.ErrDeadlineExceeded) {
				// Most likely there are no file descriptors left: pause, so as not to spin. Clients
				// wait in the socket's queue meanwhile.
				if failed++; time.Since(told) >= tellAcceptEvery {
					told = time.Now()
					log.Error("no client can be accepted: they wait", "error", err, "failed", failed, "hint", acceptHint(err))
				}
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			return fmt.Errorf("accept client: %w", err)
		}
		failed = 0
		background.Go(func() { serve(conn) })
	}
}

// tellAcceptEvery is how often the log says that clients cannot be accepted.
const tellAcceptEvery = 10 * time.Second

// acceptHint says what to do about an error of accept.
func acceptHint(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "raise weir's limit on open files (LimitNOFILE, ulimit -n) above the clients and server connections that it is to have, or lower --max-clients"
	case errors.Is(err, syscall.ENFILE):
		return "raise the system's limit on open files (sysctl fs.file-max)"
	}
	return "see the error; weir tries again ten times a second"
}
