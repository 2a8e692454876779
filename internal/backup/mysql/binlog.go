package mysql

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// BinlogOptions says whose binary log is archived, and where.
type BinlogOptions struct {
	// DSN says where the server is and who to be there: REPLICATION SLAVE is
	// needed, and REPLICATION CLIENT or BINLOG MONITOR. Required.
	DSN string

	// Storage takes the log, below Dir ("" or a name with a slash at its end).
	// Storage is required.
	Storage archive.Storage
	Dir     string

	// Start is where to begin if nothing is archived yet: the position of a
	// backup. What is archived goes on where it ends. Default: the oldest that the
	// server has.
	Start binlog.Position

	// Every is how much later than its commit a transaction is archived, at most.
	// Default: 5 seconds.
	Every time.Duration

	// SegmentBytes is about how long a segment may grow, in bytes of the log.
	// Default: 64 MiB.
	SegmentBytes uint64

	// UntilEnd ends with the log instead of waiting for more. Default: false.
	UntilEnd bool

	// Opened is called when the server has begun to send, with the position from
	// which on. Archived is called after each segment is durable, with the position
	// up to which the log is archived. Default: nil, nobody wants to know.
	Opened, Archived func(binlog.Position)
}

// ErrOtherServer says that an archive is of another server's log.
var ErrOtherServer = errors.New("what is archived is the log of another server")

// StreamBinlog archives a server's binary log as it is written, until ctx ends,
// which is no error. Nothing is missing between segments and nothing is there
// twice, however often it is killed and started again. It returns the position up
// to which the log is archived. A connection that is lost is an error: anyone who
// calls it again goes on where it ended.
func StreamBinlog(ctx context.Context, o BinlogOptions) (binlog.Position, error) {
	o.Every, o.SegmentBytes = cmp.Or(o.Every, 5*time.Second), cmp.Or(o.SegmentBytes, 64<<20)
	cfg, err := mywire.ParseClientDSN(o.DSN)
	if err != nil {
		return binlog.Position{}, err
	}
	cfg.Database = ""
	a := &logArchive{o: o, pos: o.Start}
	end, err := my.LogEnd(ctx, o.Storage, o.Dir)
	if err != nil {
		return a.pos, err
	}
	if !end.IsZero() {
		a.pos = end
	}
	if err := a.identify(ctx, cfg); err != nil {
		return a.pos, err
	}
	from := binlog.Start{Position: a.pos, Oldest: a.pos.IsZero()}
	stream, err := binlog.Open(ctx, binlog.StreamConfig{Server: cfg, Start: from, Exact: true, NonBlocking: o.UntilEnd})
	if err != nil {
		return a.pos, fmt.Errorf("archive the binary log from %s on: %w", a.pos, err)
	}
	if o.Opened != nil {
		o.Opened(a.pos)
	}
	// The storage outlives ctx: what is complete is to be kept.
	err = a.run(ctx, context.WithoutCancel(ctx), stream)
	return a.pos, errors.Join(err, stream.Close())
}

// logArchive is one run of StreamBinlog.
type logArchive struct {
	o       BinlogOptions
	pos     binlog.Position // up to which the log is archived
	at      binlog.Position // behind the last event
	tracker binlog.Tracker
	format  []byte // the format description of the file
	segment *logSegment
}

// logSegment is the segment that is written.
type logSegment struct {
	my.LogSegment
	object  archive.ObjectWriter
	encoder *zstd.Encoder
	due     time.Time
}

// identify sees that the archive is one of this server.
func (a *logArchive) identify(ctx context.Context, cfg mywire.ConnectConfig) error {
	id, err := serverIDAt(ctx, cfg)
	if err != nil {
		return err
	}
	own, err := json.Marshal(logSource{Server: id})
	if err != nil {
		return fmt.Errorf("note the server's id: %w", err)
	}
	err = a.o.Storage.PutNew(ctx, a.o.Dir+sourceName, own)
	if !errors.Is(err, archive.ErrExist) {
		return err
	}
	source, err := readSource(ctx, a.o.Storage, a.o.Dir)
	if err != nil {
		return err
	}
	if source.Server != id {
		return fmt.Errorf("%w: %q, and this one is %q (another directory is needed)", ErrOtherServer, source.Server, id)
	}
	return nil
}

