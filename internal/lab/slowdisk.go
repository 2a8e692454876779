package lab

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

//go:embed shim/fsyncdelay.c
var shimSource []byte

// slowDisk puts the shim into dir, where the server's user can read it, and
// returns the environment that loads it. latency must be at least 1 µs.
func slowDisk(ctx context.Context, dir string, latency time.Duration) ([]string, error) {
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
	return []string{
		"LD_PRELOAD=" + shim,
		"WEIR_FSYNC_LATENCY_US=" + strconv.FormatInt(latency.Microseconds(), 10),
	}, nil
}

// buildShim compiles the shim once per source and keeps it in the cache; when
// there is no cache, into dir.
func buildShim(ctx context.Context, dir string) (string, error) {
	sum := sha256.Sum256(shimSource)
	cache, err := cacheDir()
	if err != nil {
		out := filepath.Join(dir, "fsyncdelay.so")
		return out, compileShim(ctx, dir, out)
	}
	out := filepath.Join(cache, "fsyncdelay-"+hex.EncodeToString(sum[:6])+".so")
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
