package replica

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/testkit"
)

// Many clients that each read megabytes through a follower, several answers at once,
// get them, and hold up neither the cluster nor a write: answers queue where they are
// read from, and a connection between replicas that is full of them is no replica
// that is gone.
func TestManyLargeReadsThroughAFollower(t *testing.T) {
	testkit.Long(t, "has 50 clients read values of 1 MB")
	const clients, depth, size = 50, 2, 1 << 20
	r := startRig(t, 3, "raft-ht", nil)
	leader, through := r.leader(), r.follower()
	value := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	r.set(leader, "large", string(value))
	r.set(leader, "small", "0")

	var reading sync.WaitGroup
	var read atomic.Int64
	for i := range clients {
		reading.Go(func() {
			c := redis.NewClient(&redis.Options{
				Addr: r.nodes[through].RedisAddr(), PoolSize: 1, MaxRetries: -1,
				DialTimeout: patience, ReadTimeout: 10 * patience, WriteTimeout: patience, DisableIdentity: true,
			})
			defer c.Close()
			var answers []*redis.StringCmd
			_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for range depth {
					answers = append(answers, p.Get(t.Context(), "large"))
				}
				return nil
			})
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			for _, a := range answers {
				got, err := a.Bytes()
				if err != nil || !bytes.Equal(got, value) {
					t.Errorf("client %d read %d bytes, want %d (%v)", i, len(got), size, err)
				}
				read.Add(1)
			}
		})
	}
	for n := 1; read.Load() < clients && !t.Failed(); n++ {
		r.set(leader, "small", fmt.Sprint(n))
		r.set(through, "other", fmt.Sprint(n))
	}
	reading.Wait()
	if got := read.Load(); got != clients*depth {
		t.Errorf("%d answers of %d", got, clients*depth)
	}
	full := uint64(0)
	for _, p := range r.nodes[leader].peers.transport.Stats().Peers {
		full += p.Dropped
	}
	t.Logf("%d messages of the leader met a full connection", full)
	for id, n := range r.nodes {
		select {
		case <-n.ended:
			t.Errorf("replica %d has ended: %v", id, n.err)
		default:
		}
	}
	r.set(r.leader(), "k", "v")
	r.want(through, "k", "v")
}
