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

// BinlogOptions say which server's binary log is archived, and where.
type BinlogOptions struct {
	// DSN says where the server is and which user logs in: it needs REPLICATION SLAVE, and
	// REPLICATION CLIENT or BINLOG MONITOR. Required.
	DSN string

	// Storage stores the log, below Dir ("" or a name with a slash at its end). Storage is
	// required.
	Storage archive.Storage
	Dir     string

	// Start is where to begin if nothing is archived yet: the position of a backup. Otherwise
	// archiving continues at the end of the archive. Default: the oldest position that the
	// server has.
	Start binlog.Position

	// Every is how much later than its commit a transaction is archived, at most. Default: 5
	// seconds. When the connection is lost, all complete transactions received so far are
	// archived at once.
	Every time.Duration

	// SegmentBytes is the approximate limit of a segment, in bytes of the log. Default: 64 MiB.
	SegmentBytes uint64

	// Grace is how long the storage may take after ctx has ended to store what was received by
	// then. What it has not stored is an error, and is received again in another run; to give
	// that up may take a storage a minute more. Default: 30 seconds.
	Grace time.Duration

	// UntilEnd ends at the end of the log instead of waiting for more. Default: false.
	UntilEnd bool

	// Opened is called when the server has begun to send, with the first position. Archived is
	// called after each segment is durable, with the position up to which the log is archived.
	// Default: nil.
	Opened, Archived func(binlog.Position)
}

// ErrOtherServer is returned if an archive has another server's log.
var ErrOtherServer = errors.New("what is archived is the log of another server")

// StreamBinlog archives a server's binary log as it is written, until ctx ends, which is no
// error. Segments neither miss nor repeat anything, however often it is killed and restarted.
// It returns the position up to which the log is archived. A lost connection is an error;
// another call continues where the archive ends.
func StreamBinlog(ctx context.Context, o BinlogOptions) (binlog.Position, error) {
	o.Every, o.SegmentBytes, o.Grace = cmp.Or(o.Every, 5*time.Second), cmp.Or(o.SegmentBytes, 64<<20), cmp.Or(o.Grace, 30*time.Second)
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
	// The storage outlives ctx: what is complete must be stored. An S3 server that throttles
	// could delay that for many minutes.
	storing, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(o.Grace, giveUp) })()
	err = a.run(ctx, storing, stream)
	if err != nil && storing.Err() != nil {
		err = fmt.Errorf("%w (not stored within %v of the interrupt; another run continues after %s)", err, o.Grace, a.pos)
	}
	return a.pos, errors.Join(err, stream.Close())
}

// logArchive is one run of StreamBinlog. A segment can be ended at any time: it has complete
// transactions, and the events of the current one wait beside it. Only the events of a
// transaction too long for that go into a segment before it ends.
type logArchive struct {
	o       BinlogOptions
	pos     binlog.Position // up to which the log is archived
	at      binlog.Position // after the last event
	end     binlog.Position // after the last one that is in the segment, or else archived
	tracker binlog.Tracker
	format  []byte // the format description of the file
	segment *logSegment

	waiting []byte // events from end to at that are not in the segment yet
	heads   bool   // the first of them is the format description of the file
	torn    bool   // the segment ends inside a transaction
}

// waitingBytes bounds the events of one transaction that wait in memory.
const waitingBytes = 8 << 20

// logSegment is the segment that is being written.
type logSegment struct {
	my.LogSegment
	object  archive.ObjectWriter
	encoder *zstd.Encoder
	due     time.Time
}

// identify checks that the archive belongs to this server, or marks it as the server's.
func (a *logArchive) identify(ctx context.Context, cfg mywire.ConnectConfig) error {
	id, err := a.ask(ctx, cfg)
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

// ask queries the server's id, and checks that its log can be used.
func (a *logArchive) ask(ctx context.Context, cfg mywire.ConnectConfig) (id string, err error) {
	s, err := my.Connect(ctx, cfg, "")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	does, _, err := unlogged(ctx, s)
	switch {
	case err != nil && !my.Denied(err):
		return "", fmt.Errorf("ask whether the server is a replica: %w", err)
	case does:
		return "", fmt.Errorf("archive the binary log: %w: archive its source's log, or switch that on", errUnlogged)
	}
	return serverID(ctx, s)
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
			return a.settle(storing)
		case errors.Is(err, context.DeadlineExceeded):
			if err := a.overdue(storing); err != nil {
				return err
			}
			continue
		case err != nil:
			// This may be all that is left of the server's log.
			return errors.Join(fmt.Errorf("archive the binary log after %s: %w", a.at, err), a.settle(storing))
		}
		if err := a.take(storing, e); err != nil {
			return err
		}
	}
}

