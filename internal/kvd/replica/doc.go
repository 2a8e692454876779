// Package replica runs one replica of the key-value store: it drives the pure
// core of internal/kvd/consensus with messages, disk and time, and serves clients.
//
//	Redis clients ─► resp ─► gateway ─┐                     ┌─► peer ─► other replicas
//	native clients, replicas ─► peer ─┼─► inbox ─► core ────┼─► peer, gateway ─► clients
//	ticker, disk, snapshots ──────────┘   (one goroutine)   ├─► disk ─► wal (one fsync per round)
//	                                                        └─► feed ─► watches, invalidations
//
// One goroutine owns the core. It takes all that waits at once, reads the clock
// after that, so that a process that was stopped for a while cannot answer by an
// old lease, hands everything to the core and does what the core wants done.
// Nothing on this way waits for a timer: while a turn runs, or the disk syncs,
// what arrives gathers and is the next turn's.
//
// The disk goroutine writes what has gathered since its last take with one
// fdatasync. An error of the disk is final: what the kernel said to have written
// may be gone after it, so the replica stops and names the error.
package replica
