package binlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// Start says where a Stream begins. The zero value is the current end of the log.
type Start struct {
	// Position begins at an event's offset in a file.
	Position Position
	// GTIDs begins after these transactions; with the empty set, before the first one.
	GTIDs *GTIDSet
	// Oldest begins with the first event that the server still has.
	Oldest bool
}

// StreamConfig says which log to follow, and how.
type StreamConfig struct {
	// Server is the server to connect to. The account needs REPLICATION SLAVE, and REPLICATION
	// CLIENT (with MariaDB BINLOG MONITOR) unless Start has GTIDs.
	Server mywire.ConnectConfig
	// Start is where to begin. Default: the current end.
	Start Start
	// ServerID is this replica's server id, which must be unique among all replicas and servers
	// of the topology. Default: a random one of two billion.
	ServerID uint32
	// NonBlocking ends the stream at the end of the log with io.EOF. Default: false, it waits
	// for more.
	NonBlocking bool
	// Heartbeat is the interval of the server's heartbeats while it sends nothing else.
	// Default: 10 seconds.
	Heartbeat time.Duration
	// Silence is how long nothing may arrive before the connection counts as lost. Default:
	// three times Heartbeat, at least a minute.
	Silence time.Duration
	// Exact requests what MariaDB omits for replicas by default: the text of statements beside
	// their rows. Without it, an archive is not identical to the server's log. Default: false.
	Exact bool
	// MaxEvent is the maximum length of an event, in bytes. Default: 1 GiB and 1 MiB, more than
	// servers write.
	MaxEvent int
}

// Limits of random server ids: above those that people choose.
const (
	firstRandomID = 1 << 31
	randomIDs     = 1<<31 - 1
)

func (c StreamConfig) withDefaults() StreamConfig {
	if c.ServerID == 0 {
		c.ServerID = firstRandomID + rand.Uint32N(randomIDs)
	}
	c.Heartbeat = cmp.Or(c.Heartbeat, 10*time.Second)
	c.Silence = cmp.Or(c.Silence, max(3*c.Heartbeat, time.Minute))
	c.MaxEvent = cmp.Or(c.MaxEvent, maxInner)
	return c
}

func (c StreamConfig) validate() error {
	given := 0
	for _, is := range []bool{!c.Start.Position.IsZero(), c.Start.GTIDs != nil, c.Start.Oldest} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		return errors.New("begin at one of a position, GTIDs, the oldest event")
	case !c.Start.Position.IsZero() && (c.Start.Position.File == "" || c.Start.Position.Pos < uint64(len(Magic))):
		return fmt.Errorf("begin at %s: want a file and an offset of 4 or more", c.Start.Position)
	case c.Start.Position.Pos >= 1<<32:
		return fmt.Errorf("begin at %s: the protocol has no offsets of 4 GiB and more", c.Start.Position)
	case c.Heartbeat < time.Millisecond:
		return fmt.Errorf("heartbeat every %v: want 1ms at least", c.Heartbeat)
	}
	return nil
}

// Stream follows the log of a server. It is used by one goroutine at a time, except for Close,
// which any goroutine may call once.
type Stream struct {
	cfg      StreamConfig
	server   *mywire.Server
	framer   framer
	start    Position
	executed *GTIDSet

	buf  []byte // what was received, from r to w
	r, w int
	seq  byte
	err  error
}

// Open connects to a server and requests its log. If users can act on a problem, the error is
// an *UnavailableError.
func Open(ctx context.Context, cfg StreamConfig) (*Stream, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("open binary log: %w", err)
	}
	server, err := mywire.Connect(ctx, cfg.Server)
	if err != nil {
		return nil, fmt.Errorf("open binary log: %w", err)
	}
	s := &Stream{cfg: cfg, server: server, framer: framer{offset: -1}, buf: make([]byte, bufferSize)}
	if err := s.begin(ctx); err != nil {
		_ = server.Conn.Close()
		return nil, fmt.Errorf("open binary log of %s: %w", cfg.Server, unavailable(err))
	}
	return s, nil
}

// begin requests the log, and waits until the server says where it begins.
func (s *Stream) begin(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.command(ctx, s.register()); err != nil {
		return fmt.Errorf("register as a replica: %w", err)
	}
	packet, err := s.dump()
	if err != nil {
		return err
	}
	if _, err := s.server.Conn.Write(packet); err != nil {
		return fmt.Errorf("ask for the log: %w", err)
	}
	s.seq = 1
	for !s.whole() {
		if err := s.fill(ctx); err != nil {
			return fmt.Errorf("ask for the log: %w", err)
		}
	}
	if payload := s.buf[s.r+mywire.HeaderLen : s.w]; mywire.IsError(payload) {
		_, err := s.Next(ctx)
		return err
	}
	return nil
}

// command sends a command and waits for its OK.
func (s *Stream) command(ctx context.Context, packet []byte) error {
	if _, err := s.server.Conn.Write(packet); err != nil {
		return err
	}
	s.seq = 1
	payload, err := s.packet(ctx)
	if err != nil {
		return err
	}
	if mywire.IsError(payload) {
		return serverError(payload)
	}
	return nil
}

