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

// sessions is how many sessions each replica knows.
func sessions(ctx context.Context, t *testing.T, c *kv.Client) (all []int) {
	t.Helper()
	up, _ := c.Replicas()
	for id := range up {
		raw, err := c.Inspect(ctx, id)
		check(t, err, nil)
		var state struct{ Sessions int }
		check(t, json.Unmarshal(raw, &state), nil)
		all = append(all, state.Sessions)
	}
	return all
}

// TestSessionClose opens and closes sessions, of which the cluster keeps nothing.
func TestSessionClose(t *testing.T) {
	cluster := labtest.KV(t, lab.KVConfig{Program: labtest.Weir(t), Preset: "curp-ho", Durability: lab.Fast})
	c := open(t, cluster, kv.Options{})
	ctx := within(t)
	_, err := c.Put(ctx, "a", nil)
	check(t, err, nil)
	for i := range 20 {
		s := c.NewSession()
		ended := make(chan error, 3)
		// What is under way when the session is closed still happens.
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
	items, _, err := c.Range(ctx, "s/", kv.PrefixEnd("s/"))
	check(t, err, nil)
	if len(items) != 60 {
		t.Errorf("%d of 60 writes are there", len(items))
	}
	// The other replicas apply the last end a little later than the leader.
	for most := 0; ; most = 0 {
		for _, n := range sessions(ctx, t, c) {
			most = max(most, n)
		}
		if most <= 1 { // the client's own
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%d sessions are left, want the client's own", most)
		}
	}
	check(t, c.Session.Close(ctx), nil)
	_, err = c.Get(ctx, "a")
	check(t, err, kv.ErrClosed)
}

// TestSessionCloseWithoutACluster ends with its context, and with the client.
func TestSessionCloseWithoutACluster(t *testing.T) {
	cluster := labtest.KV(t, lab.KVConfig{Program: labtest.Weir(t), Durability: lab.Fast})
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
