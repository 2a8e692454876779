package binlog

import (
	"fmt"
	"io"
)

// Recorder writes events into files that are binary logs themselves, each the
// copy of one of the server's files or of its end. Files hold exactly the
// server's bytes, less what is not in its file either (see Event.Stored); only
// a file that begins inside the server's has the format description in front.
// A Recorder survives its stream: one that goes on where the other has ended
// goes on in the same file. Begin its streams at positions, and of MariaDB with
// Exact: after GTIDs, servers leave out events, and the gap is an error here.
// One goroutine may use a Recorder at a time.
type Recorder struct {
	create func(start Position) (io.WriteCloser, error)
	w      io.WriteCloser
	pos    Position // behind the last event that was written
	next   Position // what the last rotation named
}

// NewRecorder returns a recorder that asks create for each file. start is the
// server's name of the file and the offset of the first event that is to be in
// it: len(Magic), unless the stream began inside the file. The recorder closes
// what create returns.
func NewRecorder(create func(start Position) (io.WriteCloser, error)) *Recorder {
	return &Recorder{create: create}
}

// Position is behind the last event that was written; zero before the first.
func (r *Recorder) Position() Position { return r.pos }

// Write takes the next event of a Source. Events that are there already, as
// after a stream has begun anew at an earlier position, are passed over; a gap
// is an error.
func (r *Recorder) Write(e *Event) error {
	switch {
	case e.Type == RotateEvent && !e.Stored():
		return r.rotate(e)
	case e.Type == FormatDescriptionEvent && r.w == nil:
		return r.begin(e)
	case !e.Stored():
		return nil
	case r.w == nil:
		return fmt.Errorf("record %s event at %s:%d: no format description came before it: %w", e.Type, e.File, e.Start(), ErrMalformed)
	case e.End <= r.pos.Pos:
		return nil
	case e.Start() != r.pos.Pos:
		return fmt.Errorf("record %s event at %s:%d: what follows %s is missing: %w", e.Type, e.File, e.Start(), r.pos, ErrMalformed)
	}
	// Servers send events in plain, and a file that says otherwise could not
	// be read.
	if e.Type != StartEncryptionEvent {
		if _, err := r.w.Write(e.Raw); err != nil {
			return fmt.Errorf("record %s event at %s:%d: %w", e.Type, e.File, e.Start(), err)
		}
	}
	r.pos.Pos = e.End
	if e.Type == RotateEvent {
		return r.Close()
	}
	return nil
}

// rotate takes word of the file that comes next.
func (r *Recorder) rotate(e *Event) (err error) {
	if r.next, err = parseRotate(e.Body()); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if r.w != nil && r.next.File != r.pos.File {
		return r.Close() // its server crashed before it could end it properly
	}
	return nil
}

func (r *Recorder) begin(e *Event) error {
	start := Position{e.File, uint64(len(Magic))}
	if !e.Stored() && r.next.File == e.File {
		start.Pos = r.next.Pos
	}
	w, err := r.create(start)
	if err != nil {
		return fmt.Errorf("record %s: %w", start, err)
	}
	r.w, r.pos = w, start
	for _, b := range [][]byte{[]byte(Magic), e.Raw} {
		if _, err := w.Write(b); err != nil {
			return fmt.Errorf("record %s: %w", start, err)
		}
	}
	if e.Stored() {
		r.pos.Pos = e.End
	}
	return nil
}

// Close ends the file that is open, if one is.
func (r *Recorder) Close() error {
	if r.w == nil {
		return nil
	}
	w := r.w
	r.w = nil
	if err := w.Close(); err != nil {
		return fmt.Errorf("record: close %s: %w", r.pos.File, err)
	}
	return nil
}
