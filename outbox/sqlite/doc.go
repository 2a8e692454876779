// Package sqlite keeps an outbox in a SQLite file, with nothing to install: it
// implements [outbox.Store] over modernc.org/sqlite, which needs no C compiler.
//
// # One writer
//
// SQLite lets one transaction write at a time, and a row gets its number while its
// transaction holds the write lock. So numbers ascend in the order of commits, a row
// that is not committed has a higher number than every committed one, and a rollback
// gives its numbers back. No gap is ever filled late: Mark of [outbox.Lease] records
// nothing, and Settled returns true at once.
//
// The file is in WAL mode, in which readers and the writer do not wait for each other.
// The store writes through one connection, in short transactions that take the write
// lock when they begin, and retries while another writer holds it. It never waits for
// a producer while it holds the lock, so both may be in one program.
//
// Such a program must open the file with one driver only. POSIX drops a
// process's locks on a file when any of its descriptors is closed; each copy of
// SQLite guards itself against that, two different copies in one process (this
// one and a C one) cannot guard against each other and may damage the file.
//
// # What is lost at a power failure
//
// The store's own commits are not flushed (synchronous = NORMAL). After a power
// failure the last acknowledgements may be missing, and their messages are
// delivered again; what producers have committed with their own, stricter
// setting is not lost.
package sqlite
