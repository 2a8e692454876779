package pgrepl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// WALSink stores the server's log. Its methods are called by one goroutine.
type WALSink interface {
	// OpenSegment begins a segment at its first byte. What an earlier attempt left of it is
	// overwritten: the bytes are the same.
	OpenSegment(s Segment) (SegmentWriter, error)
	// History stores the history file of a timeline, durably, before the first segment of that
	// timeline.
	History(h History) error
}

// SegmentWriter stores one segment.
type SegmentWriter interface {
	// WriteAt writes bytes in order and without gaps.
	io.WriterAt
	// Sync makes durable what was written. Only after that is it reported to the server, which
	// may then remove its own copy.
	Sync() error
	// Close ends the segment. complete says that all its bytes were written and that Sync has
	// succeeded; otherwise the rest may follow in a later attempt, or never, if the timeline
	// ends within it.
	Close(complete bool) error
}

// ReceiveConfig says which log to receive.
type ReceiveConfig struct {
	StreamConfig
	// Slot is a physical slot, which makes the server keep log until it was received. Default:
	// none.
	Slot string
	// Start is where to begin; it is rounded down to the start of its segment. Default: 0, from
	// where Slot keeps the log (PostgreSQL 15), or else the end of the server's log.
	Start LSN
	// Timeline is that of Start. Default: 0, that of the slot's position, or else the server's.
	Timeline uint32
	// Until ends the reception without an error when everything before it is stored. Default:
	// 0, no end.
	Until LSN
	// Synchronous syncs and reports each write as soon as no more has arrived. Otherwise that
	// happens at the end of a segment, at each StatusInterval (but for at most half of the
	// time), and when the server requests it. Default: false.
	Synchronous bool
	// OnFlush, if not nil, is called with each new position up to which the log is durable, and
	// its timeline.
	OnFlush func(timeline uint32, flushed LSN)
}

// ReceiveWAL receives the log into sink until ctx ends, an error occurs or Until is reached. It
// follows the server to new timelines. It returns up to where the log is durable, and on which
// timeline: a later call begins there. If the server shuts down cleanly, the error is
// ErrShutdown, and all its log is durable.
//
// The connection, of mode Physical or Logical, can be used again only if the error is nil.
func (c *Conn) ReceiveWAL(ctx context.Context, cfg ReceiveConfig, sink WALSink) (timeline uint32, flushed LSN, err error) {
	r := &receiver{conn: c, cfg: cfg, sink: sink}
	r.cfg.StreamConfig = r.cfg.withDefaults()
	if err = r.prepare(ctx); err == nil {
		err = r.run(ctx)
	}
	if err != nil {
		r.farewell(ctx)
	}
	if closeErr := r.closeSegment(false); err == nil {
		err = closeErr
	}
	if err != nil {
		return r.timeline, r.flushed, fmt.Errorf("receive WAL: %w", err)
	}
	return r.timeline, r.flushed, nil
}

// receiver is one call of ReceiveWAL.
type receiver struct {
	conn   *Conn
	cfg    ReceiveConfig
	sink   WALSink
	size   int64 // of a segment, bytes
	stream *Stream

	timeline uint32
	at       LSN // the next byte to receive
	flushed  LSN
	synced   time.Time     // when flushed last advanced
	pause    time.Duration // from then to the next flush

	segment Segment
	writer  SegmentWriter // nil between segments
}

// prepare finds out where to begin.
func (r *receiver) prepare(ctx context.Context) error {
	if err := r.cfg.validate(); err != nil {
		return err
	}
	system, err := r.conn.Identify(ctx)
	if err != nil {
		return err
	}
	if r.size, err = r.conn.SegmentSize(ctx); err != nil {
		return err
	}
	r.timeline, r.at = r.cfg.Timeline, r.cfg.Start
	if r.at == 0 && r.cfg.Slot != "" && r.conn.version >= 150000 {
		slot, found, err := r.conn.ReadSlot(ctx, r.cfg.Slot)
		if err != nil {
			return err
		}
		if found && slot.Restart != 0 {
			r.timeline, r.at = slot.Timeline, slot.Restart
		}
	}
	if r.at == 0 {
		r.at = system.Flushed
	}
	if r.timeline == 0 {
		r.timeline = system.Timeline
	}
	return r.keepHistory(ctx)
}

// keepHistory stores the history file of the current timeline.
func (r *receiver) keepHistory(ctx context.Context) error {
	if r.timeline == 1 {
		return nil
	}
	h, err := r.conn.TimelineHistory(ctx, r.timeline)
	if err != nil {
		return err
	}
	if err := r.sink.History(h); err != nil {
		return fmt.Errorf("keep history of timeline %d: %w", r.timeline, err)
	}
	return nil
}

// run receives timeline after timeline.
func (r *receiver) run(ctx context.Context) error {
	for {
		// Begin at the start of a segment: the first segment of a new timeline has a copy of
		// the old one's bytes up to its end.
		r.at = SegmentAt(r.timeline, r.at, r.size).Start()
		r.flushed = r.at
		var err error
		r.stream, err = r.conn.StartPhysical(ctx, PhysicalConfig{
			StreamConfig: r.cfg.StreamConfig, Slot: r.cfg.Slot, Start: r.at, Timeline: r.timeline,
		})
		if err != nil {
			return err
		}
		r.stream.SetPosition(Position{Written: r.at, Flushed: r.at})
		done, err := r.receive(ctx)
		if done || err != nil {
			return err
		}
		next, ok := r.stream.Next()
		if !ok || next.Timeline <= r.timeline {
			return fmt.Errorf("the server has ended timeline %d and names no next one", r.timeline)
		}
		r.timeline, r.at = next.Timeline, next.Start
		if err := r.keepHistory(ctx); err != nil {
			return err
		}
	}
}

