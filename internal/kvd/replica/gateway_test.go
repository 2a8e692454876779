package replica

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// caller is a connection without a socket.
type caller struct {
	t *testing.T
	s resp.Session

	mu      sync.Mutex
	flushed int
}

func (c *caller) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushed++
}

func (r *rig) caller(id uint64) *caller {
	c := &caller{t: r.t}
	c.s = r.nodes[id].gateway.Open(c)
	return c
}

// set hands in a write without waiting for it.
func (c *caller) do(level resp.Level, command wire.Command) *resp.Reply {
	reply := new(resp.Reply)
	c.s.Do([]resp.Request{{Command: command, Level: level, Reply: reply}})
	return reply
}

// answer waits for a reply.
func (c *caller) answer(reply *resp.Reply) (wire.Result, error) {
	c.t.Helper()
	testkit.Eventually(c.t, "an answer", func() bool { _, done, _ := reply.Outcome(); return done })
	result, _, err := reply.Outcome()
	return result, err
}

func set(key, value string) wire.Command {
	return wire.Command{Verb: wire.Set, Key: key, Value: []byte(value)}
}

// A line outlives its connection, and its session serves the next one.
func TestLinesAreUsedAgain(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", nil)
	id := r.follower()
	sessions := map[uint64]bool{}
	for i := range 20 {
		c := r.caller(id)
		if _, err := c.answer(c.do(resp.Strong, set("k", fmt.Sprint(i)))); err != nil {
			t.Fatal(err)
		}
		sessions[c.s.(*line).s.ID()] = true
		c.s.Close()
		testkit.Eventually(t, "the line is idle", func() bool {
			g := r.nodes[id].gateway
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.idle) == 1
		})
	}
	if len(sessions) != 1 {
		t.Errorf("%d sessions for connections that came one after the other", len(sessions))
	}
}

// A session that the cluster has forgotten is replaced; requests that it had not
// taken do not notice.
func TestExpiredSessionIsReplaced(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	c := r.caller(r.follower())
	if _, err := c.answer(c.do(resp.Strong, set("k", "1"))); err != nil {
		t.Fatal(err)
	}
	l := c.s.(*line)
	l.mu.Lock()
	l.s.Receive(l.g.clock(), 1, &wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Session: l.s.ID(), Seq: 99})
	l.mu.Unlock()
	for _, command := range []wire.Command{{Verb: wire.Get, Key: "k"}, set("k", "2"), set("k", "3")} {
		if _, err := c.answer(c.do(resp.Strong, command)); err != nil {
			t.Errorf("after the session has expired: %v", err)
		}
	}
	r.want(r.leader(), "k", "3")
}

// More requests than a session takes wait in the line, in order.
func TestLineQueues(t *testing.T) {
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.RequestTimeout = patience })
	c := r.caller(r.follower())
	batch := make([]resp.Request, 3000)
	for i := range batch {
		batch[i] = resp.Request{Command: wire.Command{Verb: wire.Increment, Key: "n", Delta: 1}, Reply: new(resp.Reply)}
	}
	c.s.Do(batch)
	for i := range batch {
		result, err := c.answer(batch[i].Reply)
		if err != nil || result.Number != int64(i+1) {
			t.Fatalf("increment %d: %+v, %v", i, result, err)
		}
	}
}

func TestTooLargeValue(t *testing.T) {
	r := startRig(t, 1, "raft-ht", func(c *Config) { c.MaxValue = 100 })
	c := r.caller(1)
	for _, command := range []wire.Command{
		set("k", strings.Repeat("v", 101)),
		{Verb: wire.SetMany, Pairs: []wire.Pair{{Key: "a"}, {Key: "b", Value: make([]byte, 101)}}},
		{Verb: wire.Transaction, Commands: []wire.Command{set("k", strings.Repeat("v", 101))}},
	} {
		if result, err := c.answer(c.do(resp.Strong, command)); err != nil || result.Code != wire.TooLarge {
			t.Errorf("%+v, %v", result, err)
		}
	}
	if _, err := c.answer(c.do(resp.Strong, set("k", strings.Repeat("v", 100)))); err != nil {
		t.Error(err)
	}
}

