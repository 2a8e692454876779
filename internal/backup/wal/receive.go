package wal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Defaults of ReceiveOptions.
const (
	DefaultSlot          = "weir_wal"
	DefaultFlushInterval = 10 * time.Second
)

const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	// lastWords is how long what has come may take to be kept when ctx ends.
	lastWords = 30 * time.Second
)

// ReceiveOptions say how the log is received.
type ReceiveOptions struct {
	// DSN of the server; its role needs the right to replicate. Required.
	DSN string
	// Slot keeps the server from throwing away what is not received yet. It is
	// made if it does not exist. Default: DefaultSlot.
	Slot string
	// Temporary makes a slot that vanishes with each connection: log that the
	// server throws away while nobody is connected is lost. Default: false.
	Temporary bool
	// FlushInterval is about how much log, in time, the loss of the server can
	// cost: so often the segment that is being written is kept as far as it has
	// come. Default: DefaultFlushInterval.
	FlushInterval time.Duration
	// Archive says how files are compressed and encrypted; its Rate limits each
	// by itself. Names cannot be hidden. Default: as for any archive.
	Archive archive.Options
	// AllowGap goes on where the server's log begins when what comes before is
	// gone. Default: false, it is a *GapError.
	AllowGap bool
	// UntilNow ends, without an error, when all log that the server had at the
	// start is kept. Default: false, until ctx ends.
	UntilNow bool
	// SpoolDir is where the segment that is being written is gathered: as much
	// room as a segment has. Default: os.TempDir().
	SpoolDir string
	// Status, if not nil, is called with each change, by one goroutine at a time.
	Status func(Status)
	// Say, if not nil, is told what happens, a line each.
	Say func(format string, args ...any)
}

// Status is how a receiver stands.
type Status struct {
	SystemID  string
	Connected bool
	Timeline  uint32
	// Flushed is how far the log is kept.
	Flushed pgrepl.LSN
	// FlushedAt is when Flushed moved last.
	FlushedAt time.Time
	// LagBytes is how much log the server has that is not kept; -1: unknown.
	LagBytes int64
	// Segments counts those that were completed, Reconnects the connections
	// after the first.
	Segments, Reconnects int64
}

// A GapError says that log between what is kept and what the server still has is
// gone for good.
type GapError struct {
	From pgrepl.LSN // how far the log is kept
	Err  error
}

// Error says what is lost, and what to do.
func (e *GapError) Error() string {
	return fmt.Sprintf("the server has thrown away its log from %s on: %v; --allow-gap goes on behind the gap, and a new base backup is needed to restore to any time after it", e.From, e.Err)
}

// Unwrap returns the server's error.
func (e *GapError) Unwrap() error { return e.Err }

// Receive receives the log of a server into storage until ctx ends, which is no
// error. It connects again, for ever, after a loss of the connection or of the
// storage, once it has come as far as to receive, and while the slot is in use.
func Receive(ctx context.Context, storage archive.Storage, opts ReceiveOptions) error {
	r := &receiver{opts: opts, storage: storage}
	if err := r.validate(); err != nil {
		return err
	}
	pause := firstRetry
	for {
		err := r.once(ctx)
		var gap *GapError
		switch {
		case err == nil || ctx.Err() != nil && !r.unkept(err):
			return nil
		case errors.As(err, &gap) && opts.AllowGap && !r.skip:
			r.skip = true
			r.say("%v; going on behind it", gap.Err)
			continue
		case errors.As(err, &gap), ctx.Err() != nil, !r.proven && !slotInUse(err):
			return err
		}
		if r.progressed {
			pause, r.progressed = firstRetry, false
		}
		r.say("%v; trying again in %v", err, pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, lastRetry)
		r.update(func(s *Status) { s.Reconnects++ })
	}
}

// slotInUse tells that the server holds the slot for somebody: mostly for a
// receiver that was killed, whose end it has not noticed yet.
func slotInUse(err error) bool {
	var server *pgwire.Error
	return errors.As(err, &server) && server.Code == "55006" // object_in_use
}

// receiver is one call of Receive.
type receiver struct {
	opts    ReceiveOptions
	cfg     pgwire.ConnectConfig
	storage archive.Storage

	until      pgrepl.LSN
	skip       bool // begin where the server's log begins
	proven     bool // it has worked once
	progressed bool // since the last pause

	mu     sync.Mutex // guards what follows
	status Status
}

