// Package pgrepl is a client of PostgreSQL's streaming replication protocol,
// servers 12 to 18. It tails tables by logical decoding (Conn.StartTail, with the
// decoder of pgoutput below it), receives the log byte for byte
// (Conn.ReceiveWAL), takes base backups (Conn.BaseBackup), and says beforehand
// whether a server lets it (Probe).
//
// It holds no policy: it neither reconnects nor remembers positions. A position
// is confirmed to the server only when the caller says so, because the server
// throws away what is confirmed. A caller that reconnects continues from
// the last position that it confirmed, and may see again what came after that.
//
// Bytes that a function returns belong to the connection's buffer and are valid
// until the next call, unless the function says otherwise.
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

// Mode says what a connection is for.
type Mode string

// The modes of a connection.
const (
	// Logical is replication=database: logical decoding, and SQL in that
	// database.
	Logical Mode = "database"
	// Physical is replication=true: the log and base backups of the whole
	// cluster, no SQL.
	Physical Mode = "true"
	// SQL is an ordinary session, for Probe and EnsurePublication where the role
	// has no right to replicate.
	SQL Mode = ""
)

const (
	// bufferSize is the read buffer of a connection, in bytes: one system call
	// takes what some hundred rows need.
	bufferSize = 256 << 10
	// maxMessage bounds a message of the server, in bytes. PostgreSQL's own
	// limit is 1 GiB less a byte; room for its header.
	maxMessage = 1<<30 + 64
)

// Conn is a connection that is logged in. One goroutine uses it at a time;
// Stream says what others may call while it streams. An error of the
// connection, or a command that its context interrupted, makes it unusable:
// what remains is Close.
type Conn struct {
	backend *pgwire.Backend
	conn    net.Conn
	mode    Mode
	version int

	streamed bool // a stream was begun

	buf  []byte // buf[r:w] has been read and not used
	r, w int
	// reading says that somebody waits for the server; since is when the first
	// wait after its last word began, in Unix nanoseconds, 0 if none did.
	reading atomic.Bool
	since   atomic.Int64

	life context.Context // ends with Close
	end  context.CancelFunc

	writing sync.Mutex // guards writes to conn

	mu     sync.Mutex
	broken error // why the connection is of no further use
}

// Connect logs in. What cfg.Params says of replication gives way to mode. Text
// comes in UTF-8, and dates and intervals in the server's default forms, unless
// cfg.Params says otherwise.
func Connect(ctx context.Context, cfg pgwire.ConnectConfig, mode Mode) (*Conn, error) {
	cfg.Params = slices.DeleteFunc(slices.Clone(cfg.Params), func(p pgwire.Param) bool {
		return p.Name == "replication" || strings.EqualFold(p.Name, "standard_conforming_strings")
	})
	if mode != Physical { // what this package quotes must arrive as it is meant
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

// parseVersion turns "15.18 (Debian 15.18-1)" into 150018, as server_version_num
// has it; "18beta1" into 180000.
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

// Version is the server's version in the form of server_version_num, such as
// 150018.
func (c *Conn) Version() int { return c.version }

// Mode is what the connection was opened for.
func (c *Conn) Mode() Mode { return c.mode }

// PID is the server process behind the connection, as pg_stat_replication shows
// it.
func (c *Conn) PID() uint32 { return c.backend.PID }

// Close takes leave and closes the connection. It may be called while another
// goroutine waits on the connection, which then gets an error. The server ends
// what the connection did and drops its temporary slots shortly afterwards.
func (c *Conn) Close() error {
	c.end()
	if c.failed() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		// The server notices the close of a connection just as well.
		_ = c.write(ctx, pgwire.AppendTerminate(nil))
	}
	_ = c.fail(net.ErrClosed)
	return c.conn.Close()
}

// fail makes the connection unusable and returns the reason, which is that of
// the first call.
func (c *Conn) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
	}
	return c.broken
}

// failed returns why the connection is of no further use, nil while it is.
func (c *Conn) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// past is a deadline that interrupts whatever waits.
var past = time.Unix(1, 0)

// guard lets ctx interrupt what set's deadline bounds. release takes the
// deadline away again, and returns the context's reason if it was set.
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

// write sends whole messages. A write that fails or is interrupted leaves half
// a message on its way, so it breaks the connection.
func (c *Conn) write(ctx context.Context, msg []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.failed(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err // nothing is on its way yet
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

// peek returns the next message without taking it: take does that. body
// aliases the buffer. When ctx ends, what has arrived is kept, and the next call
// goes on.
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

// take steps behind the message that peek returned with this body.
func (c *Conn) take(body []byte) { c.r += pgwire.HeaderLen + len(body) }

// next returns the next message and steps behind it.
func (c *Conn) next(ctx context.Context) (typ byte, body []byte, err error) {
	if typ, body, err = c.peek(ctx); err == nil {
		c.take(body)
	}
	return typ, body, err
}

// room makes the buffer ready to take the rest of a message of need bytes. It
// grows with what has arrived and not with what a length promises; after a long
// message it goes back to its normal size.
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

// waitsSince reports whether somebody waits for the server, and since when nothing
// has come. It may be called from anywhere.
func (c *Conn) waitsSince() (since time.Time, waits bool) {
	at := c.since.Load()
	return time.Unix(0, at), at != 0 && c.reading.Load()
}

// interrupt ends the read that runs on a connection that is broken.
func (c *Conn) interrupt() {
	_ = c.conn.SetReadDeadline(past) // an error means that it is closed
}

// buffered reports whether a whole message has been read and not used.
func (c *Conn) buffered() bool {
	_, length, ok := pgwire.Peek(c.buf[c.r:c.w])
	return ok && length <= c.w-c.r
}
