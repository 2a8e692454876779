package archive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CreateFile begins a backup as a tar stream in a file. The file gets its name, durably, when
// the backup is complete. end must be called once.
func CreateFile(ctx context.Context, path string, opts Options) (_ *Writer, end func(whole bool) error, err error) {
	f, err := openPart(path + ".part")
	if err != nil {
		return nil, nil, fmt.Errorf("create stream: %w", err)
	}
	drop := func() error { return errors.Join(os.Remove(f.Name()), f.Close()) } // the name first: closing releases the lock
	w, err := CreateStream(ctx, f, opts)
	if err != nil {
		return nil, nil, errors.Join(err, drop())
	}
	return w, func(whole bool) error {
		if !whole {
			return drop()
		}
		err := f.Sync()
		if err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("finish stream: %w", err), drop())
		}
		if err := errors.Join(f.Close(), syncDir(filepath.Dir(path))); err != nil {
			return fmt.Errorf("finish stream: %w", err)
		}
		return nil
	}, nil
}

// openPart opens a file for this process alone, and truncates it: what a killed backup left is
// overwritten, but not what a running backup writes.
func openPart(name string) (_ *os.File, err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another backup writes %s: %w", name, err)
	}
	// Another backup may have held the lock, and given the file its final name meanwhile.
	ours, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if named, err := os.Lstat(name); err != nil || !os.SameFile(ours, named) {
		return nil, fmt.Errorf("another backup has just ended with %s: try again", name)
	}
	return f, f.Truncate(0)
}
