package torture

import (
	"reflect"
	"testing"
)

// TestVerdict gives the ledger each kind of trouble by hand: a check that
// cannot fail would prove nothing.
func TestVerdict(t *testing.T) {
	e := func(chain string, n, attempt int) Entry { return Entry{Chain: chain, N: n, Attempt: attempt} }
	poison := Entry{Chain: "k", N: 2, Attempt: 1, Poison: true}
	three := []Entry{e("k", 1, 1), e("k", 2, 1), e("k", 3, 1)}
	for _, c := range []struct {
		name                                string
		committed, delivered, dead, waiting []Entry
		acknowledged                        int
		want                                Verdict
	}{
		{name: "all is well", committed: three, delivered: three, acknowledged: 3, want: Verdict{Committed: 3, Delivered: 3}},
		{name: "one is lost", committed: three, delivered: []Entry{three[0], three[2]}, acknowledged: 3, want: Verdict{Committed: 3, Delivered: 2, Lost: 1}},
		{
			name: "one is late", committed: three, delivered: []Entry{three[0], three[2], three[1]}, acknowledged: 3,
			want: Verdict{Committed: 3, Delivered: 3, OutOfOrder: 1},
		},
		{
			name: "a crash repeats two", committed: three, delivered: []Entry{three[0], three[1], three[0], three[1], three[2]},
			want: Verdict{Committed: 3, Delivered: 3, Duplicates: 2},
		},
		{
			name: "without a key there is no order", committed: []Entry{e("free-1", 1, 1), e("free-1", 2, 1)},
			delivered: []Entry{e("free-1", 2, 1), e("free-1", 1, 1)}, want: Verdict{Committed: 2, Delivered: 2},
		},
		{name: "never committed", committed: three[:1], delivered: three[:2], want: Verdict{Committed: 1, Delivered: 1, Phantoms: 1}},
		{
			name: "the attempt that was rolled back", committed: []Entry{e("k", 1, 2)}, delivered: []Entry{e("k", 1, 1)},
			want: Verdict{Committed: 1, Delivered: 1, Phantoms: 1},
		},
		{name: "the database forgets", committed: three[:2], delivered: three[:2], acknowledged: 3, want: Verdict{Committed: 2, Delivered: 2, Forgotten: 1}},
		{
			name: "poison is buried", committed: []Entry{three[0], poison, three[2]}, delivered: []Entry{three[0], three[2]}, dead: []Entry{poison},
			want: Verdict{Committed: 3, Delivered: 2, Dead: 1},
		},
		{
			name: "one waits", committed: three, delivered: three[:2], waiting: three[2:], acknowledged: 3,
			want: Verdict{Committed: 3, Delivered: 2, Waiting: 1},
		},
		{
			name: "poison vanishes", committed: []Entry{three[0], poison}, delivered: three[:1],
			want: Verdict{Committed: 2, Delivered: 1, Lost: 1},
		},
		{
			name: "poison passes", committed: []Entry{three[0], poison}, delivered: []Entry{three[0], poison},
			want: Verdict{Committed: 2, PoisonPassed: 1, Delivered: 1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := NewLedger()
			l.Acknowledged("k", c.acknowledged)
			for _, e := range c.delivered {
				l.Delivered(e)
			}
			for _, e := range c.committed {
				l.Committed(e)
			}
			got := l.Verdict(c.dead, c.waiting)
			wrong := len(got.Examples) > 0
			got.Examples = nil
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("verdict %+v, want %+v", got, c.want)
			}
			if got.Holds() == wrong {
				t.Errorf("holds %v, with examples %v", got.Holds(), wrong)
			}
		})
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(Entry{Chain: "k", N: 1, Attempt: 1, Poison: true}.encode())
	f.Add([]byte(`{"c":"k","n":-1,"a":1}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := DecodeEntry(payload)
		if err != nil {
			return
		}
		again, err := DecodeEntry(e.encode())
		if err != nil || again != e {
			t.Errorf("%q becomes %+v, then %+v, %v", payload, e, again, err)
		}
	})
}
