package wal

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncFileSystem flushes the file system of an open directory.
func syncFileSystem(dir *os.File) error { return unix.Syncfs(int(dir.Fd())) }
