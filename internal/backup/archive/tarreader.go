package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
)

// tarReader is a read-only [Storage]: an index of a tar file. Later entries of a name replace
// earlier ones, as in tar.
type tarReader struct {
	in    io.ReaderAt
	place string
	index map[string]tarEntry
	order []string
}

type tarEntry struct {
	offset, size int64
	modified     time.Time
}

// maxTarEntries limits the index, at about 200 bytes per entry, that a hostile file can cause;
// it is far above the size of any backup.
const maxTarEntries = 20_000_000

// newTarReader reads the headers of a tar file of size bytes.
func newTarReader(in io.ReaderAt, size int64, place string) (*tarReader, error) {
	t := &tarReader{in: in, place: place, index: map[string]tarEntry{}}
	section := io.NewSectionReader(in, 0, size)
	for r := tar.NewReader(section); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			// The chunks before the damage may be intact. A stream that was cut has no
			// manifest, which the reader reports.
			if len(t.index) > 0 {
				return t, nil
			}
			return nil, &Error{Op: "read", Place: place, Err: err, Hint: "this is no backup that weir wrote as a stream"}
		}
		offset, err := section.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", place, err)
		}
		// An incomplete entry at the end of a cut stream does not count.
		if h.Typeflag != tar.TypeReg || len(t.index) >= maxTarEntries || h.Size > size-offset {
			continue
		}
		name := strings.TrimPrefix(h.Name, "./")
		if _, again := t.index[name]; !again {
			t.order = append(t.order, name)
		}
		t.index[name] = tarEntry{offset: offset, size: h.Size, modified: h.ModTime}
	}
}

// Open implements [Storage].
func (t *tarReader) Open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	e, ok := t.index[name]
	if !ok {
		return nil, &Error{Op: "read", Place: t.place + ":" + name, Err: ErrNotExist}
	}
	r := io.NewSectionReader(t.in, e.offset, e.size)
	if _, err := r.Seek(offset, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return io.NopCloser(r), nil
}

// Stat implements [Storage].
func (t *tarReader) Stat(_ context.Context, name string) (ObjectInfo, error) {
	e, ok := t.index[name]
	if !ok {
		return ObjectInfo{}, &Error{Op: "read", Place: t.place + ":" + name, Err: ErrNotExist}
	}
	return ObjectInfo{Name: name, Size: e.size, Modified: e.modified}, nil
}

// List implements [Storage], in the order of the stream.
func (t *tarReader) List(_ context.Context, dir string, deep bool) iter.Seq2[ObjectInfo, error] {
	if dir != "" && !strings.HasSuffix(dir, "/") {
		dir += "/"
	}
	return func(yield func(ObjectInfo, error) bool) {
		seen := map[string]bool{}
		for _, name := range t.order {
			below, ok := strings.CutPrefix(name, dir)
			if !ok {
				continue
			}
			e := t.index[name]
			info := ObjectInfo{Name: name, Size: e.size, Modified: e.modified}
			if first, _, nested := strings.Cut(below, "/"); nested && !deep {
				info = ObjectInfo{Name: dir + first + "/"}
				if seen[first] {
					continue
				}
				seen[first] = true
			}
			if !yield(info, nil) {
				return
			}
		}
	}
}

var errReadOnly = fmt.Errorf("a tar file can only be read: %w", errors.ErrUnsupported)

// Create implements [Storage].
func (t *tarReader) Create(context.Context, string) (ObjectWriter, error) { return nil, errReadOnly }

// Put implements [Storage].
func (t *tarReader) Put(context.Context, string, []byte) error { return errReadOnly }

// PutNew implements [Storage].
func (t *tarReader) PutNew(context.Context, string, []byte) error { return errReadOnly }

// Delete implements [Storage].
func (t *tarReader) Delete(context.Context, ...string) error { return errReadOnly }

// Clean implements [Storage].
func (t *tarReader) Clean(context.Context, string, time.Time) (int, error) { return 0, errReadOnly }

// String implements [Storage].
func (t *tarReader) String() string { return t.place }
