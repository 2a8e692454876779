//go:build !linux

package wal

import (
	"io"
	"os"
	"syscall"
)

// syncData flushes a file. On macOS os.File.Sync is F_FULLFSYNC, which, unlike fsync there,
// waits for the disk's own cache.
func syncData(f *os.File) error { return f.Sync() }

// writeDurably is not supported: WriteSync writes and flushes instead.
func writeDurably(*os.File, []byte, int64) (int, error) { return 0, syscall.ENOSYS }

// ring is supported on Linux only.
type ring struct{}

func newRing() (*ring, error)                                       { return nil, errNoRing }
func (*ring) writeSync(int, []byte, int64, bool, bool) (int, error) { return 0, errNoRing }
func (*ring) close() error                                          { return nil }

// direct is supported on Linux only.
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
