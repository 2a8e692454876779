// Package consensus keeps several replicas of a state machine in one total
// order of operations. It is a pure core: events go in, effects come out. It
// has no goroutine, no clock, no randomness, no file and no socket, so that one
// seed replays a whole cluster with its disks and its network (package sim).
//
//	            Deliver, Tick, Persisted, SnapshotSaved …
//	                          │
//	          ┌───────────────▼────────────────┐
//	          │ Core                           │
//	clients ──┤  sessions   order and dedup    │
//	          │  rounds     many operations,   ├── Take ──► records for the disk
//	          │             one log entry      │            messages to send
//	          │  pool       witness votes      │            snapshots to make
//	          │  views      recovery           │
//	          │  leases     reads              │
//	          │  raft.RawNode  elections, log  │
//	          └───────────────┬────────────────┘
//	                          ▼
//	                       Machine
//
// One totally ordered log, three switches (see [Switches]); the presets raft,
// raft-ht, curp, curp-ht and curp-ho are settings of them. Elections, log
// matching and membership are those of go.etcd.io/raft. The fast path follows
// CURP (Park and Ousterhout, NSDI 2019, section on consensus): witnesses are
// the replicas themselves, a fast quorum of votes makes an operation durable
// before it is ordered, and a new leader recovers what may have completed. What
// weak operations promise is hybrid consistency (Attiya and Friedman, SIAM J.
// Comput. 1998): see docs/kv.md.
//
// The safety conditions S1 to S14, which comments in this package cite, are
// listed with their reasons in docs/design/005-kv-consensus.md.
package consensus
