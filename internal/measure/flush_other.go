//go:build !linux

package measure

import "os"

func flushData(f *os.File) error { return f.Sync() }
