package pgrepl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// ErrSilent says that nothing was received from the server for StreamConfig.Timeout, although
// it was asked for a reply.
var ErrSilent = errors.New("no word from the server")

// ErrShutdown says that the server has sent everything and shuts down.
var ErrShutdown = errors.New("the server shuts down")

// StreamConfig configures keepalives while streaming.
type StreamConfig struct {
	// StatusInterval is how often the position is reported. It must be well below the server's
	// wal_sender_timeout. Default: 10 s.
	StatusInterval time.Duration
	// Timeout is how long a server may be silent while Receive waits for it. After half of that
	// time it is asked for a reply. Default: 60 s; negative: no limit.
	Timeout time.Duration
}

func (c StreamConfig) withDefaults() StreamConfig {
	c.StatusInterval = cmp.Or(c.StatusInterval, 10*time.Second)
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	return c
}

func (c StreamConfig) validate() error {
	if c.StatusInterval < 0 {
		return fmt.Errorf("status interval %v: must not be negative", c.StatusInterval)
	}
	return nil
}

// Stream is a stream that START_REPLICATION started. Receive and End are called by one
// goroutine; SetPosition, Position and Report are safe for concurrent use. While it runs, a
// goroutine reports the position at intervals, even if Receive is not called: a slow consumer
// keeps its connection.
type Stream struct {
	conn  *Conn
	cfg   StreamConfig
	owing atomic.Bool // a requested reply was not sent yet
	ended bool        // the server has sent CopyDone, or never began
	done  bool        // ReadyForQuery has been read
	next  NextTimeline

	written, flushed, applied atomic.Uint64

	sending sync.Mutex
	over    bool // our CopyDone was sent; nothing may follow it

	stop  context.CancelFunc
	pulse chan struct{} // closed when the reporting goroutine has ended
}

// NextTimeline says where the log continues after the stream of an old timeline.
type NextTimeline struct {
	Timeline uint32
	Start    LSN // where the old timeline ends
}

// Receive returns the next frame, whose Data is valid until the next call. It returns io.EOF at
// the end of an old timeline: Next says where the log continues. If ctx ends, nothing is lost:
// Receive, Report and End can be called again.
//
// A server that shuts down waits until the reported flush position is the end of its log; then
// Receive returns ErrShutdown.
func (s *Stream) Receive(ctx context.Context) (Frame, error) {
	if s.ended {
		return Frame{}, io.EOF
	}
	if s.owing.Load() {
		if err := s.Report(ctx); err != nil {
			return Frame{}, err
		}
	}
	for {
		typ, body, err := s.conn.next(ctx)
		if err != nil {
			return Frame{}, err
		}
		switch typ {
		case pgwire.ServerCopyData:
			f, err := parseFrame(body)
			if err != nil {
				return Frame{}, s.conn.fail(err)
			}
			if f.ReplyRequested {
				s.owing.Store(true)
			}
			return f, nil
		case pgwire.ServerCopyDone:
			s.ended = true
			if err := s.copyDone(ctx); err != nil {
				return Frame{}, err
			}
			if err := s.finish(ctx); err != nil {
				return Frame{}, err
			}
			return Frame{}, io.EOF
		case pgwire.ServerCommandComplete:
			s.ended, s.done = true, true
			s.retire()
			return Frame{}, s.conn.fail(ErrShutdown)
		default:
			if err := s.conn.aside(typ, body); err != nil {
				return Frame{}, s.abandon(ctx, err)
			}
		}
	}
}

// abandon ends a stream that the server has ended with an error.
func (s *Stream) abandon(ctx context.Context, err error) error {
	s.ended = true
	s.retire()
	var e *pgwire.Error
	if s.conn.failed() == nil && errors.As(err, &e) && !s.done {
		s.done = true
		if after := s.conn.answer(ctx, func(Result) error { return nil }); after != nil {
			return errors.Join(err, after)
		}
	}
	return err
}

// halt ends the reporting goroutine.
func (s *Stream) halt() {
	s.stop()
	<-s.pulse
}

// retire makes sure that nothing more is sent for the stream.
func (s *Stream) retire() {
	s.halt()
	s.sending.Lock()
	defer s.sending.Unlock()
	s.over = true
}

// finish reads the end of the command's response, after the CopyDone of both sides.
func (s *Stream) finish(ctx context.Context) error {
	if s.done {
		return nil
	}
	s.done = true
	s.retire()
	if err := s.drain(ctx); err != nil {
		return s.conn.fail(err)
	}
	return s.conn.answer(ctx, func(r Result) error {
		if len(r.Rows) == 0 {
			return nil
		}
		row := r.Rows[0]
		if len(row) < 2 {
			return fmt.Errorf("next timeline in %d columns: %w", len(row), pgwire.ErrMalformed)
		}
		var err error
		if s.next.Timeline, err = parseTimeline(row[0]); err == nil {
			s.next.Start, err = ParseLSN(string(row[1]))
		}
		return err
	})
}