// next waits for an event, at most until the segment is due.
func (a *logArchive) next(ctx context.Context, stream *binlog.Stream) (*binlog.Event, error) {
	if a.segment == nil || a.torn {
		return stream.Next(ctx)
	}
	waiting, cancel := context.WithDeadline(ctx, a.segment.due)
	defer cancel()
	return stream.Next(waiting)
}

// overdue ends the segment if it is due.
func (a *logArchive) overdue(ctx context.Context) error {
	if a.segment == nil || a.torn {
		return nil
	}
	return a.cut(ctx)
}

// settle archives complete transactions. The events of an incomplete one are received again
// later.
func (a *logArchive) settle(ctx context.Context) error {
	if a.torn {
		return nil
	}
	return a.cut(ctx)
}

// take archives an event.
func (a *logArchive) take(ctx context.Context, e *binlog.Event) error {
	if e.Type == binlog.FormatDescriptionEvent {
		a.format = append(a.format[:0], e.Raw...)
	}
	if e.File != a.at.File {
		// The server has begun another file, maybe without ending the last one.
		err := a.write(ctx)
		if err == nil {
			err = a.cut(ctx)
		}
		if err != nil {
			return err
		}
		a.at = binlog.Position{File: e.File, Pos: uint64(len(binlog.Magic))}
		if a.pos.File == e.File {
			a.at.Pos = max(a.at.Pos, a.pos.Pos)
		}
		a.end = a.at
	}
	if _, err := a.tracker.Observe(e); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	switch {
	case !e.Stored() || e.End <= a.at.Pos:
		return nil
	case e.Start() != a.at.Pos:
		return fmt.Errorf("archive the binary log: %w: what follows %s is missing, and the server continues at %d", my.ErrLogGap, a.at, e.Start())
	}
	if a.at == a.end {
		a.heads = e.Type == binlog.FormatDescriptionEvent
	}
	// Servers send events unencrypted, and a file that says otherwise could not be read.
	if e.Type != binlog.StartEncryptionEvent {
		a.waiting = append(a.waiting, e.Raw...)
	}
	a.at.Pos = e.End
	if a.tracker.InTransaction() {
		if len(a.waiting) < waitingBytes {
			return nil
		}
		if !a.torn {
			if err := a.cut(ctx); err != nil {
				return err
			}
		}
		a.torn = true
		return a.write(ctx)
	}
	if err := a.write(ctx); err != nil {
		return err
	}
	a.torn = false
	full := a.at.Pos-a.segment.Start >= a.o.SegmentBytes || !time.Now().Before(a.segment.due)
	if full || e.Type == binlog.RotateEvent {
		return a.cut(ctx)
	}
	return nil
}

// write writes the waiting events to the segment.
func (a *logArchive) write(ctx context.Context) error {
	if a.at == a.end {
		return nil
	}
	if a.segment == nil {
		if err := a.begin(ctx); err != nil {
			return err
		}
	}
	if _, err := a.segment.encoder.Write(a.waiting); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	a.end, a.waiting = a.at, a.waiting[:0]
	return nil
}

// begin begins a segment with the waiting events.
func (a *logArchive) begin(ctx context.Context) error {
	s := &logSegment{LogSegment: my.LogSegment{Name: my.LogName(a.end.File, a.end.Pos), File: a.end.File, Start: a.end.Pos}, due: time.Now().Add(a.o.Every)}
	var err error
	if s.object, err = a.o.Storage.Create(ctx, a.o.Dir+s.Name); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	a.segment = s
	if s.encoder, err = zstd.NewWriter(s.object, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	head := []byte(binlog.Magic)
	if !a.heads {
		head = append(head, a.format...)
	}
	if _, err := s.encoder.Write(head); err != nil {
		return fmt.Errorf("archive the binary log: %w", err)
	}
	return nil
}

// cut ends the segment, if there is one: after that it is archived.
func (a *logArchive) cut(ctx context.Context) error {
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
	a.segment, a.pos = nil, a.end
	if err := my.NoteLogEnd(ctx, a.o.Storage, a.o.Dir, a.pos); err != nil {
		return err
	}
	if a.o.Archived != nil {
		a.o.Archived(a.pos)
	}
	return nil
}

// drop gives up the segment; its events are received again.
func (a *logArchive) drop() error {
	s := a.segment
	a.segment = nil
	return s.object.Abort()
}
