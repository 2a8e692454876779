package batch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestBatcherUnderStressLosesNothing has many goroutines submit on the real
// clock, cancel, get refused and close, and counts each item's fate.
func TestBatcherUnderStressLosesNothing(t *testing.T) {
	for name, o := range map[string]Options[int]{
		"adaptive": {Config: Config{MaxItems: 8, Capacity: 40}},
		"ordered":  {Config: Config{MaxItems: 8, Capacity: 40}, Ordered: true},
		"refuse":   {Config: Config{MaxItems: 8, Capacity: 10}, Refuse: true},
		"window":   {Config: Config{Window: 50 * time.Microsecond, MaxItems: 8, MaxLanes: 3}},
		"max wait": {Config: Config{MaxWait: 20 * time.Microsecond, MaxItems: 8, MaxBytes: 30}, Size: func(n int) int { return n % 17 }},
	} {
		t.Run(name, func(t *testing.T) {
			const senders, each = 24, 60
			var seen [senders * each]atomic.Int32
			b := New(o, func(key int, items []int, res []Result[int]) error {
				for i, n := range items {
					if n%5 != key {
						t.Errorf("item %d in a group of key %d", n, key)
					}
					seen[n].Add(1)
					res[i].Value = -n
				}
				return nil
			})
			var answered, refused, cancelled atomic.Int32
			var wg sync.WaitGroup
			for s := range senders {
				wg.Go(func() {
					for i := range each {
						n := s*each + i
						ctx, cancel := context.WithCancel(context.Background())
						if n%7 == 0 {
							go cancel()
						}
						got, err := b.Submit(ctx, n%5, n)
						cancel()
						switch {
						case err == nil && got == -n:
							answered.Add(1)
							if seen[n].Load() != 1 {
								t.Errorf("item %d flushed %d times", n, seen[n].Load())
							}
						case errors.Is(err, ErrFull):
							refused.Add(1)
							if seen[n].Load() != 0 {
								t.Errorf("refused item %d was flushed", n)
							}
						case errors.Is(err, context.Canceled):
							cancelled.Add(1)
						default:
							t.Errorf("item %d: %d, %v", n, got, err)
						}
					}
				})
			}
			wg.Wait()
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if sum := answered.Load() + refused.Load() + cancelled.Load(); sum != senders*each {
				t.Errorf("%d fates for %d items", sum, senders*each)
			}
			for n := range seen {
				if c := seen[n].Load(); c > 1 {
					t.Errorf("item %d flushed %d times", n, c)
				}
			}
			s := b.Stats()
			if s.Pushed != s.Items+s.Removed || s.Waiting != 0 || s.InFlight != 0 {
				t.Errorf("pushed %d, flushed %d, removed %d, left %d and %d", s.Pushed, s.Items, s.Removed, s.Waiting, s.InFlight)
			}
		})
	}
}
