package bouncer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/pgbouncer"
)

// sockets are the listening sockets of a proxy, including the Unix socket.
type sockets struct {
	list []core.Socket
	unix *unixSocket // nil: none
}

// listen listens on the addresses that the configuration names. takeOver replaces the Unix
// socket of a process that is still running.
func listen(cfg *pgbouncer.Config, takeOver bool) (s sockets, err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	port := strconv.Itoa(cfg.Number("listen_port"))
	for _, host := range cfg.List("listen_addr") {
		if host == "*" {
			host = ""
		}
		ln, err := listenTCP(net.JoinHostPort(strings.Trim(host, "[]"), port), cfg.On("so_reuseport"), takeOver)
		if err != nil {
			return s, fmt.Errorf("listen_addr: %w", err)
		}
		s.list = append(s.list, core.Socket{Listener: ln})
	}
	if dir := cfg.Text("unix_socket_dir"); dir != "" {
		if s.unix, err = listenUnix(cfg, pgbouncer.Address(dir, cfg.Number("listen_port")), takeOver); err != nil {
			return s, fmt.Errorf("unix_socket_dir: %w", err)
		}
		s.list = append(s.list, core.Socket{Listener: s.unix.Listener, Late: true})
	}
	if len(s.list) == 0 {
		return s, errors.New("there is nothing to listen on: set listen_addr or unix_socket_dir")
	}
	return s, nil
}

// releasePatience is how long the replaced process may take to release its ports.
const releasePatience = 5 * time.Second

func listenTCP(address string, reuse, takeOver bool) (ln net.Listener, err error) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		ln, err = netloop.Listen(address, reuse)
		if !takeOver || !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) > releasePatience {
			return ln, err
		}
	}
}

// close closes all sockets.
func (s *sockets) close() {
	for _, ln := range s.list {
		_ = ln.Close()
	}
	if s.unix != nil {
		s.unix.remove()
	}
}

// A unixSocket is a socket with a path. A process that takes over may replace the path.
type unixSocket struct {
	net.Listener
	path string
	file os.FileInfo
}

func listenUnix(cfg *pgbouncer.Config, path string, takeOver bool) (*unixSocket, error) {
	at := path
	if takeOver {
		at = filepath.Join(filepath.Dir(path), ".weir."+strconv.Itoa(os.Getpid()))
	}
	ln, err := net.Listen("unix", at)
	if errors.Is(err, syscall.EADDRINUSE) && !lives(at) {
		if err := os.Remove(at); err != nil {
			return nil, fmt.Errorf("remove abandoned socket: %w", err)
		}
		ln, err = net.Listen("unix", at)
	}
	if err != nil {
		return nil, err
	}
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	s := &unixSocket{Listener: ln, path: path}
	if err := s.open(cfg, at); err != nil {
		_ = ln.Close()
		_ = os.Remove(at)
		return nil, err
	}
	return s, nil
}

// open sets the socket's permissions and moves it to its path.
func (s *unixSocket) open(cfg *pgbouncer.Config, at string) (err error) {
	if name := cfg.Text("unix_socket_group"); name != "" {
		g, err := user.LookupGroup(name)
		if err != nil {
			return fmt.Errorf("unix_socket_group: %w", err)
		}
		gid, err := strconv.Atoi(g.Gid)
		if err != nil {
			return fmt.Errorf("unix_socket_group: %w", err)
		}
		if err := os.Chown(at, -1, gid); err != nil {
			return fmt.Errorf("unix_socket_group: %w", err)
		}
	}
	if err := os.Chmod(at, os.FileMode(cfg.Number("unix_socket_mode"))&os.ModePerm); err != nil {
		return err
	}
	if at != s.path {
		if err := os.Rename(at, s.path); err != nil {
			return err
		}
	}
	s.file, err = os.Lstat(s.path)
	return err
}

// remove removes the path if it still belongs to this socket.
func (s *unixSocket) remove() {
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.file) {
		_ = os.Remove(s.path)
	}
}

// lives reports whether a process listens on a Unix socket, or the path is not a socket.
func lives(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return true
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED)
}
