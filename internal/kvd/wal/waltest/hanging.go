package waltest

import (
	"sync"

	"github.com/weirdb/weir/internal/kvd/wal"
)

// Hanging is a disk that can hang: then writes and flushes neither complete nor fail. Safe for
// concurrent use.
type Hanging struct {
	wal.Disk
	mu   sync.Mutex
	gate chan struct{} // closed when it works again; nil: it works
}

// Hang makes writes and flushes wait for Work from now on.
func (d *Hanging) Hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate == nil {
		d.gate = make(chan struct{})
	}
}

// Work lets everything that waits continue.
func (d *Hanging) Work() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate != nil {
		close(d.gate)
		d.gate = nil
	}
}

func (d *Hanging) wait() {
	d.mu.Lock()
	gate := d.gate
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// Open implements wal.Disk.
func (d *Hanging) Open(name string, write bool) (wal.File, error) {
	f, err := d.Disk.Open(name, write)
	if err != nil {
		return nil, err
	}
	return hangingFile{f, d}, nil
}

// Create implements wal.Disk.
func (d *Hanging) Create(name string) (wal.File, error) {
	f, err := d.Disk.Create(name)
	if err != nil {
		return nil, err
	}
	return hangingFile{f, d}, nil
}

type hangingFile struct {
	wal.File
	disk *Hanging
}

// WriteAt implements wal.File.
func (f hangingFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.wait()
	return f.File.WriteAt(b, at)
}

// Sync implements wal.File.
func (f hangingFile) Sync() error {
	f.disk.wait()
	return f.File.Sync()
}
