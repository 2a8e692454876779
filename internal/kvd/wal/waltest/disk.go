// Package waltest simulates a disk that loses data. [Disk] keeps files in memory and takes the
// rules of a disk literally: a byte is durable after a flush of its file, a name after a flush
// of its directory, and of everything else any part may be left after a power failure. It can
// also fail on demand. A log that survives it survives a real disk that reports its flushes
// truthfully.
package waltest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/weirdb/weir/internal/kvd/wal"
)

// ErrPower is returned by every call from the power failure until Restart.
var ErrPower = errors.New("the power is off")

// Disk is a directory in memory that implements [wal.Disk]. Safe for concurrent use. Its fields
// must be set before its first use.
type Disk struct {
	// Sector is the unit that is written completely or not at all, in bytes. Default: 512.
	Sector int
	// IgnoreSync makes flushes of files do nothing, like a disk that lies.
	IgnoreSync bool
	// IgnoreSyncDir makes flushes of the directory do nothing.
	IgnoreSyncDir bool

	mu      sync.Mutex
	seen    map[string]*inode // as seen by processes
	durable map[string]*inode
	renames []rename // not yet durable, in order
	locked  bool
	life    int // handles and locks of earlier lives are void
	down    bool
	calls   int
	powerAt int
	failAt  int
	failure error
}

// rename is a change of names: with an empty from it creates a file, with an empty to it
// removes one.
type rename struct {
	from, to string
	node     *inode
}

type inode struct {
	seen    []byte
	durable []byte
	writes  []write // not flushed, in order
}

type write struct {
	at   int64
	data []byte
}

// NewDisk returns an empty disk.
func NewDisk() *Disk {
	return &Disk{Sector: 512, seen: map[string]*inode{}, durable: map[string]*inode{}}
}

// PowerAt makes the power fail in the middle of the n-th change from now on; 0 is never.
func (d *Disk) PowerAt(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.powerAt = 0
	if n > 0 {
		d.powerAt = d.calls + n
	}
}

// FailAt makes the n-th change from now on fail with err; 0 is never. A failed write may have
// written a part. What a failed flush should have written stays in memory only, and later
// flushes do not retry it, as on Linux and other systems.
func (d *Disk) FailAt(n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failAt, d.failure = 0, err
	if n > 0 {
		d.failAt = d.calls + n
	}
}

// Calls returns the number of changes so far.
func (d *Disk) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// Kill ends all processes that use the disk: their handles and locks are void. What they have
// written stays visible.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life++
	d.locked = false
}

// Restart turns the power off, if it has not failed yet, and on again: random decides what is
// left of what was not flushed, sector by sector and name by name.
func (d *Disk) Restart(random *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life++
	d.locked, d.down = false, false
	d.powerAt, d.failAt = 0, 0
	keep := survival(random)
	for _, r := range d.renames {
		if keep() {
			apply(d.durable, r)
		}
	}
	d.renames = nil
	for _, name := range slices.Sorted(maps.Keys(d.durable)) {
		d.durable[name].settle(d.Sector, random)
	}
	d.seen = maps.Clone(d.durable)
}

// survival returns what a disk keeps of what was not flushed: all, nothing, the first part, the
// last part, or any part.
func survival(random *rand.Rand) func() bool {
	left := random.IntN(8)
	switch random.IntN(6) {
	case 0:
		return func() bool { return true }
	case 1:
		return func() bool { return false }
	case 2:
		return func() bool { left--; return left >= 0 }
	case 3:
		return func() bool { left--; return left < 0 }
	default:
		return func() bool { return random.IntN(2) == 0 }
	}
}

// apply applies a change of names. The file may have another name, if an earlier change was
// lost.
func apply(names map[string]*inode, r rename) {
	if r.from != "" {
		if names[r.from] != r.node {
			return
		}
		delete(names, r.from)
	}
	if r.to != "" {
		names[r.to] = r.node
	}
}

// settle decides what is left of a file.
func (n *inode) settle(sector int, random *rand.Rand) {
	keep := survival(random)
	for _, w := range n.writes {
		for at, data := w.at, w.data; len(data) > 0; {
			piece := min(int64(len(data)), int64(sector)-at%int64(sector))
			if keep() {
				n.durable = put(n.durable, at, data[:piece])
			} else if random.IntN(2) == 0 && at+piece > int64(len(n.durable)) {
				// The length was written, but not the bytes.
				n.durable = put(n.durable, at+piece, nil)
			}
			at, data = at+piece, data[piece:]
		}
	}
	n.writes = nil
	n.seen = slices.Clone(n.durable)
}

// put writes data into b, which grows with zeros.
func put(b []byte, at int64, data []byte) []byte {
	if end := int(at) + len(data); end > len(b) {
		b = append(b, make([]byte, end-len(b))...)
	}
	copy(b[at:], data)
	return b
}

// Clone returns an unused disk with the same visible files, all durable.
func (d *Disk) Clone() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := NewDisk()
	c.Sector = d.Sector
	for name, n := range d.seen {
		c.seen[name] = &inode{seen: slices.Clone(n.seen), durable: slices.Clone(n.seen)}
	}
	c.durable = maps.Clone(c.seen)
	return c
}

