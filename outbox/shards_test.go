package outbox

import (
	"testing"
	"testing/synctest"
	"time"
)

// A relay that stands by while the number of shards changes leads those that came,
// and lets go of those that went.
func TestRelayFollowsTheNumberOfShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		_, stop := running(t, store, sink, fast())
		defer stop()
		led := func() int {
			store.mu.Lock()
			defer store.mu.Unlock()
			return len(store.leaders)
		}
		until(t, "the shard is led", func() bool { return led() == 1 })
		for _, n := range []int{4, 2} {
			store.mu.Lock()
			store.shards = n
			store.mu.Unlock()
			time.Sleep(2 * time.Minute)
			until(t, "the shards are led", func() bool { return led() == n })
		}
		for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			store.put(Message{Topic: "t", Key: key})
		}
		until(t, "all is delivered", func() bool { return store.pending() == 0 })
	})
}
