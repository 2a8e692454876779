//go:build unix

package sqlite

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/weirdb/weir/outbox"
)

// fileLock is a lock on a file beside the database. The kernel lets go of it
// when the process ends, however it ends.
type fileLock struct{ file *os.File }

// lockFile takes the lock at path without waiting: outbox.ErrHeld if another
// has it. The file stays when the lock goes: to delete it would let two that
// open it at that time lock two different files.
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
		// Somebody has deleted the file meanwhile: the lock is on what is gone.
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("close lock file: %w", err)
		}
	}
}

// holds is nil while the locked file is the one that others find.
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

// Close lets go of the lock.
func (l *fileLock) Close() error { return l.file.Close() }
