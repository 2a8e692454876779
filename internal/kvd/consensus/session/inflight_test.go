package session

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// TestWindow ends operations in any order and looks for all of them each time.
func TestWindow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w := window{from: 5}
	under := map[uint64]*op{}
	answered := uint64(4)
	for range 5000 {
		if n := w.next(); r.IntN(len(under)+1) < 40 {
			under[n] = &op{seq: n}
			w.push(under[n])
		} else {
			for n := range under {
				delete(under, n)
				w.drop(n)
				break
			}
		}
		for n := uint64(0); n < w.next()+3; n++ {
			if w.get(n) != under[n] {
				t.Fatalf("operation %d: %v, want %v", n, w.get(n), under[n])
			}
		}
		for answered+1 < w.next() && under[answered+1] == nil {
			answered++
		}
		if w.from-1 != answered {
			t.Fatalf("all up to %d have ended, want %d", w.from-1, answered)
		}
	}
}

// TestTouchedAgainstLooking compares with a look at each operation of the set.
func TestTouchedAgainstLooking(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	type member struct {
		foot   wire.Footprint
		number uint64
	}
	var set []member
	s := keyIndex{keys: map[string]keyUse{}, each: func(do func(*wire.Footprint, uint64)) {
		for i := range set {
			do(&set[i].foot, set[i].number)
		}
	}}
	some := func() (f wire.Footprint) {
		for range 1 + r.IntN(2) {
			f.Keys = append(f.Keys, fmt.Sprint("k", r.IntN(60)))
		}
		if r.IntN(200) == 0 {
			f.Spans = []wire.Span{{From: "k1", To: "k3"}}
		}
		return f
	}
	known := 0
	most := 40
	for number := uint64(1); number < 20000; number++ {
		if number%500 == 0 {
			most = r.IntN(60)
		}
		if len(set) < most {
			set = append(set, member{some(), number})
			s.add(&set[len(set)-1].foot, number)
		}
		for len(set) > most || len(set) > 0 && r.IntN(2) == 0 {
			at := r.IntN(len(set))
			s.remove(&set[at].foot)
			set = slices.Delete(set, at, at+1)
		}
		f := some()
		least := uint64(0)
		for i := range set {
			if set[i].foot.Overlaps(&f) {
				least = max(least, set[i].number)
			}
		}
		last, sure := s.by(&f)
		if sure {
			known++
		}
		if sure && (last < least || least == 0 && last > 0) {
			t.Fatalf("%v is touched up to %d, want %d or a little more", f, last, least)
		}
		if len(set) == 0 && len(s.keys)+s.spans+s.count > 0 {
			t.Fatalf("nothing is left, but %+v", s)
		}
	}
	if known == 0 {
		t.Error("never anything was known")
	}
}