func (r *receiver) validate() (err error) {
	o := &r.opts
	if o.Slot == "" {
		o.Slot = DefaultSlot
	}
	if o.FlushInterval == 0 {
		o.FlushInterval = DefaultFlushInterval
	}
	r.status.LagBytes = -1
	switch {
	case o.FlushInterval < 0:
		return fmt.Errorf("--flush-interval %v: it is negative", o.FlushInterval)
	case o.Archive.Encryption.HideNames:
		return errors.New("names of log files cannot be hidden: the server asks for them by name")
	}
	r.cfg, err = pgwire.ParseDSN(o.DSN)
	return err
}

func (r *receiver) say(format string, args ...any) {
	if r.opts.Say != nil {
		r.opts.Say(format, args...)
	}
}

func (r *receiver) update(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
	if r.opts.Status != nil {
		r.opts.Status(r.status)
	}
}

// keepError marks what the archive did not keep.
type keepError struct{ error }

func (e keepError) Unwrap() error { return e.error }

// unkept reports whether an error says that log that had come was not kept.
func (r *receiver) unkept(err error) bool {
	var k keepError
	return errors.As(err, &k)
}

// once receives over one connection.
func (r *receiver) once(ctx context.Context) (err error) {
	conn, err := pgrepl.Connect(ctx, r.cfg, pgrepl.Physical)
	if err != nil {
		return err
	}
	defer func() {
		r.update(func(s *Status) { s.Connected, s.LagBytes = false, -1 })
		err = errors.Join(err, ignoreBroken(conn.Close(), err))
	}()
	system, err := conn.Identify(ctx)
	if err != nil {
		return err
	}
	size, err := conn.SegmentSize(ctx)
	if err != nil {
		return err
	}
	s, err := createStore(ctx, r.storage, cluster{SystemID: system.ID, SegmentBytes: size}, r.opts.Archive)
	if err != nil {
		return err
	}
	if r.status.SystemID != "" && r.status.SystemID != system.ID {
		return fmt.Errorf("the server at this address is another cluster now: %s instead of %s", system.ID, r.status.SystemID)
	}
	if err := r.ensureSlot(ctx, conn); err != nil {
		return err
	}
	if r.opts.UntilNow && r.until == 0 {
		r.until = system.Flushed
	}
	start, timeline, err := r.begin(ctx, conn, system.Timeline, s)
	if err != nil {
		return err
	}
	ends, _, err := s.ends(ctx)
	if err != nil {
		return err
	}
	if start != 0 && r.until != 0 && start >= r.until {
		return nil
	}
	return r.stream(ctx, conn, &sink{receiver: r, store: s, ends: ends}, start, timeline)
}

// ignoreBroken leaves out the error of closing a connection that has failed.
func ignoreBroken(closing, cause error) error {
	if cause != nil {
		return nil
	}
	return closing
}

// ensureSlot makes the slot.
func (r *receiver) ensureSlot(ctx context.Context, conn *pgrepl.Conn) error {
	_, err := conn.CreateSlot(ctx, pgrepl.SlotConfig{
		Name: r.opts.Slot, Kind: pgrepl.PhysicalSlot, Temporary: r.opts.Temporary, Reserve: true,
	})
	var server *pgwire.Error
	if errors.As(err, &server) && server.Code == "42710" { // duplicate_object
		if r.opts.Temporary {
			return fmt.Errorf("make temporary slot: %w", err)
		}
		return nil
	}
	if err == nil && !r.opts.Temporary {
		r.say("made replication slot %s: the server keeps its log for it, and fills its disk if no receiver runs", r.opts.Slot)
	}
	return err
}

// begin says where to go on: behind the last segment that is complete, or where
// the last one begins that is not; 0 where there is none. The server may have been
// promoted since: then it is the last of those that its history goes through, and
// where more of an old timeline is kept than the server has of it, the beginning of
// the next one.
func (r *receiver) begin(ctx context.Context, conn *pgrepl.Conn, current uint32, s *store) (pgrepl.LSN, uint32, error) {
	segments, _, err := s.list(ctx)
	if err != nil {
		return 0, 0, err
	}
	// A receiver that was killed between completing a segment and removing the
	// part of it has left both: the whole is listed first.
	var stale []string
	kept := segments[:0]
	for _, f := range segments {
		if n := len(kept); f.partial && n > 0 && f.segment == kept[n-1].segment {
			stale = append(stale, s.dir()+f.name+suffix)
			continue
		}
		kept = append(kept, f)
	}
	segments = kept
	if len(stale) > 0 {
		if err := s.storage.Delete(ctx, stale...); err != nil {
			return 0, 0, fmt.Errorf("remove parts of segments that are complete: %w", err)
		}
	}
	if len(segments) == 0 || r.skip {
		return 0, 0, nil
	}
	last := segments[len(segments)-1]
	if last.segment.Timeline >= current {
		start, timeline := goOn(last)
		return start, timeline, nil
	}
	h, err := conn.TimelineHistory(ctx, current)
	if err != nil {
		return 0, 0, err
	}
	line, err := h.Ancestors()
	if err != nil {
		return 0, 0, err
	}
	line = append(line, pgrepl.Ancestor{Timeline: current})
	for i := len(line) - 1; i >= 0; i-- {
		left := line[i].End
		for _, f := range slices.Backward(segments) {
			if f.segment.Timeline != line[i].Timeline || left != 0 && f.segment.Start() >= left {
				continue
			}
			start, timeline := goOn(f)
			if left != 0 && start > left {
				start, timeline = pgrepl.SegmentAt(line[i+1].Timeline, left, s.cluster.SegmentBytes).Start(), line[i+1].Timeline
			}
			return start, timeline, nil
		}
	}
	return 0, 0, fmt.Errorf("timeline %d of the server does not come from any whose log is kept, up to timeline %d: begin another archive", current, last.segment.Timeline)
}

