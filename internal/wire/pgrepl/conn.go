// Package pgrepl is a client of PostgreSQL's streaming replication protocol, for servers 12 to
// 18. It tails tables by logical decoding (Conn.StartTail, with a Decoder for pgoutput),
// receives the log byte for byte (Conn.ReceiveWAL), takes base backups (Conn.BaseBackup), and
// checks in advance whether a server allows logical replication (Probe).
//
// It has no policy: it neither reconnects nor stores positions. It confirms a position to the
// server only when the caller says so, because the server removes log that is confirmed. A
// caller that reconnects continues from the last position that it confirmed, and may see again
// what came after that.
//
// Byte slices that a function returns alias the connection's buffer and are valid until the
// next call, unless the function says otherwise.
package pgrepl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Mode is the purpose of a connection.
type Mode string

// The modes of a connection.
const (
	// Logical is replication=database: logical decoding, and SQL in that database.
	Logical Mode = "database"
	// Physical is replication=true: the log and base backups of the whole cluster, no SQL.
	Physical Mode = "true"
	// SQL is an ordinary session, for Probe and EnsurePublication if the role lacks the
	// REPLICATION attribute.
	SQL Mode = ""
)

const (
	// bufferSize is the size of a connection's read buffer, in bytes: one system call reads
	// some hundred rows.
	bufferSize = 256 << 10
	// maxMessage limits the size of a message from the server, in bytes: PostgreSQL's own limit
	// is 1 GiB minus a byte, plus the header.
	maxMessage = 1<<30 + 64
)

// Conn is a connection that is logged in. It is used by one goroutine at a time; Stream says
// what others may call while it streams. After an error of the connection, or a command that
// its context interrupted, it can only be closed.
type Conn struct {
	backend *pgwire.Backend
	conn    net.Conn
	mode    Mode
	version int

	streamed bool // a stream was started

	buf  []byte // buf[r:w] was read and is not used yet
	r, w int
	// reading says that a read waits for the server. since is when the first wait after its
	// last message began, in Unix nanoseconds; 0 if none did.
	reading atomic.Bool
	since   atomic.Int64

	life context.Context // cancelled by Close
	end  context.CancelFunc

	writing sync.Mutex // guards writes to conn

	mu     sync.Mutex
	broken error // why the connection cannot be used any more
}

// Connect logs in. mode overrides cfg.Params on replication. Text is in UTF-8, and dates and
// intervals are in the server's default formats, unless cfg.Params says otherwise.
func Connect(ctx context.Context, cfg pgwire.ConnectConfig, mode Mode) (*Conn, error) {
	cfg.Params = slices.DeleteFunc(slices.Clone(cfg.Params), func(p pgwire.Param) bool {
		return p.Name == "replication" || strings.EqualFold(p.Name, "standard_conforming_strings")
	})
	if mode != Physical { // literals that this package quotes must keep their meaning
		cfg.Params = append(cfg.Params, pgwire.Param{Name: "standard_conforming_strings", Value: "on"})
	}
	defaults := []pgwire.Param{{Name: "application_name", Value: "weir"}, {Name: "client_encoding", Value: "UTF8"}}
	if mode != Physical {
		defaults = append(defaults, pgwire.Param{Name: "DateStyle", Value: "ISO"}, pgwire.Param{Name: "IntervalStyle", Value: "postgres"})
	}
	for _, d := range defaults {
		if !slices.ContainsFunc(cfg.Params, func(p pgwire.Param) bool { return strings.EqualFold(p.Name, d.Name) }) {
			cfg.Params = append(cfg.Params, d)
		}
	}
	if mode != SQL {
		cfg.Params = append(cfg.Params, pgwire.Param{Name: "replication", Value: string(mode)})
	}
	b, err := pgwire.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	version, err := parseVersion(b.Param("server_version"))
	if err != nil {
		_ = b.Conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", cfg, err)
	}
	return newConn(b, mode, version), nil
}

func newConn(b *pgwire.Backend, mode Mode, version int) *Conn {
	c := &Conn{backend: b, conn: b.Conn, mode: mode, version: version, buf: make([]byte, bufferSize)}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// parseVersion converts "15.18 (Debian 15.18-1)" to 150018, like server_version_num, and
// "18beta1" to 180000.
func parseVersion(s string) (int, error) {
	digits := func(s string) (int, string) {
		i := 0
		for i < len(s) && i < 4 && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		n, _ := strconv.Atoi(s[:i]) // at most four digits, or none: 0
		return n, s[i:]
	}
	major, rest := digits(s)
	minor := 0
	if strings.HasPrefix(rest, ".") {
		minor, _ = digits(rest[1:])
	}
	if major < 10 {
		return 0, fmt.Errorf("server version %q: want PostgreSQL 12 or newer", s)
	}
	return major*10000 + minor, nil
}

// Version returns the server's version in the form of server_version_num, such as 150018.
func (c *Conn) Version() int { return c.version }

// Mode returns the mode that the connection was opened with.
func (c *Conn) Mode() Mode { return c.mode }

// PID returns the process id of the server's backend, as in pg_stat_replication.
func (c *Conn) PID() uint32 { return c.backend.PID }

// Close terminates the session and closes the connection. It may be called while another
// goroutine waits on the connection, which then gets an error. The server ends running commands
// and drops temporary slots shortly afterwards.
func (c *Conn) Close() error {
	c.end()
	if c.failed() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		// The server also notices that the connection is closed.
		_ = c.write(ctx, pgwire.AppendTerminate(nil))
	}
	_ = c.fail(net.ErrClosed)
	return c.conn.Close()
}

