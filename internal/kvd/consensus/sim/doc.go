// Package sim plays whole clusters of package consensus in one thread on virtual
// time: replicas with their disks and clocks, the network between them, clients
// and an operator. Everything that happens is drawn from one seed, so a seed
// that found something finds it again, byte for byte.
//
//	seed ──► Config, Profile of faults
//	             │
//	         ┌───▼──────────────────── World ─────────────────────────┐
//	         │ agenda of events by virtual time                       │
//	         │ replica: consensus.Core, machine, disk, clock          │
//	         │ network: links in order, late, cut, lossy              │
//	         │ client: session, operations under way ──► history      │
//	         │ nemesis: crashes, partitions, pauses, slow disks …     │
//	         └───┬──────────────────────────────────────────┬─────────┘
//	             ▼                                          ▼
//	         commits: what every machine applied       history
//	             └───────────────► checks ◄─────────────────┘
//
// While it runs, every applied operation, every snapshot and every turn of a
// core is compared with what the others did. At the end the faults heal, all
// clients must be served and all replicas agree, and the histories are judged:
// nothing acknowledged is lost or done twice, each answer is that of its place
// in the log, strong operations are linearizable, sessions get their guarantees.
// One of these checks knows nothing of the log and asks porcupine.
//
// A check that cannot fail is worth nothing: mutation tests switch on one
// deliberate bug at a time and demand that some seed shows it. They are listed
// in docs/kv-simulation.md, with what is not modelled.
package sim
