package batch

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// slowQueue is the oracle: what a Queue promises, written as plainly as can be.
// It does not say when the controller opens a lane; it says whether a group may
// look as it does.
type slowQueue struct {
	cfg     Config
	waiting []slowItem
	flying  []int // sizes of groups
	closed  bool
}

type slowItem struct {
	id, size int
	at       time.Duration
}

func (s *slowQueue) bytes() (n int) {
	for _, w := range s.waiting {
		n += w.size
	}
	return n
}

func (s *slowQueue) inFlight() (n int) {
	for _, group := range s.flying {
		n += group
	}
	return n
}

func (s *slowQueue) push(now time.Duration, id, size int) error {
	switch {
	case s.closed:
		return ErrClosed
	case len(s.waiting) >= s.cfg.Capacity:
		return ErrFull
	case s.cfg.CapacityBytes > 0 && len(s.waiting) > 0 && s.bytes()+size > s.cfg.CapacityBytes:
		return ErrFull
	}
	s.waiting = append(s.waiting, slowItem{id, size, now})
	return nil
}

// group is the group that goes if one may go: a prefix of what waits.
func (s *slowQueue) group() (ids []int) {
	bytes := 0
	for _, w := range s.waiting {
		if len(ids) == s.cfg.MaxItems {
			break
		}
		if s.cfg.MaxBytes > 0 && len(ids) > 0 && bytes+w.size > s.cfg.MaxBytes {
			break
		}
		ids = append(ids, w.id)
		bytes += w.size
	}
	return ids
}

// may reports whether a group must go (given that many lanes), and why.
func (s *slowQueue) may(now time.Duration, lanes int) Reason {
	if len(s.waiting) == 0 || len(s.flying) >= s.cfg.MaxLanes {
		return ReasonNone
	}
	waited := now - s.waiting[0].at
	overdue := s.cfg.MaxWait > 0 && waited >= s.cfg.MaxWait
	if len(s.flying) >= lanes {
		if overdue {
			return ReasonMaxWait
		}
		return ReasonNone
	}
	switch {
	case s.closed:
		return ReasonClose
	case len(s.waiting) >= s.cfg.MaxItems:
		return ReasonItems
	case s.cfg.MaxBytes > 0 && s.bytes() >= s.cfg.MaxBytes:
		return ReasonBytes
	case s.cfg.Window == 0:
		return ReasonIdle
	case overdue && s.cfg.MaxWait < s.cfg.Window:
		return ReasonMaxWait
	case waited >= s.cfg.Window:
		return ReasonWindow
	}
	return ReasonNone
}

// playOracle drives a Queue and the oracle with the same random steps.
func playOracle(t *testing.T, seed uint64, cfg Config, steps int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	q := NewQueue[int](cfg)
	s := &slowQueue{cfg: cfg.withDefaults()}
	var now time.Duration
	var buf []int
	id := 0
	for step := range steps {
		now += time.Duration(rng.IntN(30)) * time.Microsecond
		switch op := rng.IntN(20); {
		case op < 9:
			size := rng.IntN(40)
			got, want := q.Push(now, id, size), s.push(now, id, size)
			if !errors.Is(got, want) {
				t.Fatalf("step %d: Push: %v, want %v", step, got, want)
			}
			id++
		case op < 14:
			lanes := q.Lanes()
			if s.cfg.Lanes > 0 && lanes != s.cfg.Lanes || lanes < s.cfg.MinLanes || lanes > s.cfg.MaxLanes {
				t.Fatalf("step %d: %d lanes with %+v", step, lanes, s.cfg)
			}
			want := s.may(now, lanes)
			at, ok := q.Deadline()
			if mayNow := ok && at <= now; mayNow != (want != ReasonNone) {
				t.Fatalf("step %d: Deadline %v %v at %v, want reason %v", step, at, ok, now, want)
			}
			var why Reason
			buf, why = q.Take(now, buf[:0])
			if why != want {
				t.Fatalf("step %d: Take for %v, want %v", step, why, want)
			}
			if why != ReasonNone {
				group := s.group()
				if !slices.Equal(buf, group) {
					t.Fatalf("step %d: took %v, want %v", step, buf, group)
				}
				s.waiting = s.waiting[len(group):]
				s.flying = append(s.flying, len(group))
			}
		case op < 19:
			if n := len(s.flying); n > 0 {
				i := rng.IntN(n)
				back := rng.IntN(s.flying[i] + 1)
				q.Back(back)
				s.flying[i] -= back
				q.Done(now, s.flying[i], time.Duration(1+rng.IntN(90))*time.Microsecond)
				s.flying = slices.Delete(s.flying, i, i+1)
			}
		default:
			m := 2 + rng.IntN(5)
			cancelled := func(id int) bool { return id%m == 0 }
			before := len(s.waiting)
			s.waiting = slices.DeleteFunc(s.waiting, func(w slowItem) bool { return cancelled(w.id) })
			if n := q.Remove(cancelled); n != before-len(s.waiting) {
				t.Fatalf("step %d: removed %d, want %d", step, n, before-len(s.waiting))
			}
		}
		if step == steps*9/10 {
			q.Close()
			s.closed = true
		}
		if n := s.inFlight(); q.gate.flying != n {
			t.Fatalf("step %d: %d items in flight, want %d", step, q.gate.flying, n)
		}
		if q.Len() != len(s.waiting) || q.Bytes() != s.bytes() || q.InFlight() != len(s.flying) {
			t.Fatalf("step %d: %d items, %d bytes, %d lanes; want %d, %d, %d",
				step, q.Len(), q.Bytes(), q.InFlight(), len(s.waiting), s.bytes(), len(s.flying))
		}
	}
	st := q.Stats()
	if st.Pushed != st.Items+st.Removed+uint64(st.Waiting) {
		t.Fatalf("pushed %d, flushed %d, removed %d, waiting %d", st.Pushed, st.Items, st.Removed, st.Waiting)
	}
}