// A request that gets no answer in its time ends with one that says what is
// certain; WAIT says how many have it.
func TestRequestsTimeOut(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.RequestTimeout, c.Election = 200*time.Millisecond, 5*time.Second })
	id := r.leader()
	c := r.caller(id)
	testkit.Eventually(t, "a write in so little time", func() bool {
		_, err := c.answer(c.do(resp.Strong, set("k", "1")))
		return err == nil
	})
	for other := range r.cfg {
		if other != id {
			if err := r.halt(other); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := c.do(resp.Strong, set("k", "2"))
	wait := new(resp.Reply)
	c.s.Wait(1, 100*time.Millisecond, wait)
	if _, err := c.answer(write); !errors.Is(err, resp.ErrUncertain) {
		t.Errorf("a write without a quorum: %v", err)
	}
	if result, err := c.answer(wait); err != nil || result.Number != 0 {
		t.Errorf("WAIT without a quorum: %+v, %v", result, err)
	}
}

// A Redis client that tracks a key is told when it changes, at whatever replica.
func TestTrackingAcrossReplicas(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	at := r.follower()
	r.set(at, "k", "1")
	conn, err := net.Dial("tcp", r.nodes[at].RedisAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if _, err := conn.Write([]byte("HELLO 3\r\nCLIENT TRACKING ON\r\nGET k\r\n")); err != nil {
		t.Fatal(err)
	}
	until := func(line string) {
		t.Helper()
		for {
			got, err := in.ReadString('\n')
			if err != nil {
				t.Fatalf("in vain for %q: %v", line, err)
			}
			if strings.TrimSpace(got) == line {
				return
			}
		}
	}
	until("$1")
	until("1")
	r.set(r.leader(), "k", "2")
	until("$10")
	until("invalidate")
	until("$1")
	until("k")
}

// Restored state makes all watches start again: a replica that was away for long has missed
// changes.
func TestWatchOfWhatIsForgotten(t *testing.T) {
	t.Parallel()
	r := startRig(t, 1, "raft-ht", nil)
	r.set(1, "k", "1")
	if err := r.halt(1); err != nil {
		t.Fatal(err)
	}
	r.start(1)
	r.leader()
	c := r.native(1)
	all := wire.Command{Verb: wire.Range}
	n := r.nodes[1]
	if err := n.inLoop(func(consensus.Clock) { n.feed.restored(n.store.Revision()) }); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Send([]wire.Message{{Kind: wire.Watch, Request: 1, Data: all.Append(nil)}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the watch began", func() bool { return n.feed.watching.Load() == 1 })
	if err := n.inLoop(func(consensus.Clock) { n.feed.restored(n.store.Revision()) }); err != nil {
		t.Fatal(err)
	}
	m := c.await(t, "the word that something was missed", func(m *wire.Message) bool { return m.Kind == wire.WatchEvent && m.Code != 0 })
	if m.Code != wire.CodeMissed || m.Revision == 0 {
		t.Errorf("told %s", m.String())
	}
}

// A transaction that has watched a missing key fails if another client has created the key
// since, at another replica. If no client has, it succeeds. A watched key that was removed
// counts as changed, too.
func TestWatchOfAMissingKey(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	here, there := r.leader(), r.follower()
	testkit.Eventually(t, "all members know what leaders know", func() bool { return r.nodes[here].Status().Format >= wire.FormatUntouched })
	for _, tt := range []struct {
		name  string
		given string // the key's value at the WATCH; "": it is missing
		other func(c *redis.Client, key string) error
		fails bool
	}{
		{"made", "", func(c *redis.Client, key string) error { return c.Set(t.Context(), key, "theirs", 0).Err() }, true},
		{"made with a life", "", func(c *redis.Client, key string) error { return c.Set(t.Context(), key, "theirs", time.Hour).Err() }, true},
		{"made by a counter", "", func(c *redis.Client, key string) error { return c.Incr(t.Context(), key).Err() }, true},
		{"made by SETNX", "", func(c *redis.Client, key string) error { return c.SetNX(t.Context(), key, "theirs", 0).Err() }, true},
		{"made and removed", "", func(c *redis.Client, key string) error {
			return errors.Join(c.Set(t.Context(), key, "theirs", 0).Err(), c.Del(t.Context(), key).Err())
		}, true},
		{"made and expired", "", func(c *redis.Client, key string) error {
			err := c.Set(t.Context(), key, "theirs", time.Millisecond).Err()
			testkit.Eventually(t, "it is gone", func() bool { return errors.Is(c.Get(t.Context(), key).Err(), redis.Nil) })
			return err
		}, true},
		{"made and removed at once", "", func(c *redis.Client, key string) error {
			_, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				return errors.Join(p.Set(t.Context(), key, "theirs", 0).Err(), p.Del(t.Context(), key).Err())
			})
			return err
		}, true},
		{"left alone", "", func(c *redis.Client, key string) error { return c.Set(t.Context(), key+"-other", "x", 0).Err() }, false},
		{"removed", "ours", func(c *redis.Client, key string) error { return c.Del(t.Context(), key).Err() }, true},
		{"made anew", "ours", func(c *redis.Client, key string) error {
			return errors.Join(c.Del(t.Context(), key).Err(), c.Set(t.Context(), key, "ours", 0).Err())
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := "watched-" + tt.name
			if tt.given != "" {
				r.set(here, key, tt.given)
			}
			err := r.nodes[here].client.Watch(t.Context(), func(tx *redis.Tx) error {
				if err := tt.other(r.nodes[there].client, key); err != nil {
					return err
				}
				_, err := tx.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
					return p.Set(t.Context(), key, "done", 0).Err()
				})
				return err
			}, key)
			if tt.fails != errors.Is(err, redis.TxFailedErr) || !tt.fails && err != nil {
				t.Errorf("EXEC: %v, want a failure: %v", err, tt.fails)
			}
			got, err := r.nodes[here].client.Get(t.Context(), key).Result()
			if done := got == "done"; done == tt.fails {
				t.Errorf("the key is %q (%v) afterwards", got, err)
			}
		})
	}
}

// inLoop has f called by the core goroutine and waits for it.
func (r *Replica) inLoop(f func(at consensus.Clock)) error {
	done := make(chan struct{})
	if !r.inbox.call(func(at consensus.Clock) { f(at); close(done) }) {
		return fmt.Errorf("replica %d: stopped", r.cfg.ID)
	}
	select {
	case <-done:
		return nil
	case <-r.stopped:
		return fmt.Errorf("replica %d: stopped", r.cfg.ID)
	}
}
