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
	// finalFlushTimeout is how long storing the received data may take after ctx has ended.
	finalFlushTimeout = 30 * time.Second
)

// ReceiveOptions configure Receive.
type ReceiveOptions struct {
	// DSN is the server to receive from; its role needs the REPLICATION attribute. Required.
	DSN string
	// Slot is the replication slot that makes the server keep log until it was received.
	// Receive creates it if it does not exist. Default: DefaultSlot.
	Slot string
	// Temporary creates a slot that the server drops with each connection: log that the server
	// removes while no receiver is connected is lost. Default: false.
	Temporary bool
	// FlushInterval is how often the segment that is being received is stored as far as it has
	// come: about how much log, in time, is lost with the server. Default:
	// DefaultFlushInterval.
	FlushInterval time.Duration
	// Archive says how files are compressed and encrypted; its Rate applies to each file
	// separately. Names cannot be hidden. Default: as for any archive.
	Archive archive.Options
	// AllowGap continues where the server's log begins if the log before is gone. Default:
	// false, Receive returns a *GapError.
	AllowGap bool
	// UntilNow makes Receive return nil as soon as it has stored all log that the server had at
	// the start. Default: false, it runs until ctx ends.
	UntilNow bool
	// SpoolDir is the directory for the segment that is being received; it needs room for one
	// segment. Default: os.TempDir().
	SpoolDir string
	// Status, if not nil, is called after each change, by one goroutine at a time.
	Status func(Status)
	// Say, if not nil, receives messages about what happens, one line each.
	Say func(format string, args ...any)
}

// Status is the state of a receiver.
type Status struct {
	SystemID  string
	Connected bool
	Timeline  uint32
	// Flushed is the position up to which the log is stored.
	Flushed pgrepl.LSN
	// FlushedAt is when Flushed last moved.
	FlushedAt time.Time
	// LagBytes is how many bytes of log the server has that are not stored yet; -1 if unknown.
	LagBytes int64
	// Segments counts completed segments, Reconnects the connections after the first one.
	Segments, Reconnects int64
}

// A GapError says that the server no longer has the log that follows the last stored position.
type GapError struct {
	From pgrepl.LSN // up to where the log is stored
	Err  error
}

// Error says what is lost and what to do.
func (e *GapError) Error() string {
	return fmt.Sprintf("the server has removed its log from %s on: %v; --allow-gap continues after the gap, and a new base backup is needed to restore to any time after it", e.From, e.Err)
}

// Unwrap returns the server's error.
func (e *GapError) Unwrap() error { return e.Err }

// A ClusterError says that the DSN leads to another cluster than the one whose log was received
// before.
type ClusterError struct{ Was, Is string } // system identifiers

// Error says what to do.
func (e *ClusterError) Error() string {
	return fmt.Sprintf("the DSN now leads to cluster %s, and the log received so far is that of cluster %s: correct the address; "+
		"or, if the new cluster replaces the old one, start again to archive its log, and take a base backup of it", e.Is, e.Was)
}

// Receive receives the log of a server into storage until ctx ends, which is no error. It
// reconnects without limit while another connection uses the slot and, once a connection has
// begun to receive, after any error but a *GapError or a *ClusterError.
func Receive(ctx context.Context, storage archive.Storage, opts ReceiveOptions) error {
	r := &receiver{opts: opts, storage: storage}
	if err := r.validate(); err != nil {
		return err
	}
	return r.run(ctx)
}