// Bytes returns a copy of the visible contents of a file, nil if there is none.
func (d *Disk) Bytes(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.seen[name]; n != nil {
		return slices.Clone(n.seen)
	}
	return nil
}

// SetBytes sets the durable contents of a file, or removes it if b is nil. Tests damage files
// with it.
func (d *Disk) SetBytes(name string, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b == nil {
		delete(d.seen, name)
		delete(d.durable, name)
		return
	}
	n := &inode{seen: slices.Clone(b), durable: slices.Clone(b)}
	d.seen[name], d.durable[name] = n, n
}

// step counts a change. It reports whether the power fails now, and returns the error for the
// call.
func (d *Disk) step() (last bool, err error) {
	if d.down {
		return false, ErrPower
	}
	d.calls++
	if d.calls == d.failAt {
		return false, d.failure
	}
	if d.calls == d.powerAt {
		d.down = true
		return true, ErrPower
	}
	return false, nil
}

// Lock implements [wal.Disk].
func (d *Disk) Lock(shared bool) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, ErrPower
	}
	if d.locked {
		return nil, &wal.LockedError{Dir: "memory"}
	}
	if shared {
		return io.NopCloser(nil), nil
	}
	d.locked = true
	return unlocker{d, d.life}, nil
}

type unlocker struct {
	disk *Disk
	life int
}

func (u unlocker) Close() error {
	u.disk.mu.Lock()
	defer u.disk.mu.Unlock()
	if u.life == u.disk.life {
		u.disk.locked = false
	}
	return nil
}

// List implements [wal.Disk].
func (d *Disk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, ErrPower
	}
	return slices.Sorted(maps.Keys(d.seen)), nil
}

// Open implements [wal.Disk].
func (d *Disk) Open(name string, write bool) (wal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, ErrPower
	}
	n := d.seen[name]
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &file{disk: d, node: n, name: name, write: write, life: d.life}, nil
}

// Create implements [wal.Disk].
func (d *Disk) Create(name string) (wal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := &inode{}
	if err := d.change(rename{to: name, node: n}); err != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	return &file{disk: d, node: n, name: name, write: true, life: d.life}, nil
}

// Rename implements [wal.Disk].
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.seen[from]
	if n == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	if err := d.change(rename{from: from, to: to, node: n}); err != nil {
		return &fs.PathError{Op: "rename", Path: from, Err: err}
	}
	return nil
}

// Remove implements [wal.Disk].
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.seen[name]
	if n == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	if err := d.change(rename{from: name, node: n}); err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

// change applies a change of names, unless it has to fail.
func (d *Disk) change(r rename) error {
	last, err := d.step()
	if err != nil && !last {
		return err
	}
	apply(d.seen, r)
	d.renames = append(d.renames, r)
	return err
}

// SyncDir implements [wal.Disk].
func (d *Disk) SyncDir() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.step(); err != nil {
		return &fs.PathError{Op: "fsync", Path: ".", Err: err}
	}
	if d.IgnoreSyncDir {
		return nil
	}
	for _, r := range d.renames {
		apply(d.durable, r)
	}
	d.renames = nil
	return nil
}

// file is an open file.
type file struct {
	disk   *Disk
	node   *inode
	name   string
	write  bool
	life   int
	closed bool
}

// use returns an error if the handle is void.
func (f *file) use(op string) error {
	switch {
	case f.disk.down:
		return ErrPower
	case f.closed || f.life != f.disk.life:
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return nil
}

func (f *file) ReadAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("read"); err != nil {
		return 0, err
	}
	if at < 0 || at > int64(len(f.node.seen)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.seen[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("write"); err != nil {
		return 0, err
	}
	if !f.write {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: fs.ErrPermission}
	}
	last, err := f.disk.step()
	if err != nil && !last {
		p = p[:len(p)/2]
	}
	f.node.seen = put(f.node.seen, at, p)
	f.node.writes = append(f.node.writes, write{at, slices.Clone(p)})
	if err != nil {
		return len(p), &fs.PathError{Op: "write", Path: f.name, Err: err}
	}
	return len(p), nil
}

func (f *file) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("fsync"); err != nil {
		return err
	}
	last, err := f.disk.step()
	if err != nil && !last {
		f.node.writes = nil
	}
	if err != nil {
		return &fs.PathError{Op: "fsync", Path: f.name, Err: err}
	}
	if f.disk.IgnoreSync {
		return nil
	}
	for _, w := range f.node.writes {
		f.node.durable = put(f.node.durable, w.at, w.data)
	}
	f.node.writes = nil
	return nil
}

func (f *file) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.use("stat"); err != nil {
		return 0, err
	}
	return int64(len(f.node.seen)), nil
}

func (f *file) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return fmt.Errorf("close %s: %w", f.name, fs.ErrClosed)
	}
	f.closed = true
	return nil
}
