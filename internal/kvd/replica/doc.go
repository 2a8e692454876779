// Package replica runs one replica of the key-value store: it drives the pure
// core of internal/kvd/consensus with messages, disk and time, and serves clients.
//
//	Redis clients ─► resp ─► gateway ─┐                     ┌─► peer ─► other replicas
//	native clients, replicas ─► peer ─┼─► inbox ─► core ────┼─► peer, gateway ─► clients
//	ticker, disk, snapshots ──────────┘   (one goroutine)   ├─► disk ─► wal (one fsync per round)
//	                                                        └─► feed ─► watches, invalidations
//
// One goroutine owns the core. In each turn it takes all events that are waiting, reads
// the clock, hands both to the core, and carries out the core's effects. The clock is read
// last, so that a process that was stopped for a while cannot answer by an expired lease.
// No event waits for a timer: those that arrive while a turn runs, or while the disk
// syncs, are the next turn's.
//
// The disk goroutine writes all records that have gathered, with one fdatasync. An error
// of the disk is final: the kernel may have dropped data whose write it had reported as
// done, so the replica stops and returns the error.
package replica
