// Package cache keeps answers to reads that ask for it, and lets one statement fetch
// what several clients ask for at once. It knows no protocol: a side of the proxy stores the
// server's bytes under a key, and gets them back.
//
// The key of an answer (see AppendField) must contain everything that the answer depends on,
// except the data. Whether a stored answer may be used depends on three more facts: when the
// statement that fetched it was sent, whether it was purged since, and whether the client
// that asks has written since.
//
//	age       0 ............ ttl ............ 2*ttl ............
//	          answered       answered, and     fetched again:
//	          from here      one refresh runs   one statement for all that ask
//
// Nothing here waits or starts a goroutine. The library that stores the answers (otter)
// runs its maintenance on goroutines of its own, which end when the cache is switched off.
package cache

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/maypok86/otter/v2"
)

// A Cache is the cache of one side of the proxy. Safe for concurrent use.
type Cache struct {
	store     atomic.Pointer[store] // nil while the cache is off
	maxAnswer atomic.Int64          // bytes
	seq       atomic.Uint64         // number of the last flight; see Mark

	mu        sync.Mutex
	flights   map[string]*Flight   // guarded by mu: in flight, by key
	databases map[string]*Database // guarded by mu
}

type store = otter.Cache[string, *Answer]

// New returns a cache that is off.
func New() *Cache {
	return &Cache{flights: make(map[string]*Flight), databases: make(map[string]*Database)}
}

// Configure sets the limits, in bytes: of all answers together, and of one. A size
// of 0 switches the cache off and empties it.
func (c *Cache) Configure(size, maxAnswer int64) {
	c.maxAnswer.Store(maxAnswer)
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.store.Load()
	switch {
	case size <= 0 && st != nil:
		c.store.Store(nil)
		c.forget("")
		st.InvalidateAll()
		st.StopAllGoroutines()
	case size > 0 && st != nil:
		st.SetMaximum(uint64(size))
	case size > 0:
		c.store.Store(otter.Must(&otter.Options[string, *Answer]{
			MaximumWeight: uint64(size),
			Weigher:       func(key string, a *Answer) uint32 { return uint32(a.size(key)) },
			ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[string, *Answer]) time.Duration {
				return 2 * e.Value.ttl
			}),
			OnAtomicDeletion: func(e otter.DeletionEvent[string, *Answer]) {
				e.Value.database.entries.Add(-1)
				e.Value.database.bytes.Add(-e.Value.size(e.Key))
				if e.Cause == otter.CauseOverflow {
					e.Value.database.evictions.Add(1)
				}
			},
		}))
	}
}

// On reports whether the cache keeps anything.
func (c *Cache) On() bool { return c.store.Load() != nil }

// MaxAnswer is the longest answer that is kept, in bytes.
func (c *Cache) MaxAnswer() int { return int(c.maxAnswer.Load()) }

// Mark is the current position in the sequence of flights: later flights have higher
// numbers. A client that has written must get no answer that was fetched before its write.
func (c *Cache) Mark() uint64 { return c.seq.Load() }

// A Database is the part of a cache for one database: its counters and its purges.
// Safe for concurrent use.
type Database struct {
	name  string
	epoch atomic.Uint64 // number of purges: older answers are not used

	hits, stale, misses, shared, evictions atomic.Uint64

	skipped        [skips]atomic.Uint64
	entries, bytes atomic.Int64
}

// Of returns the part for a database.
func (c *Cache) Of(name string) *Database {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.databases[name]
	if d == nil {
		d = &Database{name: name}
		c.databases[name] = d
	}
	return d
}

// An Answer is what a server has sent. It is immutable.
type Answer struct {
	Bytes []byte // the server's messages
	Rows  uint64 // in them
	Info  any    // what else the side stores with it

	database *Database
	epoch    uint64
	began    uint64
	at       time.Duration // when its statement was sent
	ttl      time.Duration // that the client asked for which fetched it
	tag      string
	refused  Skip // there is no answer, for this reason
}

// overhead is the approximate cost of an entry beside its key and answer: the record
// and the library's node, table slot and timer.
const overhead = 384

func (a *Answer) size(key string) int64 { return int64(len(key) + len(a.Bytes) + overhead) }

// A Query is a client's request.
type Query struct {
	Key      []byte // copied if it is kept
	Database *Database
	TTL      time.Duration
	Tag      string        // copied if it is kept
	After    uint64        // the client's Mark at its last write
	Now      time.Duration // on a clock that all clients of the cache share
	Why      Skip          // set with Direct
}

// A Role says what the client has to do.
type Role uint8

// The roles.
const (
	// Hit: there is an answer.
	Hit Role = iota
	// Refresh: there is an answer, which is old; the caller uses it, but also runs the statement
	// and ends the flight.
	Refresh
	// Lead: the caller runs its statement, and ends the flight.
	Lead
	// Follow: another client's statement is in flight; see Flight.Wait.
	Follow
	// Shared: there is the answer that the client has waited for; see Client.Ask.
	Shared
	// Direct: the caller runs its statement, whose answer is not kept: the cache is off,
	// or the last answer could not be kept.
	Direct
)

// Ask handles a query. It returns an Answer with Hit and Refresh, and a Flight with Refresh,
// Lead and Follow.
func (c *Cache) Ask(q *Query) (Role, *Answer, *Flight) {
	st := c.store.Load()
	d := q.Database
	if st == nil {
		q.Why = SkipOff
		d.Skipped(SkipOff)
		return Direct, nil, nil
	}
	key := unsafe.String(unsafe.SliceData(q.Key), len(q.Key)) // for look-ups only
	a := d.usable(st, key, q)
	switch {
	case a == nil:
	case a.refused != 0:
		q.Why = a.refused
		d.Skipped(a.refused)
		return Direct, nil, nil
	case q.Now-a.at <= q.TTL:
		d.hits.Add(1)
		return Hit, a, nil
	default:
		d.stale.Add(1)
		if f := c.refresh(key, q); f != nil {
			return Refresh, a, f
		}
		return Hit, a, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[key]; f != nil && f.usable(q) {
		return Follow, nil, f
	}
	if a := d.usable(st, key, q); a != nil { // it was stored in between
		d.hits.Add(1)
		return Hit, a, nil
	}
	d.misses.Add(1)
	return Lead, nil, c.begin(q)
}

// usable is the stored answer, if there is one that may be used.
func (d *Database) usable(st *store, key string, q *Query) *Answer {
	a, ok := st.GetIfPresent(key)
	if !ok || a.epoch != d.epoch.Load() || a.began <= q.After {
		return nil
	}
	most := 2 * q.TTL
	if a.refused != 0 {
		most = q.TTL
	}
	if q.Now-a.at > most {
		return nil
	}
	return a
}
