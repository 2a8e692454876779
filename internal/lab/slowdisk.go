package lab

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

//go:embed shim/fsyncdelay.c
var shimSource []byte

// flushCountFile is the file in the run directory whose first eight bytes count
// the server's flushes.
const flushCountFile = "flushes"

// watchDisk installs the shim into dir, where the server's user can read it, and returns the
// environment that loads it. owner is the server's user.
func watchDisk(ctx context.Context, dir string, watch diskWatch, owner *identity) ([]string, error) {
	built, err := buildShim(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("slow disk: %w", err)
	}
	shim := filepath.Join(dir, "fsyncdelay.so")
	if built != shim {
		if err := copyFile(built, shim, 0o644, nil); err != nil {
			return nil, fmt.Errorf("slow disk: place shim: %w", err)
		}
	}
	if err := os.Chmod(shim, 0o644); err != nil {
		return nil, fmt.Errorf("slow disk: place shim: %w", err)
	}
	env := []string{
		"LD_PRELOAD=" + shim,
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
	if cache, err := cacheDir(); err == nil && isFile(shimFile(cache)) {
		return true
	}
	_, err := findCompiler()
	return err == nil
}

// shimFile is the path of the shim in the cache.
func shimFile(cache string) string {
	sum := sha256.Sum256(shimSource)
	return filepath.Join(cache, "fsyncdelay-"+hex.EncodeToString(sum[:6])+".so")
}

// buildShim compiles the shim once per source and keeps it in the cache, or in dir if there is
// no cache.
func buildShim(ctx context.Context, dir string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		out := filepath.Join(dir, "fsyncdelay.so")
		return out, compileShim(ctx, dir, out)
	}
	out := shimFile(cache)
	if isFile(out) {
		return out, nil
	}
	unlock, err := lockFile(ctx, out+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if isFile(out) {
		return out, nil
	}
	if err := compileShim(ctx, dir, out+".part"); err != nil {
		return "", err
	}
	if err := os.Rename(out+".part", out); err != nil {
		return "", fmt.Errorf("keep shim: %w", err)
	}
	return out, nil
}

func compileShim(ctx context.Context, dir, out string) error {
	cc, err := findCompiler()
	if err != nil {
		return err
	}
	src := filepath.Join(dir, "fsyncdelay.c")
	if err := os.WriteFile(src, shimSource, 0o600); err != nil {
		return fmt.Errorf("write shim: %w", err)
	}
	_, err = runCommand(ctx, command{
		path: cc, args: []string{"-shared", "-fPIC", "-O2", "-Wall", "-o", out, src, "-ldl"}, dir: dir,
	})
	if err != nil {
		return fmt.Errorf("compile shim: %w", err)
	}
	return nil
}

func findCompiler() (string, error) {
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no C compiler (cc, gcc or clang) in the PATH; install one with: apt-get install gcc libc6-dev")
}
