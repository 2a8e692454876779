package measure

import (
	"os"

	"golang.org/x/sys/unix"
)

// flushData forces the file's data, and what is needed to read it back, to disk.
func flushData(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
