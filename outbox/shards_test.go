package outbox

import (
	"context"
	"fmt"
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

// A relay that leads several shards has no more in flight than one that leads one.
func TestWhatIsInFlightIsBoundedForAllShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		store.shards = 4
		held := make(chan struct{})
		inner := &memSink{}
		sink := sinkFunc(func(ctx context.Context, msgs []Message) []error {
			<-held
			return inner.Publish(ctx, msgs)
		})
		for i := range 2000 {
			store.put(Message{Topic: "t", Key: fmt.Sprint("k", i), Payload: make([]byte, 10)})
		}
		cfg := fast()
		cfg.MaxInFlight = 400
		r, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Leading != 4 || s.InFlight > 400 || s.InFlight < 200 {
			t.Errorf("%d messages of %d shards are in flight, want at most 400 of 4", s.InFlight, s.Leading)
		}
		close(held)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
	})
}
