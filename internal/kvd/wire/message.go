package wire

// Kind is the kind of a Message.
type Kind uint8

// Kinds of messages. "Client" is the owner of a session: a program with the Go client, or a
// replica's gateway for Redis clients.
const (
	// Client to replica.

	Strong   Kind = iota + 1 // to the leader: order Data after Bundle; Prior, Ack, FlagFast if Records went to the others
	Record                   // to a witness: the same operation, asking for a vote in View
	Weak                     // to the leader or the nearest replica: acknowledge by FlagNearest or at the leader
	Read                     // strong read: linearizable answer of the query Data, by Request; Session's writes <= Seq, Bundle among them, come first
	WeakRead                 // read at this replica: Data over Bundle, not older than the token (View, Index); by Request
	Register                 // to the leader: grant Count session ids; by Request
	Stable                   // to any replica: answer ReadDone, by Request, when it has applied Session's writes <= Seq (WAIT)

	// Replica to client.

	Done     // the write (Session, Seq) is committed at Index and Revision with result Data; Stable is filled
	Spec     // leader: the write is in its log at Index and on its disk; FlagYes: Data is its result if a fast quorum of Count voters votes in View with the same Revision, the position of the members in force
	Vote     // witness: FlagYes: the record is on its disk in View; FlagYes|FlagApplied: already applied
	WeakDone // the weak write is as durable as its level asks
	ReadDone // answer of Read, WeakRead or Register; token is (View, Index)
	Redirect // not the leader; Leader is the best guess, 0 if unknown. Echoes Session, Seq, Request
	Refused  // Code says why; echoes Session, Seq, Request
	NewView  // View is open with Leader since Index; unasked, to every client and replica

	// Replica to replica.

	Raft        // Data is a message of the raft engine
	PoolCollect // leader of View: move to View, then send your pool
	Pool        // the witness pool: Records; View
	Lease       // leader's clock at sending, Time, or its echo by a follower (FlagYes)

	// Client to leader: Data is a change of members (see consensus.Change). The answer, when it
	// is in force, is ReadDone with the same Request.
	Configure

	// Watches at any replica, by Request.

	Watch      // client: tell of changes of keys in the Range command Data, from Revision on (0: from now on)
	WatchEvent // replica: Data are all Changes up to Revision (none at the start of a watch); or Code CodeMissed, and the changes up to Revision were omitted
	Unwatch    // client: end the watch

	Inspect // client to any replica: its state for people, as JSON in the Data of ReadDone, by Request
)

// Flags of a Message.
const (
	FlagYes     = 1 << iota // vote granted, speculation holds, echo
	FlagApplied             // the operation is applied already
	FlagNearest             // Weak: acknowledge when this replica's disk has it
	FlagFast                // Strong: the client sent Records, and can use a Spec answer
	FlagForward             // Weak, Strong: a replica forwards what it has acknowledged, or voted for; no answer is wanted
	FlagEnd                 // Strong: no command; the session ends with this number and is removed
)

// Codes of Refused.
const (
	CodeExpired  = iota + 1 // the session is unknown: it expired; nothing of this operation happened or will happen
	CodeInvalid             // the command cannot be executed; Data says why
	CodeBusy                // too many requests wait; nothing happened
	CodeNoQuorum            // no leader reachable; the operation may still happen
	CodeForgot              // replica to replica: the receiver's disk has lost what it acknowledged; it must stop. Data says why
	CodeRemoved             // replica to replica: the receiver was removed from the cluster and must stop
	CodeMissed              // WatchEvent: the changes are no longer known; the client must read the keys again
	CodeUnkept              // the write is committed; its answer is not kept
	CodeDiverged            // replica to replica: the receiver's state differs from that of a majority; it must stop. Data says why
	CodeDoubt               // states differ, and no majority tells which is right; nothing happened
	CodeCutOff              // of a Watch: the replica has not heard of a leader for long, and ends it. Data says so
)

// Message is a message of the store. One flat struct serves all kinds: the comment of a kind
// names the fields that it uses. All others are zero and take no space in the encoding.
type Message struct {
	Kind     Kind
	Flags    uint8
	Code     uint8
	View     uint64  // term of the leader that the sender follows
	Session  uint64  // its session
	Seq      uint64  // its operation's number; writes of a session count 1, 2, 3 …
	Ack      uint64  // the client has the answers of all writes <= Ack
	Prior    uint64  // Strong, Record: number of the session's strong write before this one, 0 if all before are answered
	Stable   uint64  // all writes of the session <= Stable are committed
	Index    uint64  // position in the log
	Revision uint64  // position of an operation among all operations
	Request  uint64  // number of a read or registration, chosen by the client
	Leader   uint64  // replica id
	Count    uint64  // number of voters, or of sessions
	Time     int64   // nanoseconds of the sender's clock
	Data     []byte  // command, query, result, reason or raft message
	Bundle   []Write // earlier writes of the session that the receiver may not have, in order
	Records  []Message
}

// Write is a write in a bundle.
type Write struct {
	Seq     uint64 // less than 1 << 63
	Strong  bool   // its answer is wanted, and must always be the same
	Command []byte
}
