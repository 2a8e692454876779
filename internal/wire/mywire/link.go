package mywire

import (
	"fmt"
	"io"
	"net"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// Limits of payloads during login, in bytes. A peer that has not logged in cannot make the
// other side buffer more than this.
const (
	// maxClientPacket bounds packets of clients: connection attributes have at most 64 KiB, the
	// rest is short.
	maxClientPacket = 1 << 17
	// maxServerPacket bounds packets of servers. The longest one of a login is an OK with
	// session state.
	maxServerPacket = 1 << 20
)

// link reads and writes whole packets on a blocking connection. It reads exactly the bytes of
// the packet that it returns, which costs two system calls and leaves the connection at a
// packet boundary.
type link struct {
	conn net.Conn
	max  int
	seq  byte // of the next packet, in either direction
	head [HeaderLen]byte
	buf  []byte // payload of the last packet read
	// heard: the last packet was the other side's, which may wait for an answer.
	heard bool
}

// read returns the next packet's payload, which is valid until the next read.
func (l *link) read() ([]byte, error) {
	if _, err := io.ReadFull(l.conn, l.head[:]); err != nil {
		return nil, err
	}
	n, seq, _ := Peek(l.head[:])
	if n > l.max {
		return nil, fmt.Errorf("packet of %d bytes during login: limit %d: %w", n, l.max, ErrMalformed)
	}
	if cap(l.buf) < n {
		l.buf = make([]byte, n)
	}
	l.buf = l.buf[:n]
	if _, err := io.ReadFull(l.conn, l.buf); err != nil {
		return nil, netwire.UnexpectedEOF(err)
	}
	// The server may have sent its ERR before.
	if seq != l.seq && !IsError(l.buf) {
		return nil, fmt.Errorf("packet %d where %d is expected: %w", seq, l.seq, ErrMalformed)
	}
	l.seq, l.heard = seq+1, true
	return l.buf, nil
}

// write sends the one packet that add appends for the next sequence number.
func (l *link) write(add func(dst []byte, seq byte) []byte) error {
	_, err := l.conn.Write(add(nil, l.seq))
	l.seq++
	l.heard = false
	return err
}

// send sends payload as a packet.
func (l *link) send(payload []byte) error {
	return l.write(func(dst []byte, seq byte) []byte { return AppendPacket(dst, seq, payload) })
}

// isUnix reports whether conn never leaves the machine: MySQL considers a Unix socket as secure
// as TLS. The client of a balancer at the other end of one has an address of its own.
func isUnix(conn net.Conn) bool {
	return conn.RemoteAddr() != nil && conn.RemoteAddr().Network() == "unix"
}
