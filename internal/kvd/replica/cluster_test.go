package replica

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

func TestClusterServesRedis(t *testing.T) {
	for _, preset := range consensus.PresetNames() {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			r := startRig(t, 3, preset, nil)
			for id := range r.nodes {
				key := fmt.Sprint("k", id)
				r.set(id, key, "v")
				for at := range r.nodes {
					r.want(at, key, "v")
				}
			}
			f := r.nodes[r.follower()].client
			ctx := t.Context()
			if n, err := f.IncrBy(ctx, "n", 5).Result(); err != nil || n != 5 {
				t.Errorf("INCRBY: %d, %v", n, err)
			}
			if ok, err := f.SetNX(ctx, "n", "x", 0).Result(); err != nil || ok {
				t.Errorf("SETNX of a key that exists: %v, %v", ok, err)
			}
			got, err := f.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, "t", "1", 0)
				p.Incr(ctx, "t")
				p.Get(ctx, "t")
				return nil
			})
			if err != nil || got[2].(*redis.StringCmd).Val() != "2" {
				t.Errorf("MULTI: %v, %v", got, err)
			}
			r.converged()
		})
	}
}

// A pipeline's commands take effect in their order, whatever the replica.
func TestPipelineKeepsOrder(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	for id, n := range r.nodes {
		pipe := n.client.Pipeline()
		var got []*redis.StringCmd
		for i := range 50 {
			pipe.Set(t.Context(), "k", i, 0)
			got = append(got, pipe.Get(t.Context(), "k"))
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatalf("replica %d: %v", id, err)
		}
		for i, g := range got {
			if g.Val() != fmt.Sprint(i) {
				t.Fatalf("replica %d: read %d gave %q", id, i, g.Val())
			}
		}
	}
}

// Weak writes and reads of one connection: it sees its own writes at once, and
// WAIT makes them durable.
func TestWeakSession(t *testing.T) {
	for _, preset := range []string{"raft-ht", "curp-ho"} {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			r := startRig(t, 3, preset, nil)
			conn := r.nodes[r.follower()].client.Conn()
			defer conn.Close()
			if err := conn.Do(t.Context(), "READONLY").Err(); err != nil {
				t.Fatal(err)
			}
			for i := range 40 {
				if err := conn.Set(t.Context(), "w", i, 0).Err(); err != nil {
					t.Fatal(err)
				}
				if got, err := conn.Get(t.Context(), "w").Int(); err != nil || got != i {
					t.Fatalf("own write %d: read %d, %v", i, got, err)
				}
			}
			if n, err := conn.Do(t.Context(), "WAIT", 1, 0).Int(); err != nil || n < 1 {
				t.Errorf("WAIT: %d, %v", n, err)
			}
			r.want(r.leader(), "w", "39")
		})
	}
}

func TestRestartOfEach(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	for round, id := range []uint64{1, 2, 3} {
		r.set(r.leader(), fmt.Sprint("before", round), "v")
		if err := r.halt(id); err != nil {
			t.Fatalf("replica %d ended with %v", id, err)
		}
		r.set(r.leader(), fmt.Sprint("while", round), "v")
		r.start(id)
		r.leader()
		r.want(id, fmt.Sprint("before", round), "v")
		r.want(id, fmt.Sprint("while", round), "v")
	}
	r.converged()
}

func TestRestartOfAll(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "curp-ho", nil)
	for i := range 100 {
		r.set(uint64(i%3+1), fmt.Sprint("k", i), fmt.Sprint(i))
	}
	for id := range r.cfg {
		if err := r.halt(id); err != nil {
			t.Fatalf("replica %d ended with %v", id, err)
		}
	}
	r.startAll()
	r.leader()
	for i := range 100 {
		r.want(uint64(i%3+1), fmt.Sprint("k", i), fmt.Sprint(i))
	}
}

// A leader that stops hands over first: a follower leads before an election
// timeout could have passed.
func TestLeaderHandsOver(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.Election = 2 * leavePatience })
	// It waits for the next one, for less than an election timeout, and for that
	// reason in vain if the machine is busy.
	testkit.Eventually(t, "a leader that stops has seen the next one", func() bool {
		leader := r.leader()
		if err := r.halt(leader); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(r.logs[leader].String(), "leadership handed over") {
			return true
		}
		r.start(leader)
		return false
	})
	r.leader()
}

func TestSingleReplica(t *testing.T) {
	t.Parallel()
	r := startRig(t, 1, "raft-ht", nil)
	r.set(1, "k", "v")
	if err := r.halt(1); err != nil {
		t.Fatal(err)
	}
	r.start(1)
	r.leader()
	r.want(1, "k", "v")
}

