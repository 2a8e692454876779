//go:build !linux

package postgres

import "syscall"

// sysProcAttr: only Linux ends a process with its parent.
func sysProcAttr() *syscall.SysProcAttr { return nil }
