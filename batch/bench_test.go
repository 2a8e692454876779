package batch

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func echo(_ int, items []int, res []Result[int]) error {
	for i, n := range items {
		res[i].Value = n
	}
	return nil
}

// BenchmarkQueue is the core's own cost per item in groups of 64.
func BenchmarkQueue(b *testing.B) {
	q := NewQueue[int](Config{})
	buf := make([]int, 0, 64)
	var now time.Duration
	b.ReportAllocs()
	for b.Loop() {
		for range 64 {
			_ = q.Push(now, 1, 1)
		}
		buf, _ = q.Take(now, buf[:0])
		now += time.Microsecond
		q.Done(now, len(buf), time.Microsecond)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/item")
}

// BenchmarkSubmitAlone is one goroutine: two switches and no company.
func BenchmarkSubmitAlone(b *testing.B) {
	bt := New(Options[int]{}, echo)
	defer bt.Close()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = bt.Submit(context.Background(), 0, 1)
	}
}

// BenchmarkSubmitMany is 256 goroutines per processor.
func BenchmarkSubmitMany(b *testing.B) {
	bt := New(Options[int]{}, echo)
	defer bt.Close()
	b.SetParallelism(256)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = bt.Submit(context.Background(), 0, 1)
		}
	})
	s := bt.Stats()
	b.ReportMetric(s.GroupSize.Mean(), "items/group")
}

// BenchmarkWindow is the precision of a fixed window when nothing else runs:
// late-us is the mean by which a group leaves later than its window, with the
// kernel's timer and, for comparison, with the runtime's.
func BenchmarkWindow(b *testing.B) {
	for _, w := range []time.Duration{25, 50, 100, 150, 1000} {
		w *= time.Microsecond
		for _, precise := range []bool{true, false} {
			b.Run(fmt.Sprintf("%v/precise=%v", w, precise), func(b *testing.B) {
				bt := New(Options[int]{Config: Config{Window: w}}, echo)
				bt.precise = precise
				defer bt.Close()
				for b.Loop() {
					_, _ = bt.Submit(context.Background(), 0, 1)
				}
				s := bt.Stats()
				b.ReportMetric((s.Wait.Mean()-float64(w))/1e3, "late-us")
			})
		}
	}
}
