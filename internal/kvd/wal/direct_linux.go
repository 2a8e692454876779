package wal

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// directBlock is what direct writes are multiples of: a block of a file system.
	directBlock = 4096
	// directMost is the largest write that goes past the page cache. Beyond, copies
	// and calls no longer matter beside the bytes.
	directMost = 1 << 20
)

// direct writes to a file past the page cache (O_DIRECT). A flush of a page costs
// a processor a third more than that, flushes of several processes hold each other
// up, and a page can be flushed without blocking a thread only by one of the
// kernel's own: the ring takes a direct write itself, and the disk's interrupt ends
// it.
//
// Only blocks that the file has are written, since to lengthen it is a change of the
// file system. Bytes around the write in its first and last block stay what they are.
type direct struct {
	file *os.File // the same, opened for it
	size int64    // of the file, at least
	buf  []byte   // aligned; as of the last write, the file from at on
	at   int64
	have int               // bytes of buf that hold what the file does
	tail [directBlock]byte // scratch
}

// openDirect opens the file a second time.
func openDirect(name string, size int64) (*direct, error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &direct{file: os.NewFile(uintptr(fd), name), size: size}, nil
}

// covers reports whether a write of n bytes at off can be direct.
func (d *direct) covers(n int, off int64) bool {
	return n > 0 && n <= directMost && blockEnd(off+int64(n)) <= d.size
}

func blockStart(off int64) int64 { return off &^ (directBlock - 1) }

func blockEnd(off int64) int64 { return blockStart(off + directBlock - 1) }

// block makes buf the blocks that b at off lies in, with what the file has around
// it.
func (d *direct) block(file io.ReaderAt, b []byte, off int64) error {
	end := off + int64(len(b))
	from, to := blockStart(off), blockEnd(end)
	last := to - directBlock
	buf := d.buf[:cap(d.buf)]
	if need := int(to - from); len(buf) < need {
		buf = aligned(max(2*need, 16*directBlock))
	}
	// The last block first: the first one may be written over it.
	if end < to && last > from {
		if err := d.read(file, d.tail[:], last); err != nil {
			return err
		}
	}
	if from < off || end < to && last == from {
		if err := d.read(file, buf, from); err != nil {
			return err
		}
	}
	if end < to && last > from {
		copy(buf[last-from:], d.tail[:])
	}
	copy(buf[off-from:], b)
	d.buf, d.at, d.have = buf[:to-from], from, 0
	return nil
}

// read reads a block of the file, from the last write if it was in there.
func (d *direct) read(file io.ReaderAt, into []byte, at int64) error {
	if at >= d.at && at+directBlock <= d.at+int64(d.have) {
		copy(into, d.buf[at-d.at:][:directBlock])
		return nil
	}
	_, err := file.ReadAt(into[:directBlock], at)
	return err
}

// wrote notes that the file has what block made.
func (d *direct) wrote() { d.have = len(d.buf) }

// forget notes that the file was written by other means, up to end.
func (d *direct) forget(end int64) { d.have, d.size = 0, max(d.size, end) }

// aligned returns memory as direct writes want it.
func aligned(n int) []byte {
	raw := make([]byte, n+directBlock)
	off := -int(uintptr(unsafe.Pointer(&raw[0]))) & (directBlock - 1)
	return raw[off : off+n : off+n]
}

func (d *direct) close() error { return d.file.Close() }
