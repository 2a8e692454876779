package replica

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

// A replica that is cut off from the others ends its watches. They go on at another one,
// and end with a reason where there is none.
func TestWatchesOfAReplicaThatIsCutOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, "raft-ht", func(c *Config) { c.CutOff = 500 * time.Millisecond })
	relays := map[[2]uint64]*lab.Relay{} // from each replica to each other one
	var endpoints []string
	for id, c := range r.cfg {
		endpoints = append(endpoints, c.Members[id-1].Addr)
		c.Members = slices.Clone(c.Members)
		for i, m := range c.Members {
			if m.ID != id {
				relay := labtest.Relay(t, m.Addr)
				relays[[2]uint64{id, m.ID}] = relay
				c.Members[i].Addr = relay.Addr()
			}
		}
		r.cfg[id] = c
	}
	r.startAll()
	r.leader()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := kv.Open(ctx, endpoints, kv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := c.Watch("a", "b", 0)
	if err != nil {
		t.Fatal(err)
	}
	watching := func() uint64 {
		for id, n := range r.nodes {
			if n.feed.watching.Load() > 0 {
				return id
			}
		}
		return 0
	}
	testkit.Eventually(t, "a replica tells", func() bool { return watching() != 0 })
	first := watching()
	told := func(key string) {
		t.Helper()
		for {
			got, err := w.Next(ctx)
			if err != nil {
				t.Fatalf("waiting for %s: %v", key, err)
			}
			if got[len(got)-1].Key == key {
				return
			}
		}
	}
	put := func(key string) {
		t.Helper()
		if _, err := c.Put(ctx, key, nil); err != nil {
			t.Fatal(err)
		}
	}
	put("a1")
	told("a1")

	for ends, relay := range relays {
		if slices.Contains(ends[:], first) {
			relay.Stall()
		}
	}
	put("a2")
	told("a2")
	if at := watching(); at == first || at == 0 {
		t.Errorf("the watch is at replica %d, which is cut off", at)
	}
	for id := range r.cfg {
		if id != first {
			r.halt(id)
		}
	}
	if _, err := w.Next(ctx); !errors.Is(err, kv.ErrCutOff) {
		t.Errorf("where all are cut off, the watch ended with %v", err)
	}
	for _, relay := range relays {
		relay.Heal()
	}
	for id := range r.cfg {
		if id != first {
			r.start(id)
		}
	}
	put("a3")
	again, err := c.Watch("a", "b", 1)
	if err != nil {
		t.Fatal(err)
	}
	w = again
	told("a3")
}
