package catalogue

import "sync"

// Known is what the loops have read of servers, so that each thing is read once and not
// on every loop. Safe for concurrent use.
type Known struct {
	builtins remembered[Server, builtins]
	// indexes are those of databases, as they were read, for a loop that finds their stamp
	// there.
	indexes remembered[Database, Index]
}

// A Server names a server: two with the same version may differ in what their
// superusers have renamed or dropped.
type Server struct{ Address, Version string }

// A Database names a database of a server.
type Database struct {
	Server Server
	Name   string
}

// remembered are things that do not change. Safe for concurrent use.
type remembered[K comparable, V any] struct {
	mu sync.Mutex
	m  map[K]*V // guarded by mu
}

// maxKnown is how many are remembered: names may lead to new servers again and again. An index
// weighs roughly 100 bytes for each name that it has and 50 for each in a function's body: a
// megabyte for a database with thousands of functions, tens of kilobytes for most.
const maxKnown = 256

// of returns nil if nothing is known.
func (r *remembered[K, V]) of(key K) *V {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m[key]
}

func (r *remembered[K, V]) learn(key K, v *V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil || len(r.m) >= maxKnown && r.m[key] == nil {
		r.m = make(map[K]*V)
	}
	r.m[key] = v
}

// Reader returns a reader of a database, which leaves out what is known of its server.
func (k *Known) Reader(key Database, trusted []string) *Reader {
	return newReader(trusted, k.builtins.of(key.Server))
}

// Index returns the index of a database as it was last read, or nil.
func (k *Known) Index(key Database) *Index { return k.indexes.of(key) }

// Learn remembers what r has read, if it can be told apart from that of other servers.
func (k *Known) Learn(key Database, r *Reader, x *Index) {
	if key.Server.Version != "" && len(r.builtins.effects) > 0 {
		k.builtins.learn(key.Server, r.builtins)
		k.indexes.learn(key, x)
	}
}
