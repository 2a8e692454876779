package resp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// maxPushBytes limits the pushes for a client that does not read. Beyond it they are replaced
// by one that says to forget everything. A single push is kept whatever its size, because a
// value may be larger.
const maxPushBytes = 1 << 20

// maxPrefixes limits the prefixes of a connection: the goroutine on which the replica depends
// compares each change with all of them. maxPrefixBytes limits their total size.
const (
	maxPrefixes    = 1024
	maxPrefixBytes = 1 << 20
)

// tooManyPrefixes returns an error if the prefixes exceed the limits, otherwise "".
func tooManyPrefixes(prefixes ...string) (why string) {
	sum := 0
	for _, p := range prefixes {
		sum += len(p)
	}
	if len(prefixes) <= maxPrefixes && sum <= maxPrefixBytes {
		return ""
	}
	return fmt.Sprintf("ERR too many prefixes: a connection may name %d, of %d bytes in all", maxPrefixes, maxPrefixBytes)
}

// The memory of tracked keys: of one connection, of all connections, and of a key beside its
// bytes.
const (
	maxTrackedBytes = 16 << 20
	maxTrackedOfAll = 256 << 20
	trackedCost     = 100
)

// pushQueue has messages for a client that are not answers.
//
// A client that caches what it reads must not be told to forget a key before it has received
// the old value that is in flight. So a push waits until the replies to all tracked reads in
// flight have been taken. It may overtake replies to other commands.
type pushQueue struct {
	queue []push
	bytes int
	after uint64 // the number of commands whose replies precede a push that arrives now
}

type push struct {
	after uint64
	body  []byte
}

func (q *pushQueue) ready(head uint64) bool {
	return len(q.queue) > 0 && q.queue[0].after <= head
}

func (q *pushQueue) take() []byte {
	body := q.queue[0].body
	q.queue[0] = push{}
	q.queue = q.queue[1:]
	q.bytes -= len(body)
	return body
}

// add adds all bodies, or returns false if there is no room.
func (q *pushQueue) add(bodies ...[]byte) bool {
	total := 0
	for _, body := range bodies {
		total += len(body)
	}
	if q.bytes > 0 && q.bytes+total > maxPushBytes {
		return false
	}
	for _, body := range bodies {
		q.queue = append(q.queue, push{after: q.after, body: body})
	}
	q.bytes += total
	return true
}

// tracker knows which connections track which keys.
type tracker struct {
	interested atomic.Int64 // listeners that are on

	mu         sync.Mutex
	keys       map[string][]*listener // connections that have read a key since it changed
	broadcasts map[*listener]struct{} // connections that track all keys, or keys with prefixes
	watches    map[*listener]struct{} // connections that receive the changes themselves
	touched    []*listener            // by the current changes
	bytes      int                    // of keys, counted for each reader
	most       int                    // in bytes: maxTrackedOfAll
}

func newTracker() *tracker {
	return &tracker{
		keys:       make(map[string][]*listener),
		broadcasts: make(map[*listener]struct{}),
		watches:    make(map[*listener]struct{}),
		most:       maxTrackedOfAll,
	}
}

// mode is how a client tracks keys.
type mode uint8

const (
	untracked mode = iota
	byKey          // keys that it has read
	byPrefix       // keys with its prefixes
)

// listener is the tracking state of a connection. The connection's reader may read the first
// fields; only methods of tracker change it.
type listener struct {
	c        *conn
	mode     mode
	prefixes []string // byPrefix; none: all keys
	noLoop   bool     // not the client's own writes
	watched  []string // prefixes of WEIR.WATCH

	keys  map[string]struct{} // byKey: its keys in the tracker
	bytes int                 // its share of the tracker's bytes
	stale []string            // changed keys to report
	news  [][]byte            // changes to report, shared with other listeners
}

func (l *listener) on() bool { return l.mode != untracked || len(l.watched) > 0 }

// set applies change to l.
func (t *tracker) set(l *listener, change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := l.on()
	change()
	if l.mode != byKey {
		t.forget(l)
	}
	enter(t.broadcasts, l, l.mode == byPrefix)
	enter(t.watches, l, len(l.watched) > 0)
	switch after := l.on(); {
	case after && !before:
		t.interested.Add(1)
	case before && !after:
		t.interested.Add(-1)
	}
}

func enter(set map[*listener]struct{}, l *listener, in bool) {
	if in {
		set[l] = struct{}{}
	} else {
		delete(set, l)
	}
}

// drop removes a closed connection.
func (t *tracker) drop(c *conn) {
	if !c.listener.on() {
		return
	}
	t.set(&c.listener, func() { c.listener.mode, c.listener.watched = untracked, nil })
}

// forget removes the keys that l has read.
func (t *tracker) forget(l *listener) {
	for key := range l.keys {
		t.release(key, l)
	}
	t.bytes -= l.bytes
	l.keys, l.bytes = nil, 0
}

// release removes l from the readers of a key.
func (t *tracker) release(key string, l *listener) {
	rest := slices.DeleteFunc(t.keys[key], func(other *listener) bool { return other == l })
	if len(rest) == 0 {
		delete(t.keys, key)
	} else {
		t.keys[key] = rest
	}
}

// forgetAll removes the keys that l has read, and tells its client.
func (t *tracker) forgetAll(l *listener) {
	t.forget(l)
	t.tell(l, appendForgetAll(nil))
}

// anyReader returns a random listener that has read keys, weighted by their number.
func (t *tracker) anyReader() *listener {
	for _, readers := range t.keys { // in random order
		return readers[rand.IntN(len(readers))]
	}
	panic("resp: counted keys have no reader")
}

