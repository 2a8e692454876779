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
)

// shim is a library to preload under a server. It is compiled on its first use.
type shim struct {
	name   string
	source []byte
}

//go:embed shim/fsyncdelay.c
var fsyncDelaySource []byte

//go:embed shim/quickexit.c
var quickExitSource []byte

var (
	fsyncDelay = shim{"fsyncdelay", fsyncDelaySource}
	quickExit  = shim{"quickexit", quickExitSource}
)

// place copies the library into dir, where the server's user can read it, and returns the setting
// of the environment that preloads it.
func (s shim) place(ctx context.Context, dir string) (string, error) {
	built, err := s.build(ctx, dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, s.name+".so")
	if built != path {
		if err := copyFile(built, path, 0o644, nil); err != nil {
			return "", fmt.Errorf("place shim: %w", err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		return "", fmt.Errorf("place shim: %w", err)
	}
	return "LD_PRELOAD=" + path, nil
}

// file is the path of the library in the cache.
func (s shim) file(cache string) string {
	sum := sha256.Sum256(s.source)
	return filepath.Join(cache, s.name+"-"+hex.EncodeToString(sum[:6])+".so")
}

// build compiles the library once per source and keeps it in the cache, or in dir if there is no
// cache.
func (s shim) build(ctx context.Context, dir string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		out := filepath.Join(dir, s.name+".so")
		return out, s.compile(ctx, dir, out)
	}
	out := s.file(cache)
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
	if err := s.compile(ctx, dir, out+".part"); err != nil {
		return "", err
	}
	if err := os.Rename(out+".part", out); err != nil {
		return "", fmt.Errorf("keep shim: %w", err)
	}
	return out, nil
}

func (s shim) compile(ctx context.Context, dir, out string) error {
	cc, err := findCompiler()
	if err != nil {
		return err
	}
	src := filepath.Join(dir, s.name+".c")
	if err := os.WriteFile(src, s.source, 0o600); err != nil {
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
