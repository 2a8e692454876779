package cache

import (
	"encoding/binary"
	"slices"
	"strings"
)

// AppendField appends a part of a key. Different lists of parts make different keys.
func AppendField[T ~string | ~[]byte](key []byte, part T) []byte {
	key = binary.AppendUvarint(key, uint64(len(part)))
	return append(key, part...)
}

// MaxKey bounds a key in bytes: a statement and everything else that its answer depends on.
const MaxKey = 64 << 10

// A Skip is why a statement that asks for caching is not cached.
type Skip uint8

// The reasons; 0 is none.
const (
	SkipOff         Skip = iota + 1 // --cache-size is 0
	SkipTransaction                 // it is in a transaction
	SkipMode                        // --mode is not auto: weir does not track sessions
	SkipSession                     // its session holds state
	SkipStatement                   // it is not a plain read
	SkipVolatile                    // it calls a function whose result changes by itself
	SkipMessages                    // a portal, a row limit, a cursor, or several in one pipeline
	SkipUnread                      // weir does not understand its text, or does not know enough of the database
	SkipKey                         // it is too long
	SkipLarge                       // its answer is longer than --cache-max-answer
	SkipAnswer                      // its answer holds more than rows: warnings, notices, changes of the session
	skips
)

var skipNames = [skips]string{
	"none", "off", "transaction", "mode", "session", "statement", "volatile", "messages", "unread", "key", "large", "answer",
}

func (s Skip) String() string { return skipNames[s] }

// Told is the text of the notice for the client: a hint that has no effect.
func (s Skip) Told() []string { return told[s] }

var told = func() (out [skips][]string) {
	for s, why := range map[Skip]string{
		SkipOff:         "the cache is off (--cache-size 0)",
		SkipTransaction: "it is in a transaction",
		SkipMode:        "answers are kept in --mode auto only",
		SkipSession:     "its session holds state, for which it keeps a connection",
		SkipStatement:   "it is no plain read",
		SkipVolatile:    "it calls a function whose result changes from call to call",
		SkipMessages:    "it is sent with a named portal, a row limit, a cursor, or other messages",
		SkipUnread:      "weir does not read its text",
		SkipKey:         "it is too long",
		SkipLarge:       "its answer is longer than --cache-max-answer",
		SkipAnswer:      "its answer holds warnings, notices or changes of the session",
	} {
		out[s] = []string{"ttl: the answer is not cached: " + why}
	}
	return out
}()

// Skipped counts a statement that asks for caching and is not cached.
func (d *Database) Skipped(why Skip) { d.skipped[why].Add(1) }

// Stats are the counters of a database since the start, and its present contents.
type Stats struct {
	Database string
	Hits     uint64 // answered with a fresh answer
	Stale    uint64 // answered with an old one that was fetched again
	Misses   uint64 // fetched
	Shared   uint64 // waited for another client's fetch
	Skipped  map[string]uint64
	Evicted  uint64 // removed to make room
	Entries  int64  // including purged ones that are not freed yet
	Bytes    int64
}

// Stats returns those of all databases, by name.
func (c *Cache) Stats() (list []Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.databases {
		s := Stats{
			Database: d.name, Hits: d.hits.Load(), Stale: d.stale.Load(), Misses: d.misses.Load(), Shared: d.shared.Load(),
			Evicted: d.evictions.Load(), Entries: d.entries.Load(), Bytes: d.bytes.Load(), Skipped: make(map[string]uint64),
		}
		for why := range d.skipped {
			if n := d.skipped[why].Load(); n > 0 {
				s.Skipped[Skip(why).String()] = n
			}
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Stats) int { return strings.Compare(a.Database, b.Database) })
	return list
}