func serverError(payload []byte) error {
	e, err := mywire.ParseError(payload)
	if err != nil {
		return err
	}
	return e
}

// Start returns where the stream began, or zero if it was requested by GTIDs.
func (s *Stream) Start() Position { return s.start }

// Executed returns the GTIDs of the transactions before the stream's beginning, or nil if they
// are unknown: with MySQL, if a position was requested.
func (s *Stream) Executed() *GTIDSet { return s.executed.Clone() }

// IsMariaDB reports whether the server is a MariaDB.
func (s *Stream) IsMariaDB() bool { return s.server.IsMariaDB() }

// Close closes the connection. A waiting Next returns.
func (s *Stream) Close() error { return s.server.Conn.Close() }

// First bytes of the packets of a log.
const (
	packetEvent = 0x00
	packetEnd   = 0xfe
)

// Next implements Source. If ctx ends, its error is returned and Next may be called again;
// after any other error the stream cannot be used any more. If the connection is lost, the
// error is not io.EOF.
func (s *Stream) Next(ctx context.Context) (*Event, error) {
	if s.err != nil {
		return nil, s.err
	}
	e, err := s.next(ctx)
	switch {
	case err == nil:
		return e, nil
	case errors.Is(err, io.EOF):
		s.err = io.EOF
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return nil, fmt.Errorf("read binary log: %w", err)
	default:
		s.err = fmt.Errorf("read binary log: %w", unavailable(err))
	}
	return nil, s.err
}

func (s *Stream) next(ctx context.Context) (*Event, error) {
	payload, err := s.packet(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case len(payload) > 0 && payload[0] == packetEvent:
		return s.framer.frame(payload[1:])
	case mywire.IsError(payload):
		return nil, serverError(payload)
	case len(payload) > 0 && payload[0] == packetEnd:
		return nil, io.EOF
	}
	return nil, fmt.Errorf("packet that is no event: %w", mywire.ErrMalformed)
}

// Sizes of the buffer in bytes: its normal size, and the size above which it is not kept for
// the next event.
const (
	bufferSize = 256 << 10
	bufferKeep = 8 << 20
)

// packet returns the payload of the next message, valid until the next call.
func (s *Stream) packet(ctx context.Context) ([]byte, error) {
	for !s.whole() {
		if err := s.fill(ctx); err != nil {
			return nil, err
		}
	}
	n, _ := mywire.Message(s.buf[s.r:s.w])
	message := s.buf[s.r : s.r+n]
	if _, seq, _ := mywire.Peek(message); seq != s.seq {
		return nil, fmt.Errorf("packet %d where %d is expected: %w", seq, s.seq, mywire.ErrMalformed)
	}
	payload, next, err := mywire.Payload(message)
	s.r, s.seq = s.r+n, next
	return payload, err
}

// whole reports whether the buffer holds a whole message.
func (s *Stream) whole() bool {
	n, ok := mywire.Message(s.buf[s.r:s.w])
	return ok && n <= s.w-s.r
}

// fill receives more bytes of an incomplete message.
func (s *Stream) fill(ctx context.Context) error {
	if err := s.makeRoom(); err != nil {
		return err
	}
	conn := s.server.Conn
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := conn.SetReadDeadline(time.Now().Add(s.cfg.Silence)); err != nil {
		return err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	n, err := conn.Read(s.buf[s.w:])
	s.w += n
	if !stop() {
		<-interrupted // so that it does not affect the next read
	}
	switch {
	case n > 0 || err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("neither an event nor a heartbeat within %v: %w", s.cfg.Silence, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the server has closed the connection: %w", io.ErrUnexpectedEOF)
	case errors.Is(err, net.ErrClosed):
		return fmt.Errorf("the stream is closed: %w", err)
	}
	return err
}

var errTooLong = errors.New("event is too long")

// makeRoom makes room in the buffer for more of the next message.
func (s *Stream) makeRoom() error {
	pending := s.w - s.r
	need, _ := mywire.Message(s.buf[s.r:s.w])
	if need > s.cfg.MaxEvent+need/mywire.MaxPayload*mywire.HeaderLen+mywire.HeaderLen+1 {
		return fmt.Errorf("%w: %d bytes or more, the limit is %d", errTooLong, need, s.cfg.MaxEvent)
	}
	size := len(s.buf)
	switch {
	case need > size:
		size = max(need, 2*size)
	case size > bufferKeep && need <= bufferSize && pending <= bufferSize:
		size = bufferSize
	case s.r+need <= size && (s.r == 0 || size-s.w >= bufferSize/4):
		return nil // moving the data would gain little
	}
	to := s.buf
	if size != len(s.buf) {
		to = make([]byte, size)
	}
	copy(to, s.buf[s.r:s.w])
	s.buf, s.r, s.w = to, 0, pending
	return nil
}
