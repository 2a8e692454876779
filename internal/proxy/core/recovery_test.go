package core_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/testkit"
)

// However many pools wait, the server is asked by one, and again until it answers; then
// all of them try again.
func TestAwaitComeback(t *testing.T) {
	t.Parallel()
	s := serve(t)
	pools := make([]*fakePool, len(s.Loops))
	for i, l := range s.Loops {
		pools[i] = new(fakePool)
		on(t, l, func() { l.PoolList = append(l.PoolList, pools[i]) })
	}
	tries := func() (n int) {
		for i, l := range s.Loops {
			on(t, l, func() { n += pools[i].tries })
		}
		return n
	}
	var asked, at atomic.Int32
	var back atomic.Bool
	ask := func(context.Context) error {
		if at.Add(1) > 1 {
			t.Error("two questions at a time")
		}
		defer at.Add(-1)
		asked.Add(1)
		if !back.Load() {
			return errors.New("not yet")
		}
		return nil
	}
	for range 5 {
		s.AwaitRecovery(ask)
	}
	testkit.Eventually(t, "it is asked again", func() bool { return asked.Load() > 2 })
	if n := tries(); n != 0 {
		t.Errorf("%d pools try again while the server is away", n)
	}
	back.Store(true)
	testkit.Eventually(t, "all pools try again", func() bool { return tries() == len(pools) })
	before := asked.Load()
	s.AwaitRecovery(ask)
	testkit.Eventually(t, "they try again once more", func() bool { return tries() == 2*len(pools) })
	if n := asked.Load() - before; n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
}
