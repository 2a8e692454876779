package pgwire

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// Limits of messages during login, in bytes, including the header: a peer that has not logged
// in cannot make weir allocate more than this.
const (
	// maxAuthMessage limits what a client sends: as in PostgreSQL, its longest token may have
	// 65535 bytes. A SCRAM message has about 200.
	maxAuthMessage = 65535 + HeaderLen
	// maxServerMessage limits what a server sends. The longest message of a login is an error
	// with a long context.
	maxServerMessage = 1 << 20
)

// link reads and writes whole messages on a blocking connection. It reads exactly the bytes of
// the message that it returns: that takes two system calls, and makes it safe to stop at any
// message boundary.
type link struct {
	conn net.Conn
	max  int
	head [HeaderLen]byte
	buf  []byte // body of the last message
}

// read returns the next message. body is valid until the next read.
func (l *link) read() (typ byte, body []byte, err error) {
	if _, err = io.ReadFull(l.conn, l.head[:]); err != nil {
		return 0, nil, err
	}
	typ, length, _ := Peek(l.head[:])
	if length < HeaderLen {
		return 0, nil, ErrMalformed
	}
	if length > l.max {
		return 0, nil, fmt.Errorf("message %q of %d bytes during login: limit %d: %w", typ, length, l.max, ErrMalformed)
	}
	n := length - HeaderLen
	if cap(l.buf) < n {
		l.buf = make([]byte, n)
	}
	l.buf = l.buf[:n]
	if _, err = io.ReadFull(l.conn, l.buf); err != nil {
		return 0, nil, netwire.UnexpectedEOF(err)
	}
	return typ, l.buf, nil
}

func (l *link) write(msg []byte) error {
	_, err := l.conn.Write(msg)
	return err
}

// readResponse returns the body of the password or SASL message with which a client responds to
// an authentication request.
func (l *link) readResponse() ([]byte, error) {
	typ, body, err := l.read()
	if err != nil {
		return nil, err
	}
	return responseOf(typ, body)
}

// shortest is the length of the shortest startup packet, a request for TLS. Nothing after it
// may be read.
const shortest = 8

// readUntyped reads the rest of a startup packet, which has a length but no type byte. first
// has its first bytes: at least the length, at most shortest. max includes the length field. It
// returns the bytes after the length.
func readUntyped(r io.Reader, first []byte, max int) ([]byte, error) {
	n := int(int32(binary.BigEndian.Uint32(first)))
	if err := startupLength(n, max); err != nil {
		return nil, err
	}
	body := make([]byte, n-4)
	have := copy(body, first[4:])
	if _, err := io.ReadFull(r, body[have:]); err != nil {
		return nil, netwire.UnexpectedEOF(err)
	}
	return body, nil
}
