package netloop

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// option reads an option of a connection back from the kernel.
func option(t *testing.T, conn net.Conn, level, name int) int {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	var optErr error
	if err := raw.Control(func(fd uintptr) { got, optErr = unix.GetsockoptInt(int(fd), level, name) }); err != nil || optErr != nil {
		t.Fatal(err, optErr)
	}
	return got
}

// Both ends of a connection, the accepted and the dialed one, have what was asked for.
func TestConnectionsProbeTheirPeers(t *testing.T) {
	t.Parallel()
	ln, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	type wanted struct{ on, idle, interval, count, timeout int }
	for _, c := range []struct {
		k    Keepalive
		want wanted
	}{
		{Keepalive{}, wanted{1, 15, 15, 9, 0}},
		{Keepalive{Idle: 90 * time.Second, Interval: 2 * time.Second, Count: 4, UserTimeout: 7 * time.Second}, wanted{1, 90, 2, 4, 7000}},
		{Keepalive{UserTimeout: time.Millisecond}, wanted{1, 15, 15, 9, 1}},
		{Keepalive{Off: true, UserTimeout: time.Second}, wanted{0, -1, -1, -1, 1000}},
	} {
		near, err := c.k.Dial(t.Context(), "tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		far, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.k.Accepted(far); err != nil {
			t.Fatal(err)
		}
		for name, conn := range map[string]net.Conn{"dialed": near, "accepted": far} {
			for _, o := range []struct{ level, name, want int }{
				{unix.SOL_SOCKET, unix.SO_KEEPALIVE, c.want.on},
				{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, c.want.idle},
				{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, c.want.interval},
				{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, c.want.count},
				{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, c.want.timeout},
				{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			} {
				if got := option(t, conn, o.level, o.name); o.want >= 0 && got != o.want {
					t.Errorf("%+v, %s: option %d of level %d is %d, want %d", c.k, name, o.name, o.level, got, o.want)
				}
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A Unix socket has no such options, and a client that is gone is no error.
func TestKeepaliveLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	k := Keepalive{Count: 3, UserTimeout: time.Second}
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	near, err := k.Dial(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = near.Close() }()
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = far.Close() }()
	if err := k.Accepted(far); err != nil {
		t.Error(err)
	}
	for k, want := range map[Keepalive]string{
		{Idle: time.Millisecond}:             "--tcp-keepidle",
		{Interval: 10 * time.Hour}:           "--tcp-keepintvl",
		{Interval: 1500 * time.Millisecond}:  "--tcp-keepintvl",
		{Count: 128}:                         "--tcp-keepcnt",
		{UserTimeout: -1}:                    "--tcp-user-timeout",
		{UserTimeout: 10 * time.Microsecond}: "--tcp-user-timeout",
	} {
		if err := k.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", k, err, want)
		}
	}
}
