package state

import (
	"github.com/tidwall/btree"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Config is what a Store is told beyond the log.
type Config struct {
	// Changes is how many changes History keeps at least for watches that
	// come back. A Store that records changes must be drained by
	// [Store.Changes]. Default: 0, no change is recorded.
	Changes int
	// ChangeBytes bounds the keys and values of the changes that are kept:
	// beyond it fewer than Changes are. Default: 64 MiB.
	ChangeBytes int
}

// Store is the replicated state of one replica. One goroutine at a time calls
// its methods; a snapshot that it gave may be written by another meanwhile.
//
// It takes roughly 200 bytes for a key beyond the key and its value.
type Store struct {
	items    btree.Map[string, *item] // in order
	index    map[string]*item         // the same by hash, five times faster at a million keys; never ranged over
	epoch    uint64                   // how many snapshots there were
	leases   btree.Map[uint64, lease]
	held     map[uint64]*btree.Set[string] // the keys of each lease that has any; never ranged over
	expiry   *btree.BTreeG[moment]         // all that goes by itself, in the order in which it goes
	clock    int64                         // of the log, Unix nanoseconds
	revision uint64                        // of the newest operation
	bytes    int64                         // of all keys and values
	sum      uint64                        // of the hashes of all items and leases
	format   uint64                        // of the cluster; commands that need a newer one make no sense
	timed    int                           // items with a deadline or a lease
	log      changeLog

	command wire.Command // scratch of Apply, Evaluate and Footprint
	direct  execution    // scratch of Apply
	above   overlay      // scratch of Evaluate
}

// item is what a key holds. An item that a snapshot may hold, one of an earlier
// epoch, is never changed: a new one takes its place. The bytes of a value are
// never changed at all.
type item struct {
	key      string
	value    []byte
	epoch    uint64 // in which the item was made
	revision uint64 // of the operation that stored it, 0 while it is only evaluated
	deadline int64  // Unix nanoseconds, 0: none
	lease    uint64 // that the key goes with, 0: none
}

// goesByItself reports whether time alone may end the item.
func (it *item) goesByItself() bool {
	return it.deadline != 0 || it.lease != 0
}

// lease is a span of time that its holder extends, with keys that go when it
// ends. Its id, the revision of its grant, grows from grant to grant: it is the
// fencing token.
type lease struct {
	ttl      int64 // ns
	deadline int64 // Unix ns
}

// moment is an entry of the expiry index: at, either a key or a lease goes.
type moment struct {
	at    int64
	lease uint64 // 0: it is a key
	key   string
}

func (m moment) before(o moment) bool {
	if m.at != o.at {
		return m.at < o.at
	}
	if m.lease != o.lease {
		return m.lease < o.lease
	}
	return m.key < o.key
}

// New returns an empty Store.
func New(c Config) *Store {
	return &Store{
		format: 1, log: newChangeLog(c),
		index:  make(map[string]*item),
		held:   make(map[uint64]*btree.Set[string]),
		expiry: btree.NewBTreeGOptions(moment.before, btree.Options{NoLocks: true}),
	}
}

// Apply executes a write at revision, which is greater than that of all before
// it, with the clock of its log entry (Unix nanoseconds; a clock that is behind
// counts as the newest before it). What is due by then goes first. The result
// is the form of a [wire.Result]; it may be shared and must not be changed.
//
// An empty command does nothing but move the clock. It too has a revision of
// its own, because what expires by it is a change that a watch may resume after.
//
// Bytes that make no sense give a result with Code Malformed. All replicas must
// agree on what makes sense: a version that knows more verbs may send them
// only when every replica has it.
func (s *Store) Apply(revision uint64, now int64, command []byte) (result []byte) {
	s.revision = revision
	s.clock = max(s.clock, now)
	s.expire()
	if len(command) == 0 {
		return nil
	}
	if !s.parse(command) {
		return encode(&malformed)
	}
	s.direct.begin(s, s.clock, revision, s.format)
	r := s.direct.run(&s.command)
	return encode(&r)
}

var malformed = wire.Result{Code: wire.Malformed}

// parse sets s.command, which shares command's memory, and reports whether it
// makes sense.
func (s *Store) parse(command []byte) bool {
	return len(command) <= wire.MaxCommand && s.command.Borrow(command) == nil && s.command.ValidateParsed() == nil && s.command.Needs() <= s.format
}

// SetFormat says which format the cluster has from now on; see [wire.Command.Needs].
func (s *Store) SetFormat(format uint64) { s.format = format }

// Footprint adds what command touches to f, see [wire.Command.Footprint]. The answer
// to a command is not fixed where it is another one in a newer format than the cluster
// has: the format may rise before its place in the log.
func (s *Store) Footprint(command []byte, f *wire.Footprint) error {
	c, err := wire.ParseCommand(command)
	if err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	c.Footprint(f)
	f.Fixed = f.Fixed && c.Settled() <= s.format
	return nil
}

// Item is what a key holds. Value is the store's own memory: it must not be
// changed, and does not change.
type Item struct {
	Value    []byte
	Revision uint64 // of the operation that stored it
	Lease    uint64 // that the key goes with, 0: none
	Deadline int64  // Unix nanoseconds, 0: none
}

func (it *item) export() Item {
	return Item{Value: it.value, Revision: it.revision, Lease: it.lease, Deadline: it.deadline}
}

// Get returns what key holds.
func (s *Store) Get(key string) (Item, bool) {
	it := s.index[key]
	if it == nil {
		return Item{}, false
	}
	return it.export(), true
}

// Scan calls fn for the keys of span in their order until it returns false. fn
// must not change the store.
func (s *Store) Scan(span wire.Span, fn func(key string, it Item) bool) {
	s.scan(span, false, func(it *item) bool { return fn(it.key, it.export()) })
}

// Len returns the number of keys.
func (s *Store) Len() int { return s.items.Len() }

// Bytes returns the size of all keys and values, without what they cost beyond
// their length.
func (s *Store) Bytes() int64 { return s.bytes }

// Expiring returns the number of keys that have a time to live or a lease.
func (s *Store) Expiring() int { return s.timed }

// Revision returns the revision of the newest operation that was applied.
func (s *Store) Revision() uint64 { return s.revision }

// Clock returns the newest clock that an operation carried, Unix nanoseconds.
// Everything that was due by then is gone.
func (s *Store) Clock() int64 { return s.clock }

// Due returns the earliest moment (Unix nanoseconds) at which something
// expires, 0 if nothing does.
func (s *Store) Due() int64 {
	first, _ := s.expiry.Min()
	return first.at
}

// Steady reports that nothing of f has a time to live or a lease, so that what
// is evaluated on it does not depend on the moment. It may say no of spans
// where the answer is yes.
func (s *Store) Steady(f *wire.Footprint) bool {
	if s.timed == 0 {
		return true
	}
	for _, key := range f.Keys {
		if it := s.index[key]; it != nil && it.goesByItself() {
			return false
		}
	}
	return len(f.Spans) == 0
}
