package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// A place is the Unix socket to which the next process connects. Another process may
// replace it.
type place struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// occupy listens at a path, accessible to this user only, replacing a process that already
// does so.
func occupy(path string) (*place, error) {
	at := filepath.Join(filepath.Dir(path), ".weir."+strconv.Itoa(os.Getpid()))
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	p := &place{UnixListener: ln, path: path}
	if p.file, err = reserve(at, path); err != nil {
		return nil, errors.Join(err, ln.Close(), os.Remove(at))
	}
	return p, nil
}

// reserve makes a socket accessible to this user only and moves it to its path.
func reserve(at, path string) (os.FileInfo, error) {
	if err := os.Chmod(at, 0o600); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s is no socket", path)
	}
	file, err := os.Lstat(at)
	if err != nil {
		return nil, err
	}
	return file, os.Rename(at, path)
}

// leave stops listening, and removes the path if it still belongs to this process.
func (p *place) leave() {
	_ = p.Close()
	if now, err := os.Lstat(p.path); err == nil && os.SameFile(now, p.file) {
		_ = os.Remove(p.path)
	}
}

// noListener reports whether an error of dialing means that no process listens there.
func noListener(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}
