package measure

import (
	"slices"
	"sync"
	"testing"
)

func ops(s *Series) []int64 {
	var out []int64
	for _, v := range s.Intervals {
		out = append(out, v.Ops)
	}
	return out
}

func TestTimelinePutsOperationsWhereTheyEnded(t *testing.T) {
	const second = 1e9
	tl := NewTimeline(2, second)
	a, b := tl.Shard(0), tl.Shard(1)
	a.Record(0.2*second, 10, false)
	b.Record(0.9*second, 30, false)
	a.Record(2.1*second, 50, false)
	b.Record(2.2*second, 7, true)
	a.Record(0.5*second, 20, false) // late: another worker's clock reading was delivered first
	got := tl.Series()
	if want := []int64{3, 0, 1}; !slices.Equal(ops(got), want) || got.IntervalSeconds != 1 {
		t.Errorf("operations %v, want %v", ops(got), want)
	}
	if v := got.Intervals[0]; v.P50Ns != 20 || v.MaxNs != 30 || v.Errors != 0 {
		t.Errorf("first interval %+v", v)
	}
	if v := got.Intervals[2]; v.Errors != 1 || v.MaxNs != 50 {
		t.Errorf("third interval %+v: the failed operation counts, its latency does not", v)
	}
	if again := tl.Series(); !slices.Equal(ops(again), ops(got)) {
		t.Errorf("asked twice: %v", ops(again))
	}
	if part := got.Between(0.5, 3); !slices.Equal(ops(part), []int64{0, 1}) {
		t.Errorf("from 0.5 s on: %v", ops(part))
	}
	if rates := got.Rates(); !slices.Equal(rates, []float64{3, 0, 1}) {
		t.Errorf("rates %v", rates)
	}
}

func TestTimelineWidensInsteadOfGrowing(t *testing.T) {
	tl := NewTimeline(1, 1000)
	s := tl.Shard(0)
	const n = 3 * maxIntervals
	for i := range int64(n) {
		s.Record(i*1000, i+1, i%10 == 0)
	}
	got := tl.Series()
	if len(got.Intervals) > maxIntervals || got.IntervalSeconds != 4e-6 {
		t.Fatalf("%d intervals of %v s", len(got.Intervals), got.IntervalSeconds)
	}
	var sum, failed int64
	for i, v := range got.Intervals {
		sum, failed = sum+v.Ops, failed+v.Errors
		if v.Ops+v.Errors != 4 {
			t.Fatalf("interval %d holds %d operations, want 4", i, v.Ops+v.Errors)
		}
		if want := bucketMid(bucketOf(int64(4*i + 4))); v.MaxNs != int64(4*i+4) && v.MaxNs != want && v.Errors == 0 {
			t.Fatalf("interval %d: max %d", i, v.MaxNs)
		}
	}
	if sum+failed != n || failed != (n+9)/10 {
		t.Errorf("%d operations and %d errors, want %d in all", sum, failed, n)
	}
}

func TestTimelineLosesNothingBetweenWorkers(t *testing.T) {
	tl := NewTimeline(4, 100)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range int64(5000) {
				tl.Shard(w).Record(i*10, 1, false)
			}
		})
	}
	for range 20 {
		tl.Series()
	}
	all.Wait()
	var sum int64
	for _, n := range ops(tl.Series()) {
		sum += n
	}
	if sum != 20000 {
		t.Errorf("%d operations, want 20000", sum)
	}
}
