package postgres

import "syscall"

// sysProcAttr makes a tool end with this process: a pg_dump whose output is not read would keep
// its snapshot and its locks.
func sysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
