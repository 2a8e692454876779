package resp

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// A value may be larger than what is kept of many changes: a client that reads is
// shown it all the same.
func TestPushOfAnySize(t *testing.T) {
	var q pushQueue
	if !q.add(make([]byte, 2*maxPushBytes)) {
		t.Error("a large push is not taken though nothing waits")
	}
	if q.add(make([]byte, 1)) {
		t.Error("a push is taken behind more than may wait")
	}
	q.take()
	if !q.add(make([]byte, 1)) {
		t.Error("no push is taken though nothing waits")
	}
}

// Watchers that do not read hold no copies of a large value: all share one.
func TestPushesOfAChangeAreShared(t *testing.T) {
	server := &Server{tracker: newTracker()}
	var conns [2]*conn
	for i := range conns {
		c := &conn{srv: server}
		c.listener.c = c
		server.tracker.set(&c.listener, func() { c.listener.watched = []string{"k"} })
		conns[i] = c
	}
	value := bytes.Repeat([]byte("v"), 2*largeSize)
	server.Changed([]Change{
		{Change: wire.Change{Kind: wire.ChangePut, Key: "k", Value: value, Revision: 7}},
		{Change: wire.Change{Kind: wire.ChangeDelete, Key: "k", Revision: 8}},
	})
	for range 2 {
		first, second := conns[0].pushes.take(), conns[1].pushes.take()
		if &first[0] != &second[0] {
			t.Errorf("two who watch are shown two copies of %.60q", first)
		}
		o := outputs.Get().(*output)
		o.raw(first)
		if large := len(first) >= largeSize; large != (len(o.large) == 1) {
			t.Errorf("%d bytes: copied to be written is %v", len(first), !large)
		}
	}
	if n := len(conns[0].pushes.queue); n != 0 {
		t.Errorf("%d more pushes", n)
	}
}

// What a client names in WATCH, in MULTI and by tracking is bounded, whatever its size.
func TestWhatAClientNamesIsBounded(t *testing.T) {
	keys := func(n, size int) (keys [][]byte) {
		for i := range n {
			keys = append(keys, append(fmt.Appendf(nil, "%08d", i), bytes.Repeat([]byte("k"), size)...))
		}
		return keys
	}
	var w watched
	if fresh, ok := w.add(keys(wire.MaxItems, 0)); !ok || len(fresh) != wire.MaxItems {
		t.Errorf("%d of %d keys are watched", len(fresh), wire.MaxItems)
	}
	if fresh, ok := w.add(keys(10, 0)); !ok || len(fresh) != 0 {
		t.Error("keys that are watched cannot be named again")
	}
	if _, ok := w.add([][]byte{[]byte("one more")}); ok {
		t.Error("more keys are watched than a transaction may depend on")
	}
	w = watched{}
	if _, ok := w.add(keys(wire.MaxCommand/wire.MaxKey, wire.MaxKey)); ok {
		t.Error("keys of more bytes are watched than a command may have")
	}
	c := &conn{state: state{multi: new(queue)}}
	args := make([][]byte, maxArgs/4)
	for i := range 5 {
		if why := c.enqueue(nil, args); (why != "") != (i == 4) {
			t.Errorf("%d arguments without a byte: %q", (i+1)*len(args), why)
		}
	}
	if why := tooManyPrefixes(strings.Repeat("k", maxPrefixBytes)); why != "" {
		t.Error(why)
	}
	if why := tooManyPrefixes(strings.Repeat("k", maxPrefixBytes), "k"); why == "" {
		t.Error("prefixes of any size are taken")
	}
}

