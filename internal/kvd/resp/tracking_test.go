package resp_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// cachingClient keeps what it reads until it is told that it has changed, as
// libraries with a client-side cache do.
type cachingClient struct {
	*peer
	cache    map[string]string
	reads    []string // keys of reads whose replies are to come
	forgot   int      // how often all was forgotten
	stale    int      // how many keys were
	received int
}

func (c *cachingClient) read(key string) {
	c.send(frame("GET", key))
	c.reads = append(c.reads, key)
}

// receive takes one message and tells whether it was the reply to PING.
func (c *cachingClient) receive() (pong bool) {
	c.tb.Helper()
	message := c.reply()
	lines := strings.Split(strings.TrimSuffix(message, "\r\n"), "\r\n")
	switch {
	case message == "+PONG\r\n":
		return true
	case message == ">2\r\n$10\r\ninvalidate\r\n_\r\n":
		clear(c.cache)
		c.forgot++
	case message[0] == '>':
		for i := 5; i < len(lines); i += 2 {
			delete(c.cache, lines[i])
			c.stale++
		}
	case message[0] == '_':
		delete(c.cache, c.reads[0])
		c.reads = c.reads[1:]
	case message[0] == '$':
		c.cache[c.reads[0]] = lines[1]
		c.reads = c.reads[1:]
		c.received++
	default:
		c.tb.Fatalf("unexpected %q", message)
	}
	return false
}

// TestCachesAreNeverStale has clients read and cache while others write, with
// replies that are late and out of order. When all is quiet, what a client still
// has in its cache is what the store holds.
func TestCachesAreNeverStale(t *testing.T) {
	for _, test := range []struct {
		name     string
		tracking []string
		max      int
	}{
		{"by key", []string{"CLIENT", "TRACKING", "ON"}, 0},
		{"by key, overflowing", []string{"CLIENT", "TRACKING", "ON"}, 5},
		{"by prefix", []string{"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "k"}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, addr := serveFake(t, resp.Config{MaxTracked: test.max})
			seed := rand.Uint64()
			t.Log("seed", seed)
			defer f.delay(rand.New(rand.NewPCG(seed, 0)))()
			const keys, clients = 8, 3
			rounds := testkit.Rounds(40, 300)
			var writers, reading, readers sync.WaitGroup
			writing := make(chan struct{})
			writers.Go(func() { writeRandomly(t, addr, rand.New(rand.NewPCG(seed, 1)), keys, 20*rounds) })
			caches := make([]*cachingClient, clients)
			for i := range caches {
				c := &cachingClient{peer: dial(t, addr).resp3(), cache: make(map[string]string)}
				c.want("+OK\r\n", test.tracking...)
				caches[i] = c
				r := rand.New(rand.NewPCG(seed, uint64(2+i)))
				reading.Add(1)
				readers.Go(func() {
					for range rounds {
						for range r.IntN(20) {
							c.read(fmt.Sprint("k", r.IntN(keys)))
						}
						for range r.IntN(20) {
							if len(c.reads) > 0 {
								c.receive()
							}
						}
					}
					reading.Done()
					<-writing
					c.send(frame("PING"))
					for !c.receive() {
					}
				})
			}
			writers.Wait()
			reading.Wait()
			// Anyone who read all after the last write has something to be told, too.
			dial(t, addr).want("+OK\r\n", "SET", "k0", "last")
			close(writing)
			readers.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			for i, c := range caches {
				for key, value := range c.cache {
					if item, ok := f.store.Get(key); !ok || string(item.Value) != value {
						t.Errorf("client %d believes that %s is %s, and it is %s (%v)", i, key, value, item.Value, ok)
					}
				}
				if c.received == 0 || c.stale+c.forgot == 0 {
					t.Errorf("client %d has seen %d values and %d invalidations, %d of all", i, c.received, c.stale, c.forgot)
				}
				if test.max > 0 && c.forgot == 0 {
					t.Errorf("client %d was never told to forget all", i)
				}
			}
		})
	}
}

