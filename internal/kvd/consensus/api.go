package consensus

import (
	"io"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Addr is where a message comes from or goes to: the id of a replica, or, from
// FirstClient on, a client that is connected to this replica.
type Addr uint64

const (
	// FirstClient is the smallest address of a client.
	FirstClient Addr = 1 << 32
	// Clients addresses all clients that are connected to this replica.
	Clients Addr = 1<<64 - 1
)

// Clock is the time of an event, in nanoseconds.
type Clock struct {
	Mono int64 // since any origin; goes on while the machine sleeps; never backwards. Leases are measured by it
	Wall int64 // Unix time; may jump. Only the first time of a new cluster is one: from there on what expires goes by Mono
}

// Machine is the replicated state. All its methods but Untouched are deterministic, and
// all are called by one goroutine at a time.
type Machine interface {
	// Apply executes a write at its revision, with the log's clock at now
	// (Unix nanoseconds, never backwards). A command that makes no sense
	// gives a result that says so.
	Apply(revision uint64, now int64, command []byte) (result []byte)

	// Advance moves the log's clock to now (never backwards). What is due by
	// then expires; if anything is, revision is this event's own, as Apply's is,
	// else that of the last write.
	Advance(revision uint64, now int64)

	// Evaluate answers command, a query or a write, as if writes had been
	// applied before it and the clock were at now, and changes nothing.
	Evaluate(now int64, writes [][]byte, command []byte) (result []byte)

	// Steady reports that no key of f has a time to live, so that what is
	// evaluated on them does not depend on the moment.
	Steady(f *wire.Footprint) bool

	// Footprint adds what command touches to f.
	Footprint(command []byte, f *wire.Footprint) error

	// Untouched removes from since the keys that were stored or removed after their
	// revisions there, and those of which the machine does not know that. It need not
	// be the same on all replicas.
	Untouched(since map[string]uint64)

	// Digest depends on all of the state that replicas must agree on, and is quick.
	// 0: unknown.
	Digest() uint64

	// SetFormat says which format the cluster has from now on: a command that needs
	// a newer one makes no sense, on all replicas alike. It begins with 1.
	SetFormat(format uint64)

	// Due is the earliest moment (Unix nanoseconds) at which something
	// expires, 0 if nothing does.
	Due() int64

	// Snapshot is a frozen view, written later, perhaps by another goroutine.
	Snapshot() io.WriterTo

	// Restore replaces the whole state, or fails and changes nothing.
	Restore(r io.Reader) error
}

// Level says who must have a weak write before it is acknowledged.
type Level uint8

// Levels of weak writes, and of weak reads (Leader or Nearest).
const (
	Quorum  Level = iota // a weak write is as durable as a strong one
	Leader               // the leader's disk
	Nearest              // the disk of the replica that the client is bound to
)

// Switches are the three choices that make a protocol.
type Switches struct {
	Fast       bool  // strong writes may complete in one round trip by witness votes
	WeakWrites Level // who acknowledges a weak write
	WeakReads  Level // Nearest: any replica answers; else the leader, as for strong reads
}

// Record kinds: what a replica writes to its disk.
const (
	RecordEntry    = iota + 1 // a log entry at Index of Term; replaces all entries at and after Index
	RecordHard                // term, vote and commit of raft
	RecordView                // the view that this witness has moved to
	RecordWitness             // an operation in the witness pool
	RecordIntent              // a weak write acknowledged, or about to be, by this replica
	RecordReset               // the log begins anew after Index of Term: a snapshot was installed
	RecordIdentity            // reserved for the shell
	RecordPromise             // the longest promise that this replica has given to a leader
)

// Record is one thing to remember. Data is opaque to the disk.
type Record struct {
	Kind  uint8
	Term  uint64
	Index uint64
	Data  []byte
}

// Send is a message to deliver. Messages to one address stay in order; a
// network may lose, delay and duplicate those between replicas.
type Send struct {
	To      Addr
	Message wire.Message
}

// Snapshot is a state to save: everything up to Index. WriteTo may run in
// another goroutine.
type Snapshot struct {
	Index, Term uint64
	io.WriterTo
}

// Ship asks to send this replica's newest snapshot file (at least up to Index)
// to a replica that is too far behind for the log, and with it Message, which
// the receiver hands to Core.Install together with the file. The shell answers
// with Core.Shipped.
type Ship struct {
	To      Addr
	Index   uint64
	Message wire.Message
}

// Effects is what the core wants done. All of it is independent of each other
// except that the records of one Effects go to the disk after those of earlier
// ones. Messages may leave before the records are durable: what must wait for
// the disk stays in the core until Persisted.
type Effects struct {
	Records []Record
	Ticket  uint64 // call Persisted(Ticket) when Records are durable; 0: there are none
	Sync    bool   // something waits for Persisted; without it a sync may wait for the next Effects
	Sends   []Send
	Save    *Snapshot // save this, then call SnapshotSaved
	Ships   []Ship
	Wake    int64 // Clock.Mono at which Take should be called again though nothing happens, 0: no need
	Fatal   error // this replica must stop: it would break a promise. It says why
}

// Recovered is what a replica finds on its own disk when it starts.
type Recovered struct {
	// Snapshot is the newest snapshot that was saved, nil if there is none.
	Snapshot io.Reader
	// Records yields, in the order of writing, all records since. It may
	// begin earlier than the snapshot.
	Records func(yield func(Record) error) error
}
