package bulk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup/guard"
)

// scaling is a server that gives more to more workers up to a number.
func scaling(best int, beyond float64) func(n int) float64 {
	return func(n int) float64 {
		return 100 * (float64(min(n, best)) + beyond*float64(max(0, n-best)))
	}
}

// tune lets a tuner choose for so many windows and returns where it was how often.
func tune(p *tuner, rate func(n int) float64, windows int) map[int]int {
	seen := map[int]int{}
	for range windows {
		p.n = p.window(rate(p.n))
		seen[p.n]++
	}
	return seen
}

func TestTunerFindsWhatTheServerGives(t *testing.T) {
	for _, c := range []struct {
		name               string
		least, start, most int
		rate               func(int) float64
		want               int
	}{
		{"two processors", 1, 2, 8, scaling(2, 0), 2},
		{"from below", 1, 1, 8, scaling(4, 0), 4},
		{"from above", 1, 8, 8, scaling(3, 0), 3},
		{"more do harm", 1, 2, 8, scaling(2, -0.2), 2},
		{"a little more is not enough", 1, 2, 8, scaling(2, 0.2), 2},
		{"as many as may be", 1, 2, 6, scaling(100, 0), 6},
		{"the least", 3, 3, 8, scaling(1, 0), 3},
	} {
		p := newTuner(c.least, c.start, c.most)
		tune(p, c.rate, 400)
		seen := tune(p, c.rate, 400)
		if seen[c.want] < 300 {
			t.Errorf("%s: of 400 windows %v, want most with %d", c.name, seen, c.want)
		}
		for n := range seen {
			if n < c.least || n > c.most {
				t.Errorf("%s: %d workers, outside of %d to %d", c.name, n, c.least, c.most)
			}
		}
	}
}

// A server that gets faster, or slower, is followed.
func TestTunerFollowsAChange(t *testing.T) {
	p := newTuner(1, 2, 8)
	tune(p, scaling(2, 0), 400)
	if seen := tune(p, scaling(5, 0), 1500); p.base != 5 {
		t.Errorf("it gives more: %v, at the end %d", seen, p.base)
	}
	if seen := tune(p, scaling(2, 0), 1500); p.base != 2 {
		t.Errorf("it gives less: %v, at the end %d", seen, p.base)
	}
	// Without bytes, as while indexes are built, the profile's number is taken.
	tune(p, func(int) float64 { return 0 }, 50)
	if p.n != 2 {
		t.Errorf("no bytes: %d workers, want the start", p.n)
	}
}