// receive receives one timeline to its end; done means that Until was reached before.
func (r *receiver) receive(ctx context.Context) (done bool, err error) {
	r.synced, r.pause = time.Now(), r.cfg.StatusInterval
	for {
		if r.cfg.Until != 0 && r.at >= r.cfg.Until {
			if err := r.flush(ctx, false); err != nil {
				return false, err
			}
			return true, r.stream.End(ctx)
		}
		f, err := r.next(ctx)
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if err := r.flush(ctx, false); err != nil {
				return false, err
			}
			return false, r.closeSegment(false)
		case errors.Is(err, errQuiet):
			if err := r.flush(ctx, true); err != nil {
				return false, err
			}
			continue
		default:
			// Store the bytes received, so that the next attempt is shorter.
			return false, errors.Join(err, r.flush(ctx, false))
		}
		if !f.Keepalive() {
			if err := r.write(ctx, f); err != nil {
				return false, err
			}
		}
		if r.due(f) {
			if err := r.flush(ctx, true); err != nil {
				return false, err
			}
		}
	}
}

// errQuiet says that no more log arrived while some waits to be flushed.
var errQuiet = errors.New("no more log for a while")

// next receives a frame. While some log is not durable, it waits no longer than until the next
// flush is due.
func (r *receiver) next(ctx context.Context) (Frame, error) {
	if r.flushed < r.at && !r.conn.buffered() {
		bound, cancel := context.WithDeadlineCause(ctx, r.synced.Add(r.pause), errQuiet)
		defer cancel()
		ctx = bound
	}
	return r.stream.Receive(ctx)
}

// farewell reports the durable position to the server, if it still reads, after an error that
// ends the stream.
func (r *receiver) farewell(ctx context.Context) {
	if r.stream == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if !r.stream.ended && r.conn.failed() == nil {
		_ = r.stream.Report(ctx) // the error that ends the stream is returned
	}
	r.stream.halt()
}

// due reports whether the log must be flushed now.
func (r *receiver) due(f Frame) bool {
	return f.ReplyRequested || // a server that shuts down waits for this
		r.cfg.Synchronous && !r.conn.buffered() ||
		time.Since(r.synced) >= r.pause
}

// write writes a frame's bytes, which may belong to several segments.
func (r *receiver) write(ctx context.Context, f Frame) error {
	if f.Start != r.at {
		return r.conn.fail(fmt.Errorf("the server sends the log from %s instead of %s", f.Start, r.at))
	}
	for data := f.Data; len(data) > 0; {
		if r.writer == nil {
			r.segment = SegmentAt(r.timeline, r.at, r.size)
			w, err := r.sink.OpenSegment(r.segment)
			if err != nil {
				return fmt.Errorf("open segment %s: %w", r.segment.Name(), err)
			}
			r.writer = w
		}
		offset := int64(r.at - r.segment.Start())
		n := min(int64(len(data)), r.size-offset)
		if _, err := r.writer.WriteAt(data[:n], offset); err != nil {
			return fmt.Errorf("write segment %s: %w", r.segment.Name(), err)
		}
		r.at += LSN(n)
		data = data[n:]
		if r.at == r.segment.End() {
			if err := r.flush(ctx, true); err != nil {
				return err
			}
			if err := r.closeSegment(true); err != nil {
				return err
			}
		}
	}
	r.stream.SetPosition(Position{Written: r.at})
	return nil
}

// flush makes durable what was written, and reports it to the server if report is set. The next
// flush is due after StatusInterval, but not before as much time has passed as this one took: a
// sink that takes longer than StatusInterval, because it stores whole segments each time, would
// otherwise get each frame by itself.
func (r *receiver) flush(ctx context.Context, report bool) error {
	began := time.Now()
	defer func() {
		r.synced = time.Now()
		r.pause = max(r.cfg.StatusInterval, r.synced.Sub(began))
	}()
	if r.flushed >= r.at {
		return nil
	}
	if r.writer != nil {
		if err := r.writer.Sync(); err != nil {
			return fmt.Errorf("sync segment %s: %w", r.segment.Name(), err)
		}
	}
	r.flushed = r.at
	r.stream.SetPosition(Position{Written: r.at, Flushed: r.at})
	if r.cfg.OnFlush != nil {
		r.cfg.OnFlush(r.timeline, r.flushed)
	}
	if report {
		return r.stream.Report(ctx)
	}
	return nil
}

// closeSegment closes the current segment, if there is one.
func (r *receiver) closeSegment(complete bool) error {
	if r.writer == nil {
		return nil
	}
	w := r.writer
	r.writer = nil
	if err := w.Close(complete); err != nil {
		return fmt.Errorf("close segment %s: %w", r.segment.Name(), err)
	}
	return nil
}
