package consensus

import (
	"io"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Addr is the source or destination of a message: the id of a replica or, from FirstClient on,
// a client that is connected to this replica.
type Addr uint64

const (
	// FirstClient is the smallest address of a client.
	FirstClient Addr = 1 << 32
	// Clients addresses all clients that are connected to this replica.
	Clients Addr = 1<<64 - 1
)

// Clock is the time of an event, in nanoseconds.
type Clock struct {
	Mono int64 // monotonic, from any origin; includes the time that the machine was suspended. Leases use it
	Wall int64 // Unix time, may jump. Used only to start the time of a new cluster; after that, expiry uses Mono
}

// Machine is the replicated state. All its methods but Untouched are deterministic, and
// all are called by one goroutine at a time.
type Machine interface {
	// Apply executes a write at its revision, with the log's clock at now (Unix nanoseconds,
	// never backwards). The result of an invalid command says what is wrong with it.
	Apply(revision uint64, now int64, command []byte) (result []byte)

	// Advance moves the log's clock to now (never backwards) and removes what has expired.
	// revision is that of this event if anything expires, otherwise that of the last write.
	Advance(revision uint64, now int64)

	// Evaluate returns the result that command, a query or a write, would have after writes,
	// with the clock at now. It changes nothing.
	Evaluate(now int64, writes [][]byte, command []byte) (result []byte)

	// Steady reports whether no key of f has a time to live, so that a result computed from
	// them does not depend on the time.
	Steady(f *wire.Footprint) bool

	// Footprint adds the keys that command reads or writes to f.
	Footprint(command []byte, f *wire.Footprint) error

	// Untouched deletes from since each key that was stored or removed after its revision
	// there, and each key whose history the machine does not know. Replicas may give different
	// answers.
	Untouched(since map[string]uint64)

	// Digest returns a hash of all state that replicas must agree on, 0 if it is unknown. It is
	// cheap.
	Digest() uint64

	// SetFormat sets the format of the cluster, 1 at first. Commands that need a newer format
	// are invalid, on all replicas alike.
	SetFormat(format uint64)

	// Due returns the earliest time (Unix nanoseconds) at which something expires, 0 if nothing
	// does.
	Due() int64

	// Snapshot returns a frozen view of the state, which may be written later by another
	// goroutine.
	Snapshot() io.WriterTo

	// Restore replaces the whole state. If it fails, it changes nothing.
	Restore(r io.Reader) error
}

// Level says where a weak write must be durable before it is acknowledged.
type Level uint8

// Levels of weak writes and of weak reads (Leader or Nearest).
const (
	Quorum  Level = iota // on a majority, like a strong write
	Leader               // on the leader's disk
	Nearest              // on the disk of the replica that the client is bound to
)

// Switches select the protocol.
type Switches struct {
	Fast       bool  // strong writes may complete in one round trip, by votes of witnesses
	WeakWrites Level // where a weak write must be durable
	WeakReads  Level // Nearest: any replica answers; otherwise the leader does, as for strong reads
}

// Kinds of records that a replica writes to its disk.
const (
	RecordEntry    = iota + 1 // a log entry at Index of Term; replaces all entries at and after Index
	RecordHard                // term, vote and commit of raft
	RecordView                // the view that this witness has moved to
	RecordWitness             // an operation in the pool of the witness
	RecordIntent              // a weak write acknowledged, or about to be, by this replica
	RecordReset               // the log starts again after Index of Term: a snapshot was installed
	RecordIdentity            // reserved for package replica
	RecordPromise             // the longest promise that this replica has given to a leader
)

// Record is one record of the log on disk. The disk does not interpret Data.
type Record struct {
	Kind  uint8
	Term  uint64
	Index uint64
	Data  []byte
}

// Send is a message to send. Messages to one address stay in order. The network may lose, delay
// and duplicate messages between replicas.
type Send struct {
	To      Addr
	Message wire.Message
}

// Snapshot is a state to save, which includes all entries up to Index. WriteTo may run in
// another goroutine.
type Snapshot struct {
	Index, Term uint64
	io.WriterTo
}

// Ship asks the caller to send this replica's newest snapshot file (at least up to Index),
// together with Message, to a replica that needs entries which the log no longer has. The
// receiver passes both to Core.Install. The caller reports the outcome by Core.Shipped.
type Ship struct {
	To      Addr
	Index   uint64
	Message wire.Message
}

// Effects is what the caller must do. The parts are independent of each other, except that
// records go to the disk in the order in which Take returned them. Messages may be sent before
// the records are durable: the core holds back those that must wait, until Persisted.
type Effects struct {
	Records []Record
	Ticket  uint64 // call Persisted(Ticket) when Records are durable; 0: no records
	Sync    bool   // something waits for Persisted; otherwise the flush may wait for the next Effects
	Sends   []Send
	Save    *Snapshot // save this, then call SnapshotSaved
	Ships   []Ship
	Wake    int64 // call Take at this time (Clock.Mono) even without an event; 0: not needed
	Fatal   error // the replica must stop for this reason: otherwise it would break a promise
}

// Recovered is what a starting replica finds on its disk.
type Recovered struct {
	// Snapshot is the newest saved snapshot, nil if there is none.
	Snapshot io.Reader
	// Records yields all records since the snapshot in the order of writing. Older ones may
	// precede them.
	Records func(yield func(Record) error) error
}
