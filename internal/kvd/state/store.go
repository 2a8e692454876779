package state

import (
	"github.com/tidwall/btree"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Config configures a Store.
type Config struct {
	// Changes is the least number of changes that History keeps, for watches that come back. If
	// it is set, [Store.Changes] must be called regularly. Default: 0, changes are not
	// recorded.
	Changes int
	// ChangeBytes limits the size of the keys and values of these changes, even if fewer than
	// Changes are kept. Default: 64 MiB.
	ChangeBytes int
}

// Store is the replicated state of one replica. Its methods must be called by one goroutine at
// a time, but another may write a snapshot meanwhile.
//
// It takes roughly 200 bytes per key beyond the key and its value.
type Store struct {
	items    btree.Map[string, *item] // in order
	index    map[string]*item         // the same by hash, five times faster at a million keys; never iterated over
	epoch    uint64                   // number of snapshots so far
	leases   btree.Map[uint64, lease]
	held     map[uint64]*btree.Set[string] // the keys of each lease that has any; never iterated over
	expiry   *btree.BTreeG[expiryEntry]    // all that expires, in order of time
	clock    int64                         // of the log, Unix nanoseconds
	revision uint64                        // of the newest operation
	bytes    int64                         // of all keys and values
	sum      uint64                        // of the hashes of all items and leases
	format   uint64                        // of the cluster; commands that need a newer one are invalid
	timed    int                           // items with a deadline or a lease
	log      changeLog

	command wire.Command // scratch of Apply, Evaluate and Footprint
	direct  execution    // scratch of Apply
	above   overlay      // scratch of Evaluate
}

// item is the item of a key. Items of an earlier epoch, which a snapshot may share, never
// change: they are replaced. The bytes of a value never change at all.
type item struct {
	key      string
	value    []byte
	epoch    uint64 // the epoch when the item was created
	revision uint64 // of the operation that stored it, 0 while it is only evaluated
	deadline int64  // Unix nanoseconds, 0: none
	lease    uint64 // the lease with which the key ends, 0: none
}

// expires reports whether the item can expire.
func (it *item) expires() bool {
	return it.deadline != 0 || it.lease != 0
}

// lease is a period that its holder extends, with keys that are removed when it ends. Its id,
// the revision of its grant, grows from grant to grant, so that it can serve as a fencing
// token.
type lease struct {
	ttl      int64 // ns
	deadline int64 // Unix ns
}

// expiryEntry is an entry of the expiry index: a key or a lease expires at this time.
type expiryEntry struct {
	at    int64
	lease uint64 // 0: a key expires
	key   string
}

func (m expiryEntry) before(o expiryEntry) bool {
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
		expiry: btree.NewBTreeGOptions(expiryEntry.before, btree.Options{NoLocks: true}),
	}
}

// Apply executes a write at revision, which must be greater than all before, with the clock of
// its log entry (Unix nanoseconds; it is ignored if it is earlier than the newest one). What
// has expired by then is removed first. The result is an encoded [wire.Result], which may be
// shared and must not be changed.
//
// An empty command only advances the clock. It has its own revision as well, because a watch
// may resume after the keys that expire by it.
//
// An invalid command has a result with Code Malformed. All replicas must agree on what is
// valid: a version that knows more verbs may send them only when every replica has it.
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

// parse sets s.command, which shares command's memory, and reports whether it is valid.
func (s *Store) parse(command []byte) bool {
	return len(command) <= wire.MaxCommand && s.command.Borrow(command) == nil && s.command.ValidateParsed() == nil && s.command.Needs() <= s.format
}

// SetFormat sets the format of the cluster; see [wire.Command.Needs].
func (s *Store) SetFormat(format uint64) { s.format = format }

// Footprint adds the footprint of command to f, see [wire.Command.Footprint]. The answer is not
// fixed if it would be another one in a newer format than the cluster has: the format may rise
// before the command's place in the log.
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

// Item is the item of a key. Value is the store's memory, which never changes and must not be
// changed.
type Item struct {
	Value    []byte
	Revision uint64 // of the operation that stored it
	Lease    uint64 // the lease with which the key ends, 0: none
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

// Bytes returns the size of all keys and values, without overhead.
func (s *Store) Bytes() int64 { return s.bytes }

// Expiring returns the number of keys that have a time to live or a lease.
func (s *Store) Expiring() int { return s.timed }

// Revision returns the revision of the newest operation that was applied.
func (s *Store) Revision() uint64 { return s.revision }

// Clock returns the newest clock of an operation, Unix nanoseconds. Everything that expired by
// then has been removed.
func (s *Store) Clock() int64 { return s.clock }

// Due returns the earliest time (Unix nanoseconds) at which something expires, 0 if nothing
// does.
func (s *Store) Due() int64 {
	first, _ := s.expiry.Min()
	return first.at
}

// Steady reports whether nothing in f has a time to live or a lease, so that results computed
// from it do not depend on the time. For spans it may return false although it is true.
func (s *Store) Steady(f *wire.Footprint) bool {
	if s.timed == 0 {
		return true
	}
	for _, key := range f.Keys {
		if it := s.index[key]; it != nil && it.expires() {
			return false
		}
	}
	return len(f.Spans) == 0
}
