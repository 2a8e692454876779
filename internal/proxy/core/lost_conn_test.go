package core_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
)

// A server that stops ends its connections one after the other: a client that takes up one
// after the other goes on. Connections that are opened and lost at once are counted.
func TestLossesOfOldConnectionsDoNotCount(t *testing.T) {
	t.Parallel()
	var ls core.Losses
	for i := range 20 {
		if !ls.Again(100+time.Duration(i), 50) {
			t.Fatalf("after %d connections that were there before, none may be tried", i+1)
		}
	}
	for i := range core.MostLost {
		now := 200 + 10*time.Duration(i)
		if !ls.Again(now, now-1) {
			t.Fatalf("after %d connections that were opened meanwhile, none may be tried", i+1)
		}
	}
	if ls.Again(300, 299) {
		t.Error("connections that are opened and lost at once are tried without end")
	}
}

// Units are named by their client and a digit; in capitals those that cannot run again,
// "-" are weir's own.
func TestMoveElsewhereKeepsTheOrderOfEachClient(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                      string
		units, left, moved, aside []string
	}{
		{name: "nothing is under way"},
		{name: "all can run", units: []string{"a1", "b1"}, moved: []string{"a1", "b1"}},
		{name: "the first was at work", units: []string{"A1", "b1"}, left: []string{"A1"}, moved: []string{"b1"}},
		{
			name: "what follows one that stays waits for its answer", units: []string{"A1", "b1", "a2"},
			left: []string{"A1"}, moved: []string{"b1"}, aside: []string{"a2"},
		},
		{
			name: "what was sent behind one that moves moves with it", units: []string{"a1", "A2", "B1"},
			left: []string{"B1"}, moved: []string{"a1"}, aside: []string{"A2"},
		},
		{name: "weir's own stay, and hold up nobody", units: []string{"-", "a1"}, left: []string{"-"}, moved: []string{"a1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var moved, aside []string
			left := core.MoveElsewhere(tt.units, func(u string) (byte, bool) {
				return u[0] | 0x20, u != "-"
			}, func(u string, first bool) bool {
				if first != (u == tt.units[0]) {
					t.Errorf("%q: first is %v", u, first)
				}
				return u[0] >= 'a'
			}, func(u string, behind bool) {
				if behind {
					aside = append(aside, u)
				} else {
					moved = append(moved, u)
				}
			})
			if !slices.Equal(left, tt.left) || !slices.Equal(moved, tt.moved) || !slices.Equal(aside, tt.aside) {
				t.Errorf("left %q, moved %q, behind others %q; want %q, %q, %q", left, moved, aside, tt.left, tt.moved, tt.aside)
			}
		})
	}
}
