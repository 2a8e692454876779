package mysql

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Users and databases that came once leave nothing behind.
func TestPoolsOfManyPairsAreDropped(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Listen: "127.0.0.1:0", MySQL: mywire.ConnectConfig{Address: "127.0.0.1:1"}, Options: session.Options{Loops: 1, PoolKeep: 10 * time.Millisecond}})
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
			l.pool(poolKey{database: fmt.Sprint("d", i%100), user: fmt.Sprint("u", i/2), charset: byte(i % 2)})
		}
		if len(l.Pools) != pairs || len(l.PoolList) != pairs {
			t.Errorf("%d pools, in a list of %d", len(l.Pools), len(l.PoolList))
		}
	})
	testkit.Await(t, func() (gone bool) {
		call(func() { gone = len(l.Pools)+len(l.PoolList)+len(l.catalogues) == 0 })
		return gone
	}, func() string { return "pools that nobody uses are kept" })
}
