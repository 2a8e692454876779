package wal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// A sink stores what a connection receives. ctx outlives the connection a little, so that the
// last bytes can be stored.
type sink struct {
	ctx      context.Context
	receiver *receiver
	store    *store
	ends     map[uint32]pgrepl.LSN // as in the notes
}

// noteEnd records how far a timeline is archived. The position never decreases: if a receiver
// begins a segment again, the note still says that there was more.
func (s *sink) noteEnd(timeline uint32, at pgrepl.LSN) error {
	if at <= s.ends[timeline] {
		return nil
	}
	if err := s.store.noteEnd(s.ctx, timeline, at); err != nil {
		return err
	}
	s.ends[timeline] = at
	return nil
}

// OpenSegment begins a segment in a spool file.
func (s *sink) OpenSegment(g pgrepl.Segment) (pgrepl.SegmentWriter, error) {
	kept, err := s.store.length(s.ctx, g.Name()+partialMark)
	if err != nil {
		return nil, keepError{err}
	}
	f, err := os.CreateTemp(s.receiver.opts.SpoolDir, "weir-wal-*")
	if err != nil {
		return nil, keepError{fmt.Errorf("spool: %w", err)}
	}
	// The file is not needed by name, and its space is freed when the process ends.
	if err := os.Remove(f.Name()); err != nil {
		return nil, keepError{errors.Join(fmt.Errorf("spool: %w", err), f.Close())}
	}
	return &segment{sink: s, segment: g, spool: f, kept: kept}, nil
}

// History stores the history file of a timeline.
func (s *sink) History(h pgrepl.History) error {
	if err := s.store.put(s.ctx, h.Name, strings.NewReader(string(h.Content)), archive.Position{Timeline: int(h.Timeline)}); err != nil {
		return keepError{err}
	}
	return nil
}

// A segment is being received: it is collected in a file, stored as a partial segment at each
// Sync, and as a complete one when it is full.
type segment struct {
	sink    *sink
	segment pgrepl.Segment
	spool   *os.File
	written int64
	// kept is how many bytes of it are archived. It never decreases: a server that left the
	// timeline earlier than its predecessor sends fewer of the same bytes.
	kept int64
}

// WriteAt implements io.WriterAt.
func (w *segment) WriteAt(p []byte, off int64) (int, error) {
	n, err := w.spool.WriteAt(p, off)
	w.written = max(w.written, off+int64(n))
	if err != nil {
		err = keepError{fmt.Errorf("spool: %w", err)}
	}
	return n, err
}

// Sync stores what was collected.
func (w *segment) Sync() error {
	name := w.segment.Name()
	if w.written < w.segment.Size {
		if w.written <= w.kept {
			return nil
		}
		name += partialMark
	}
	at := w.segment.Start() + pgrepl.LSN(w.written)
	position := archive.Position{LSN: at.String(), Timeline: int(w.segment.Timeline)}
	err := w.sink.store.put(w.sink.ctx, name, io.NewSectionReader(w.spool, 0, w.written), position)
	if err == nil {
		err = w.sink.noteEnd(w.segment.Timeline, at)
	}
	if err != nil {
		return keepError{err}
	}
	w.kept = w.written
	return nil
}

// Close ends the segment. It removes the partial copy of a complete one.
func (w *segment) Close(complete bool) error {
	err := w.spool.Close()
	if complete {
		s := w.sink.store
		err = errors.Join(err, s.storage.Delete(w.sink.ctx, s.dir()+w.segment.Name()+partialMark+suffix))
		w.sink.receiver.update(func(st *Status) { st.Segments++ })
	}
	if err != nil {
		return keepError{err}
	}
	return nil
}