// fail makes the connection unusable and returns the reason: the error of the first call.
func (c *Conn) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
	}
	return c.broken
}

// failed returns why the connection is unusable, or nil.
func (c *Conn) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// past is a deadline that interrupts a waiting read or write.
var past = time.Unix(1, 0)

// guard makes ctx interrupt reads or writes, whose deadline set sets. release removes the
// deadline, and returns the context's cause if it interrupted.
func guard(ctx context.Context, set func(time.Time) error) (release func() error) {
	if ctx.Done() == nil {
		return func() error { return nil }
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = set(past) // an error means that the connection is closed
	})
	return func() error {
		if stop() {
			return nil
		}
		<-done
		_ = set(time.Time{})
		return context.Cause(ctx)
	}
}

// write sends whole messages. If a write fails or is interrupted, part of a message may have
// been sent, so the connection is broken.
func (c *Conn) write(ctx context.Context, msg []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.failed(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err // nothing was sent yet
	}
	release := guard(ctx, c.conn.SetWriteDeadline)
	_, err := c.conn.Write(msg)
	if cause := release(); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return c.fail(fmt.Errorf("write to server: %w", err))
	}
	return nil
}

// peek returns the next message; take removes it from the buffer. body aliases the buffer. If
// ctx ends, the bytes received so far are kept, and the next call continues.
func (c *Conn) peek(ctx context.Context) (typ byte, body []byte, err error) {
	for {
		typ, length, ok := pgwire.Peek(c.buf[c.r:c.w])
		if ok && (length < pgwire.HeaderLen || length > maxMessage) {
			return 0, nil, c.fail(fmt.Errorf("message %q of %d bytes: %w", typ, length, pgwire.ErrMalformed))
		}
		if ok && length <= c.w-c.r {
			return typ, c.buf[c.r+pgwire.HeaderLen : c.r+length : c.r+length], nil
		}
		if !ok {
			length = pgwire.HeaderLen
		}
		c.room(length)
		if err := c.fill(ctx); err != nil {
			return 0, nil, err
		}
	}
}

// take removes the message that peek returned with this body.
func (c *Conn) take(body []byte) { c.r += pgwire.HeaderLen + len(body) }

// next returns the next message and removes it from the buffer.
func (c *Conn) next(ctx context.Context) (typ byte, body []byte, err error) {
	if typ, body, err = c.peek(ctx); err == nil {
		c.take(body)
	}
	return typ, body, err
}

// room prepares the buffer for the rest of a message of need bytes. It grows with the bytes
// that arrive, not with the announced length; after a long message it returns to its normal
// size.
func (c *Conn) room(need int) {
	held := c.w - c.r
	switch {
	case len(c.buf) > bufferSize && need <= bufferSize && held <= bufferSize:
		small := make([]byte, bufferSize)
		copy(small, c.buf[c.r:c.w])
		c.buf = small
	case c.w < len(c.buf) && c.r+need <= len(c.buf):
		return
	case c.r > 0 && (held < len(c.buf)/2 || need <= len(c.buf)):
		copy(c.buf, c.buf[c.r:c.w])
	case c.w == len(c.buf):
		grown := make([]byte, min(need, 2*len(c.buf)))
		copy(grown, c.buf[c.r:c.w])
		c.buf = grown
	default:
		return
	}
	c.r, c.w = 0, held
}

// fill reads once.
func (c *Conn) fill(ctx context.Context) error {
	if err := c.failed(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	release := guard(ctx, c.conn.SetReadDeadline)
	c.since.CompareAndSwap(0, time.Now().UnixNano())
	c.reading.Store(true)
	n, err := c.conn.Read(c.buf[c.w:])
	c.reading.Store(false)
	if n > 0 {
		c.since.Store(0)
	}
	c.w += n
	cause := release()
	switch {
	case n > 0:
		return nil
	case cause != nil:
		return cause
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return c.fail(fmt.Errorf("read from server: %w", err))
}

// waitsSince reports whether a read waits for the server, and since when nothing has been
// received. It is safe for concurrent use.
func (c *Conn) waitsSince() (since time.Time, waits bool) {
	at := c.since.Load()
	return time.Unix(0, at), at != 0 && c.reading.Load()
}

// interrupt interrupts the current read on a broken connection.
func (c *Conn) interrupt() {
	_ = c.conn.SetReadDeadline(past) // an error means that it is closed
}

// buffered reports whether the buffer has a whole message.
func (c *Conn) buffered() bool {
	_, length, ok := pgwire.Peek(c.buf[c.r:c.w])
	return ok && length <= c.w-c.r
}
