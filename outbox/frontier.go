package outbox

import (
	"cmp"
	"slices"
	"sort"
)

// frontier knows which rows of an outbox table were seen. Numbers come from a
// sequence, but commits come in any order: a reader that only remembered the
// greatest number would skip a row whose transaction commits late. So the frontier
// keeps the missing numbers below the greatest one as gaps, until each gap is
// proven dead: no transaction is left that could fill it.
//
// It is pure: no clock, no input and output. It is not safe for concurrent use.
type frontier struct {
	after int64 // the greatest number seen
	gaps  []gap // ascending, disjoint, below after
	round int   // of reads
}

// gap is a range of missing numbers, first missed in a round.
type gap struct {
	Range
	round int
}

// begin starts a round of reading: gaps that it opens are newer than every
// mark that was taken before.
func (f *frontier) begin() { f.round++ }

// accept records that the row was seen and reports whether it is new.
func (f *frontier) accept(seq int64) bool {
	if seq > f.after {
		if seq > f.after+1 {
			f.gaps = append(f.gaps, gap{Range{f.after + 1, seq - 1}, f.round})
		}
		f.after = seq
		return true
	}
	i := sort.Search(len(f.gaps), func(i int) bool { return f.gaps[i].Last >= seq })
	if i == len(f.gaps) || f.gaps[i].First > seq {
		return false
	}
	f.fill(i, seq)
	return true
}

// fill removes seq from gap i.
func (f *frontier) fill(i int, seq int64) {
	g := &f.gaps[i]
	switch {
	case g.First == g.Last:
		f.gaps = append(f.gaps[:i], f.gaps[i+1:]...)
	case seq == g.First:
		g.First++
	case seq == g.Last:
		g.Last--
	default:
		right := gap{Range{seq + 1, g.Last}, g.round}
		g.Last = seq - 1
		f.gaps = append(f.gaps, gap{})
		copy(f.gaps[i+2:], f.gaps[i+1:])
		f.gaps[i+1] = right
	}
}

// bury removes the gaps up to number last that were opened in or before the
// round: they are proven dead.
func (f *frontier) bury(round int, last int64) {
	kept := f.gaps[:0]
	for _, g := range f.gaps {
		if g.round > round || g.First > last {
			kept = append(kept, g)
			continue
		}
		if g.Last > last {
			g.First = last + 1
			kept = append(kept, g)
		}
	}
	f.gaps = kept
}

// ranges covers all gaps with at most limit ranges: the gaps that are closest
// together are joined, across rows that were seen in between.
func (f *frontier) ranges(limit int) []Range {
	if len(f.gaps) == 0 {
		return nil
	}
	if len(f.gaps) <= limit {
		out := make([]Range, len(f.gaps))
		for i, g := range f.gaps {
			out[i] = g.Range
		}
		return joinTouching(out)
	}
	// Keep the limit-1 widest bridges between neighbours; join the others.
	type bridge struct {
		i     int // between gaps i-1 and i
		width int64
	}
	bridges := make([]bridge, 0, len(f.gaps)-1)
	for i := 1; i < len(f.gaps); i++ {
		bridges = append(bridges, bridge{i, f.gaps[i].First - f.gaps[i-1].Last})
	}
	slices.SortFunc(bridges, func(a, b bridge) int {
		return cmp.Or(cmp.Compare(b.width, a.width), cmp.Compare(a.i, b.i))
	})
	cuts := make([]int, 0, limit)
	for _, b := range bridges[:limit-1] {
		cuts = append(cuts, b.i)
	}
	slices.Sort(cuts)
	out := make([]Range, 0, limit)
	start := 0
	for _, c := range append(cuts, len(f.gaps)) {
		out = append(out, Range{f.gaps[start].First, f.gaps[c-1].Last})
		start = c
	}
	return joinTouching(out)
}

// joinTouching joins ranges that are adjacent.
func joinTouching(rs []Range) []Range {
	out := rs[:1]
	for _, r := range rs[1:] {
		if last := &out[len(out)-1]; r.First == last.Last+1 {
			last.Last = r.Last
		} else {
			out = append(out, r)
		}
	}
	return out
}

// low is the number up to which none is missing.
func (f *frontier) low() int64 {
	if len(f.gaps) > 0 {
		return f.gaps[0].First - 1
	}
	return f.after
}

// open reports whether seq lies in a gap.
func (f *frontier) open(seq int64) bool {
	i := sort.Search(len(f.gaps), func(i int) bool { return f.gaps[i].Last >= seq })
	return i < len(f.gaps) && f.gaps[i].First <= seq
}
