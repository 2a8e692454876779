package binlog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
)

// magicEncrypted begins files that MySQL has encrypted.
const magicEncrypted = "\xfdbin"

// TruncatedError says that a file ends inside an event: its server crashed or is still writing,
// or a copy is incomplete. The events before Offset are complete.
type TruncatedError struct {
	File   string
	Offset int64 // of the event's first byte
	Have   int   // bytes of the event that are there
	Want   int   // its length; HeaderLen if that is unknown
}

// Error returns the position and the lengths.
func (e *TruncatedError) Error() string {
	return fmt.Sprintf("%s ends inside the event at offset %d: %d of %d bytes are there", e.File, e.Offset, e.Have, e.Want)
}

// Unwrap returns io.ErrUnexpectedEOF.
func (e *TruncatedError) Unwrap() error { return io.ErrUnexpectedEOF }

// File reads a binary log file: a server's own, or a copy. It is a Source. It is used by one
// goroutine at a time.
type File struct {
	name   string
	r      *bufio.Reader
	close  func() error
	framer framer
	buf    []byte
	err    error
}

// NewFile returns a File that reads from r; name is the file's name on the server. The caller
// closes r.
func NewFile(r io.Reader, name string) (*File, error) {
	f := &File{
		name: name, r: bufio.NewReaderSize(r, bufferSize), close: func() error { return nil },
		framer: framer{file: name, pos: uint64(len(Magic)), offset: int64(len(Magic))},
	}
	var magic [len(Magic)]byte
	if n, err := io.ReadFull(f.r, magic[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = &TruncatedError{File: name, Have: n, Want: len(Magic)}
		}
		return nil, fmt.Errorf("open binary log %s: %w", name, err)
	}
	switch string(magic[:]) {
	case Magic:
		return f, nil
	case magicEncrypted:
		return nil, fmt.Errorf("open binary log %s: %w", name, ErrEncrypted)
	}
	return nil, fmt.Errorf("open binary log %s: it begins with %x: %w", name, magic, ErrMalformed)
}

// Offset returns where the next event begins, in bytes from the beginning of the input. That is
// also its position on the server, unless a copy begins inside the server's file.
func (f *File) Offset() int64 { return f.framer.offset }

// Close closes the file that OpenFile opened.
func (f *File) Close() error { return f.close() }

// Next implements Source. If the file ends inside an event, the error is a *TruncatedError; if
// the checksum of an event does not match, it is a *ChecksumError. Both have the offset. After
// an error, the file cannot be read further.
func (f *File) Next(ctx context.Context) (*Event, error) {
	if f.err == nil {
		f.err = context.Cause(ctx)
	}
	if f.err != nil {
		return nil, f.err
	}
	var e *Event
	if e, f.err = f.next(); f.err != nil {
		if f.err != io.EOF {
			f.err = fmt.Errorf("read binary log: %w", f.err)
		}
		return nil, f.err
	}
	return e, nil
}

func (f *File) next() (*Event, error) {
	if cap(f.buf) > bufferKeep {
		f.buf = nil
	}
	if cap(f.buf) < HeaderLen {
		f.buf = make([]byte, HeaderLen, bufferSize)
	}
	f.buf = f.buf[:HeaderLen]
	n, err := io.ReadFull(f.r, f.buf)
	if err == io.EOF {
		return nil, io.EOF
	}
	if err != nil {
		return nil, f.truncated(err, n, HeaderLen)
	}
	h, err := ParseHeader(f.buf)
	if err == nil && h.Size > maxInner {
		err = fmt.Errorf("%s event of %d bytes: %w", h.Type, h.Size, ErrMalformed)
	}
	if err != nil {
		return nil, f.framer.at(err)
	}
	if f.buf, err = readMore(f.buf, f.r, int(h.Size)-HeaderLen); err != nil {
		return nil, f.truncated(err, len(f.buf), int(h.Size))
	}
	e, err := f.framer.frame(f.buf)
	if err == nil && e.Type == StartEncryptionEvent {
		return nil, f.framer.at(ErrEncrypted)
	}
	return e, err
}

func (f *File) truncated(err error, have, want int) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &TruncatedError{File: f.name, Offset: f.framer.offset, Have: have, Want: want}
	}
	return f.framer.at(err)
}
