package outbox

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// claimSizes notes what claims are asked for.
type claimSizes struct {
	*memStore
	mu    sync.Mutex
	asked []int
}

func (s *claimSizes) Claim(ctx context.Context, req ClaimRequest) (Claim, error) {
	s.mu.Lock()
	s.asked = append(s.asked, req.MaxBytes)
	s.mu.Unlock()
	return s.memStore.Claim(ctx, req)
}

// The workers together claim no more bytes than may be in flight.
func TestClaimsAreBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &claimSizes{memStore: newMemStore()}
		cfg := fast()
		cfg.Claim, cfg.MaxInFlightBytes, cfg.Publishers = SkipLocked, 1000, 4
		_, stop := running(t, store, &memSink{}, cfg)
		time.Sleep(time.Second)
		stop()
		store.mu.Lock()
		defer store.mu.Unlock()
		if len(store.asked) == 0 || slices.ContainsFunc(store.asked, func(n int) bool { return n != 250 }) {
			t.Errorf("claims of %v bytes, want 250", store.asked)
		}
	})
}