// writeRandomly writes and deletes keys, a few at a time.
func writeRandomly(t *testing.T, addr string, r *rand.Rand, keys, n int) {
	p := dial(t, addr)
	open := 0
	for i := range n {
		key := fmt.Sprint("k", r.IntN(keys))
		if r.IntN(5) == 0 {
			p.send(frame("DEL", key))
		} else {
			p.send(frame("SET", key, strconv.Itoa(i)))
		}
		open++
		for open > r.IntN(10) {
			p.reply()
			open--
		}
	}
	for range open {
		p.reply()
	}
}

// TestPushWaitsForReads: a client is told of a change after it has got the value
// from before it.
func TestPushWaitsForReads(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	p, other := dial(t, addr).resp3(), dial(t, addr)
	p.want("+OK\r\n", "CLIENT", "TRACKING", "ON")
	p.want("_\r\n", "GET", "b")
	other.want("+OK\r\n", "SET", "a", "old")

	f.hold()
	p.send(frame("GET", "a"))
	testkit.Eventually(t, "the read is there", func() bool { return f.heldCount() == 1 })
	// The read sees the old value, and then two keys change before it is answered.
	f.mu.Lock()
	request := f.waiting[0]
	f.waiting = nil
	result, err := f.outcome(request)
	f.held = false
	f.mu.Unlock()
	other.want("+OK\r\n", "SET", "a", "new")
	other.want("+OK\r\n", "SET", "b", "new")
	request.request.Reply.Done(result, err)
	request.session.replies.Flush()
	for _, want := range []string{
		"$3\r\nold\r\n",
		">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n",
		">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nb\r\n",
	} {
		if got := p.reply(); got != want {
			t.Fatalf("%q, not %q", got, want)
		}
	}
	// A write of the client that is under way holds nothing back.
	p.want("$3\r\nnew\r\n", "GET", "a")
	f.hold()
	p.send(frame("SET", "c", "1"))
	testkit.Eventually(t, "the write is there", func() bool { return f.heldCount() == 1 })
	f.server.Changed([]resp.Change{{Change: wire.Change{Kind: wire.ChangeDelete, Key: "a", Revision: 99}}})
	if got, want := p.reply(), ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"; got != want {
		t.Fatalf("%q, not %q", got, want)
	}
	f.release(forwards)
	if got := p.reply(); got != "+OK\r\n" {
		t.Fatal(got)
	}
}

// TestPushesOverflow: a client that does not read while very much changes is told
// to forget everything, and its watch that changes were lost.
func TestPushesOverflow(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	p := dial(t, addr).resp3()
	p.want("+OK\r\n", "CLIENT", "TRACKING", "ON", "BCAST")
	p.want("+OK\r\n", "WEIR.WATCH", "k")
	f.hold()
	p.send(frame("GET", "held")) // pushes wait for it
	testkit.Eventually(t, "the read is there", func() bool { return f.heldCount() == 1 })
	value := []byte(strings.Repeat("v", 1000))
	const n = 5000
	for i := range n {
		f.server.Changed([]resp.Change{{Change: wire.Change{
			Kind: wire.ChangePut, Key: fmt.Sprint("k", i), Value: value, Revision: uint64(i),
		}}})
	}
	f.release(forwards)
	if got := p.reply(); got != "_\r\n" {
		t.Fatalf("%.100q", got)
	}
	if got, want := p.reply()+p.reply(), ">2\r\n$10\r\ninvalidate\r\n_\r\n>3\r\n$10\r\nweir.watch\r\n$4\r\nlost\r\n$1\r\nk\r\n"; got != want {
		t.Fatalf("%.200q, not %q", got, want)
	}
	// Changes after the loss are announced, the last one at the end, and then all is as before.
	last := ""
	p.send(frame("PING"))
	pushes := 0
	for got := p.reply(); got != "+PONG\r\n"; got = p.reply() {
		last = got
		pushes++
	}
	if want := fmt.Sprint("k", n-1); !strings.Contains(last, want) || pushes > 2200 {
		t.Fatalf("%d pushes, the last one is %.100q, without %q", pushes, last, want)
	}
	dial(t, addr).want("+OK\r\n", "SET", "kk", "1")
	if got := p.reply(); !strings.HasPrefix(got, ">5\r\n$10\r\nweir.watch\r\n$3\r\nput\r\n$2\r\nkk\r\n") {
		t.Fatalf("%.100q", got)
	}
}

