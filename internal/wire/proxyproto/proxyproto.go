// Package proxyproto reads the header of the PROXY protocol, versions 1 and 2, in which a load
// balancer names the client of a connection. The format is that of
// https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
package proxyproto

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// Trusted are the networks of trusted balancers. A connection from one of them must begin with
// a header. Connections from elsewhere are not examined.
type Trusted []netip.Prefix

// ParseTrusted parses networks in CIDR notation or single addresses, separated by commas.
// "unix" stands for connections over Unix sockets.
func ParseTrusted(s string) (Trusted, error) {
	var list Trusted
	for one := range strings.SplitSeq(s, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		if one == "unix" {
			list = append(list, netip.Prefix{})
			continue
		}
		if a, err := netip.ParseAddr(one); err == nil {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(one)
		if err != nil {
			return nil, fmt.Errorf("%q: want an address, a network such as 10.0.0.0/8, or unix", one)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

// Contains reports whether connections from an address must begin with a header.
func (t Trusted) Contains(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		ip := a.AddrPort().Addr().Unmap()
		for _, p := range t {
			if p.IsValid() && p.Contains(ip) {
				return true
			}
		}
	case *net.UnixAddr:
		for _, p := range t {
			if !p.IsValid() {
				return true
			}
		}
	}
	return false
}

// Accept reads the header of a connection from one of the networks, and nothing after it. The
// connection that it returns has the client's address; that of a balancer's own health check
// keeps its own. Connections from elsewhere are returned unchanged.
func (t Trusted) Accept(ctx context.Context, conn net.Conn, timeout time.Duration) (net.Conn, error) {
	if len(t) == 0 || !t.Contains(conn.RemoteAddr()) {
		return conn, nil
	}
	release := netwire.Bound(ctx, conn, timeout)
	client, err := Read(conn)
	if err = release(err); err != nil {
		return nil, fmt.Errorf("PROXY header of %s: %w", conn.RemoteAddr(), err)
	}
	addr := conn.RemoteAddr()
	if client.IsValid() {
		addr = clientAddr(client, addr)
	}
	switch conn := conn.(type) {
	case *net.TCPConn:
		return &tcpConn{conn, addr}, nil
	case *net.UnixConn:
		// Not as a Unix socket, even if the header names no client: the peer is the balancer
		// and not the client.
		return &unixConn{conn, addr}, nil
	}
	return nil, fmt.Errorf("PROXY header of %s: not a TCP or Unix connection", conn.RemoteAddr())
}

// clientAddr returns the address of the client that the balancer at from names.
func clientAddr(client netip.AddrPort, from net.Addr) net.Addr {
	addr := net.TCPAddrFromAddrPort(client)
	if b, ok := from.(*net.TCPAddr); ok && client.Addr().IsLoopback() && !b.IP.IsLoopback() {
		return foreignAddr{addr}
	}
	return addr
}

// foreignAddr is a loopback address on another machine, the balancer's. It is not a
// *net.TCPAddr, so that it is not mistaken for one of this machine.
type foreignAddr struct{ net.Addr }

// tcpConn is a TCP connection with the address of the client behind the balancer.
type tcpConn struct {
	*net.TCPConn
	client net.Addr
}

func (c *tcpConn) RemoteAddr() net.Addr { return c.client }

// unixConn is the same for a Unix socket.
type unixConn struct {
	*net.UnixConn
	client net.Addr
}

func (c *unixConn) RemoteAddr() net.Addr { return c.client }

// ErrNoHeader says that a trusted peer did not send a header.
var ErrNoHeader = errors.New("there is none: the balancer must send it (send-proxy or send-proxy-v2), or is not to be listed as one that does")

// signature begins a header of version 2.
const signature = "\r\n\r\n\x00\r\nQUIT\n"

const (
	maxV1 = 107     // length of a line with its end, by the specification
	maxV2 = 4 << 10 // length of addresses and TLVs; the format allows 64 KiB
)

// Read reads a header and nothing after it. It returns the client's address, or the zero value
// if the balancer speaks for itself or does not name a client.
func Read(r io.Reader) (netip.AddrPort, error) {
	var first [1]byte
	if _, err := io.ReadFull(r, first[:]); err != nil {
		return netip.AddrPort{}, err
	}
	switch first[0] {
	case 'P':
		return readV1(r)
	case signature[0]:
		return readV2(r)
	}
	return netip.AddrPort{}, ErrNoHeader
}

// readV1 reads the rest of "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n". It reads byte by
// byte, once per connection, to leave the client's first bytes unread.
func readV1(r io.Reader) (netip.AddrPort, error) {
	line := []byte{'P'}
	for !bytes.HasSuffix(line, []byte("\r\n")) {
		if len(line) == maxV1 {
			return netip.AddrPort{}, errors.New("version 1: the line is too long")
		}
		line = append(line, 0)
		if _, err := io.ReadFull(r, line[len(line)-1:]); err != nil {
			return netip.AddrPort{}, netwire.UnexpectedEOF(err)
		}
		if n := min(len(line), len("PROXY ")); string(line[:n]) != "PROXY "[:n] {
			return netip.AddrPort{}, ErrNoHeader
		}
	}
	fields := strings.Split(strings.TrimSuffix(string(line), "\r\n"), " ")
	if len(fields) >= 2 && fields[1] == "UNKNOWN" {
		return netip.AddrPort{}, nil
	}
	if len(fields) != 6 || (fields[1] != "TCP4" && fields[1] != "TCP6") {
		return netip.AddrPort{}, fmt.Errorf("version 1: malformed line %q", line)
	}
	addr, err := netip.ParseAddr(fields[2])
	if err != nil || addr.Is4() != (fields[1] == "TCP4") || addr.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("version 1: malformed client address in %q", line)
	}
	port, err := strconv.ParseUint(fields[4], 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("version 1: malformed client port in %q", line)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), nil
}

// readV2 reads the rest of a header of version 2.
func readV2(r io.Reader) (netip.AddrPort, error) {
	var head [16]byte
	if _, err := io.ReadFull(r, head[1:]); err != nil {
		return netip.AddrPort{}, netwire.UnexpectedEOF(err)
	}
	if string(head[1:12]) != signature[1:] {
		return netip.AddrPort{}, ErrNoHeader
	}
	size := int(binary.BigEndian.Uint16(head[14:]))
	if head[12]>>4 != 2 {
		return netip.AddrPort{}, fmt.Errorf("version %d: want 1 or 2", head[12]>>4)
	}
	if size > maxV2 {
		return netip.AddrPort{}, fmt.Errorf("version 2: %d bytes of addresses, more than %d", size, maxV2)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return netip.AddrPort{}, netwire.UnexpectedEOF(err)
	}
	switch command := head[12] & 0xf; command {
	case 0: // LOCAL: the balancer's own connection
		return netip.AddrPort{}, nil
	case 1: // PROXY
	default:
		return netip.AddrPort{}, fmt.Errorf("version 2: unknown command %d", command)
	}
	switch family := head[13]; family {
	case 0x11: // TCP over IPv4: two addresses, two ports
		if size < 12 {
			return netip.AddrPort{}, errors.New("version 2: the addresses are cut short")
		}
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(body[:4])), binary.BigEndian.Uint16(body[8:])), nil
	case 0x21: // TCP over IPv6
		if size < 36 {
			return netip.AddrPort{}, errors.New("version 2: the addresses are cut short")
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(body[:16])).Unmap(), binary.BigEndian.Uint16(body[32:])), nil
	default: // unspecified, a Unix socket, or a datagram: no useful address
		return netip.AddrPort{}, nil
	}
}