// remember notes that c reads keys, which the caller may change afterwards. With too many keys,
// both the tracker and the client forget all of them.
func (t *tracker) remember(c *conn, keys []string) {
	l := &c.listener
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.mode != byKey {
		return
	}
	for _, key := range keys {
		if _, known := l.keys[key]; known {
			continue
		}
		cost := len(key) + trackedCost
		if len(l.keys) >= c.srv.cfg.MaxTracked || l.bytes+cost > maxTrackedBytes {
			t.forgetAll(l)
		}
		for t.bytes+cost > t.most {
			t.forgetAll(t.anyReader())
		}
		if l.keys == nil {
			l.keys = make(map[string]struct{})
		}
		key = strings.Clone(key)
		l.keys[key] = struct{}{}
		l.bytes += cost
		t.bytes += cost
		t.keys[key] = append(t.keys[key], l)
	}
}

// changed notifies the listeners of changes.
func (t *tracker) changed(changes []Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range changes {
		ch := &changes[i]
		t.changedTracked(ch)
		for l := range t.broadcasts {
			if l.wants(ch, l.prefixes) {
				t.touch(l)
				l.stale = append(l.stale, ch.Key)
			}
		}
		var shown []byte
		for l := range t.watches {
			if slices.ContainsFunc(l.watched, func(p string) bool { return strings.HasPrefix(ch.Key, p) }) {
				if shown == nil {
					shown = appendChange(nil, ch)
				}
				t.touch(l)
				l.news = append(l.news, shown)
			}
		}
	}
	for i, l := range t.touched {
		t.tellChanges(l)
		t.touched[i] = nil
	}
	t.touched = t.touched[:0]
}

// changedTracked notifies the readers of a key once: after reading it again they are notified
// again.
func (t *tracker) changedTracked(ch *Change) {
	readers, ok := t.keys[ch.Key]
	if !ok {
		return
	}
	keep := readers[:0]
	for _, l := range readers {
		if l.noLoop && ch.Origin != nil && ch.Origin == l.c.session {
			keep = append(keep, l)
			continue
		}
		t.touch(l)
		l.stale = append(l.stale, ch.Key)
		delete(l.keys, ch.Key)
		l.bytes -= len(ch.Key) + trackedCost
		t.bytes -= len(ch.Key) + trackedCost
	}
	clear(readers[len(keep):])
	if len(keep) == 0 {
		delete(t.keys, ch.Key)
	} else {
		t.keys[ch.Key] = keep
	}
}

// wants reports whether a change matches one of the prefixes.
func (l *listener) wants(ch *Change, prefixes []string) bool {
	if l.noLoop && ch.Origin != nil && ch.Origin == l.c.session {
		return false
	}
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(ch.Key, p) })
}

// touch notes that l has something to report.
func (t *tracker) touch(l *listener) {
	if len(l.stale) == 0 && len(l.news) == 0 {
		t.touched = append(t.touched, l)
	}
}

// kinds are the names of kinds of changes.
var kinds = map[wire.ChangeKind]string{
	wire.ChangePut: "put", wire.ChangeDelete: "delete", wire.ChangeExpire: "expire",
}

// appendChange appends the push for a watched change.
func appendChange(b []byte, ch *Change) []byte {
	e := encoder{b: b, proto: 3}
	e.push(5)
	e.text("weir.watch")
	e.text(kinds[ch.Kind])
	e.text(ch.Key)
	if ch.Kind == wire.ChangePut {
		e.bulk(ch.Value)
	} else {
		e.null()
	}
	e.int(int64(ch.Revision))
	return e.b
}

// tellChanges queues the changes collected for l.
func (t *tracker) tellChanges(l *listener) {
	if len(l.stale) > 0 {
		l.news = append(l.news, appendStale(nil, l.stale))
		clear(l.stale)
		l.stale = l.stale[:0]
	}
	t.tell(l, l.news...)
	clear(l.news)
	l.news = l.news[:0]
}

// tell queues pushes. If there is no room, the message that everything is invalid replaces all
// queued pushes.
func (t *tracker) tell(l *listener, bodies ...[]byte) {
	c := l.c
	c.mu.Lock()
	ok := c.pushes.add(bodies...)
	if !ok {
		c.pushes.queue, c.pushes.bytes = nil, 0
		c.pushes.add(l.appendLost(nil))
	}
	c.mu.Unlock()
	if !ok {
		t.forget(l)
	}
	c.Flush()
}

// changedAll tells all listeners that anything may have changed.
func (t *tracker) changedAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	everybody := make(map[*listener]struct{})
	for _, readers := range t.keys {
		for _, l := range readers {
			everybody[l] = struct{}{}
		}
	}
	for l := range t.broadcasts {
		everybody[l] = struct{}{}
	}
	for l := range t.watches {
		everybody[l] = struct{}{}
	}
	for l := range everybody {
		t.forget(l)
		t.tell(l, l.appendLost(nil))
	}
}

// appendLost appends the push that says that changes were missed.
func (l *listener) appendLost(b []byte) []byte {
	if l.mode != untracked {
		b = appendForgetAll(b)
	}
	for _, prefix := range l.watched {
		e := encoder{b: b, proto: 3}
		e.push(3)
		e.text("weir.watch")
		e.text("lost")
		e.text(prefix)
		b = e.b
	}
	return b
}

// appendStale appends the push of invalid keys.
func appendStale(b []byte, keys []string) []byte {
	e := encoder{b: b, proto: 3}
	e.push(2)
	e.text("invalidate")
	e.array(len(keys))
	for _, key := range keys {
		e.text(key)
	}
	return e.b
}

// appendForgetAll appends the push that invalidates all keys.
func appendForgetAll(b []byte) []byte {
	e := encoder{b: b, proto: 3}
	e.push(2)
	e.text("invalidate")
	e.null()
	return e.b
}
