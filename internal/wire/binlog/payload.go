package binlog

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Fields before the transaction in a TRANSACTION_PAYLOAD event.
const (
	payloadEnd         = 0
	payloadSize        = 1
	payloadCompression = 2

	payloadZstd = 0
	payloadNone = 255
)

// maxInner is the maximum length of an event in a compressed transaction, in bytes: more than
// servers allow for one row.
const maxInner = 1<<30 + 1<<20

// payload yields the events inside a TRANSACTION_PAYLOAD event. It decompresses them one by
// one: however large the transaction is, only one event is in memory.
type payload struct {
	zstd  *zstd.Decoder
	r     io.Reader
	buf   []byte
	event Event
}

// open begins the body of a TRANSACTION_PAYLOAD event.
func (p *payload) open(body []byte) error {
	c := cursor{b: body}
	method := uint64(payloadNone)
	size := uint64(0)
	for kind := c.lenenc(); kind != payloadEnd && !c.bad; kind = c.lenenc() {
		field := cursor{b: c.bytes64(c.lenenc())}
		switch kind {
		case payloadCompression:
			method = field.lenenc()
		case payloadSize:
			size = field.lenenc()
		}
		c.bad = c.bad || field.bad
	}
	packed := c.bytes64(size)
	if c.bad {
		return fmt.Errorf("TRANSACTION_PAYLOAD: %w", ErrMalformed)
	}
	switch method {
	case payloadNone:
		p.r = bytes.NewReader(packed)
	case payloadZstd:
		return p.openZstd(packed)
	default:
		return fmt.Errorf("TRANSACTION_PAYLOAD: compression %d: unknown: %w", method, ErrMalformed)
	}
	return nil
}

func (p *payload) openZstd(packed []byte) (err error) {
	if p.zstd == nil {
		// Concurrency 1 starts no goroutines, so nothing has to be stopped.
		p.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	}
	if err == nil {
		err = p.zstd.Reset(bytes.NewReader(packed))
	}
	if err != nil {
		return fmt.Errorf("TRANSACTION_PAYLOAD: decompress: %w", err)
	}
	p.r = p.zstd
	return nil
}

// next returns the next event, which is valid until the next call, or io.EOF after the last
// one. These events have no checksums and no positions.
func (p *payload) next() (*Event, error) {
	var head [HeaderLen]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("TRANSACTION_PAYLOAD: read event: %w", err)
	}
	h, err := ParseHeader(head[:])
	if err != nil {
		return nil, fmt.Errorf("TRANSACTION_PAYLOAD: %w", err)
	}
	if h.Size > maxInner || h.Type == TransactionPayloadEvent {
		return nil, fmt.Errorf("TRANSACTION_PAYLOAD: %s event of %d bytes inside: %w", h.Type, h.Size, ErrMalformed)
	}
	p.buf = append(p.buf[:0], head[:]...)
	if p.buf, err = readMore(p.buf, p.r, int(h.Size)-HeaderLen); err != nil {
		return nil, fmt.Errorf("TRANSACTION_PAYLOAD: read %s event: %w", h.Type, err)
	}
	p.event = Event{Header: h, Raw: p.buf}
	return &p.event, nil
}

// readStep is how much is allocated, in bytes, before the bytes arrive.
const readStep = 1 << 20

