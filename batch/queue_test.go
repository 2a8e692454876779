package batch

import (
	"testing"
	"time"
)

func TestQueueIdleTakesAtOnce(t *testing.T) {
	q := NewQueue[int](Config{})
	if err := q.Push(0, 7, 0); err != nil {
		t.Fatal(err)
	}
	got, why := q.Take(0, nil)
	if len(got) != 1 || got[0] != 7 || why != ReasonIdle {
		t.Fatalf("took %v for %v", got, why)
	}
	_ = q.Push(1, 8, 0)
	if got, why := q.Take(time.Second, nil); len(got) != 0 || why != ReasonNone {
		t.Fatalf("second lane at once: %v %v", got, why)
	}
	q.Done(time.Second, 1, time.Second)
	if got, why := q.Take(time.Second, nil); len(got) != 1 || why != ReasonIdle {
		t.Fatalf("after Done: %v %v", got, why)
	}
}
