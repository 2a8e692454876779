package proxyproto_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/wire/proxyproto"
)

const signature = "\r\n\r\n\x00\r\nQUIT\n"

// v2 makes a header of version 2.
func v2(command, family byte, body string) string {
	return signature + string([]byte{0x20 | command, family, byte(len(body) >> 8), byte(len(body))}) + body
}

const (
	v4 = "\xc0\x00\x02\x01" + "\xc0\x00\x02\x02" + "\xdc\x04" + "\x01\xbb"
	v6 = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02" + "\xdc\x04" + "\x01\xbb"
)

func TestRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, header, want, err string }{
		{"v1 IPv4", "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n", "192.0.2.1:56324", ""},
		{"v1 IPv6", "PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n", "[2001:db8::1]:56324", ""},
		{"v1 unknown", "PROXY UNKNOWN\r\n", "", ""},
		{"v1 unknown with addresses", "PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "", ""},
		{"v2 IPv4", v2(1, 0x11, v4), "192.0.2.1:56324", ""},
		{"v2 IPv4 with TLVs", v2(1, 0x11, v4+"\x04\x00\x02ab"), "192.0.2.1:56324", ""},
		{"v2 IPv6", v2(1, 0x21, v6), "[2001:db8::1]:56324", ""},
		{"v2 local", v2(0, 0, ""), "", ""},
		{"v2 local with an address", v2(0, 0x11, v4), "", ""},
		{"v2 Unix", v2(1, 0x31, strings.Repeat("\x00", 216)), "", ""},

		{"a client of PostgreSQL", "\x00\x00\x00\x08\x04\xd2\x16\x2f", "", "there is none"},
		{"HTTP", "POST / HTTP/1.1\r\n\r\n", "", "there is none"},
		{"nothing", "", "", "EOF"},
		{"v1 cut", "PROXY TCP4 192.0.2.1", "", "unexpected EOF"},
		{"v1 no port", "PROXY TCP4 192.0.2.1 192.0.2.2\r\n", "", "malformed line"},
		{"v1 port", "PROXY TCP4 192.0.2.1 192.0.2.2 70000 443\r\n", "", "malformed client port"},
		{"v1 family", "PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n", "", "malformed client address"},
		{"v1 endless", "PROXY " + strings.Repeat("x", 200), "", "too long"},
		{"v2 cut", signature + "\x21", "", "unexpected EOF"},
		{"v2 addresses cut", v2(1, 0x11, v4[:8]), "", "cut short"},
		{"v2 IPv6 cut", v2(1, 0x21, v4), "", "cut short"},
		{"v2 version", signature + "\x31\x11\x00\x00", "", "version 3"},
		{"v2 command", v2(2, 0x11, v4), "", "unknown command 2"},
		{"v2 endless", signature + "\x21\x11\xff\xff", "", "65535 bytes"},
		{"not v2", "\r\n\r\n\x00\r\nQUIX\n\x21\x11\x00\x00", "", "there is none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rest := ""
			if tt.err == "" {
				rest = "startup"
			}
			r := bytes.NewReader([]byte(tt.header + rest))
			got, err := proxyproto.Read(r)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("read %v, %v, want error %q", got, err, tt.err)
				}
				return
			}
			if err != nil || got.IsValid() != (tt.want != "") || got.IsValid() && got.String() != tt.want {
				t.Errorf("read %v, %v, want %q", got, err, tt.want)
			}
			if left, _ := io.ReadAll(r); string(left) != rest {
				t.Errorf("left %q of what the client sent", left)
			}
		})
	}
}

func TestParseTrusted(t *testing.T) {
	t.Parallel()
	trusted, err := proxyproto.ParseTrusted("10.1.2.3/8, 192.0.2.7,2001:db8::/32")
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"10.200.0.1": true, "192.0.2.7": true, "192.0.2.8": false, "::ffff:10.0.0.1": true, "2001:db8::9": true, "127.0.0.1": false,
	} {
		if got := trusted.Contains(net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 1))); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	if trusted.Contains(&net.UnixAddr{Name: "/x"}) {
		t.Error("a Unix socket is trusted unasked")
	}
	if unix, err := proxyproto.ParseTrusted("unix"); err != nil || !unix.Contains(&net.UnixAddr{}) || unix.Contains(&net.TCPAddr{IP: net.IPv4(1, 2, 3, 4)}) {
		t.Errorf("unix: %v, %v", unix, err)
	}
	if _, err := proxyproto.ParseTrusted("balancer.example"); err == nil || !strings.Contains(err.Error(), "balancer.example") {
		t.Errorf("a name: %v", err)
	}
}