func (a *logArchive) run(ctx, storing context.Context, stream *binlog.Stream) (err error) {
	defer func() {
		if a.segment != nil {
			err = errors.Join(err, a.drop())
		}
	}()
	for {
		e, err := a.next(ctx, stream)
		switch {
		case ctx.Err() != nil || errors.Is(err, io.EOF):
			// What is in the middle of a transaction comes again some day.
			if a.tracker.InTransaction() {
				return nil
			}
			return a.cut()
		case errors.Is(err, context.DeadlineExceeded):
			if err := a.overdue(); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("archive the binary log behind %s: %w", a.at, err)
		}
		if err := a.take(storing, e); err != nil {
			return err
		}
	}
}

// next waits for an event until the segment is due.
func (a *logArchive) next(ctx context.Context, stream *binlog.Stream) (*binlog.Event, error) {
	if a.segment == nil || a.tracker.InTransaction() {
		return stream.Next(ctx)
	}
	waiting, cancel := context.WithDeadline(ctx, a.segment.due)
	defer cancel()
	return stream.Next(waiting)
}

// overdue ends the segment when it is due.
func (a *logArchive) overdue() error {
	if a.segment == nil || a.tracker.InTransaction() {
		return nil
	}
	return a.cut()
}

// take archives an event.
func (a *logArchive) take(ctx context.Context, e *binlog.Event) error {
	if e.Type == binlog.FormatDescriptionEvent {
		a.format = append(a.format[:0], e.Raw...)
	}
	if e.File != a.at.File {
		// Its server has begun another file, perhaps without ending the last one.
		if err := a.cut(); err != nil {
			return err
		}
		a.at = binlog.Position{File: e.File, Pos: uint64(len(binlog.Magic))}
		if a.pos.File == e.File {
			a.at.Pos = max(a.at.Pos, a.pos.Pos)
		}
	}
	if _, err := a.tracker.Observe(e); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	switch {
	case !e.Stored() || e.End <= a.at.Pos:
		return nil
	case e.Start() != a.at.Pos:
		return fmt.Errorf("archive the binary log: %w: what follows %s is missing, and the server goes on at %d", my.ErrLogGap, a.at, e.Start())
	}
	if a.segment == nil {
		if err := a.begin(ctx, e); err != nil {
			return err
		}
	}
	// Servers send events in plain, and a file that says otherwise could not be read.
	if e.Type != binlog.StartEncryptionEvent {
		if _, err := a.segment.encoder.Write(e.Raw); err != nil {
			return fmt.Errorf("archive the binary log: %w", err)
		}
	}
	a.at.Pos = e.End
	full := a.at.Pos-a.segment.Start >= a.o.SegmentBytes || !time.Now().Before(a.segment.due)
	if full && !a.tracker.InTransaction() || e.Type == binlog.RotateEvent {
		return a.cut()
	}
	return nil
}

// begin begins a segment with an event.
func (a *logArchive) begin(ctx context.Context, e *binlog.Event) error {
	s := &logSegment{LogSegment: my.LogSegment{Name: my.LogName(e.File, e.Start()), File: e.File, Start: e.Start()}, due: time.Now().Add(a.o.Every)}
	var err error
	if s.object, err = a.o.Storage.Create(ctx, a.o.Dir+s.Name); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	a.segment = s
	if s.encoder, err = zstd.NewWriter(s.object, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	head := []byte(binlog.Magic)
	if e.Type != binlog.FormatDescriptionEvent {
		head = append(head, a.format...)
	}
	if _, err := s.encoder.Write(head); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	return nil
}

// cut ends the segment, if there is one: from now on it is archived.
func (a *logArchive) cut() error {
	s := a.segment
	if s == nil {
		return nil
	}
	if err := s.encoder.Close(); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	if _, err := s.object.Commit(); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	a.segment, a.pos = nil, a.at
	if a.o.Archived != nil {
		a.o.Archived(a.pos)
	}
	return nil
}

// drop gives up the segment; its events come again.
func (a *logArchive) drop() error {
	s := a.segment
	a.segment = nil
	return s.object.Abort()
}