// goOn is what follows a file.
func goOn(f file) (pgrepl.LSN, uint32) {
	if f.partial {
		return f.segment.Start(), f.segment.Timeline
	}
	return f.segment.End(), f.segment.Timeline
}

// stream receives from a position on.
func (r *receiver) stream(ctx context.Context, conn *pgrepl.Conn, to *sink, start pgrepl.LSN, timeline uint32) error {
	s := to.store
	keep, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	to.ctx = keep
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })()

	watch, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { r.watch(watch) })
	defer func() {
		stop()
		watcher.Wait()
	}()
	r.update(func(st *Status) { st.SystemID, st.Connected = s.cluster.SystemID, true })
	if start != 0 {
		r.say("receiving the log of cluster %s from %s on, timeline %d", s.cluster.SystemID, start, timeline)
	} else {
		r.say("receiving the log of cluster %s", s.cluster.SystemID)
	}
	_, _, err := conn.ReceiveWAL(ctx, pgrepl.ReceiveConfig{
		StreamConfig: pgrepl.StreamConfig{StatusInterval: r.opts.FlushInterval},
		Slot:         r.opts.Slot, Start: start, Timeline: timeline, Until: r.until,
		OnFlush: func(timeline uint32, flushed pgrepl.LSN) {
			r.proven, r.progressed, r.skip = true, true, false
			r.update(func(st *Status) {
				st.Timeline, st.FlushedAt = timeline, time.Now()
				if st.LagBytes > 0 && flushed > st.Flushed && st.Flushed > 0 {
					st.LagBytes = max(0, st.LagBytes-int64(flushed-st.Flushed))
				}
				st.Flushed = flushed
			})
		},
	}, to)
	var server *pgwire.Error
	if errors.As(err, &server) && thrownAway(server) {
		return &GapError{From: start, Err: server}
	}
	return err
}

// thrownAway reports whether a server says that it has removed the segment that it
// was to send: undefined_file when it cannot open it. When it removes the segment
// while it reads it, the code is that of whatever error the system had last, and
// only the place in its source tells.
func thrownAway(err *pgwire.Error) bool {
	return err.Code == "58P01" || err.Routine == "CheckXLogRemoved"
}

// watch asks the server how far its log is, on a connection of its own. What it
// cannot learn is unknown; the stream says what is wrong with the server.
func (r *receiver) watch(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := pgrepl.Connect(ctx, r.cfg, pgrepl.Physical)
		for err == nil {
			var system pgrepl.System
			if system, err = conn.Identify(ctx); err != nil {
				break
			}
			r.update(func(s *Status) {
				s.LagBytes = -1
				if s.Flushed > 0 {
					s.LagBytes = max(0, int64(system.Flushed)-int64(s.Flushed))
				}
			})
			if !wait(ctx, r.opts.FlushInterval) {
				_ = conn.Close() // it has told what it was for
				return
			}
		}
		if conn != nil {
			_ = conn.Close() // it is broken
		}
		r.update(func(s *Status) { s.LagBytes = -1 })
		wait(ctx, r.opts.FlushInterval)
	}
}

// wait waits; it returns false if ctx ends before.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// DropSlot removes the slot of a receiver that is not to come back.
func DropSlot(ctx context.Context, dsn, slot string) error {
	cfg, err := pgwire.ParseDSN(dsn)
	if err != nil {
		return err
	}
	conn, err := pgrepl.Connect(ctx, cfg, pgrepl.Physical)
	if err != nil {
		return err
	}
	err = conn.DropSlot(ctx, slot, false)
	return errors.Join(err, ignoreBroken(conn.Close(), err))
}
