package kv_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/kv"
)

// sessions waits until all replicas know the same number of sessions, and returns
// it: followers apply what ends one a little later than the leader.
func sessions(ctx context.Context, t *testing.T, c *kv.Client, want func(int) bool) int {
	t.Helper()
	var last map[int]int // of the last time that all have answered
	for {
		up, _ := c.Replicas()
		counts := map[int]int{}
		var lost error // a connection, which comes up again
		for id := range up {
			raw, err := c.Inspect(ctx, id)
			if err != nil {
				lost = err
				continue
			}
			var state struct{ Sessions int }
			check(t, json.Unmarshal(raw, &state), nil)
			counts[state.Sessions]++
		}
		for n, replicas := range counts {
			if replicas == 3 && want(n) {
				return n
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("replicas by the sessions that they know: %v, and at last %v, %v", last, counts, lost)
		}
		if lost == nil {
			last = counts
		}
	}
}

// TestSessionClose opens and closes sessions, of which the cluster keeps nothing.
func TestSessionClose(t *testing.T) {
	t.Parallel()
	cluster := labtest.KV(t, lab.KVConfig{Program: program.Path(t), Preset: "curp-ho", Durability: lab.Fast})
	// On a busy machine a registration that is sent again would create an unused session, so
	// here nothing is sent again.
	c := open(t, cluster, kv.Options{Retry: labtest.Patience})
	ctx := within(t)
	const n = 20
	var open []*kv.Session
	for i := range n {
		s := c.NewSession()
		_, err := s.Put(ctx, fmt.Sprintf("s/%02d", i), nil)
		check(t, err, nil)
		open = append(open, s)
	}
	before := sessions(ctx, t, c, func(known int) bool { return known >= n })
	for i, s := range open {
		ended := make(chan error, 3)
		// Operations under way when the session is closed still happen.
		for j := range cap(ended) {
			options := []kv.Option{kv.Weak()}[:j%2]
			check(t, s.Issue(kv.Put(fmt.Sprintf("s/%02d/%d", i, j), []byte("v"), options...), func(_ kv.Result, err error) { ended <- err }), nil)
		}
		check(t, s.Close(ctx), nil)
		for range cap(ended) {
			check(t, <-ended, nil)
		}
		check(t, s.Issue(kv.Get("a"), func(kv.Result, error) {}), kv.ErrClosed)
		_, err := s.Put(ctx, "a", nil)
		check(t, err, kv.ErrClosed)
		check(t, s.Close(ctx), nil) // again
	}
	// A registration that was sent twice, because a connection came up late, leaves an unused
	// session that may be counted in either sum. 20 sessions were closed.
	sessions(ctx, t, c, func(known int) bool { return known <= before-n+n/4 })
	items, _, err := c.Range(ctx, "s/", kv.PrefixEnd("s/"))
	check(t, err, nil)
	if len(items) != 4*n {
		t.Errorf("%d of %d writes are there", len(items), 4*n)
	}
	check(t, c.Session.Close(ctx), nil)
	_, err = c.Get(ctx, "a")
	check(t, err, kv.ErrClosed)
}

// testSessionCloseWithoutACluster ends with its context, and with the client.
func testSessionCloseWithoutACluster(t *testing.T, cluster *lab.KV) {
	c := open(t, cluster, kv.Options{})
	ctx := within(t)
	_, err := c.Put(ctx, "a", nil)
	check(t, err, nil)
	for _, n := range cluster.Nodes() {
		n.Kill()
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if err := c.Session.Close(short); !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	late := c.NewSession()
	check(t, late.Close(ctx), nil) // nobody knows of it
}

// testSessionCloseEndsBehind: a session whose Close ended before the cluster answered ends
// when it does, and the cluster does not keep it (but for a registration that came twice).
func testSessionCloseEndsBehind(t *testing.T, cluster *lab.KV) {
	var relays []*lab.Relay
	var addrs []string
	for _, addr := range cluster.PeerAddrs() {
		relay := labtest.Relay(t, addr)
		relays, addrs = append(relays, relay), append(addrs, relay.Addr())
	}
	c, err := kv.Open(within(t), addrs, kv.Options{Retry: labtest.Patience})
	check(t, err, nil)
	defer func() { check(t, c.Close(), nil) }()
	ctx := within(t)
	const n = 10
	var open []*kv.Session
	for range n {
		s := c.NewSession()
		_, err := s.Put(ctx, "a", nil)
		check(t, err, nil)
		open = append(open, s)
	}
	before := sessions(ctx, t, c, func(known int) bool { return known >= n })
	for _, r := range relays {
		r.Stall()
	}
	for _, s := range open {
		check(t, s.Issue(kv.Put("a", []byte("late")), func(kv.Result, error) {}), nil)
		short, cancel := context.WithCancel(ctx)
		cancel()
		check(t, s.Close(short), context.Canceled)
	}
	for _, r := range relays {
		r.Heal()
	}
	sessions(ctx, t, c, func(known int) bool { return known <= before-n+n/4 })
}