// Without a quorum strong requests fail in time and in Redis' words, and weak
// reads are answered.
func TestWithoutQuorum(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.RequestTimeout = 500 * time.Millisecond })
	left := r.follower()
	r.insist(left, "k", "v")
	conn := r.nodes[left].client.Conn()
	defer conn.Close()
	if err := conn.Do(t.Context(), "READONLY").Err(); err != nil {
		t.Fatal(err)
	}
	reads := func() bool { return conn.Get(t.Context(), "k").Val() == "v" }
	testkit.Eventually(t, "the replica has applied the write", reads)
	for id := range r.cfg {
		if id != left {
			if err := r.halt(id); err != nil {
				t.Fatal(err)
			}
		}
	}
	testkit.Eventually(t, "writes fail for want of a quorum", func() bool {
		err := r.nodes[left].client.Set(t.Context(), "k", "w", 0).Err()
		return err != nil && (strings.HasPrefix(err.Error(), "CLUSTERDOWN") || strings.HasPrefix(err.Error(), "UNCERTAIN"))
	})
	testkit.Eventually(t, "a weak read without a quorum", reads)
	// This one must not wait for what its session has seen elsewhere.
	if err := conn.Do(t.Context(), "WEIR.LEVEL", "local").Err(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Do(t.Context(), "WEIR.TOKEN", "99:1000000").Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a local read without a quorum", reads)
	testkit.Eventually(t, "the replica says that it is not ready", func() bool { return r.nodes[left].Status().Ready() != nil })
}

// A replica that was away for longer than the log is kept gets a snapshot.
func TestSnapshotForOneThatWasAway(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.SnapshotBytes, c.KeepBytes = 256<<10, 64<<10 })
	away := r.follower()
	if err := r.halt(away); err != nil {
		t.Fatal(err)
	}
	leader := r.leader()
	value := strings.Repeat("v", 4000)
	for batch := range 20 {
		pipe := r.nodes[leader].client.Pipeline()
		for i := range 20 {
			pipe.Set(t.Context(), fmt.Sprint("k", batch, ".", i), value, 0)
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for id, n := range r.nodes { // any may lead when the other one comes back
		testkit.Eventually(t, fmt.Sprintf("replica %d has made snapshots and dropped log", id), func() bool {
			s := n.Status()
			return s.Snapshot > 0 && s.First > 20
		})
	}
	n := r.start(away)
	r.leader()
	r.converged()
	if n.snapshots.stats.received.Load() == 0 {
		t.Error("no snapshot was received")
	}
	// Its present state survives a restart.
	if err := r.halt(away); err != nil {
		t.Fatal(err)
	}
	r.start(away)
	r.leader()
	r.want(away, "k19.19", value)
	r.converged()
}

func TestMembership(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", nil)
	r.set(1, "before", "v")
	cfg := r.cfg[1]
	member := newMember(t, 4)
	cfg.ID, cfg.Join, cfg.Dir, cfg.Redis = 4, true, t.TempDir(), member.Client
	cfg.Members = append(append([]consensus.Member(nil), cfg.Members...), member)
	r.cfg[4] = cfg
	joins := r.start(4)
	testkit.Eventually(t, "it says that it waits to be added", func() bool {
		err := joins.Status().Ready()
		return err != nil && strings.Contains(err.Error(), "waits to be added")
	})
	if err := joins.client.Get(t.Context(), "before").Err(); err == nil || !strings.HasPrefix(err.Error(), "LOADING") {
		t.Errorf("a read before it was added: %v", err)
	}
	delete(r.nodes, 4)
	r.configure(consensus.Change{Kind: consensus.AddLearner, Member: member})
	r.nodes[4] = joins
	r.configure(consensus.Change{Kind: consensus.Promote, Member: member})
	r.want(4, "before", "v")

	gone := r.follower()
	if gone == 4 {
		gone = map[bool]uint64{true: 2, false: 1}[r.leader() == 1]
	}
	r.configure(consensus.Change{Kind: consensus.Remove, Member: consensus.Member{ID: gone}})
	var removed *RemovedError
	if err := r.ended(gone); !errors.As(err, &removed) {
		t.Errorf("replica %d ended with %v", gone, err)
	}
	delete(r.cfg, gone)
	r.set(4, "after", "v")
	for id := range r.cfg {
		if err := r.halt(id); err != nil {
			t.Fatal(err)
		}
	}
	r.startAll()
	r.leader()
	for id := range r.nodes {
		r.want(id, "after", "v")
	}
}

// The leader itself can be removed: the others go on without it.
func TestRemoveLeader(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	r.set(r.leader(), "k", "v")
	leader, n := uint64(0), (*node)(nil)
	testkit.Eventually(t, "a leader takes the order to remove itself", func() bool {
		leader = r.leader()
		n = r.nodes[leader]
		change := consensus.Change{Kind: consensus.Remove, Member: consensus.Member{ID: leader}}
		m, err := r.ask(leader, wire.Message{Kind: wire.Configure, Data: change.Append(nil)})
		return err != nil || m.Kind == wire.ReadDone // or it leads no more
	})
	var removed *RemovedError
	if err := r.ended(leader); !errors.As(err, &removed) {
		t.Fatalf("the leader ended with %v, status %+v", err, n.Status())
	}
	delete(r.cfg, leader)
	next := r.leader()
	r.want(next, "k", "v")
	r.set(next, "k", "w")
	if members := r.nodes[next].Status().Members; len(members) != 2 {
		t.Errorf("members %+v", members)
	}
}

func TestMemory(t *testing.T) {
	r := startRig(t, 3, "raft-ht", func(c *Config) {
		c.Dir, c.Memory = "", true
		c.SnapshotBytes, c.KeepBytes = 64<<10, 16<<10
	})
	away := r.follower()
	r.set(r.leader(), "k", "v")
	r.remembered(away)
	if err := r.halt(away); err != nil {
		t.Fatal(err)
	}
	r.set(r.leader(), "k", "w")
	r.want(r.leader(), "k", "w")
	// It has lost its votes and must not come back as the same member.
	r.start(away)
	if err := r.ended(away); err == nil || !strings.Contains(err.Error(), "weir kv member replace") {
		t.Errorf("the replica that came back without memory ended with %v", err)
	}
}

// A leader of which its followers know no progress has lost its votes, too: with its
// help one could be elected that lacks what it and another had told to be done. So
// has a replica of which only those know that do not lead.
func TestMemoryOfALeader(t *testing.T) {
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.Dir, c.Memory = "", true })
	leader := r.leader()
	r.set(leader, "k", "v")
	if err := r.nodes[leader].peers.transport.Close(); err != nil { // as a crash does: it hands nothing over
		t.Fatal(err)
	}
	if err := r.halt(leader); err != nil {
		t.Fatal(err)
	}
	r.start(leader) // before the others have elected another one, maybe
	if err := r.ended(leader); err == nil || !strings.Contains(err.Error(), "weir kv member replace") {
		t.Errorf("the leader that came back without memory ended with %v", err)
	}
	delete(r.cfg, leader)
	r.want(r.leader(), "k", "v")
}

