package postgres

import "testing"

// TestFewSizesOfGroups: the parts of a group are few, and of few sizes.
func TestFewSizesOfGroups(t *testing.T) {
	sizes := make(map[int]bool)
	for n := 1; n <= 256; n++ {
		parts := 0
		for left := n; left > 0; parts++ {
			p := part(left)
			if p < 1 || p > left {
				t.Fatalf("%d of %d", p, left)
			}
			sizes[p] = true
			left -= p
		}
		if parts > 3 {
			t.Errorf("%d rows are %d statements", n, parts)
		}
	}
	if len(sizes) > 28 {
		t.Errorf("%d sizes", len(sizes))
	}
}
