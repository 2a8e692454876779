package wal

import (
	"os"

	"golang.org/x/sys/unix"
)

func syncData(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// writeDurably writes some of b and returns when it is durable.
func writeDurably(f *os.File, b []byte, off int64) (int, error) {
	return unix.Pwritev2(int(f.Fd()), [][]byte{b}, off, unix.RWF_DSYNC)
}
