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

// A LogSegment is a piece of a binary log in a storage. The file is a binary log itself,
// compressed, so that `zstd -d` and the servers' own programs can read it. It begins and ends
// between transactions. Its name has the position in the server's file at which it begins; the
// next one begins where it ends:
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

// logNumber returns the number at the end of a log file's name.
func logNumber(file string) uint64 {
	n, err := strconv.ParseUint(file[strings.LastIndexByte(file, '.')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ListLogs returns the segments below a directory of a storage ("" or a name with a trailing
// slash) in the order of the log.
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

// ErrLogGap says that a part of the log is missing in the storage.
var ErrLogGap = errors.New("the archived binary log has a gap")

// Logs reads archived binary logs as one log. It is a binlog.Source that returns io.EOF at the
// end of the archive. It is used by one goroutine at a time.
type Logs struct {
	storage  archive.Storage
	dir      string
	segments []LogSegment    // the open one, and those after it
	until    binlog.Position // end of the archived log by the note; zero if there is none
	from     uint64          // events of the first file that end here or before are skipped
	pos      binlog.Position

	in      io.ReadCloser
	decoder *zstd.Decoder
	file    *binlog.File
}

// OpenLogs opens the logs below dir at a position, which must be in them or at their end.
func OpenLogs(ctx context.Context, s archive.Storage, dir string, from binlog.Position) (*Logs, error) {
	// In this order: if more is archived meanwhile, the list has more than the note, not less.
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

// endName is the name of a note with the end of the last segment: without it, the loss of the
// last segments would go unnoticed.
const endName = "end.json"

// logEnd is the content of the note.
type logEnd struct {
	File string `json:"file"`
	Pos  uint64 `json:"position"`
}

// NoteLogEnd records that a log is archived up to a position.
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

// notedEnd reads the note. It returns the zero Position if there is none, as in logs of earlier
// versions.
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

// whole returns an error if the log ends before the position in the note.
func (l *Logs) whole() error {
	a, b := logNumber(l.pos.File), logNumber(l.until.File)
	if l.until.IsZero() || a > b || a == b && l.pos.Pos >= l.until.Pos {
		return io.EOF
	}
	return fmt.Errorf("%w: it was archived up to %s, and what is there ends at %s", ErrLogGap, l.until, l.pos)
}

// LogEnd returns the position at which the archived log ends, or the zero Position if there is
// none.
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

// Next implements binlog.Source.
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
			// The format description at the front of a segment that begins inside a file may be
			// a copy of the file's first event.
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

// open opens the next segment, and checks that it follows without a gap.
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

// Close closes the open segment.
func (l *Logs) Close() error {
	if l.file == nil {
		return nil
	}
	l.file, l.segments = nil, l.segments[1:]
	l.decoder.Close()
	return l.in.Close()
}