// drain skips keepalives that a server sends even after its CopyDone.
func (s *Stream) drain(ctx context.Context) error {
	for {
		typ, body, err := s.conn.peek(ctx)
		if err != nil || typ != pgwire.ServerCopyData && typ != pgwire.ServerCopyDone {
			return err
		}
		s.conn.take(body)
	}
}

// Next says where the log continues after Receive has returned io.EOF. ok is false if it does
// not.
func (s *Stream) Next() (next NextTimeline, ok bool) { return s.next, s.next.Timeline != 0 }

// SetPosition sets the position to report to the server: at the next interval, at the next
// request, or by Report. A field never decreases.
func (s *Stream) SetPosition(p Position) {
	advance(&s.written, p.Written)
	advance(&s.flushed, p.Flushed)
	advance(&s.applied, p.Applied)
}

func advance(field *atomic.Uint64, to LSN) {
	for {
		old := field.Load()
		if uint64(to) <= old || field.CompareAndSwap(old, uint64(to)) {
			return
		}
	}
}

// Position returns the position that is reported to the server.
func (s *Stream) Position() Position {
	return Position{LSN(s.written.Load()), LSN(s.flushed.Load()), LSN(s.applied.Load())}
}

// statusPatience limits the sending of a status update of some forty bytes, which a context
// must not interrupt in the middle.
const statusPatience = 5 * time.Second

// Report reports the position to the server now. After the end of the stream it does nothing.
func (s *Stream) Report(ctx context.Context) error { return s.report(ctx, false) }

func (s *Stream) report(ctx context.Context, ask bool) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.over {
		return nil
	}
	s.owing.Store(false)
	body := appendStatus(make([]byte, 0, statusLen), s.Position(), time.Now(), ask)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusPatience)
	defer cancel()
	return s.conn.write(ctx, pgwire.AppendCopyData(nil, body))
}

// copyDone ends our side of the stream.
func (s *Stream) copyDone(ctx context.Context) error {
	s.halt()
	s.sending.Lock()
	defer s.sending.Unlock()
	s.over = true
	return s.conn.write(ctx, pgwire.AppendCopyDone(nil))
}

// End reports the position, asks the server to end the stream, and discards what it still
// sends. After that the connection can be used for other commands, and for SQL if its mode
// allows it; see StartLogical.
func (s *Stream) End(ctx context.Context) error {
	if s.done {
		return nil
	}
	if err := errors.Join(s.Report(ctx), s.copyDone(ctx)); err != nil {
		return fmt.Errorf("end stream: %w", s.conn.fail(err))
	}
	for !s.ended {
		typ, body, err := s.conn.next(ctx)
		switch {
		case err != nil:
			err = s.conn.fail(err)
		case typ == pgwire.ServerCopyDone:
			s.ended = true
		case typ != pgwire.ServerCopyData:
			err = s.conn.aside(typ, body)
		}
		if err != nil {
			return fmt.Errorf("end stream: %w", s.abandon(ctx, err))
		}
	}
	if err := s.finish(ctx); err != nil {
		return fmt.Errorf("end stream: %w", err)
	}
	return nil
}

// beat reports the position at intervals, and checks that the server responds while Receive
// waits for it.
func (s *Stream) beat(ctx context.Context) {
	defer close(s.pulse)
	tick := s.cfg.StatusInterval
	if s.cfg.Timeout > 0 {
		tick = min(tick, s.cfg.Timeout/4)
	}
	ticker := time.NewTicker(max(tick, time.Millisecond))
	defer ticker.Stop()
	var reported, asked time.Time
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return
		case now = <-ticker.C:
		}
		ask := false
		if since, waits := s.conn.waitsSince(); waits && s.cfg.Timeout > 0 {
			unanswered := asked.After(since)
			if unanswered && now.Sub(asked) >= s.cfg.Timeout/2 {
				_ = s.conn.fail(fmt.Errorf("%w for %v", ErrSilent, s.cfg.Timeout))
				s.conn.interrupt()
				return
			}
			ask = !unanswered && now.Sub(since) >= s.cfg.Timeout/2
		}
		if !ask && now.Sub(reported) < s.cfg.StatusInterval {
			continue
		}
		if err := s.report(ctx, ask); err != nil {
			s.conn.interrupt() // the reader returns the reason
			return
		}
		reported = now
		if ask {
			asked = now
		}
	}
}
