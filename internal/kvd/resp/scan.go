package resp

import (
	"strconv"
	"sync"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// maxScan is the largest number of keys that one SCAN visits, whatever its COUNT.
const maxScan = 100_000

// cursors maps positions of scans, which are keys, to the numbers that Redis clients expect.
// The server keeps the newest ones, for all connections, since clients with a pool continue on
// another one. A number that is forgotten, or from another replica, is refused instead of being
// taken for some position, so that a scan never misses a key that existed all the time.
type cursors struct {
	mu     sync.Mutex
	places map[uint64]string
	queue  []uint64 // oldest first
	bytes  int
	next   uint64
}

// maxCursorBytes limits the memory of positions.
const maxCursorBytes = 16 << 20

// cursorCost is the memory of a position beside its key.
const cursorCost = 64

// add returns the number of a position, which is a key that was returned.
func (c *cursors) add(key string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.places == nil {
		c.places = make(map[uint64]string)
	}
	c.next++
	c.places[c.next] = key
	c.queue = append(c.queue, c.next)
	c.bytes += cursorCost + len(key)
	for c.bytes > maxCursorBytes {
		oldest := c.queue[0]
		c.queue = c.queue[1:]
		c.bytes -= cursorCost + len(c.places[oldest])
		delete(c.places, oldest)
	}
	return c.next
}

// find returns the position for a number.
func (c *cursors) find(n uint64) (key string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, ok = c.places[n]
	return key, ok
}

// scanning is the arguments of SCAN.
type scanning struct {
	pattern string
	nothing bool // a type that weir does not have
	cursors *cursors
}

func scan(k *call) {
	cursor, err := strconv.ParseUint(string(k.args[1]), 10, 64)
	if err != nil {
		k.fail("ERR invalid cursor")
		return
	}
	s := scanning{pattern: "*", cursors: &k.c.srv.cursors}
	count := int64(10)
	for args := k.args[2:]; len(args) > 0; args = args[2:] {
		if len(args) < 2 {
			k.fail(syntaxError)
			return
		}
		switch {
		case is(args[0], "COUNT"):
			var ok bool
			if count, ok = parseInt(args[1]); !ok {
				k.fail(notAnInteger)
				return
			}
			if count < 1 {
				k.fail(syntaxError)
				return
			}
		case is(args[0], "MATCH"):
			s.pattern = string(args[1])
		case is(args[0], "TYPE"):
			s.nothing = !is(args[1], "STRING")
		default:
			k.fail(syntaxError)
			return
		}
	}
	prefix, _ := globPrefix(s.pattern)
	start := prefix
	if cursor != 0 {
		key, ok := k.c.srv.cursors.find(cursor)
		if !ok {
			k.fail("ERR invalid cursor: it is another replica's or too old, begin with 0")
			return
		}
		start = max(key+"\x00", prefix)
	}
	k.ask(wire.Command{
		Verb: wire.Range, Options: wire.KeysOnly, Key: start, End: prefixEnd(prefix), Limit: uint64(min(count, maxScan)),
	}, shape{render: renderScan, extra: &s})
}

func renderScan(e *encoder, s *shape, r []wire.Result) {
	wanted := s.extra.(*scanning)
	var cursor uint64
	pairs := r[0].Pairs
	if r[0].More && len(pairs) > 0 {
		cursor = wanted.cursors.add(pairs[len(pairs)-1].Key)
	}
	e.array(2)
	e.text(strconv.FormatUint(cursor, 10))
	if wanted.nothing {
		pairs = nil
	}
	appendMatches(e, pairs, wanted.pattern)
}
