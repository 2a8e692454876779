// Package sim simulates whole clusters of package consensus in one thread, in virtual time:
// replicas with their disks and clocks, the network between them, clients and an operator. All
// events follow from one seed, so that a seed that found a bug finds it again, byte for byte.
//
//	seed ──► Config, Profile of faults
//	             │
//	         ┌───▼──────────────────── World ─────────────────────────┐
//	         │ queue of events by virtual time                        │
//	         │ replica: consensus.Core, machine, disk, clock          │
//	         │ network: links in order, late, cut, lossy              │
//	         │ client: session, operations in flight ──► history      │
//	         │ nemesis: crashes, partitions, pauses, slow disks …     │
//	         └───┬──────────────────────────────────────────┬─────────┘
//	             ▼                                          ▼
//	         commits: what every machine applied       history
//	             └───────────────► checks ◄─────────────────┘
//
// During a run, every applied operation, every snapshot and every turn of a core is compared
// with those of the other replicas. At the end the faults heal, all clients must be served and
// all replicas agree, and the histories are checked: no acknowledged write is lost or executed
// twice, each answer is right for its place in the log, strong operations are linearizable, and
// sessions have their guarantees. One check knows nothing of the log and uses porcupine.
//
// Mutation tests check the checks: they enable one deliberate bug at a time, and some seed must
// reveal it. The bugs are listed in docs/kv-simulation.md, with what is not modelled.
package sim
