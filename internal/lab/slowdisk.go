package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// flushCountFile is the file in the run directory whose first eight bytes count
// the server's flushes.
const flushCountFile = "flushes"

// watchDisk installs the shim into dir, where the server's user can read it, and returns the
// environment that loads it. owner is the server's user.
func watchDisk(ctx context.Context, dir string, watch diskWatch, owner *identity) ([]string, error) {
	preload, err := fsyncDelay.place(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("slow disk: %w", err)
	}
	env := []string{
		preload,
		"WEIR_FSYNC_LATENCY_US=" + strconv.FormatInt(watch.latency.Microseconds(), 10),
	}
	if watch.count {
		path := filepath.Join(dir, flushCountFile)
		if err := os.WriteFile(path, make([]byte, 8), 0o600); err != nil {
			return nil, fmt.Errorf("count flushes: %w", err)
		}
		if err := owner.chown(path); err != nil {
			return nil, fmt.Errorf("count flushes: %w", err)
		}
		env = append(env, "WEIR_FSYNC_COUNT="+path)
	}
	return env, nil
}

// Flushes is how often the server, with all its processes, has asked the disk to flush since it
// was started. The error is errors.ErrUnsupported for a server without CountFlushes.
func (s *server) Flushes() (uint64, error) {
	b, err := os.ReadFile(filepath.Join(s.dir.path, flushCountFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errors.ErrUnsupported
	}
	if err != nil {
		return 0, fmt.Errorf("read flush count: %w", err)
	}
	if len(b) < 8 {
		return 0, fmt.Errorf("read flush count: the file holds %d bytes", len(b))
	}
	return binary.NativeEndian.Uint64(b), nil
}

// WatchesDisks reports whether servers can be started with FsyncLatency and CountFlushes here:
// the first use needs a C compiler.
func WatchesDisks() bool {
	if cache, err := cacheDir(); err == nil && isFile(fsyncDelay.file(cache)) {
		return true
	}
	_, err := findCompiler()
	return err == nil
}