// readMore appends n bytes of r to dst. It allocates as the bytes arrive, so a wrong length
// costs nothing.
func readMore(dst []byte, r io.Reader, n int) ([]byte, error) {
	for n > 0 {
		at, step := len(dst), min(n, max(readStep, cap(dst)-len(dst)))
		if cap(dst)-at < step {
			grown := make([]byte, at, max(at+step, 2*cap(dst)))
			copy(grown, dst)
			dst = grown
		}
		dst = dst[:at+step]
		if _, err := io.ReadFull(r, dst[at:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return dst[:at], err
		}
		n -= step
	}
	return dst, nil
}

// inflateBlock decompresses the rows or the text of a compressed event of MariaDB: a byte with
// the size of the length field, the original length (big-endian), zlib data.
func inflateBlock(b []byte) ([]byte, error) {
	c := cursor{b: b}
	head := c.u8()
	d := decoder{cursor: c}
	n := d.big(int(head & 7))
	if d.bad || head&0xf0 != 0x80 || n > maxInner {
		return nil, fmt.Errorf("compressed block: %w", ErrMalformed)
	}
	return inflateZlib(nil, d.b, int(n))
}

func inflateZlib(dst, packed []byte, n int) ([]byte, error) {
	z, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	if dst, err = readMore(dst, z, n); err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return dst, nil
}

// Bits of the first byte of a compressed column's value. Above them is the method; zero means
// that the rest is not compressed.
const (
	columnLengthMask = 0x07 // size in bytes of the original length, big-endian
	columnBare       = 0x08 // without zlib's header and checksum
	columnZlib       = 8
)

// inflate decompresses a value of a COMPRESSED column of MariaDB.
func (d *decoder) inflate(b []byte) (Value, error) {
	if len(b) == 0 {
		return Value{kind: KindBytes, b: b}, nil
	}
	if b[0] == 0 {
		return Value{kind: KindBytes, b: b[1:]}, nil
	}
	c := decoder{cursor: cursor{b: b[1:]}}
	n := c.big(int(b[0] & columnLengthMask))
	if c.bad || b[0]>>4 != columnZlib || n > maxInner {
		return Value{}, fmt.Errorf("compressed value: %w", ErrMalformed)
	}
	at := len(d.scratch)
	var err error
	if b[0]&columnBare != 0 {
		d.scratch, err = readMore(d.scratch, flate.NewReader(bytes.NewReader(c.b)), int(n))
	} else {
		d.scratch, err = inflateZlib(d.scratch, c.b, int(n))
	}
	if err != nil {
		return Value{}, fmt.Errorf("compressed value: %w", err)
	}
	return Value{kind: KindBytes, b: d.scratch[at:len(d.scratch):len(d.scratch)]}, nil
}

// Query is a statement in the log.
type Query struct {
	Schema string // the default database
	SQL    string // in the character set of the client that sent it
}

// ParseQuery parses a QUERY, QUERY_COMPRESSED or EXECUTE_LOAD_QUERY event.
func ParseQuery(e *Event) (Query, error) {
	schema, sql, err := queryText(e)
	if err != nil {
		return Query{}, err
	}
	return Query{string(schema), string(sql)}, nil
}

// loadQueryExtra is the length of the fields that EXECUTE_LOAD_QUERY has before those of QUERY:
// a file id, two offsets, and how to handle duplicates.
const loadQueryExtra = 4 + 4 + 4 + 1

// queryText returns the database and the text, which may alias the event.
func queryText(e *Event) (schema, sql []byte, err error) {
	c := cursor{b: e.Body()}
	c.bytes(4 + 4) // thread, seconds
	n := int(c.u8())
	c.u16() // error code
	vars := int(c.u16())
	if e.Type == ExecuteLoadQueryEvent {
		c.bytes(loadQueryExtra)
	}
	c.bytes(vars)
	schema = c.bytes(n)
	c.u8() // NUL
	if c.bad {
		return nil, nil, fmt.Errorf("%s: %w", e.Type, ErrMalformed)
	}
	if e.Type != QueryCompressedEvent {
		return schema, c.b, nil
	}
	if sql, err = inflateBlock(c.b); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", e.Type, err)
	}
	return schema, sql, nil
}

// parseRotate parses the body of a ROTATE event: the position to continue at.
func parseRotate(body []byte) (Position, error) {
	if len(body) <= 8 {
		return Position{}, fmt.Errorf("ROTATE: %w", ErrMalformed)
	}
	return Position{File: string(body[8:]), Pos: binary.LittleEndian.Uint64(body)}, nil
}

// parseXID parses the XID of an XA_PREPARE event, and returns it as servers write it:
// X'…',X'…',format.
func parseXID(body []byte) (string, error) {
	c := cursor{b: body}
	c.u8() // one phase
	format := int32(c.u32())
	global, branch := c.u32(), c.u32()
	a, b := c.bytes64(uint64(global)), c.bytes64(uint64(branch))
	if c.bad {
		return "", fmt.Errorf("XA_PREPARE: %w", ErrMalformed)
	}
	return fmt.Sprintf("X'%x',X'%x',%d", a, b, format), nil
}
