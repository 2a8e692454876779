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

// ErrSilent reports a server from which nothing came for StreamConfig.Timeout,
// though it was asked.
var ErrSilent = errors.New("no word from the server")

// ErrShutdown reports that the server has sent everything and shuts down.
var ErrShutdown = errors.New("the server shuts down")

// StreamConfig says how the two ends keep in touch while they stream.
type StreamConfig struct {
	// StatusInterval is how often the position is reported. It must be well
	// below the server's wal_sender_timeout. Default: 10 s.
	StatusInterval time.Duration
	// Timeout is how long a server may be silent while somebody waits for it.
	// After half of that it is asked for a sign of life. Default: 60 s;
	// negative: for ever.
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

// Stream is what START_REPLICATION begins. Receive and End belong to one
// goroutine; SetPosition, Position and Report may be called from anywhere. While it
// runs, a goroutine of its own reports the position at intervals, even if nobody
// receives: a slow consumer keeps its connection.
type Stream struct {
	conn  *Conn
	cfg   StreamConfig
	owing atomic.Bool // a requested reply has not been sent
	ended bool        // the server has sent CopyDone, or never began
	done  bool        // ReadyForQuery has been read
	next  NextTimeline

	written, flushed, applied atomic.Uint64

	sending sync.Mutex
	over    bool // our CopyDone has been sent, nothing may follow it

	stop  context.CancelFunc
	pulse chan struct{} // closed when the goroutine has ended
}

// NextTimeline says where a stream of an old timeline goes on.
type NextTimeline struct {
	Timeline uint32
	Start    LSN // where the old timeline was left
}

// Receive returns the next frame, whose Data is valid until the next call. It
// returns io.EOF at the end of an old timeline: Next says where to go on. When
// ctx ends nothing is lost: Receive can be called again, and so can Report and
// End.
//
// A server that shuts down waits until the flushed position that it is told is
// the end of its log; then comes ErrShutdown.
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

// halt ends the goroutine that reports.
func (s *Stream) halt() {
	s.stop()
	<-s.pulse
}

// retire makes sure that nothing more is sent on behalf of the stream.
func (s *Stream) retire() {
	s.halt()
	s.sending.Lock()
	defer s.sending.Unlock()
	s.over = true
}

// finish reads what the command ends with, after both sides' CopyDone.
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

// drain skips keepalives that a server sends even behind its CopyDone.
func (s *Stream) drain(ctx context.Context) error {
	for {
		typ, body, err := s.conn.peek(ctx)
		if err != nil || typ != pgwire.ServerCopyData && typ != pgwire.ServerCopyDone {
			return err
		}
		s.conn.take(body)
	}
}

// Next says where the stream goes on after Receive has returned io.EOF. ok is
// false if it does not.
func (s *Stream) Next() (next NextTimeline, ok bool) { return s.next, s.next.Timeline != 0 }

// SetPosition sets what the server is told from now on: at the next interval, at
// the next request, or by Report. A field never goes back.
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

// Position is what the server is told.
func (s *Stream) Position() Position {
	return Position{LSN(s.written.Load()), LSN(s.flushed.Load()), LSN(s.applied.Load())}
}

// statusPatience bounds the sending of a status update of some forty bytes,
// which a context must not cut in two.
const statusPatience = 5 * time.Second

// Report tells the server the position now. After the end of the stream it does
// nothing.
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

// End reports the position, asks the server to end the stream, and discards
// what is still on its way. The connection can be used for other commands then,
// SQL where its mode has it; see StartLogical.
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

// beat reports the position at intervals, and looks whether the server is still
// there while somebody waits for it.
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
			s.conn.interrupt() // the reader learns the reason
			return
		}
		reported = now
		if ask {
			asked = now
		}
	}
}
