package mysql

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/binlog"
)

// A LogSegment is a piece of a binary log in a storage: a file that is a binary log
// itself, compressed, so that `zstd -d` and the servers' own programs read it. It
// begins and ends between transactions. Its name says where it begins in the
// server's file; the next one begins where it ends:
//
//	binlog.000007/000000000004.zst
//	binlog.000007/000000081920.zst
type LogSegment struct {
	Name  string
	File  string // on the server
	Start uint64 // of its first event, in bytes
}

// LogName returns the name of a segment.
func LogName(file string, start uint64) string { return fmt.Sprintf("%s/%012d.zst", file, start) }

func parseLogName(name string) (LogSegment, bool) {
	file, rest, ok := strings.Cut(name, "/")
	digits, zst := strings.CutSuffix(rest, ".zst")
	start, err := strconv.ParseUint(digits, 10, 64)
	if !ok || !zst || err != nil {
		return LogSegment{}, false
	}
	return LogSegment{Name: name, File: file, Start: start}, true
}

// logNumber is the number at the end of a log file's name.
func logNumber(file string) uint64 {
	n, err := strconv.ParseUint(file[strings.LastIndexByte(file, '.')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ListLogs returns the segments below a directory of a storage ("" or one with a
// slash at its end) in the order of the log.
func ListLogs(ctx context.Context, s archive.Storage, dir string) ([]LogSegment, error) {
	var out []LogSegment
	for o, err := range s.List(ctx, dir, true) {
		if err != nil {
			return nil, fmt.Errorf("list binary logs: %w", err)
		}
		if seg, ok := parseLogName(strings.TrimPrefix(o.Name, dir)); ok {
			out = append(out, seg)
		}
	}
	slices.SortFunc(out, func(a, b LogSegment) int {
		return cmp.Or(cmp.Compare(logNumber(a.File), logNumber(b.File)), cmp.Compare(a.File, b.File), cmp.Compare(a.Start, b.Start))
	})
	return out, nil
}

// ErrLogGap says that a piece of the log is not in the storage.
var ErrLogGap = errors.New("the archived binary log has a gap")

// Logs reads archived binary logs as one. It is a binlog.Source: io.EOF is the end
// of what is archived. One goroutine uses it at a time.
type Logs struct {
	storage  archive.Storage
	dir      string
	segments []LogSegment    // the one that is open, and those to come
	until    binlog.Position // how far the log was archived; zero if nobody has noted it
	from     uint64          // events of the first file that end here or before are passed over
	pos      binlog.Position

	in      io.ReadCloser
	decoder *zstd.Decoder
	file    *binlog.File
}

// OpenLogs opens the logs below dir from a position on, which must be in them or at
// their end.
func OpenLogs(ctx context.Context, s archive.Storage, dir string, from binlog.Position) (*Logs, error) {
	// In this order: of what is archived meanwhile there may be more than was noted, not less.
	until, err := notedEnd(ctx, s, dir)
	if err != nil {
		return nil, err
	}
	all, err := ListLogs(ctx, s, dir)
	if err != nil {
		return nil, err
	}
	first := -1
	for i, g := range all {
		if g.File == from.File && g.Start <= max(from.Pos, uint64(len(binlog.Magic))) {
			first = i
		}
	}
	if first < 0 {
		return nil, fmt.Errorf("open binary logs at %s: %w: nothing there begins at or before it", from, ErrLogGap)
	}
	return &Logs{storage: s, dir: dir, segments: all[first:], from: from.Pos, until: until}, nil
}

// endName is a note beside the segments of a log of where the last one ends: that it is
// lost shows in nothing else.
const endName = "end.json"

// logEnd is the content of the note.
type logEnd struct {
	File string `json:"file"`
	Pos  uint64 `json:"position"`
}

// NoteLogEnd notes that a log is archived up to a position.
func NoteLogEnd(ctx context.Context, s archive.Storage, dir string, end binlog.Position) error {
	note, err := json.Marshal(logEnd{end.File, end.Pos})
	if err == nil {
		err = s.Put(ctx, dir+endName, note)
	}
	if err != nil {
		return fmt.Errorf("note the end of the archived log: %w", err)
	}
	return nil
}

// notedEnd reads the note; zero if there is none, as in logs of earlier versions.
func notedEnd(ctx context.Context, s archive.Storage, dir string) (binlog.Position, error) {
	in, err := s.Open(ctx, dir+endName, 0)
	if errors.Is(err, archive.ErrNotExist) {
		return binlog.Position{}, nil
	}
	if err != nil {
		return binlog.Position{}, fmt.Errorf("read the end of the archived log: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(in, 64<<10))
	var end logEnd
	if err = errors.Join(err, in.Close()); err == nil {
		err = json.Unmarshal(text, &end)
	}
	if err != nil {
		return binlog.Position{}, fmt.Errorf("read %s: %w", dir+endName, err)
	}
	return binlog.Position{File: end.File, Pos: end.Pos}, nil
}

// whole sees that the log goes as far as it was archived.
func (l *Logs) whole() error {
	a, b := logNumber(l.pos.File), logNumber(l.until.File)
	if l.until.IsZero() || a > b || a == b && l.pos.Pos >= l.until.Pos {
		return io.EOF
	}
	return fmt.Errorf("%w: it was archived up to %s, and what is there ends at %s", ErrLogGap, l.until, l.pos)
}

// LogEnd returns the position at which what is archived ends, zero if nothing is.
func LogEnd(ctx context.Context, s archive.Storage, dir string) (binlog.Position, error) {
	all, err := ListLogs(ctx, s, dir)
	if err != nil || len(all) == 0 {
		return binlog.Position{}, err
	}
	l := &Logs{storage: s, dir: dir, segments: all[len(all)-1:]}
	for {
		_, err := l.Next(ctx)
		if errors.Is(err, io.EOF) {
			return l.pos, nil
		}
		if err != nil {
			return binlog.Position{}, errors.Join(fmt.Errorf("find the end of the archived log: %w", err), l.Close())
		}
	}
}

// Next returns the next event, as binlog.Source says.
func (l *Logs) Next(ctx context.Context) (*binlog.Event, error) {
	for {
		if l.file == nil {
			if err := l.open(ctx); err != nil {
				return nil, err
			}
		}
		e, err := l.file.Next(ctx)
		if errors.Is(err, io.EOF) {
			if err := l.Close(); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", l.dir+l.segments[0].Name, err)
		}
		if e.Stored() {
			// Of a segment that begins inside a file, the format description in
			// front may be the one that the file begins with.
			if e.Type != binlog.FormatDescriptionEvent || e.End > l.pos.Pos {
				l.pos.Pos = e.End
			}
			if e.Type != binlog.FormatDescriptionEvent && e.End <= l.from {
				continue
			}
		}
		return e, nil
	}
}

// open opens the next segment, and sees that it is the next one.
func (l *Logs) open(ctx context.Context) error {
	if len(l.segments) == 0 {
		return l.whole()
	}
	next := l.segments[0]
	magic := uint64(len(binlog.Magic))
	switch {
	case l.pos.IsZero():
	case next.File == l.pos.File && next.Start == l.pos.Pos:
	case logNumber(next.File) == logNumber(l.pos.File)+1 && next.Start == magic:
		l.from = 0
	default:
		return fmt.Errorf("%w: %s:%d comes after %s", ErrLogGap, next.File, next.Start, l.pos)
	}
	in, err := l.storage.Open(ctx, l.dir+next.Name, 0)
	if err != nil {
		return fmt.Errorf("open binary log: %w", err)
	}
	decoder, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", next.Name, err), in.Close())
	}
	file, err := binlog.NewFile(decoder, next.File)
	if err != nil {
		decoder.Close()
		return errors.Join(fmt.Errorf("open %s: %w", next.Name, err), in.Close())
	}
	l.in, l.decoder, l.file = in, decoder, file
	l.pos = binlog.Position{File: next.File, Pos: next.Start}
	return nil
}

// Close closes the segment that is open.
func (l *Logs) Close() error {
	if l.file == nil {
		return nil
	}
	l.file, l.segments = nil, l.segments[1:]
	l.decoder.Close()
	return l.in.Close()
}
