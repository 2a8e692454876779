package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"
)

// segmentBytes is how much of an object a tar stream keeps in memory: a tar entry begins with
// its length, and the length of a chunk is known only at its end. A chunk up to this size is
// one entry under its own name; a longer one is cut into entries of this size, and entries of
// other chunks may lie between them.
const segmentBytes = 4 << 20

// partSuffix and a number of six digits, from 1, follow the name of a chunk that was cut: `cat
// name.part-*` is the chunk.
const partSuffix = ".part-"

func segmentName(name string, n int) string { return fmt.Sprintf("%s%s%06d", name, partSuffix, n) }

// tarWriter is a write-only [Storage]: entries are written to a stream as they become complete.
type tarWriter struct {
	now  func() time.Time
	free chan []byte // segments for reuse

	mu    sync.Mutex
	tar   *tar.Writer
	err   error           // a stream that failed once stays failed
	names map[string]bool // names of the entries written
}

func newTarWriter(out io.Writer, now func() time.Time) *tarWriter {
	return &tarWriter{now: now, tar: tar.NewWriter(out), names: map[string]bool{}, free: make(chan []byte, 64)}
}

// errStream is the error of operations that a stream does not support.
var errStream = fmt.Errorf("a tar stream can only be written from its beginning to its end: %w", errors.ErrUnsupported)

func (t *tarWriter) entry(name string, data []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	if t.names[name] {
		return &Error{Op: "write to stream", Place: name, Err: ErrExist, Hint: "a stream cannot take back what has gone out"}
	}
	t.names[name] = true
	t.err = t.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o600, ModTime: t.now().Truncate(time.Second),
	})
	if t.err == nil {
		_, t.err = t.tar.Write(data)
	}
	if t.err != nil {
		t.err = localError("write to stream", name, t.err)
	}
	return t.err
}

// Close ends the stream as tar does. It does not close the underlying writer.
func (t *tarWriter) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = t.tar.Close()
	}
	return t.err
}

// Create implements [Storage].
func (t *tarWriter) Create(_ context.Context, name string) (ObjectWriter, error) {
	return &tarObject{t: t, name: name}, nil
}

// tarObject is an object that is being written to the stream.
type tarObject struct {
	t    *tarWriter
	name string
	buf  []byte
	cut  int // segments that were written
	size int64
	done bool
}

func (o *tarObject) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if len(o.buf) == segmentBytes {
			if err := o.emit(); err != nil {
				return len(p) - len(rest), err
			}
		}
		if o.buf == nil {
			o.buf = o.t.segment()
		}
		n := min(len(rest), segmentBytes-len(o.buf))
		o.buf = append(o.buf, rest[:n]...)
		o.size += int64(n)
		rest = rest[n:]
	}
	return len(p), nil
}

func (o *tarObject) emit() error {
	o.cut++
	err := o.t.entry(segmentName(o.name, o.cut), o.buf)
	o.buf = o.buf[:0]
	return err
}

func (o *tarObject) Commit() (ObjectInfo, error) {
	var err error
	if o.cut == 0 {
		err = o.t.entry(o.name, o.buf)
	} else {
		err = o.emit()
	}
	if err != nil {
		return ObjectInfo{}, err
	}
	o.recycle()
	return ObjectInfo{Name: o.name, Size: o.size, Segments: max(1, o.cut)}, nil
}

// Abort leaves the segments already written in the stream, where no manifest lists them.
func (o *tarObject) Abort() error {
	if !o.done {
		o.recycle()
	}
	return nil
}

func (o *tarObject) recycle() {
	o.done = true
	if o.buf != nil {
		select {
		case o.t.free <- o.buf[:0]:
		default:
		}
		o.buf = nil
	}
}

// segment returns an empty buffer, which grows as it is filled: small chunks never need all of
// one.
func (t *tarWriter) segment() []byte {
	select {
	case b := <-t.free:
		return b
	default:
		return make([]byte, 0, 64<<10)
	}
}

// Put implements [Storage].
func (t *tarWriter) Put(_ context.Context, name string, data []byte) error {
	return t.entry(name, data)
}

// PutNew implements [Storage].
func (t *tarWriter) PutNew(ctx context.Context, name string, data []byte) error {
	return t.Put(ctx, name, data)
}

// Open implements [Storage].
func (t *tarWriter) Open(context.Context, string, int64) (io.ReadCloser, error) {
	return nil, errStream
}

// Stat implements [Storage].
func (t *tarWriter) Stat(context.Context, string) (ObjectInfo, error) {
	return ObjectInfo{}, errStream
}

// List implements [Storage].
func (t *tarWriter) List(context.Context, string, bool) iter.Seq2[ObjectInfo, error] {
	return func(yield func(ObjectInfo, error) bool) { yield(ObjectInfo{}, errStream) }
}

// Delete implements [Storage].
func (t *tarWriter) Delete(context.Context, ...string) error { return errStream }

// Clean implements [Storage].
func (t *tarWriter) Clean(context.Context, string, time.Time) (int, error) { return 0, errStream }

// String implements [Storage].
func (t *tarWriter) String() string { return "stream" }
