package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// dataTemplate is how to make the data directories of one build of a server.
type dataTemplate struct {
	name string // prefix of the golden directory's name: "postgres-15.18"
	key  string // everything else that the content depends on, such as the build
	make func(ctx context.Context, dst string, as *identity) error
	// own are the files that identify a server, relative to the data directory. Copies leave
	// them out, and the server makes new ones.
	own []string
}

// initData fills the empty directory dst with an initialised data directory: a copy of the
// cached one of this build (80 ms for PostgreSQL), or, if there can be no cache, a new one (500
// ms and more).
func initData(ctx context.Context, c dataTemplate, dst string, as *identity, d Durability, fresh bool) error {
	if !fresh {
		golden, err := goldenData(ctx, c, filepath.Dir(dst), as)
		if err == nil {
			// No holes if a test has named the place: on a small disk that fills up, the
			// server's log must have its blocks allocated, as initdb leaves it.
			err = copyTree(ctx, golden, dst, as, d == Fast && os.Getenv("WEIR_LAB_DIR") == "")
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		// A failing cache (read-only home, full disk) only costs time; a half-copied directory
		// must not be mistaken for a complete one.
		if err := clearDir(dst); err != nil {
			return err
		}
	}
	return c.initialise(ctx, dst, as)
}

func (c dataTemplate) initialise(ctx context.Context, dst string, as *identity) error {
	if err := c.make(ctx, dst, as); err != nil {
		return fmt.Errorf("initialise data directory: %w", err)
	}
	return nil
}

// goldenData returns the cached data directory of this build, and makes it if there is none.
// scratch is a directory that the server's user can reach.
func goldenData(ctx context.Context, c dataTemplate, scratch string, as *identity) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	golden := filepath.Join(cache, c.goldenName())
	if isDir(golden) {
		return golden, nil
	}
	unlock, err := lockFile(ctx, golden+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(golden) { // made by another process while this one waited
		return golden, nil
	}
	made, err := os.MkdirTemp(scratch, "init-")
	if err != nil {
		return "", fmt.Errorf("create golden data directory: %w", err)
	}
	defer os.RemoveAll(made)
	if err := as.chown(made); err != nil {
		return "", fmt.Errorf("hand over golden data directory: %w", err)
	}
	if err := c.initialise(ctx, made, as); err != nil {
		return "", err
	}
	for _, name := range c.own {
		if err := os.Remove(filepath.Join(made, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("make data directory anonymous: %w", err)
		}
	}
	// Copied instead of moved: the cache may be on another file system, and belongs to the
	// owner of this process.
	part := golden + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", fmt.Errorf("clear golden data directory: %w", err)
	}
	if err := os.Mkdir(part, 0o700); err != nil {
		return "", fmt.Errorf("create golden data directory: %w", err)
	}
	if err := copyTree(ctx, made, part, nil, true); err != nil {
		return "", err
	}
	if err := os.Rename(part, golden); err != nil {
		return "", fmt.Errorf("keep golden data directory: %w", err)
	}
	return golden, nil
}

// goldenName names the cached directory after everything that it depends on.
func (c dataTemplate) goldenName() string {
	sum := sha256.Sum256([]byte(c.key))
	return fmt.Sprintf("%s-%s", c.name, hex.EncodeToString(sum[:6]))
}

// lockFile takes an exclusive lock, and waits for it until ctx ends.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			_ = f.Close()
			return nil, fmt.Errorf("wait for lock: %w", context.Cause(ctx))
		case <-t.C:
		}
	}
}

// copyFile shares the blocks if the file system can, else it copies them inside the kernel.
func copyFile(src, dst string, mode os.FileMode, as *identity) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		_, err = io.Copy(out, in)
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return as.chown(dst)
}

func clearDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("clear directory: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("clear directory: %w", err)
		}
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
