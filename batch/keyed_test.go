package batch

import "testing"

// Giving up costs no more with more items waiting.
func TestAllGiveUpAtOnce(t *testing.T) {
	const n = 10_000
	for name, order := range map[string]func(i int) int{
		"from the head": func(i int) int { return i },
		"from the tail": func(i int) int { return n - 1 - i },
		"anyhow":        func(i int) int { return i * 7919 % n },
	} {
		t.Run(name, func(t *testing.T) {
			looks, dead := 0, make([]bool, n)
			var q keyed[string, int]
			q.gate.init(Config{Window: 1 << 40, MaxLanes: 1, MaxItems: n, Capacity: n}.withDefaults())
			q.lines = map[string]*line[string, int]{}
			q.isDead = func(i int) bool { looks++; return dead[i] }
			for i := range n {
				if _, err := q.push(0, "a", i, 1); err != nil {
					t.Fatal(err)
				}
			}
			for i := range n - 1 {
				dead[order(i)] = true
				q.giveUp("a", 1)
			}
			if looks > 6*n {
				t.Errorf("looked at %d items when %d gave up", looks, n-1)
			}
			if q.gate.waiting != 1 || q.gate.waitingBytes != 1 {
				t.Errorf("%d items of %d bytes wait, want one", q.gate.waiting, q.gate.waitingBytes)
			}
			q.gate.closed = true
			if got, l := q.take(0, nil); l == nil || len(got) != 1 || got[0] != order(n-1) || l.n != 0 || l.bytes != 0 || l.dead != 0 || l.deadBytes != 0 {
				t.Errorf("took %v of line %+v, want the one left and nothing behind it", got, l)
			}
		})
	}
}
