package batch

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A large item gets its turn although small ones come all the time: those who wait for
// room get it in their order.
func TestBatcherLetsInByTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options[int]{
			Config: Config{CapacityBytes: 100, MaxBytes: 100, Lanes: 1, NoHold: true},
			Size:   func(n int) int { return n },
		}, func(_ string, _ []int, _ []Result[int]) error {
			time.Sleep(time.Second)
			return nil
		})
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var clients sync.WaitGroup
		for range 300 {
			clients.Go(func() {
				for ctx.Err() == nil {
					_, _ = b.Submit(ctx, "k", 1)
				}
			})
		}
		time.Sleep(2500 * time.Millisecond)
		large, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := b.Submit(large, "k", 100); err != nil {
			t.Errorf("the large item: %v", err)
		}
		clients.Wait()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A caller that gives up while it waits for room does not delay those behind it.
func TestBatcherGivesUpInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		b := New(Options[int]{
			Config: Config{CapacityBytes: 10, MaxBytes: 10, Lanes: 1, NoHold: true},
			Size:   func(n int) int { return n },
		}, func(string, []int, []Result[int]) error {
			<-held
			return nil
		})
		var answers sync.WaitGroup
		submit := func(ctx context.Context, size int, want error) {
			answers.Go(func() {
				if _, err := b.Submit(ctx, "k", size); err != want {
					t.Errorf("size %d: %v, want %v", size, err, want)
				}
			})
			synctest.Wait()
		}
		submit(t.Context(), 1, nil) // in flight
		submit(t.Context(), 5, nil) // waits in the queue
		ctx, giveUp := context.WithCancel(t.Context())
		submit(ctx, 9, context.Canceled) // waits for room
		submit(t.Context(), 5, nil)      // behind it, although there is room
		if n := b.Stats().Waiting; n != 1 {
			t.Errorf("%d items wait, want 1", n)
		}
		giveUp()
		synctest.Wait()
		if n := b.Stats().Waiting; n != 2 {
			t.Errorf("%d items wait, want 2", n)
		}
		submit(t.Context(), 5, ErrClosed) // for room
		closed := make(chan struct{})
		go func() { _ = b.Close(); close(closed) }()
		synctest.Wait()
		close(held)
		answers.Wait()
		<-closed
	})
}
