package netloop

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

	first, err := Listen(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("socket: %v, %v; want it open to all users", info, err)
	}
	if ln, err := Listen(path, false); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listening where somebody lives: %v, %v", ln, err)
	}
	// A process that is killed leaves the socket's file without a listener.
	NewPausable(first).KeepsPath(true)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, false)
	if err != nil {
		t.Fatalf("listening at an abandoned socket: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ln, err := Listen(path, false); err == nil {
		t.Errorf("listening over a file: %v", ln)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
		t.Errorf("the file: %q, %v", text, err)
	}
}

func TestListenSharesAPort(t *testing.T) {
	t.Parallel()
	first, err := Listen("127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := Listen(first.Addr().String(), true)
	if err != nil {
		t.Fatalf("the second on one port: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if ln, err := Listen(first.Addr().String(), false); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("one that shares nothing: %v, %v", ln, err)
	}
}

// The process is given a socket, as by systemd, and answers on it.
func TestListenTakesSocketsOfSystemd(t *testing.T) {
	if name := os.Getenv("WEIR_TEST_LISTEN"); name != "" { // the process that is started below
		ln, err := Listen(name, false)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(conn.Close(), ln.Close()); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, name := range []string{"fd:postgres", "fd:4"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		socket, err := ln.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		// LISTEN_PID is known to the process alone.
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" -test.run '^TestListenTakesSocketsOfSystemd$'`, os.Args[0])
		cmd.Env = append(os.Environ(), "WEIR_TEST_LISTEN="+name, "LISTEN_FDS=2", "LISTEN_FDNAMES=other:postgres")
		cmd.ExtraFiles = []*os.File{null, socket}
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", ln.Addr().String()) // waits in the socket until it is accepted
		if err != nil {
			t.Fatal(err)
		}
		hello, err := io.ReadAll(conn)
		if waited := cmd.Wait(); waited != nil || err != nil || string(hello) != "hello" {
			t.Errorf("%s: said %q, %v; %v\n%s", name, hello, err, waited, out.String())
		}
		if err := errors.Join(conn.Close(), ln.Close(), socket.Close(), null.Close()); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]string{"fd:postgres": "no sockets", "fd:3": "no sockets"} {
		if _, err := Listen(name, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s in a process that was given none: %v", name, err)
		}
	}
	t.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("LISTEN_FDS", "1")
	for name, want := range map[string]string{"fd:other": "are called", "fd:2": "want 3 to 3", "fd:4": "want 3 to 3"} {
		if _, err := Listen(name, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
