package wire

import (
	"math/bits"
	"testing"
)

// For each set of voters that hold one operation, and each set, apart from it,
// that hold one that conflicts (no witness holds both), and each majority whose
// pools a new leader may get: both are never found often enough to be recovered,
// and one that a fast quorum holds always is. No smaller fast quorum would do.
func TestFastQuorumAgainstAllSets(t *testing.T) {
	for n := 1; n <= 9; n++ {
		q, fast := n/2+1, FastQuorum(n)
		if fast < q || fast > n {
			t.Fatalf("FastQuorum(%d) = %d", n, fast)
		}
		// A threshold for how many pools of a majority must hold what is recovered
		// is safe if it finds what is complete and never two that conflict.
		safe := func(fast, threshold int) bool {
			for majority := range uint(1) << n {
				if bits.OnesCount(majority) != q {
					continue
				}
				for a := range uint(1) << n {
					if bits.OnesCount(a) >= fast && bits.OnesCount(a&majority) < threshold {
						return false
					}
				}
				// For two operations that conflict only one thing matters: which replicas of the
				// majority hold them; a goes through all its subsets.
				for a := majority; ; a = (a - 1) & majority {
					if bits.OnesCount(a) >= threshold && bits.OnesCount(majority&^a) >= threshold {
						return false
					}
					if a == 0 {
						break
					}
				}
			}
			return true
		}
		threshold := fast + q - n
		if !safe(fast, threshold) {
			t.Errorf("%d voters: a fast quorum of %d is not safe with %d of %d pools", n, fast, threshold, q)
		}
		for smaller := 1; smaller < fast; smaller++ {
			for th := 1; th <= q; th++ {
				if safe(smaller, th) {
					t.Errorf("%d voters: a fast quorum of %d would do, not %d", n, smaller, fast)
				}
			}
		}
	}
}

// The sizes that docs and clients speak of.
func TestFastQuorumTable(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 3, 4: 3, 5: 4, 6: 5, 7: 6, 8: 6, 9: 7} {
		if got := FastQuorum(n); got != want {
			t.Errorf("FastQuorum(%d) = %d, want %d", n, got, want)
		}
	}
}
