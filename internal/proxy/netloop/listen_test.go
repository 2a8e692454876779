package netloop

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestListenReplacesOnlyAbandonedSockets(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir-") // short: the path of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, ".s.PGSQL.6432")

	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("socket: %v, %v; want it open to all users", info, err)
	}
	if ln, err := Listen(path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listening where somebody lives: %v, %v", ln, err)
	}
	// A process that is killed leaves the file and nobody behind it.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatalf("listening at an abandoned socket: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ln, err := Listen(path); err == nil {
		t.Errorf("listening over a file: %v", ln)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
		t.Errorf("the file: %q, %v", text, err)
	}
}
