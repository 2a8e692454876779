// Package state is the replicated state of the key-value store: keys with their values,
// revisions, times to live and leases, ordered by key.
//
// It is deterministic. The same commands at the same revisions and clocks give the same
// results, the same snapshot byte for byte and the same [Store.Digest] on every replica: it
// uses no clock, no randomness and no iteration order of Go maps. Keys expire by the clock in
// the log, on all replicas at the same entry, and not by a replica's own clock.
//
//	       Apply                      Evaluate
//	         |                            |
//	         v                            v
//	     execution <------ the same ---> execution      what each verb does
//	         |                            |
//	         v                            v
//	       Store                       overlay          where it reads and writes
//	B-tree, copied on write     a few changed keys above the Store, then discarded
//	leases, expiry, changes
//
// Stored items never change, so [Store.Snapshot] only takes the root of a tree; the snapshot is
// written while Apply continues.
package state
