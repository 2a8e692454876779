package replica

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// While one of the replicas is of an older version, the others write what it can
// read, and a command that it does not know makes no sense to any of them; once all
// are new it does, and an older one that comes back stops with words instead of
// leaving out what it does not know.
func TestMixedVersions(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", func(c *Config) {
		if c.ID == 3 {
			c.Knows = 1
		}
	})
	script := `if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) else return 0 end`
	r.set(1, "lock", "me")
	for _, id := range []uint64{1, 2} {
		err := r.nodes[id].client.Eval(t.Context(), script, []string{"lock"}, "me", 60_000).Err()
		if err == nil || !strings.Contains(err.Error(), "older version") {
			t.Errorf("a command that replica 3 does not know: %v", err)
		}
	}
	overflow := func(want string) {
		t.Helper()
		r.set(r.leader(), "n", "9223372036854775807")
		for _, id := range []uint64{1, 2, 3} {
			if err := r.nodes[id].client.Incr(t.Context(), "n").Err(); err == nil || err.Error() != want {
				t.Errorf("replica %d: a sum that does not fit: %v, want %s", id, err, want)
			}
		}
	}
	overflow("ERR value is not an integer or out of range")
	// The leader may be the older one: of a missing key it is enough that it is missing.
	for _, id := range []uint64{1, 3} {
		c := r.nodes[id].client
		if err := c.Watch(t.Context(), func(tx *redis.Tx) error {
			_, err := tx.TxPipelined(t.Context(), func(p redis.Pipeliner) error { return p.Set(t.Context(), "new", "v", 0).Err() })
			return errors.Join(err, c.Del(t.Context(), "new").Err())
		}, "new"); err != nil {
			t.Errorf("replica %d: a transaction of a missing key: %v", id, err)
		}
	}
	if r.nodes[1].Status().Format != 1 {
		t.Fatalf("format %d beside an older version", r.nodes[1].Status().Format)
	}
	r.converged()

	c := r.cfg[3]
	c.Knows = 0
	r.cfg[3] = c
	r.halt(3)
	r.start(3)
	testkit.Eventually(t, "all write in the newest form", func() bool {
		for _, n := range r.nodes {
			if n.Status().Format != consensus.Format {
				return false
			}
		}
		return true
	})
	if n, err := r.nodes[3].client.Eval(t.Context(), script, []string{"lock"}, "me", 60_000).Int(); err != nil || n != 1 {
		t.Errorf("compare and extend: %d, %v", n, err)
	}
	overflow("ERR increment or decrement would overflow")
	r.converged()

	c.Knows = 1
	r.cfg[3] = c
	r.halt(3)
	older, err := r.tryStart(3)
	if err == nil {
		r.nodes[3] = older
		err = r.ended(3)
	}
	if err == nil || !strings.Contains(err.Error(), "the cluster is newer than this replica") {
		t.Errorf("an older version in a newer cluster ended with %v", err)
	}
	r.set(r.leader(), "k", "without it")
}

// A replica whose state is not that of the others stops, and they go on.
func TestDivergenceStopsTheOddOneOut(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	r.set(1, "k", "v")
	r.converged()
	odd := r.follower()
	n := r.nodes[odd]
	if err := n.inLoop(func(consensus.Clock) {
		c := wire.Command{Verb: wire.Set, Key: "k", Value: []byte("something else")}
		n.store.Apply(n.store.Revision(), n.store.Clock(), c.Append(nil))
	}); err != nil {
		t.Fatal(err)
	}
	leader := r.leader()
	r.set(leader, "other", "v") // states are compared at entries that are applied from now on
	err := r.ended(odd)
	if err == nil || !strings.Contains(err.Error(), "differs from that of leader") {
		t.Fatalf("the odd one ended with %v", err)
	}
	testkit.Eventually(t, "the leader has counted it", func() bool { return r.nodes[leader].Status().Counters.Diverged > 0 })
	r.set(leader, "k", "w")
	r.want(leader, "k", "w")
}
