package batch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// newVirtual is New for a synctest bubble: the alarm must not sleep in the
// kernel, which does not know the virtual clock.
func newVirtual[K comparable, T, R any](o Options[T], f Flush[K, T, R]) *Batcher[K, T, R] {
	b := New(o, f)
	b.precise = false
	return b
}

func TestBatcherGivesEachItemItsOwnResult(t *testing.T) {
	errOdd, errRest := errors.New("odd"), errors.New("rest")
	b := New(Options[int]{}, func(key string, items []int, res []Result[string]) error {
		for i, n := range items {
			switch {
			case n%3 == 1:
				res[i].Err = errOdd
			case key == "bad":
			default:
				res[i].Value = fmt.Sprint(key, n)
			}
		}
		if key == "bad" {
			return errRest
		}
		return nil
	})
	defer b.Close()
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			key := []string{"a", "b", "bad"}[i/100]
			got, err := b.Submit(t.Context(), key, i)
			switch {
			case i%3 == 1:
				if !errors.Is(err, errOdd) {
					t.Errorf("item %d: error %v", i, err)
				}
			case key == "bad":
				if !errors.Is(err, errRest) {
					t.Errorf("item %d: error %v", i, err)
				}
			case err != nil || got != fmt.Sprint(key, i):
				t.Errorf("item %d: %q, %v", i, got, err)
			}
		})
	}
	wg.Wait()
}

func TestBatcherFixedWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		b := newVirtual(Options[int]{Config: Config{Window: 150 * time.Microsecond, MaxItems: 3}},
			func(_ int, items []int, res []Result[int]) error {
				for i := range items {
					res[i].Value = len(items)
				}
				at = append(at, time.Since(start))
				return nil
			})
		var wg sync.WaitGroup
		submit := func(n int) {
			for range n {
				wg.Go(func() {
					if got, err := b.Submit(t.Context(), 0, 0); got != n || err != nil {
						t.Errorf("group of %d, %v; want %d", got, err, n)
					}
				})
			}
			wg.Wait()
		}
		submit(2) // waits for the window
		submit(3) // full, goes at once
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if len(at) != 2 || at[0] != 150*time.Microsecond || at[1] != at[0] {
			t.Errorf("groups left at %v", at)
		}
		if s := b.Stats(); s.Reasons[ReasonWindow] != 1 || s.Reasons[ReasonItems] != 1 {
			t.Errorf("reasons %v", s.Reasons)
		}
	})
}

// stuck is a batcher with one lane whose first flush waits for release.
func stuck(o Options[int]) (b *Batcher[int, int, int], release chan struct{}, flushed *[]int) {
	release, flushed = make(chan struct{}), new([]int)
	o.Lanes = 1
	b = newVirtual(o, func(_ int, items []int, _ []Result[int]) error {
		<-release
		*flushed = append(*flushed, items...)
		return nil
	})
	return b, release, flushed
}

func TestBatcherCancelWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, release, flushed := stuck(Options[int]{})
		go b.Submit(t.Context(), 1, 1)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() { _, err := b.Submit(ctx, 1, 2); got <- err }()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled item: %v", err)
		}
		close(release)
		b.Close()
		if len(*flushed) != 1 || (*flushed)[0] != 1 {
			t.Errorf("flushed %v, want only item 1", *flushed)
		}
		if s := b.Stats(); s.Removed != 1 || s.Waiting != 0 {
			t.Errorf("removed %d, waiting %d", s.Removed, s.Waiting)
		}
	})
}

func TestBatcherCancelInFlightFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, release, flushed := stuck(Options[int]{})
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() { _, err := b.Submit(ctx, 1, 2); got <- err }()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled item: %v", err)
		}
		close(release)
		b.Close()
		if len(*flushed) != 1 {
			t.Errorf("flushed %v, want the item in flight", *flushed)
		}
	})
}

func TestBatcherFullRefusesOrBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, refuse := range []bool{true, false} {
			b, release, flushed := stuck(Options[int]{Config: Config{Capacity: 1}, Refuse: refuse})
			go b.Submit(t.Context(), 1, 1)
			synctest.Wait()
			go b.Submit(t.Context(), 1, 2)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := b.Submit(ctx, 1, 3)
			cancel()
			want := context.DeadlineExceeded
			if refuse {
				want = ErrFull
			}
			if !errors.Is(err, want) {
				t.Errorf("refuse %v: %v", refuse, err)
			}
			late := make(chan error, 1)
			if !refuse {
				go func() { _, err := b.Submit(t.Context(), 1, 4); late <- err }()
				synctest.Wait()
			}
			close(release)
			if !refuse {
				if err := <-late; err != nil {
					t.Errorf("blocked item: %v", err)
				}
			}
			b.Close()
			if n := len(*flushed); refuse && n != 2 || !refuse && n != 3 {
				t.Errorf("refuse %v: flushed %v", refuse, *flushed)
			}
		}
	})
}

func TestBatcherCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, release, flushed := stuck(Options[int]{Config: Config{MaxItems: 4}, Ordered: true})
		calls := 0
		for i := range 50 {
			if err := b.Go(t.Context(), i%3, i, func(int, error) { calls++ }); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		closed := make(chan struct{})
		go func() { b.Close(); close(closed) }()
		synctest.Wait()
		if _, err := b.Submit(t.Context(), 1, 0); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		select {
		case <-closed:
			t.Error("Close returned before the flush")
		default:
		}
		close(release)
		<-closed
		b.Close()
		if len(*flushed) != 50 || calls != 50 {
			t.Errorf("flushed %d, called back %d of 50", len(*flushed), calls)
		}
	})
}

func TestBatcherOrderedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu     sync.Mutex
			flying = map[int]int{}
			next   = map[int]int{}
			most   int
		)
		b := newVirtual(Options[int]{Config: Config{Lanes: 4, MaxItems: 5}, Ordered: true},
			func(key int, items []int, _ []Result[int]) error {
				mu.Lock()
				flying[key]++
				if flying[key] > 1 {
					t.Errorf("key %d twice in flight", key)
				}
				most = max(most, len(flying))
				for _, n := range items {
					if n != next[key] {
						t.Errorf("key %d: item %d, want %d", key, n, next[key])
					}
					next[key]++
				}
				mu.Unlock()
				time.Sleep(time.Duration(1+key) * time.Millisecond)
				mu.Lock()
				delete(flying, key)
				mu.Unlock()
				return nil
			})
		for n := range 100 {
			for key := range 3 {
				_ = b.Go(t.Context(), key, n, func(int, error) {})
			}
		}
		b.Close()
		for key := range 3 {
			if next[key] != 100 {
				t.Errorf("key %d: %d of 100", key, next[key])
			}
		}
		if most != 3 {
			t.Errorf("%d keys flew together, want 3", most)
		}
	})
}

func TestBatcherKeysTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		b := newVirtual(Options[int]{Config: Config{Lanes: 1, MaxItems: 10}},
			func(key string, _ []int, _ []Result[int]) error {
				time.Sleep(time.Millisecond)
				order = append(order, key)
				return nil
			})
		for i := range 1000 {
			_ = b.Go(t.Context(), "busy", i, func(int, error) {})
		}
		_ = b.Go(t.Context(), "small", 0, func(int, error) {})
		b.Close()
		for i, key := range order {
			if key == "small" {
				if i > 2 {
					t.Errorf("the small key waited for %d groups", i)
				}
				return
			}
		}
		t.Error("the small key never went")
	})
}

func TestBatcherPanicEndsTheProgram(t *testing.T) {
	if os.Getenv("BATCH_TEST_PANIC") != "" {
		b := New(Options[int]{}, func(int, []int, []Result[int]) error { panic("flush went wrong") })
		_, _ = b.Submit(context.Background(), 0, 0)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBatcherPanicEndsTheProgram$")
	cmd.Env = append(os.Environ(), "BATCH_TEST_PANIC=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: flush went wrong") || strings.Contains(string(out), "unlocked mutex") {
		t.Errorf("error %v, output %s", err, out)
	}
}

func TestBatcherControllerFeelsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newVirtual(Options[int]{Config: Config{NoHold: true, MaxItems: 4}}, func(int, []int, []Result[int]) error {
			time.Sleep(time.Millisecond)
			return nil
		})
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 400 {
					_, _ = b.Submit(t.Context(), 0, 0)
				}
			})
		}
		wg.Wait()
		b.Close()
		if s := b.Stats(); s.PeakLanes != 4 || s.Lanes < 3 {
			t.Errorf("peak %d lanes, limit %d after %d probes; lanes that do not disturb each other should all be used", s.PeakLanes, s.Lanes, s.Probes)
		}
	})
}

func TestSubmitDoesNotAllocateWarm(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has sync.Pool drop things on purpose")
	}
	b := New(Options[int]{}, func(_ string, items []int, res []Result[int]) error {
		for i, n := range items {
			res[i].Value = n
		}
		return nil
	})
	defer b.Close()
	ctx := context.Background()
	if n := testing.AllocsPerRun(1000, func() {
		if got, err := b.Submit(ctx, "key", 5); got != 5 || err != nil {
			t.Fatal(got, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per item", n)
	}
}
