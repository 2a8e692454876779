package core_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
)

// A quarter of the pool runs apart, and one slot is for fresh statements only.
func TestSlots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ size, slots, fresh, patient, wantFresh, wantPatient int }{
		{1, 1, 2, 0, 1, 0},
		{1, 1, 0, 2, 0, 1}, // the only slot is for both
		{4, 1, 1, 1, 1, 0},
		{8, 2, 0, 5, 0, 1},
		{8, 2, 1, 5, 1, 1},
		{16, 4, 9, 9, 4, 0},
		{16, 4, 0, 9, 0, 3},
		{16, 4, 2, 9, 2, 2},
	} {
		p := newTestPool(t, c.size)
		for range c.fresh {
			p.QueueApart(p.unit("fresh", 0))
		}
		for range c.patient {
			u := p.unit("patient", 0)
			u.Over()
			p.QueueApart(u)
		}
		var held []*testUnit
		got := map[core.Slot]int{}
		for u, s, ok := p.Apart.Next(p.Slots()); ok; u, s, ok = p.Apart.Next(p.Slots()) {
			p.Hold(&u.Turn, s)
			held = append(held, u)
			got[s]++
		}
		if p.Slots() != c.slots || got[core.SlotFresh] != c.wantFresh || got[core.SlotPatient] != c.wantPatient {
			t.Errorf("%d backends, %d fresh, %d patient: %d slots, %v", c.size, c.fresh, c.patient, p.Slots(), got)
		}
		if p.OverSlots() || !p.Apart.Active() {
			t.Errorf("%d backends: %d slots are held of %d", c.size, p.Apart.Used, c.slots)
		}
		for _, u := range held {
			p.FreeSlot(&u.Turn)
			p.FreeSlot(&u.Turn) // which it has no more
		}
		p.Apart.Drop(func(*testUnit) bool { return true })
		if p.Apart.Used != 0 || p.Apart.Active() {
			t.Errorf("%d backends: %d slots are held in the end", c.size, p.Apart.Used)
		}
	}
}

// Each turn is four times as long as the one before it, up to 8 s.
func TestTurnLength(t *testing.T) {
	t.Parallel()
	var turn core.Turn
	for i, want := range []time.Duration{50, 200, 800, 3200, 8000, 8000} {
		if got := turn.Length(); got != want*time.Millisecond {
			t.Errorf("turn %d takes %v, want %d ms", i, got, want)
		}
		turn.Over()
	}
	for range 300 {
		turn.Over()
	}
	if turn.Tries != 100 {
		t.Errorf("%d turns are counted, want 100 at most", turn.Tries)
	}
}
