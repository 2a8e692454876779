package wal

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// directBlock is the unit of direct writes: a block of the file system.
	directBlock = 4096
	// directMost is the largest write that bypasses the page cache. In larger ones the cost of
	// the bytes themselves dominates.
	directMost = 1 << 20
)

// direct writes to a file without the page cache (O_DIRECT). Flushing a page takes a third more
// CPU, flushes of several processes delay each other, and only a kernel thread can flush a page
// without blocking this thread, while the ring starts a direct write by itself and the disk's
// interrupt completes it.
//
// Only existing blocks of the file are written, since extending a file changes the file
// system's metadata. Bytes beside the write in its first and last block are preserved.
type direct struct {
	file *os.File // a second handle of the same file
	size int64    // of the file, at least
	buf  []byte   // aligned; after a write, the contents of the file from at on
	at   int64
	have int               // number of bytes of buf that are in the file
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

// block fills buf with the blocks that b at off lies in, including the bytes of the file around
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

// read reads a block of the file, from buf if the last write contained it.
func (d *direct) read(file io.ReaderAt, into []byte, at int64) error {
	if at >= d.at && at+directBlock <= d.at+int64(d.have) {
		copy(into, d.buf[at-d.at:][:directBlock])
		return nil
	}
	_, err := file.ReadAt(into[:directBlock], at)
	return err
}

// wrote notes that buf is in the file.
func (d *direct) wrote() { d.have = len(d.buf) }

// forget notes that the file was written in another way, up to end.
func (d *direct) forget(end int64) { d.have, d.size = 0, max(d.size, end) }

// aligned returns memory with the alignment that direct writes need.
func aligned(n int) []byte {
	raw := make([]byte, n+directBlock)
	off := -int(uintptr(unsafe.Pointer(&raw[0]))) & (directBlock - 1)
	return raw[off : off+n : off+n]
}

func (d *direct) close() error { return d.file.Close() }
