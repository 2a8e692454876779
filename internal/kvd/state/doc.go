// Package state is the state that the replicated key-value store replicates:
// keys with their values, revisions, times to live and leases, ordered by key.
//
// It is deterministic. The same commands at the same revisions and clocks give
// the same results, the same snapshot to the byte and the same [Store.Digest] on
// every replica: there is no clock, no randomness and no order of a Go map in
// here. What has a time to live goes when the clock that the log carries says
// so, on all replicas at the same entry, and not when a replica's own clock
// does.
//
//	       Apply                      Evaluate
//	         |                            |
//	         v                            v
//	     execution <------ the same ---> execution      what each verb does
//	         |                            |
//	         v                            v
//	       Store                       overlay          where it reads and writes
//	B-tree, copied on write     a few changed keys above the Store, then forgotten
//	leases, expiry, changes
//
// Items are never changed once stored, so [Store.Snapshot] is the root of a tree
// and takes no time; the writer of the snapshot reads it while Apply goes on.
package state
