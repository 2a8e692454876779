package wire

// Verb is what a Command does.
type Verb uint8

// Verbs. Writes go through the log, reads never do.
const (
	// Writes.

	Set         Verb = iota + 1 // Key = Value, under Cond, with TTL, attached to Lease
	Delete                      // removes Keys, a single one also under Cond; result Number = how many existed
	Increment                   // adds Delta to the decimal integer at Key; result Number
	Append                      // appends Value; result Number = new length
	Expire                      // sets the time to live of Key under Cond, a time in the past removes the key; result Number = 1 if the key exists and Cond holds
	Persist                     // removes the time to live; result Number = 1 if there was one
	SetMany                     // Pairs, all or nothing (Cond NX: only if none exists); result Number = how many pairs
	DeleteRange                 // removes [Key, End); result Number
	Transaction                 // executes Commands (reads too, no Transaction or LeaseGrant) in order if all Guards hold; result Results, or Code NotMet. A command that fails does not stop the others
	LeaseGrant                  // creates a lease of TTL ms; result Number = its id = its fencing token = the revision
	LeaseKeep                   // renews Lease; result Number = TTL ms, Code NotFound if it is gone
	LeaseRevoke                 // ends Lease and deletes its keys; result Number = how many, Code NotFound if it is gone

	// Reads.

	Get      // result Found, Value, Revision, Lease; Code NotFound; with KeysOnly Number = the value's length instead of it
	Many     // result Results of Get, one per Key; with KeysOnly, and outside a Transaction, Revision is the newest of the store
	Range    // keys in [Key, End) (End empty: to the end), at most Limit (0: no bound), reversed or keys only by Options; result Pairs, More
	Count    // number of keys in [Key, End); result Number
	TTL      // result Number: ms left (Absolute: the time, ms since 1970), -1 without one, -2 without the key. A lease is not a time to live
	LeaseTTL // result Number: ms left of Lease, Code NotFound; with KeysOnly Pairs are its keys
)

// Conditions of Set, SetMany, Delete and Expire.
const (
	Always     = iota
	IfAbsent   // NX
	IfPresent  // XX
	IfRevision // the key's revision is Revision (0: the key is absent)
	IfValue    // the key exists and its value is Expect
	IfGreater  // Expire GT
	IfLess     // Expire LT
	IfNoTTL    // Expire NX
	IfTTL      // Expire XX
)

// Options of a Command.
const (
	ReturnOld = 1 << iota // Set, Delete of one key: result Value is the old value
	KeepTTL               // Set keeps the key's time to live, and its lease unless Lease names another; Expire adds to it, and does nothing without one
	Absolute              // TTL is a time, milliseconds since 1970, instead of a duration
	Reverse               // Range from the end
	KeysOnly              // without values
	NoReply               // the writer wants no result: the write is blind
)

// Command is one operation on the store.
type Command struct {
	Verb     Verb
	Cond     uint8
	Options  uint8
	Key      string
	End      string
	Value    []byte
	Expect   []byte
	Revision uint64
	Delta    int64
	TTL      int64 // milliseconds, 0: none
	Lease    uint64
	Limit    uint64
	Keys     []string
	Pairs    []Pair
	Guards   []Guard
	Commands []Command
}

// Pair is a key with its value.
type Pair struct {
	Key      string
	Value    []byte
	Revision uint64
}

// Guard is a condition of a Transaction: Key's revision is Revision (0: absent).
type Guard struct {
	Key      string
	Revision uint64
}

// Special revisions of a Guard.
const (
	// Untouched plus a revision of the store: the key does not exist and has not existed since
	// that revision. Whether it has is not part of the state. The leader finds out when it
	// appends the transaction to the log, and replaces the value by 0 or Never. For clusters of
	// FormatUntouched.
	Untouched = 1 << 63
	// Never does not hold for any key.
	Never = 1<<64 - 1
)

// Codes of a Result.
const (
	OK        = iota
	NotFound  // no such key or lease; nothing was changed
	NotMet    // the condition does not hold; nothing was changed
	WrongType // the value is not an integer, or, with Found, the sum does not fit 64 bits
	TooLarge  // the value would exceed MaxValue, or the answer MaxResult; nothing was changed
	Malformed // the command is invalid for this version
)

// Result is the answer to a Command.
type Result struct {
	Code     uint8
	Found    bool // the key exists: Value is its current or old value (Get, ReturnOld); see WrongType
	More     bool // Range stopped at Limit
	Value    []byte
	Number   int64
	Revision uint64 // revision of the key that was read; for a committed write, its own (filled from the message)
	Lease    uint64
	Pairs    []Pair
	Results  []Result
}

// Limits of what the store accepts.
const (
	MaxKey     = 64 << 10 // bytes
	MaxValue   = 8 << 20  // bytes
	MaxCommand = 16 << 20 // bytes of a whole encoded command
	MaxItems   = 64 << 10 // keys, pairs, guards or commands of one command
	MaxResult  = 16 << 20 // bytes of a whole encoded result: a longer Range stops with More, other results become TooLarge
)

// Footprint is what a command touches: Keys and Spans. Reset allows reuse.
type Footprint struct {
	Keys  []string
	Spans []Span
	Write bool // the command changes what it touches
	Blind bool // a write whose client does not need the answer: it may be weak
	Fixed bool // a write whose answer depends only on these keys, not on its own revision, a lease or the clock: it may be sent before the commit
	Timed bool // a write that may leave keys with a time to live or a lease: what is evaluated over it before it is applied depends on the time
}

// Span is the keys in [From, To); an empty To means the end of all keys.
type Span struct{ From, To string }

// Reset empties f and keeps its memory.
func (f *Footprint) Reset() {
	*f = Footprint{Keys: f.Keys[:0], Spans: f.Spans[:0]}
}
