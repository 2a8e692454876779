package core_test

import (
	"testing"
	"time"
)

// The head of a shared backend is held up when it has not answered within the
// pool's patience; what runs apart is looked at every 10 ms meanwhile.
func TestStalls(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 4)
	a, b := p.backend(), p.backend()
	p.Shared.Add(a, &a.Conn)
	p.Shared.Add(b, &b.Conn)
	send := func(to *testBackend, ms int) {
		p.at(ms)
		to.Push(p.unit("read", ms), p.loop.Now)
		p.Watch()
	}
	alarm := func(want int) {
		t.Helper()
		at, ok := p.agenda.Alarm()
		if want < 0 && ok || want >= 0 && (!ok || at != time.Duration(want)*time.Millisecond) {
			t.Fatalf("the next alarm is at %v, %v; want %d ms", at, ok, want)
		}
	}
	p.settle()
	alarm(-1)
	send(a, 100)
	send(b, 102)
	send(b, 103)
	alarm(105)
	p.at(104)
	a.Pop(p.loop.Now)
	p.settle()
	alarm(107)
	p.at(107)
	p.keepStalled = true
	b.NotBefore = 110 * time.Millisecond
	p.settle()
	alarm(110)
	p.keepStalled = false
	p.at(110)
	p.settle()
	if len(p.stalled) != 1 || p.stalled[0] != b || p.Stats.Moved != 1 || p.Stats.Stalls != 1 {
		t.Fatalf("%d are held up, %d reads moved", len(p.stalled), p.Stats.Moved)
	}
	alarm(-1)

	for _, c := range []struct{ average, patience time.Duration }{
		{0, 5 * time.Millisecond}, {time.Millisecond, 8 * time.Millisecond}, {time.Second, 50 * time.Millisecond},
	} {
		p.ReadTime = c.average
		if got := p.Patience(); got != c.patience {
			t.Errorf("reads take %v: patience %v, want %v", c.average, got, c.patience)
		}
	}
	p.ReadTime = 0
	p.Answered(16 * time.Millisecond)
	if p.ReadTime != time.Millisecond {
		t.Errorf("one answer makes the average %v", p.ReadTime)
	}
}

// While something runs apart, or waits, the turns are looked at every 10 ms.
func TestTurnsAreChecked(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 4)
	u := p.unit("apart", 0)
	p.at(100)
	p.Hold(&u.Turn, 1)
	for ms := 100; ms < 150; ms++ {
		p.at(ms)
		p.settle()
	}
	if p.turns != 5 {
		t.Errorf("%d times in 50 ms, want 5", p.turns)
	}
	p.FreeSlot(&u.Turn)
	p.at(200)
	p.settle()
	if _, ok := p.agenda.Alarm(); ok || p.turns != 5 {
		t.Errorf("nothing runs apart, and the turns are checked %d times", p.turns)
	}
	p.Reads = append(p.Reads, u)
	p.Watch()
	p.settle()
	if p.turns != 6 {
		t.Error("a read waits, and nothing is checked")
	}
}

// The reads that are moved have a budget, which comes back with time.
func TestMoveAway(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 4)
	b := p.backend()
	for range 301 {
		b.Push(p.unit("read", 0), 0)
	}
	p.at(1)
	if !p.MoveAway(&b.Conn) || p.MoveAway(&b.Conn) {
		t.Error("300 reads may be moved once, not twice in a millisecond")
	}
	if b.NotBefore != 6*time.Millisecond {
		t.Errorf("it counts as held up again at %v", b.NotBefore)
	}
	p.at(1 + 2*88 + 2)
	if !p.MoveAway(&b.Conn) {
		t.Error("the budget has not come back")
	}
	p.at(10000)
	for name, change := range map[string]func(){
		"a cancel request is under way": func() { b.Cancels = 1 },
		"it is being made ready":        func() { b.Cancels, b.Held = 0, true },
	} {
		b.Cancels, b.Held = 0, false
		if change(); p.MoveAway(&b.Conn) {
			t.Errorf("%s, and its reads are moved", name)
		}
	}
}

// What runs for longer than it may is ended; where that does not help, its connection is
// closed. A pause that is found only now is not counted.
func TestOverdue(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	for _, c := range []struct {
		name          string
		ms            int
		clients       bool
		pauses        bool
		ended, closed bool
	}{
		{name: "in time", ms: 1000, clients: true},
		{name: "late", ms: 1001, clients: true, ended: true},
		{name: "that did not help", ms: 6001, clients: true, ended: true, closed: true},
		{name: "a pause", ms: 6001, clients: true, pauses: true, ended: true},
		{name: "a question of weir's own", ms: 6001, ended: true},
		{name: "one without an answer", ms: 31001, ended: true, closed: true},
	} {
		p := newTestPool(t, 4)
		p.Limits.QueryTimeout = limit
		b := p.backend()
		b.Push(p.unit("", 0), 0)
		p.at(c.ms)
		ended := false
		p.ConnManager().Overdue(func(b *testBackend) bool {
			ended = true
			if c.pauses {
				b.Resumed = p.loop.Now
			}
			return c.clients
		})
		if ended != c.ended || b.closed != c.closed {
			t.Errorf("%s: ended %v, closed %v; want %v, %v", c.name, ended, b.closed, c.ended, c.closed)
		}
	}
}
