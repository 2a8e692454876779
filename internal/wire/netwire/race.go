//go:build linux && race

package netwire

import "syscall"

// The race detector orders every read from a file after everything before a write to any other
// file; package syscall reports both to it. Calls that bypass that package are accompanied by
// calls that only report.

func beforeWrite() { _, _ = syscall.Write(-1, nil) } // fails, after it has reported

func afterRead(fd uintptr) { _, _ = syscall.Read(int(fd), nil) } // reads nothing from a socket
