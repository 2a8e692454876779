package outbox

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestFrontierAccepts(t *testing.T) {
	f := frontier{}
	f.begin()
	for _, step := range []struct {
		seq  int64
		want bool
		gaps string
	}{
		{1, true, "[]"},
		{2, true, "[]"},
		{2, false, "[]"},
		{9, true, "[{3 8}]"},
		{5, true, "[{3 4} {6 8}]"},
		{5, false, "[{3 4} {6 8}]"},
		{3, true, "[{4 4} {6 8}]"},
		{8, true, "[{4 4} {6 7}]"},
		{4, true, "[{6 7}]"},
		{12, true, "[{6 7} {10 11}]"},
		{1, false, "[{6 7} {10 11}]"},
	} {
		if got := f.accept(step.seq); got != step.want {
			t.Fatalf("accept(%d) = %v, want %v", step.seq, got, step.want)
		}
		if got := fmt.Sprint(orEmpty(f.ranges(64))); got != step.gaps {
			t.Fatalf("after %d: gaps %s, want %s", step.seq, got, step.gaps)
		}
	}
	if f.low() != 5 {
		t.Errorf("low() = %d, want 5", f.low())
	}
}

func orEmpty(rs []Range) []Range {
	if rs == nil {
		return []Range{}
	}
	return rs
}

func TestFrontierBuriesOnlyWhatIsOldAndCovered(t *testing.T) {
	f := frontier{}
	f.begin() // 1
	f.accept(4)
	f.accept(10)
	f.begin() // 2
	f.accept(20)
	f.bury(1, 7) // rounds up to 1, numbers up to 7
	if got, want := fmt.Sprint(f.ranges(9)), "[{8 9} {11 19}]"; got != want {
		t.Fatalf("gaps %s, want %s", got, want)
	}
	f.bury(1, 100)
	if got, want := fmt.Sprint(f.ranges(9)), "[{11 19}]"; got != want {
		t.Fatalf("gaps %s, want %s", got, want)
	}
	f.bury(2, 100)
	if f.low() != 20 || f.ranges(9) != nil {
		t.Fatalf("low %d, gaps %v: want none below 20", f.low(), f.gaps)
	}
}

// TestFrontierRangesCoverAllGaps: however few ranges are allowed, every gap
// lies in one, and they ascend without touching.
func TestFrontierRangesCoverAllGaps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		f := frontier{}
		f.begin()
		for seq := int64(1); seq < 400; seq += 1 + rng.Int64N(4) {
			f.accept(seq)
		}
		limit := 1 + rng.IntN(20)
		rs := f.ranges(limit)
		if len(rs) > limit {
			t.Fatalf("%d ranges, at most %d were allowed", len(rs), limit)
		}
		for i := 1; i < len(rs); i++ {
			if rs[i].First <= rs[i-1].Last+1 {
				t.Fatalf("ranges %v touch", rs)
			}
		}
		for _, g := range f.gaps {
			if !slices.ContainsFunc(rs, func(r Range) bool { return r.First <= g.First && g.Last <= r.Last }) {
				t.Fatalf("gap %v is in none of %v", g, rs)
			}
		}
	}
}

// txn is a transaction of the model: it takes a number at its insert and
// commits or not.
type txn struct {
	seq             int64
	key             int
	begun, ended    int
	committed, done bool
}

// TestFrontierLosesAndReordersNothing runs random interleavings of producers,
// reads of limited size, marks and proofs against a model of a database whose
// commits come in any order. Oracle: every committed row is accepted exactly
// once, and rows of a key whose transactions did not overlap in their order.
func TestFrontierLosesAndReordersNothing(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var (
			all       []*txn
			open      []*txn
			next      int64
			f         frontier
			got       []*txn
			mark      []*txn
			markRound = -1
			proven    = -1
		)
		stuck := 1 // grows while a full page holds nothing new, as the reader's limit does
		read := func(limit int) {
			limit *= stuck
			f.begin()
			ranges := f.ranges(1 + rng.IntN(4))
			after := f.after
			var page []*txn
			for _, x := range all {
				in := x.seq > after || slices.ContainsFunc(ranges, func(r Range) bool { return r.First <= x.seq && x.seq <= r.Last })
				if in && x.committed {
					page = append(page, x)
				}
			}
			slices.SortFunc(page, func(a, b *txn) int { return int(a.seq - b.seq) })
			more := len(page) > limit
			if more {
				page = page[:limit]
			}
			covered, before := int64(1<<62), len(got)
			for _, x := range page {
				if f.accept(x.seq) {
					got = append(got, x)
				}
				if more {
					covered = x.seq
				}
			}
			if stuck *= 2; !more || len(got) > before {
				stuck = 1
			}
			if proven >= 0 {
				f.bury(proven, covered)
				if !more {
					proven = -1
				}
			}
		}
		for now := range 300 {
			switch rng.IntN(6) {
			case 0, 1:
				next++
				x := &txn{seq: next, key: rng.IntN(3), begun: now}
				all, open = append(all, x), append(open, x)
			case 2, 3:
				if len(open) == 0 {
					continue
				}
				i := rng.IntN(len(open))
				x := open[i]
				x.done, x.ended, x.committed = true, now, rng.IntN(5) > 0
				open = slices.Delete(open, i, i+1)
			case 4:
				read(1 + rng.IntN(5))
			case 5:
				if markRound < 0 && proven < 0 {
					mark, markRound = slices.Clone(open), f.round
				} else if markRound >= 0 && !slices.ContainsFunc(mark, func(x *txn) bool { return !x.done }) {
					proven, markRound = markRound, -1
				}
			}
		}
		for _, x := range open {
			x.done, x.committed, x.ended = true, true, 1000
		}
		for range 200 {
			read(50)
		}
		seen := map[int64]int{}
		for i, x := range got {
			seen[x.seq]++
			for _, y := range got[i+1:] {
				if x.key == y.key && y.ended < x.begun {
					t.Fatalf("seed %d: row %d (key %d) before row %d, whose transaction had ended before", seed, x.seq, x.key, y.seq)
				}
			}
		}
		for _, x := range all {
			if want := map[bool]int{true: 1, false: 0}[x.committed]; seen[x.seq] != want {
				t.Fatalf("seed %d: row %d accepted %d times, want %d", seed, x.seq, seen[x.seq], want)
			}
		}
	}
}
