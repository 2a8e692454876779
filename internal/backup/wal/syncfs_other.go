//go:build !linux

package wal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// syncFileSystem flushes everything below an open directory, file by file: only Linux can flush
// a whole file system and wait for it.
func syncFileSystem(dir *os.File) error {
	return filepath.WalkDir(dir.Name(), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(filepath.Clean(name))
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}
