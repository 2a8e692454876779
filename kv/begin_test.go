package kv_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/kv"
)

// testWhatIsNotBegun: an operation that is refused, or whose context has ended before,
// changes nothing.
func testWhatIsNotBegun(t *testing.T, cluster *lab.KV) {
	c := open(t, cluster, kv.Options{})
	ctx := within(t)
	_, err := c.Put(ctx, "k", []byte("a"))
	check(t, err, nil)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Put(ended, "k", []byte("b")); !errors.Is(err, context.Canceled) || errors.As(err, new(*kv.UnknownError)) {
		t.Errorf("a put whose context has ended: %v", err)
	}
	for _, d := range []time.Duration{0, -time.Microsecond, -time.Hour} {
		if _, err := c.Put(ctx, "k", []byte("c"), kv.TTL(d)); err == nil {
			t.Errorf("a put that lives for %v was taken", d)
		}
	}
	got, err := c.Get(ctx, "k")
	check(t, err, nil)
	if string(got.Value) != "a" {
		t.Errorf("the key has %q", got.Value)
	}
	if _, err := c.Grant(ctx, time.Microsecond); err != nil {
		t.Errorf("a lease of a microsecond, rounded up to one of a millisecond: %v", err)
	}
	check(t, c.Close(), nil)
	if _, err := c.NewSession().Put(ctx, "k", nil); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("a session of a client that was closed: %v", err)
	}
}
