package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Users and databases that came once leave nothing behind.
func TestPoolsOfManyPairsAreDropped(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Listen: "127.0.0.1:0", Postgres: pgwire.ConnectConfig{Address: "127.0.0.1:1"}, Options: session.Options{Loops: 2, PoolKeep: 10 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	l := s.Loops[0]
	call := func(f func()) {
		t.Helper()
		if err := l.Call(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	const pairs = 5000
	call(func() {
		for i := range pairs {
			l.pool(poolKey{database: fmt.Sprint("d", i%100), user: fmt.Sprint("u", i)})
		}
		if len(l.Pools) != pairs || len(l.PoolList) != pairs {
			t.Errorf("%d pools, in a list of %d", len(l.Pools), len(l.PoolList))
		}
	})
	left := func(n int) {
		t.Helper()
		var pools, listed, proofs int
		testkit.Await(t, func() bool {
			call(func() { pools, listed, proofs = len(l.Pools), len(l.PoolList), len(l.proofs) })
			return pools == n && listed == n && proofs <= n
		}, func() string {
			return fmt.Sprintf("%d pools are left, %d in the list, %d proofs; want %d", pools, listed, proofs, n)
		})
	}
	left(0)
	// Pools on several loops are dropped together, when none is in use.
	shared, twin := poolKey{database: "d", user: "shared"}, s.Loops[1]
	onTwin := func(f func()) {
		t.Helper()
		if err := twin.Call(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	call(func() { l.pool(shared) })
	onTwin(func() { twin.pool(shared).Pause() })
	onTwin(func() { twin.pool(poolKey{database: "d", user: "alone"}) })
	kept := 0
	testkit.Await(t, func() bool {
		onTwin(func() { kept = len(twin.Pools) })
		return kept == 1
	}, func() string { return fmt.Sprintf("%d pools are kept, want 1", kept) })
	left(1) // the other loop's is used
	onTwin(func() { twin.Pools[shared].Resume() })
	left(0)
	paused, other := poolKey{database: "d", user: "paused"}, poolKey{database: "d", user: "u"}
	call(func() {
		l.pool(paused).Pause()
		l.pool(other)
	})
	left(1)
	call(func() {
		if p := l.Pools[paused]; p == nil {
			t.Error("a pool that is paused was dropped")
		} else {
			p.Resume()
		}
	})
	left(0)
}