// pair connects a client with a server over network and has the client send.
func pair(t *testing.T, network, address, send string) net.Conn {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial(network, ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if _, err := io.WriteString(client, send); err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server
}

func TestAccept(t *testing.T) {
	t.Parallel()
	trusted, err := proxyproto.ParseTrusted("127.0.0.0/8,unix")
	if err != nil {
		t.Fatal(err)
	}
	header := v2(1, 0x11, v4)
	for _, network := range []string{"tcp", "unix"} {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(t.TempDir(), "s")
		}
		conn, err := trusted.Accept(t.Context(), pair(t, network, address, header+"hello"), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.RemoteAddr().String(); got != "192.0.2.1:56324" {
			t.Errorf("%s: the client's address is %s", network, got)
		}
		hello := make([]byte, 5)
		if _, err := io.ReadFull(conn, hello); err != nil || string(hello) != "hello" {
			t.Errorf("%s: read %q, %v", network, hello, err)
		}
	}

	other := pair(t, "tcp", "127.0.0.1:0", header)
	elsewhere, err := proxyproto.ParseTrusted("10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := elsewhere.Accept(t.Context(), other, time.Minute); err != nil || conn != other {
		t.Errorf("from elsewhere: %v, %v", conn, err)
	}
	if conn, err := trusted.Accept(t.Context(), pair(t, "tcp", "127.0.0.1:0", v2(0, 0, "")), time.Minute); err != nil || !strings.HasPrefix(conn.RemoteAddr().String(), "127.") {
		t.Errorf("a health check: %v, %v", conn, err)
	}
	if _, err := trusted.Accept(t.Context(), pair(t, "tcp", "127.0.0.1:0", "\x00\x00\x00\x08"), time.Minute); !errors.Is(err, proxyproto.ErrNoHeader) {
		t.Errorf("no header: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := trusted.Accept(ctx, pair(t, "tcp", "127.0.0.1:0", "PROXY "), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a peer that stops within the header: %v", err)
	}
}

// A balancer's Unix socket proves the balancer's user, and its loopback address is
// not that of this machine: a client behind it must not pass for either.
func TestClientsBehindABalancerAreNotTheBalancer(t *testing.T) {
	t.Parallel()
	trusted := proxyproto.Trusted{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24"), netip.Prefix{}}
	for _, header := range []string{"PROXY UNKNOWN\r\n", v2(0, 0, ""), v2(1, 0, ""), v2(1, 0x11, v4)} {
		conn, err := trusted.Accept(t.Context(), pair(t, "unix", filepath.Join(t.TempDir(), "s"), header), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := conn.(*net.UnixConn); ok {
			t.Errorf("%q: the connection is the balancer's own Unix socket", header)
		}
	}

	for from, local := range map[string]bool{"127.0.0.1": true, "192.0.2.1": false} {
		addr := proxyproto.ClientAddr(netip.MustParseAddrPort("127.0.0.1:56324"), &net.TCPAddr{IP: net.ParseIP(from), Port: 1})
		if _, ok := addr.(*net.TCPAddr); ok != local || addr.String() != "127.0.0.1:56324" {
			t.Errorf("from %s: %T %v, want a loopback address of this machine: %v", from, addr, addr, local)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n", "PROXY UNKNOWN\r\n", v2(1, 0x11, v4), v2(1, 0x21, v6), v2(0, 0, "")} {
		f.Add([]byte(s + "rest"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		addr, err := proxyproto.Read(r)
		if err != nil && addr.IsValid() {
			t.Fatalf("address %v with error %v", addr, err)
		}
		if err == nil && len(b)-r.Len() < len("PROXY UNKNOWN\r\n") {
			t.Fatalf("a header of %d bytes", len(b)-r.Len())
		}
	})
}