func TestWatch(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	at := r.follower()
	r.set(at, "a1", "old")
	c := r.native(at)
	all := wire.Command{Verb: wire.Range, Key: "a", End: "b"}
	send := func(m wire.Message) {
		t.Helper()
		if _, err := c.Send([]wire.Message{m}); err != nil {
			t.Fatal(err)
		}
	}
	// An event without changes only says how far the replica knows: it has not
	// applied the first write if it answers the watch sooner.
	event := func(request uint64) []wire.Change {
		t.Helper()
		m := c.await(t, "an event", func(m *wire.Message) bool {
			return m.Kind == wire.WatchEvent && m.Request == request && (len(m.Data) > 0 || m.Code != 0)
		})
		changes, err := wire.ParseChanges(m.Data)
		if err != nil || m.Code != 0 {
			t.Fatalf("event %+v: %v", m, err)
		}
		return changes
	}
	send(wire.Message{Kind: wire.Watch, Request: 1, Data: all.Append(nil), Revision: 1})
	got := event(1)
	if len(got) != 1 || got[0].Key != "a1" || string(got[0].Value) != "old" {
		t.Fatalf("what happened before: %+v", got)
	}
	r.set(at, "b", "not watched")
	r.set(at, "a2", "new")
	if got = event(1); len(got) != 1 || got[0].Key != "a2" {
		t.Fatalf("what happens now: %+v", got)
	}
	if err := r.nodes[at].client.Del(t.Context(), "a1").Err(); err != nil {
		t.Fatal(err)
	}
	if got = event(1); len(got) != 1 || got[0].Kind != wire.ChangeDelete {
		t.Fatalf("a deletion: %+v", got)
	}
	send(wire.Message{Kind: wire.Unwatch, Request: 1})
	testkit.Eventually(t, "the watch ends", func() bool { return r.nodes[at].feed.watching.Load() == 0 })
}