// FuzzQueueAgainstOracle holds the queue to the oracle. The hold is left out
// (NoHold): TestHold has it.
func FuzzQueueAgainstOracle(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed*37), uint8(seed*11), uint8(seed*5), uint8(seed*3))
	}
	f.Fuzz(func(t *testing.T, seed uint64, items, bytes, times, lanes uint8) {
		cfg := Config{
			NoHold:        true,
			MaxItems:      int(items % 9),
			MaxBytes:      int(bytes%4) * 50,
			Capacity:      int(items/9%4) * 7,
			CapacityBytes: int(bytes/4%3) * 200,
			Window:        time.Duration(times%3) * 60 * time.Microsecond,
			MaxWait:       time.Duration(times/3%3) * 70 * time.Microsecond,
			Lanes:         int(lanes % 3),
		}
		if cfg.Lanes == 0 {
			cfg.MaxLanes = 1 + int(lanes/3%4)
		}
		playOracle(t, seed, cfg, 3000)
	})
}

// steps returns what puts items into a queue at a time, and what takes a group of a size.
func steps(t *testing.T, q *Queue[int]) (push, take func(now time.Duration, n int)) {
	push = func(now time.Duration, n int) {
		t.Helper()
		for range n {
			if err := q.Push(now, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	take = func(now time.Duration, want int) {
		t.Helper()
		if got, _ := q.Take(now, nil); len(got) != want {
			t.Fatalf("at %v: took %d, want %d", now, len(got), want)
		}
	}
	return push, take
}

// TestHold is the story in Config.NoHold: with the hold in force, a freed lane
// waits for the group that left, but not for longer than half a flush.
func TestHold(t *testing.T) {
	q := NewQueue[int](Config{})
	q.gate.ctl.level = holdLevel
	flush := 100 * time.Microsecond
	push, take := steps(t, q)
	push(0, 3)
	take(0, 3) // idle: nothing to wait for
	push(10, 1)
	q.Done(flush, 3, flush)
	take(flush, 0) // 1 waits, 3 may come back
	if at, ok := q.Deadline(); !ok || at != flush+flush/holdShare {
		t.Fatalf("deadline %v %v", at, ok)
	}
	push(flush+1000, 3)
	take(flush+1000, 4) // all are back
	q.Done(2*flush, 4, flush)
	push(2*flush, 1)
	take(2*flush, 0)
	take(2*flush+flush/holdShare, 1) // the others did not come
	q.Done(3*flush, 1, flush)
	push(3*flush, 1)
	take(3*flush, 1) // one alone expects nobody
}

// With several lanes that hold, a group that is full need not wait, and of those that
// end together each lane takes its share of the clients.
func TestHoldOnLanes(t *testing.T) {
	q := NewQueue[int](Config{MaxItems: 8})
	q.gate.ctl.level = holding(2)
	if got := q.Lanes(); got != 2 {
		t.Fatalf("%d lanes", got)
	}
	flush := 100 * time.Microsecond
	push, take := steps(t, q)
	push(0, 16)
	take(0, 8)
	take(0, 8)
	q.Done(flush, 8, flush)
	q.Done(flush, 8, flush)
	push(flush+1, 7)
	take(flush+1, 0)
	push(flush+2, 1)
	take(flush+2, 8) // full
	push(flush+3, 7)
	take(flush+3, 0) // 8 are out, and no other lane is free
	push(flush+4, 1)
	take(flush+4, 8)
	q.Done(2*flush, 8, flush)
	q.Done(2*flush, 8, flush)
	q.gate.cfg.MaxItems = 16
	push(2*flush+1, 7)
	take(2*flush+1, 0)
	push(2*flush+2, 1)
	take(2*flush+2, 8) // the other half have a lane of their own
	push(2*flush+3, 7)
	take(2*flush+3, 0)
	push(2*flush+4, 1)
	take(2*flush+4, 8)
	q.Done(3*flush, 8, flush) // one of the two
	push(3*flush+1, 7)
	take(3*flush+1, 0)
	push(3*flush+2, 1)
	take(3*flush+2, 8)
}

// Levels, their lanes and whether they hold.
func TestLevels(t *testing.T) {
	for lanes := 1; lanes < 5; lanes++ {
		if lanesOf(lanes) != lanes || holds(lanes) || lanesOf(holding(lanes)) != lanes || !holds(holding(lanes)) {
			t.Errorf("%d lanes: level %d has %d, level %d has %d", lanes, lanes, lanesOf(lanes), holding(lanes), lanesOf(holding(lanes)))
		}
	}
	if holding(1) != holdLevel {
		t.Errorf("one lane that holds is level %d", holding(1))
	}
}

func TestQueueDoesNotAllocateWarm(t *testing.T) {
	q := NewQueue[int](Config{})
	buf := make([]int, 0, 64)
	var now time.Duration
	play := func() {
		for range 64 {
			_ = q.Push(now, 1, 1)
		}
		var why Reason
		if buf, why = q.Take(now, buf[:0]); why != ReasonNone {
			now += time.Microsecond
			q.Done(now, len(buf), time.Microsecond)
		}
	}
	play()
	if n := testing.AllocsPerRun(1000, play); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		{Config{MinLanes: 9}, ""},
		{Config{Window: time.Second, MaxWait: 1}, ""},
		{Config{MaxItems: -1}, "batch: MaxItems is negative: -1"},
		{Config{MinLanes: 3, MaxLanes: 2}, "batch: MinLanes 3 exceeds MaxLanes 2"},
	} {
		got := ""
		if err := c.cfg.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.cfg, got, c.want)
		}
	}
}

func TestHistogramQuantileWithinBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var h Histogram
	var all []int64
	for range 20_000 {
		v := int64(1) << rng.IntN(45)
		v += rng.Int64N(v)
		h.Record(v)
		all = append(all, v)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999} {
		want := float64(all[int(q*float64(len(all)))])
		if got := float64(h.Quantile(q)); got < want*0.9374 || got > want*1.0626 {
			t.Errorf("quantile %v: %v, want %v within 6.25 %%", q, got, want)
		}
	}
	if h.Max() != all[len(all)-1] || h.Count() != uint64(len(all)) {
		t.Errorf("max %d, count %d", h.Max(), h.Count())
	}
	for i := range histBuckets - 1 {
		if histIndex(histLow(i)) != i || histIndex(histLow(i+1)-1) != i {
			t.Fatalf("bucket %d is not [%d, %d)", i, histLow(i), histLow(i+1))
		}
	}
	early := h
	h.Record(5)
	h.Sub(&early)
	if h.Count() != 1 || h.Quantile(0.5) != 5 || h.Mean() != 5 {
		t.Errorf("after Sub: count %d, median %d, mean %v", h.Count(), h.Quantile(0.5), h.Mean())
	}
}
