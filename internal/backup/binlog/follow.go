// Package binlog archives the binary log of a MySQL or MariaDB server for as long as it runs,
// and replays an archived log on a restored backup: it chooses the backup and the log, and
// checks both before anything is restored. One connection is the work of backup/mysql, and the
// replay itself that of restore/mysql.
package binlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/wire/binlog"
)

// Pauses before reconnecting.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// FollowOptions say which server's binary log is archived, and where.
type FollowOptions struct {
	// Stream has the server and the storage. Follow sets its Dir, Opened and Archived.
	Stream dumpmy.BinlogOptions

	// Log is the name of the log in the archive. Default: derived from the server's id.
	Log string

	// Place is where the archive is, for messages.
	Place string

	// MetricsFile is for node_exporter's textfile collector, written atomically. Default: none.
	MetricsFile string

	// Say prints a message. It is called by several goroutines. Required.
	Say func(format string, args ...any)
}

// Status is the progress of an archive.
type Status struct {
	Log        string          // its name in the archive
	Connected  bool            // log is being received
	Position   binlog.Position // up to which the log is archived
	ArchivedAt time.Time       // when the last segment was completed
	Segments   int             // completed since the start
	Reconnects int             // connections after the first

	proven bool // the server has sent log
}

// follower is one run of Follow.
type follower struct {
	o FollowOptions

	mu     sync.Mutex // guards status: another goroutine writes metrics
	status Status
}

// Follow archives a server's binary log until ctx ends, which is no error, or with
// Stream.UntilEnd until the end of the log. It reconnects by itself, except when the first
// connection fails, or when no retry can help.
func Follow(ctx context.Context, o FollowOptions) (Status, error) {
	if o.Log == "" {
		id, err := dumpmy.ServerID(ctx, o.Stream.DSN)
		if err != nil {
			return Status{}, err
		}
		o.Log = dumpmy.DefaultLogName(id)
	}
	o.Stream.Dir = dumpmy.LogDir(o.Log)
	f := &follower{o: o, status: Status{Log: o.Log}}
	f.o.Stream.Opened = func(p binlog.Position) {
		f.update(func(s *Status) { s.Connected, s.proven = true, true })
		from := p.String()
		if p.IsZero() {
			from = "the oldest that the server has"
		}
		o.Say("archiving the binary log into %s of %s, from %s on", o.Log, o.Place, from)
	}
	f.o.Stream.Archived = func(p binlog.Position) {
		f.update(func(s *Status) {
			s.Position, s.ArchivedAt = p, time.Now()
			s.Segments++
		})
	}
	stop := notice.KeepTextfile(o.MetricsFile, func() []notice.Metric { return f.now().Metrics() },
		func(err error) { o.Say("--metrics-file: %v", err) })
	err := f.run(ctx)
	err = errors.Join(err, stop())
	return f.now(), hinted(err)
}

// run archives over one connection after the other.
func (f *follower) run(ctx context.Context) error {
	pause, progress := firstRetry, 0
	for {
		end, err := dumpmy.StreamBinlog(ctx, f.o.Stream)
		f.update(func(s *Status) { s.Position, s.Connected = end, false })
		switch {
		case err == nil && (ctx.Err() != nil || f.o.Stream.UntilEnd):
			return nil
		case err == nil:
			err = errors.New("the server has ended the stream")
		case ctx.Err() != nil, !f.now().proven, lasting(err):
			return err
		}
		if s := f.now(); s.Segments > progress {
			pause, progress = firstRetry, s.Segments
		}
		f.o.Say("%v; trying again in %v", err, pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, lastRetry)
		f.update(func(s *Status) { s.Reconnects++ })
	}
}

// lasting reports whether a retry cannot help.
func lasting(err error) bool {
	var unavailable *binlog.UnavailableError
	return errors.As(err, &unavailable) || errors.Is(err, my.ErrLogGap) || errors.Is(err, dumpmy.ErrOtherServer)
}

// hinted adds to an error about a gap what to do about it.
func hinted(err error) error {
	if errors.Is(err, binlog.ErrPurged) || errors.Is(err, binlog.ErrPosition) || errors.Is(err, my.ErrLogGap) {
		return fmt.Errorf("a gap: %w; --log NAME begins another log, which can be replayed on backups that are taken after that", err)
	}
	return err
}

func (f *follower) update(change func(*Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
}

func (f *follower) now() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Metrics returns the status as metrics.
func (s Status) Metrics() []notice.Metric {
	labels := fmt.Sprintf("{log=%q}", s.Log)
	connected := 0.0
	if s.Connected {
		connected = 1
	}
	metrics := []notice.Metric{
		{Name: "weir_binlog_connected", Help: "Whether log is being received.", Labels: labels, Value: connected},
		{Name: "weir_binlog_segments_total", Help: "Segments completed since the start.", Labels: labels, Value: float64(s.Segments)},
		{Name: "weir_binlog_reconnects_total", Help: "Connections after the first since the start.", Labels: labels, Value: float64(s.Reconnects)},
	}
	if !s.Position.IsZero() {
		_, digits, _ := strings.Cut(s.Position.File, ".")
		if number, err := strconv.ParseFloat(digits, 64); err == nil {
			metrics = append(metrics, notice.Metric{Name: "weir_binlog_file", Help: "Number of the server's file up to which log is kept.", Labels: labels, Value: number})
		}
		metrics = append(metrics, notice.Metric{Name: "weir_binlog_position_bytes", Help: "Position in that file.", Labels: labels, Value: float64(s.Position.Pos)})
	}
	if !s.ArchivedAt.IsZero() {
		metrics = append(metrics, notice.Metric{Name: "weir_binlog_kept_timestamp_seconds", Help: "When log was kept last.", Labels: labels, Value: float64(s.ArchivedAt.UnixMilli()) / 1000})
	}
	return metrics
}
