//go:build !linux

package wal

import (
	"io"
	"os"
	"syscall"
)

// syncData is a whole flush: on macOS os.File.Sync is F_FULLFSYNC, which waits for
// the disk's own cache, as fsync there does not.
func syncData(f *os.File) error { return f.Sync() }

// writeDurably has WriteSync do with a write and a flush.
func writeDurably(*os.File, []byte, int64) (int, error) { return 0, syscall.ENOSYS }

// A ring is Linux's alone.
type ring struct{}

func newRing() (*ring, error)                                       { return nil, errNoRing }
func (*ring) writeSync(int, []byte, int64, bool, bool) (int, error) { return 0, errNoRing }
func (*ring) close() error                                          { return nil }

// Neither are direct writes.
type direct struct {
	file *os.File
	buf  []byte
	at   int64
}

func openDirect(string, int64) (*direct, error)        { return nil, errNotDirect }
func (*direct) covers(int, int64) bool                 { return false }
func (*direct) block(io.ReaderAt, []byte, int64) error { return errNotDirect }
func (*direct) wrote()                                 {}
func (*direct) forget(int64)                           {}
func (*direct) close() error                           { return nil }