// What the tracker remembers is bounded, by connection and in all, and who is forgotten
// is told.
func TestTrackedKeysAreBounded(t *testing.T) {
	server := &Server{tracker: newTracker(), cfg: Config{}.withDefaults()}
	server.tracker.most = 5 * maxTrackedBytes / 4
	rest := strings.Repeat("k", wire.MaxKey-8)
	name := func(n int) string { return fmt.Sprintf("%08d", n) + rest }
	var conns []*conn
	for i := range 4 {
		c := &conn{srv: server}
		c.listener.c = c
		server.tracker.set(&c.listener, func() { c.listener.mode = byKey })
		for j := range 200 + 100*(i%2) {
			server.tracker.remember(c, []string{name(j)})
		}
		conns = append(conns, c)
	}
	all, kept := 0, 0
	for i, c := range conns {
		sum := 0
		for key := range c.listener.keys {
			sum += len(key) + trackedCost
		}
		if sum != c.listener.bytes || sum > maxTrackedBytes {
			t.Errorf("connection %d: %d bytes are tracked, and %d counted", i, sum, c.listener.bytes)
		}
		if all += sum; !c.pushes.ready(0) {
			kept += 200 + 100*(i%2) // it may use all that it has read
		}
	}
	if all != server.tracker.bytes || all > server.tracker.most {
		t.Errorf("%d bytes are tracked of all, and %d counted", all, server.tracker.bytes)
	}
	if kept*wire.MaxKey > all {
		t.Errorf("clients keep %d keys, of which not all are tracked", kept)
	}
	for j := range 300 {
		server.Changed([]Change{{Change: wire.Change{Kind: wire.ChangeDelete, Key: name(j)}}})
	}
	if n := server.tracker.bytes; n != 0 {
		t.Errorf("%d bytes are tracked, and no keys", n)
	}
}

// silent is a store that answers nothing.
type silent struct{}

func (s silent) Open(Replies) Session          { return s }
func (silent) Status() *Status                 { return &Status{ID: 1, Leader: 1} }
func (silent) Do([]Request)                    {}
func (silent) Wait(int, time.Duration, *Reply) {}
func (silent) Token() (view, index uint64)     { return 0, 0 }
func (silent) Advance(view, index uint64)      {}
func (silent) Resume()                         {}
func (silent) Close()                          {}

// Of commands with large answers, which a client does not read, few are taken.
func TestAnswersAreInFlight(t *testing.T) {
	for _, command := range []string{"COMMAND DOCS\n", "KEYS *\n", "SCAN 0 COUNT 100000\n", "GETEX a EX 9\n", "MULTI\nGET a\nINCR b\nEXEC\n", "MGET " + strings.Repeat("a ", 2000) + "\n"} {
		server, err := New(silent{}, Config{MaxInFlightBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		c := server.newConn(near)
		c.session = silent{}
		c.writing.Lock() // nothing is written
		for range 300 {
			c.in.buf = append(c.in.buf, command...)
		}
		read := make(chan struct{})
		go func() {
			c.takeTurn()
			close(read)
		}()
		holds := func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.waits
		}
		testkit.Eventually(t, command[:4]+" are held back", holds)
		c.mu.Lock()
		if c.open > 150 {
			t.Errorf("%d of %.20q are under way", c.open, command)
		}
		c.mu.Unlock()
		c.abort()
		<-read
	}
}

// A reply that was written is kept to be used again, without its answer.
func TestWrittenRepliesHoldNothing(t *testing.T) {
	c := &conn{srv: &Server{}}
	r := &Reply{conn: c, answer: answer{text: make([]byte, 2*keepText)}}
	r.ForceAccept(2 * smallAnswer)
	r.Done(wire.Result{Value: make([]byte, 2*smallAnswer)}, nil)
	c.open++
	c.release(&output{items: []item{{reply: r}}})
	if len(c.free) != 1 || c.free[0].result[0].Value != nil || c.free[0].answer.text != nil || c.unread.bytes != 0 {
		t.Errorf("%d replies are kept, with %d bytes, and %d bytes count as unread", len(c.free), len(r.result[0].Value)+cap(r.answer.text), c.unread.bytes)
	}
}

// Answers that are on their way count: not all are asked for when the last one was written.
func TestRoomForAnswersAskedAgain(t *testing.T) {
	c := &conn{srv: &Server{cfg: Config{MaxInFlightBytes: 100 << 10}}}
	r := &Reply{conn: c}
	for _, tt := range []struct {
		coming int
		want   bool
	}{{0, true}, {40 << 10, true}, {60 << 10, false}} {
		if got := r.CouldAccept(60<<10, tt.coming); got != tt.want {
			t.Errorf("behind %d bytes: %v", tt.coming, got)
		}
	}
	if !r.CouldAccept(200<<10, 0) {
		t.Error("an answer larger than all room is never asked for")
	}
}
