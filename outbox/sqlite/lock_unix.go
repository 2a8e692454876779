//go:build unix

package sqlite

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/weirdb/weir/outbox"
)

// fileLock is a lock on a file next to the database. The kernel releases it when the process
// ends.
type fileLock struct{ file *os.File }

// lockFile takes the lock at path without waiting; it returns outbox.ErrHeld if it is taken. The
// file is not deleted with the lock: otherwise two processes could lock two different files.
func lockFile(path string) (*fileLock, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open lock file: %w", err)
		}
		l := &fileLock{f}
		for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(outbox.ErrHeld, f.Close())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if l.check() == nil {
			return l, nil
		}
		// The file was deleted meanwhile: the lock is on the old file.
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("close lock file: %w", err)
		}
	}
}

// check returns an error if the locked file is not the one at the path.
func (l *fileLock) check() error {
	mine, err := l.file.Stat()
	if err != nil {
		return err
	}
	theirs, err := os.Stat(l.file.Name())
	if err != nil {
		return err
	}
	if !os.SameFile(mine, theirs) {
		return errors.New("the lock file has been replaced")
	}
	return nil
}

// Close releases the lock.
func (l *fileLock) Close() error { return l.file.Close() }
