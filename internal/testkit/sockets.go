package testkit

import (
	"net"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// socketOption returns the values of an option of this process's TCP sockets for which match,
// given the addresses of both ends, returns true.
func socketOption(tb testing.TB, match func(local, peer string) bool, level, name int) (values []int) {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			tb.Fatal(err)
		}
		// Other tests open and close descriptors meanwhile, and most are not sockets.
		local, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		peer, err := unix.Getpeername(fd)
		if err != nil || !match(hostPort(local), hostPort(peer)) {
			continue
		}
		v, err := unix.GetsockoptInt(fd, level, name)
		if err != nil {
			tb.Fatalf("option %d of level %d: %v", name, level, err)
		}
		values = append(values, v)
	}
	return values
}

// KeepaliveIs checks that the TCP sockets of each side probe silent peers after idle seconds,
// every interval seconds, count times, and that they have the given user timeout in
// milliseconds.
func KeepaliveIs(tb testing.TB, sides map[string]func(local, peer string) bool, idle, interval, count, userTimeout int) {
	tb.Helper()
	for side, match := range sides {
		for _, o := range []struct{ level, name, want int }{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, idle},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, interval},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, count},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeout},
		} {
			got := socketOption(tb, match, o.level, o.name)
			if len(got) == 0 {
				tb.Errorf("%s: no connection", side)
			}
			for _, v := range got {
				if v != o.want {
					tb.Errorf("%s: option %d of level %d is %d, want %d", side, o.name, o.level, v, o.want)
				}
			}
		}
	}
}

func hostPort(a unix.Sockaddr) string {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return net.JoinHostPort(net.IP(a.Addr[:]).String(), strconv.Itoa(a.Port))
	case *unix.SockaddrInet6:
		return net.JoinHostPort(net.IP(a.Addr[:]).String(), strconv.Itoa(a.Port))
	}
	return ""
}
