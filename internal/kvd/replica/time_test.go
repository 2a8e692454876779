package replica

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/testkit"
)

// steppedClocks gives each replica of a rig a wall clock of its own.
func steppedClocks(off map[uint64]*atomic.Int64) func(*Config) {
	return func(c *Config) {
		o := new(atomic.Int64)
		off[c.ID] = o
		c.Clock = func() consensus.Clock {
			at := now()
			at.Wall += o.Load()
			return at
		}
	}
}

// A wall clock that steps, at the leader or anywhere, neither ends a key early nor
// keeps it alive, and neither does a change of the leader.
func TestClockStepsDoNotMoveTime(t *testing.T) {
	t.Parallel()
	off := map[uint64]*atomic.Int64{}
	r := startRig(t, 3, "raft-ht", steppedClocks(off))
	leader := r.leader()
	c := r.nodes[leader].client
	ctx := t.Context()
	const hour = int64(time.Hour)

	// A step forward while something is written, and back.
	must(t, c.Set(ctx, "long", "v", 10*time.Minute).Err())
	off[leader].Store(hour)
	must(t, c.Set(ctx, "other", "v", 0).Err())
	r.want(leader, "long", "v")
	off[leader].Store(0)
	begin := time.Now()
	must(t, c.Set(ctx, "short", "v", 300*time.Millisecond).Err())
	testkit.Eventually(t, "a key goes after the clock stepped back", func() bool { return errors.Is(c.Get(ctx, "short").Err(), redis.Nil) })
	if lived := time.Since(begin); lived < 300*time.Millisecond {
		t.Errorf("a key of 300 ms lived %v", lived)
	}
	r.want(leader, "long", "v")

	// One leader after the other, an hour apart.
	for id, by := range map[uint64]int64{1: hour, 2: -hour, 3: 3 * hour} {
		off[id].Store(by)
	}
	for range 3 {
		at := r.leader()
		begin := time.Now()
		must(t, r.nodes[at].client.Set(ctx, "short", "v", 300*time.Millisecond).Err())
		next := at%3 + 1
		testkit.Eventually(t, "another one leads", func() bool { // on a busy machine one may be given up
			r.configure(consensus.Change{Kind: consensus.Transfer, Member: consensus.Member{ID: next}})
			return r.leader() != at
		})
		r.want(next, "long", "v")
		testkit.Eventually(t, "a key goes under the next leader", func() bool { return errors.Is(r.nodes[next].client.Get(ctx, "short").Err(), redis.Nil) })
		if lived := time.Since(begin); lived < 300*time.Millisecond {
			t.Errorf("a key of 300 ms lived %v", lived)
		}
	}
	if left := r.nodes[1].client.TTL(ctx, "long").Val(); left < 5*time.Minute || left > 10*time.Minute {
		t.Errorf("a key of 10 minutes has %v left", left)
	}
}

// A moment is one of the wall clock of the machine that is told it, however far the
// store's time is from that.
func TestMomentsAreThoseOfTheReplicaThatIsTold(t *testing.T) {
	off := map[uint64]*atomic.Int64{}
	r := startRig(t, 3, "raft-ht", steppedClocks(off))
	ctx := t.Context()
	r.set(1, "k", "v")
	off[1].Store(int64(time.Hour))
	testkit.Eventually(t, "replica 1 knows that its clock is ahead", func() bool { return r.nodes[1].Status().Ahead < -30*time.Minute })
	for id, want := range map[uint64]time.Time{1: time.Now().Add(time.Hour + 5*time.Minute), 2: time.Now().Add(5 * time.Minute)} {
		c := r.nodes[id].client
		if ok, err := c.PExpireAt(ctx, "k", want).Result(); err != nil || !ok {
			t.Fatalf("PEXPIREAT: %v, %v", ok, err)
		}
		if left := c.PTTL(ctx, "k").Val(); left < 4*time.Minute || left > 6*time.Minute {
			t.Errorf("replica %d: %v left of 5 minutes", id, left)
		}
		if got := time.UnixMilli(c.PExpireTime(ctx, "k").Val().Milliseconds()); got.Sub(want).Abs() > 2*time.Second {
			t.Errorf("replica %d: the key goes at %v, want %v", id, got, want)
		}
	}
	// A time to live goes by though nothing is written.
	first := r.nodes[2].client.PTTL(ctx, "k").Val()
	testkit.Eventually(t, "a time to live goes by", func() bool { return r.nodes[2].client.PTTL(ctx, "k").Val() < first-50*time.Millisecond })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
