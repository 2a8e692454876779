package replica

import (
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/weirdb/weir/internal/kvd/wal"
)

// memoryDisk is the disk of a replica that writes nothing: its snapshots, which
// it needs for replicas that are far behind, are kept in memory. Safe for
// concurrent use.
type memoryDisk struct {
	mu    sync.Mutex
	files map[string]*memoryFile
}

func newMemoryDisk() *memoryDisk { return &memoryDisk{files: map[string]*memoryFile{}} }

// Lock implements wal.Disk: no other process can use this disk.
func (d *memoryDisk) Lock(bool) (io.Closer, error) { return io.NopCloser(nil), nil }

// List implements wal.Disk.
func (d *memoryDisk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.files))
	for name := range d.files {
		names = append(names, name)
	}
	return names, nil
}

// Open implements wal.Disk.
func (d *memoryDisk) Open(name string, _ bool) (wal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[name]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return f, nil
}

// Create implements wal.Disk.
func (d *memoryDisk) Create(name string) (wal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := &memoryFile{}
	d.files[name] = f
	return f, nil
}

// Rename implements wal.Disk.
func (d *memoryDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[from]
	if f == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	delete(d.files, from)
	d.files[to] = f
	return nil
}

// Remove implements wal.Disk. Anyone who has the file open keeps it.
func (d *memoryDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	delete(d.files, name)
	return nil
}

// SyncDir implements wal.Disk.
func (d *memoryDisk) SyncDir() error { return nil }

// memoryFile is a file of a memoryDisk.
type memoryFile struct {
	mu    sync.RWMutex
	bytes []byte
}

// ReadAt implements io.ReaderAt.
func (f *memoryFile) ReadAt(p []byte, offset int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if offset < 0 || offset > int64(len(f.bytes)) {
		return 0, fmt.Errorf("read at %d of %d bytes: %w", offset, len(f.bytes), io.EOF)
	}
	n := copy(p, f.bytes[offset:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (f *memoryFile) WriteAt(p []byte, offset int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if missing := offset + int64(len(p)) - int64(len(f.bytes)); missing > 0 {
		f.bytes = append(f.bytes, make([]byte, missing)...)
	}
	return copy(f.bytes[offset:], p), nil
}

// Close implements io.Closer.
func (f *memoryFile) Close() error { return nil }

// Size implements wal.File.
func (f *memoryFile) Size() (int64, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return int64(len(f.bytes)), nil
}

// Sync implements wal.File: memory is as durable as it gets.
func (f *memoryFile) Sync() error { return nil }
