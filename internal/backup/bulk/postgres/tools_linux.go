package postgres

import "syscall"

// sysProcAttr lets a tool die with this process: a pg_dump that nobody reads
// would keep its snapshot and its locks.
func sysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