// run is Receive without the validation.
func (r *receiver) run(ctx context.Context) error {
	pause := firstRetry
	for {
		err := r.once(ctx)
		var gap *GapError
		var other *ClusterError
		switch {
		case err == nil || ctx.Err() != nil && !r.unkept(err):
			return nil
		case errors.As(err, &gap) && r.opts.AllowGap && !r.skip:
			r.skip = true
			r.say("%v; continuing after it", gap.Err)
			continue
		case errors.As(err, &gap), errors.As(err, &other), ctx.Err() != nil, !r.proven && !slotInUse(err):
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

// slotInUse reports whether the server says that another connection uses the slot: usually that
// of a receiver that was killed, which the server has not noticed yet.
func slotInUse(err error) bool {
	var server *pgwire.Error
	return errors.As(err, &server) && server.Code == "55006" // object_in_use
}

// A receiver is one call of Receive.
type receiver struct {
	opts    ReceiveOptions
	cfg     pgwire.ConnectConfig
	storage archive.Storage

	until      pgrepl.LSN
	skip       bool // begin where the server's log begins
	proven     bool // a connection has received something
	progressed bool // since the last pause

	mu     sync.Mutex // guards the fields below
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

// A keepError is an error of the storage, not of the server.
type keepError struct{ error }

func (e keepError) Unwrap() error { return e.error }

// unkept reports whether err says that received log could not be stored.
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
	if r.status.SystemID != "" && r.status.SystemID != system.ID {
		return &ClusterError{Was: r.status.SystemID, Is: system.ID}
	}
	s, err := createStore(ctx, r.storage, cluster{SystemID: system.ID, SegmentBytes: size}, r.opts.Archive)
	if err != nil {
		return err
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

// ignoreBroken returns nil if closing failed only because the connection had failed with cause.
func ignoreBroken(closing, cause error) error {
	if cause != nil {
		return nil
	}
	return closing
}

// ensureSlot creates the slot unless it exists.
func (r *receiver) ensureSlot(ctx context.Context, conn *pgrepl.Conn) error {
	_, err := conn.CreateSlot(ctx, pgrepl.SlotConfig{
		Name: r.opts.Slot, Kind: pgrepl.PhysicalSlot, Temporary: r.opts.Temporary, Reserve: true,
	})
	var server *pgwire.Error
	if errors.As(err, &server) && server.Code == "42710" { // duplicate_object
		if r.opts.Temporary {
			return fmt.Errorf("create temporary slot: %w", err)
		}
		return nil
	}
	if err == nil && !r.opts.Temporary {
		r.say("created replication slot %s: the server keeps its log for it, and fills its disk if no receiver runs", r.opts.Slot)
	}
	return err
}

// begin returns where to continue: after the last complete segment, or at the beginning of the
// last incomplete one; 0 if nothing is stored. If the server was promoted since, this is the
// last segment on a timeline in the server's history; if more of an old timeline is stored than
// the server has of it, the beginning of the next timeline.
func (r *receiver) begin(ctx context.Context, conn *pgrepl.Conn, current uint32, s *store) (pgrepl.LSN, uint32, error) {
	segments, _, err := s.list(ctx)
	if err != nil {
		return 0, 0, err
	}
	// A receiver that was killed between completing a segment and removing its partial copy has
	// left both; the complete one is listed first.
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
		start, timeline := positionAfter(last)
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
			start, timeline := positionAfter(f)
			if left != 0 && start > left {
				start, timeline = pgrepl.SegmentAt(line[i+1].Timeline, left, s.cluster.SegmentBytes).Start(), line[i+1].Timeline
			}
			return start, timeline, nil
		}
	}
	return 0, 0, fmt.Errorf("timeline %d of the server does not come from any whose log is kept, up to timeline %d: begin another archive", current, last.segment.Timeline)
}

// positionAfter returns the position and the timeline that follow a file.
func positionAfter(f file) (pgrepl.LSN, uint32) {
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
	defer context.AfterFunc(ctx, func() { time.AfterFunc(finalFlushTimeout, cancel) })()

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

// thrownAway reports whether the server says that it has removed the requested segment: the
// code is undefined_file if it cannot open it. If it removes the segment while reading it, the
// code is that of an unrelated, earlier system error, and only the location in the server's
// source identifies the error.
func thrownAway(err *pgwire.Error) bool {
	return err.Code == "58P01" || err.Routine == "CheckXLogRemoved"
}

// watch asks the server for the end of its log, on a connection of its own. If that fails, the
// lag is unknown; errors of the server are reported by stream.
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
				_ = conn.Close() // it has served its purpose
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

// wait waits for d. It returns false if ctx ends before.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// DropSlot drops the slot of a receiver that is not going to run again.
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