// TestPoolGrowsAndShrinks has jobs that all wait for each other, and then
// one long job: workers come while they move more, and go when nothing is left.
func TestPoolGrowsAndShrinks(t *testing.T) {
	var moved, running, rested atomic.Int64
	var once sync.Once
	grown, alone := make(chan struct{}), make(chan struct{})
	var jobs []Job
	var last []string
	for i := range 4000 {
		id := fmt.Sprint("short ", i)
		last = append(last, id)
		jobs = append(jobs, Job{ID: id, Size: 1, Do: func(ctx context.Context, _ int) error {
			n := running.Add(1)
			defer running.Add(-1)
			if n >= 3 {
				once.Do(func() { close(grown) })
			}
			select {
			case <-grown: // the rest is quick
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
			moved.Add(1 << 20)
			return nil
		}})
	}
	jobs = append(jobs, Job{ID: "long", After: last, Do: func(ctx context.Context, _ int) error {
		select {
		case <-alone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}, Job{ID: "end", After: []string{"long"}, Do: func(context.Context, int) error { return nil }})
	stats := WorkerPoolStats{Name: "shop"}
	err := WorkerPool{
		Start: 1, Least: 1, Most: 3, Idle: time.Millisecond, Window: 2 * time.Millisecond,
		Moved: moved.Load, Stats: &stats,
		Rest: func(int) error {
			if rested.Add(1) == 2 {
				close(alone)
			}
			return nil
		},
	}.Run(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-grown:
	default:
		t.Error("never three workers at once")
	}
	if stats.Peak != 3 || stats.Grown < 2 || stats.Completed != len(jobs) || stats.Failed != 0 || stats.Shrunk+stats.Idled < 2 || stats.Name != "shop" {
		t.Errorf("metrics: %+v", stats)
	}
	if len(stats.Steps) == 0 || stats.Steps[0].Workers != 2 || stats.Steps[0].Rate <= 0 {
		t.Errorf("steps: %+v", stats.Steps)
	}
}

// An idle worker lets go of what it holds, and comes again when there is work.
func TestPoolEndsIdleWorkers(t *testing.T) {
	let := make(chan struct{})
	var once sync.Once
	both := make(chan struct{}, 2)
	meet := func(context.Context, int) error { // needs two workers
		both <- struct{}{}
		for len(both) < 2 {
			time.Sleep(time.Millisecond)
		}
		return nil
	}
	stats := WorkerPoolStats{}
	err := WorkerPool{
		Start: 2, Least: 1, Most: 2, Idle: time.Millisecond, Window: time.Millisecond, Stats: &stats,
		Rest: func(int) error { once.Do(func() { close(let) }); return nil },
	}.Run(t.Context(), []Job{
		{ID: "long", Do: func(context.Context, int) error { <-let; return nil }},
		{ID: "short", Do: func(context.Context, int) error { return nil }},
		{ID: "again 1", After: []string{"long"}, Do: meet},
		{ID: "again 2", After: []string{"long"}, Do: meet},
	})
	if err != nil || stats.Idled < 1 || stats.Peak != 2 || stats.Completed != 4 {
		t.Errorf("%v, metrics: %+v", err, stats)
	}
}

// TestPoolKeepsTheGraphsPromises runs jobs in an order and under locks while
// workers come and go.
func TestPoolKeepsTheGraphsPromises(t *testing.T) {
	var moved atomic.Int64
	var mu sync.Mutex
	ended, held := map[string]bool{}, map[string]bool{}
	var jobs []Job
	for i := range 600 {
		j := Job{ID: fmt.Sprint(i), Locks: []string{fmt.Sprint("lock ", i%7)}}
		if i > 9 {
			j.After = []string{fmt.Sprint(i - 10)}
		}
		j.Do = func(context.Context, int) error {
			mu.Lock()
			if held[j.Locks[0]] || len(j.After) > 0 && !ended[j.After[0]] {
				t.Errorf("job %s: lock held %v, the one before ended %v", j.ID, held[j.Locks[0]], ended)
			}
			held[j.Locks[0]] = true
			mu.Unlock()
			moved.Add(int64(i))
			mu.Lock()
			held[j.Locks[0]], ended[j.ID] = false, true
			mu.Unlock()
			return nil
		}
		jobs = append(jobs, j)
	}
	c := WorkerPool{Start: 2, Least: 1, Most: 9, Idle: 1, Window: time.Microsecond, Moved: moved.Load, Rest: func(int) error { return nil }}
	if err := c.Run(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	if len(ended) != len(jobs) {
		t.Errorf("%d of %d jobs ran", len(ended), len(jobs))
	}
}

// A worker that cannot let go of what it holds fails the run.
func TestPoolFailsWithItsWorkers(t *testing.T) {
	stuck := errors.New("stuck")
	release := make(chan struct{})
	err := WorkerPool{
		Start: 2, Least: 1, Most: 2, Idle: 1, Window: time.Millisecond,
		Rest: func(int) error { close(release); return stuck },
	}.Run(t.Context(), []Job{{ID: "long", Do: func(context.Context, int) error { <-release; return nil }}, {ID: "next", After: []string{"long"}, Do: func(context.Context, int) error { return nil }}, {ID: "short", Do: func(context.Context, int) error { return nil }}})
	if !errors.Is(err, stuck) {
		t.Errorf("error: %v", err)
	}
}

func TestPanicNamesItsJob(t *testing.T) {
	for _, pool := range []WorkerPool{{Start: 2}, {Start: 1, Most: 3}} {
		err := pool.Run(t.Context(), []Job{
			{ID: "db/shop/data/public.orders/0001.copy", Do: func(context.Context, int) error { panic("index out of range") }},
			{ID: "other", After: []string{"db/shop/data/public.orders/0001.copy"}, Do: func(context.Context, int) error {
				t.Error("a job ran after a panic")
				return nil
			}},
		})
		var p *guard.PanicError
		if !errors.As(err, &p) || p.Job != "db/shop/data/public.orders/0001.copy" {
			t.Fatalf("error: %v", err)
		}
		for _, want := range []string{"public.orders/0001.copy", "index out of range", "workerpool_test.go"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %v", want, err)
			}
		}
	}
}

func TestAdaptKeepsItsBounds(t *testing.T) {
	for _, c := range []struct {
		a                 Adapt
		jobs, start, most int
	}{
		{Adapt{}, 3, 3, 3},
		{Adapt{Max: 8}, 3, 3, 8},
		{Adapt{Max: 2}, 3, 2, 2},
		{Adapt{Min: 4, Max: 8}, 3, 4, 8},
		{Adapt{Max: 1}, -1, -1, 1},
	} {
		if c.a.Start(c.jobs) != c.start || c.a.Most(c.jobs) != c.most {
			t.Errorf("%+v of %d jobs: from %d to %d, want %d to %d", c.a, c.jobs, c.a.Start(c.jobs), c.a.Most(c.jobs), c.start, c.most)
		}
	}
	if c := (Adapt{Min: 2, Max: 9}).WorkerPool(6, 3); c.Start != 2 || c.Least != 1 || c.Most != 3 {
		t.Errorf("a third of the jobs: %+v", c)
	}
}
