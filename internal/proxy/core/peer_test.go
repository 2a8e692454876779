package core_test

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/weirdb/weir/internal/proxy/core"
)

// accepted returns the server's end of a connection over network.
func accepted(t *testing.T, network, address string) net.Conn {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	client, err := net.Dial(network, ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// elsewhere is a connection from another address.
type elsewhere struct{ net.Conn }

func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

func TestMayBorrow(t *testing.T) {
	t.Parallel()
	unix, loopback := accepted(t, "unix", filepath.Join(t.TempDir(), "s")), accepted(t, "tcp", "127.0.0.1:0")
	for _, test := range []struct {
		name           string
		conn           net.Conn
		plain, trusted bool
	}{
		{"the same user's process over a Unix socket", unix, true, true},
		{"a loopback address", loopback, false, true},
		{"another address", elsewhere{loopback}, false, false},
	} {
		if got := core.MayBorrow(test.conn, false); got != test.plain {
			t.Errorf("%s: %v, want %v", test.name, got, test.plain)
		}
		if got := core.MayBorrow(test.conn, true); got != test.trusted {
			t.Errorf("%s, with loopback trusted: %v, want %v", test.name, got, test.trusted)
		}
	}
}
