package outbox

import (
	"fmt"
	"testing"
)

// A sieve forgets no key, and takes few others for one that it knows.
func TestSieve(t *testing.T) {
	const keys = 100_000
	s, wrong := newSieve(), 0
	for i := range keys {
		s.add(fmt.Sprint("left", i))
	}
	for i := range keys {
		if !s.has(fmt.Sprint("left", i)) {
			t.Fatalf("key %d is not known", i)
		}
		if s.has(fmt.Sprint("other", i)) {
			wrong++
		}
	}
	if wrong > keys/20 { // 2.4 % are to be expected
		t.Errorf("%d of %d others are taken for known", wrong, keys)
	}
}

// What waits for a part that is away leaves room to others.
func TestWhatIsAwayLeavesRoom(t *testing.T) {
	n := &lane{lead: &lead{cfg: Config{MaxWaiting: 100}}}
	for waiting, want := range map[int64][2]bool{74: {false, false}, 75: {true, false}, 100: {true, true}} {
		n.waits.Store(waiting)
		if away, other := n.crowded(true), n.crowded(false); away != want[0] || other != want[1] {
			t.Errorf("with %d of 100: full for what is away %v, for others %v; want %v", waiting, away, other, want)
		}
	}
}