// TestChangedAll checks that clients are told to drop their caches after a snapshot or a change
// of the leader.
func TestChangedAll(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	byKey, byPrefix, watcher, bystander := dial(t, addr).resp3(), dial(t, addr).resp3(), dial(t, addr).resp3(), dial(t, addr).resp3()
	byKey.want("+OK\r\n", "CLIENT", "TRACKING", "ON")
	byKey.want("_\r\n", "GET", "a")
	byPrefix.want("+OK\r\n", "CLIENT", "TRACKING", "ON", "BCAST")
	watcher.want("+OK\r\n", "WEIR.WATCH", "a", "b")
	if !f.server.Interested() {
		t.Error("nobody seems to be interested")
	}
	f.server.ChangedAll()
	for _, p := range []*peer{byKey, byPrefix} {
		if got := p.reply(); got != ">2\r\n$10\r\ninvalidate\r\n_\r\n" {
			t.Errorf("%q", got)
		}
	}
	for _, prefix := range []string{"a", "b"} {
		if got, want := watcher.reply(), ">3\r\n$10\r\nweir.watch\r\n$4\r\nlost\r\n$1\r\n"+prefix+"\r\n"; got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	bystander.want("+PONG\r\n", "PING")
	for _, p := range []*peer{byKey, byPrefix, watcher} {
		p.want("+OK\r\n", "QUIT")
	}
	testkit.Eventually(t, "nobody is interested", func() bool { return !f.server.Interested() })
}

// TestHelloTwoEndsWatches: RESP2 has no form for what a watch tells.
func TestHelloTwoEndsWatches(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	p := dial(t, addr).resp3()
	p.want("+OK\r\n", "WEIR.WATCH", "k")
	if got := p.do("HELLO", "2"); !strings.HasPrefix(got, "*14\r\n") {
		t.Fatalf("HELLO 2: %q", got)
	}
	if f.server.Interested() {
		t.Error("the watch has outlived RESP3")
	}
	f.server.ChangedAll()
	p.want("+PONG\r\n", "PING")
}

// Each prefix of a connection costs the replica for each change. To name it again costs nothing.
func TestPrefixesAreBounded(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	p := dial(t, addr).resp3()
	prefixes := func(before []string, each ...string) []string {
		args := before
		for i := range 1024 {
			args = append(args, append(slices.Clone(each), fmt.Sprintf("%04d", i))...)
		}
		return args
	}
	const tooMany = "-ERR too many prefixes: a connection may name 1024, of 1048576 bytes in all\r\n"
	for range 3 {
		p.want("+OK\r\n", prefixes([]string{"WEIR.WATCH"})...)
	}
	p.want(tooMany, "WEIR.WATCH", "one more")
	p.want(tooMany, prefixes([]string{"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "one more"}, "PREFIX")...)
	p.want("+OK\r\n", prefixes([]string{"CLIENT", "TRACKING", "ON", "BCAST"}, "PREFIX")...)
	p.want(tooMany, "CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "one more")
	f.server.ChangedAll()
	if got, want := p.reply(), ">2\r\n$10\r\ninvalidate\r\n_\r\n"; got != want {
		t.Fatalf("%q, not %q", got, want)
	}
	for i := range 1024 {
		if got, want := p.reply(), fmt.Sprintf(">3\r\n$10\r\nweir.watch\r\n$4\r\nlost\r\n$4\r\n%04d\r\n", i); got != want {
			t.Fatalf("%q, not %q", got, want)
		}
	}
	p.want("+OK\r\n", "WEIR.UNWATCH", "0000")
	p.want("+OK\r\n", "WEIR.WATCH", "another")
}
