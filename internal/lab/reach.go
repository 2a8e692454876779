package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// within returns a path at which the server's user can read path, a program or a directory of
// files: path itself, or a copy in the run directory if path is in a home directory that others
// cannot enter.
func (b *broker) within(path string) (string, error) {
	if b.as.reaches(path) {
		return path, nil
	}
	to := filepath.Join(b.dir.path, "copy-of-"+filepath.Base(path))
	if isFile(path) {
		return to, copyReadable(path, to)
	}
	if err := errors.Join(os.Mkdir(to, 0o755), os.Chmod(to, 0o755)); err != nil { // regardless of the umask
		return "", fmt.Errorf("copy %s: %w", filepath.Base(path), err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", fmt.Errorf("copy %s: %w", filepath.Base(path), err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := copyReadable(filepath.Join(path, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return "", err
		}
	}
	return to, nil
}

// copyReadable copies a file for everyone to read and execute. It stays owned by this process's
// user, so that the server's user cannot change it.
func copyReadable(src, dst string) error {
	// A child forked in the meantime has the copy open for writing until it calls exec, and a
	// file that is open for writing cannot be executed.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	err := copyFile(src, dst, 0o755, nil)
	if err == nil {
		err = os.Chmod(dst, 0o755)
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", filepath.Base(src), err)
	}
	return nil
}

// reaches reports whether the identity can reach path and read it, following links. For a nil
// identity it returns true: this process gets its own errors.
func (i *identity) reaches(path string) bool {
	if i == nil {
		return true
	}
	target, err := filepath.EvalSymlinks(path)
	return err == nil && i.passes(path) && (target == path || i.passes(target))
}

// passes is reaches without following links.
func (i *identity) passes(path string) bool {
	if !i.may(path, 4) {
		return false
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if !i.may(dir, 1) {
			return false
		}
		if dir == "/" || dir == "." {
			return true
		}
	}
}

// may reports whether the identity has a permission (4 read, 1 search or execute). Root's
// servers have no groups except that of their user.
func (i *identity) may(path string, permission fs.FileMode) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return false
	case st.Uid == i.uid:
		permission <<= 6
	case st.Gid == i.gid:
		permission <<= 3
	}
	return info.Mode().Perm()&permission != 0
}
