package consensus

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// touching is an operation of a set, as the slow model keeps it.
type touching struct {
	foot    wire.Footprint
	session uint64
	strong  bool
	ordinal uint64
}

// someFoot returns a footprint of a few of eight keys, some twice, and rarely a span.
func someFoot(r *rand.Rand, spans bool) (f wire.Footprint) {
	for range r.IntN(3) {
		f.Keys = append(f.Keys, fmt.Sprint("k", r.IntN(8)))
	}
	if spans && r.IntN(10) == 0 {
		f.Spans = append(f.Spans, wire.Span{From: "k3", To: "k5"})
	}
	return f
}

// overlap is a simple implementation, except that a span conflicts with everything.
func overlap(f, g *wire.Footprint) bool {
	if len(f.Spans) > 0 || len(g.Spans) > 0 {
		return len(f.Keys)+len(f.Spans) > 0 && len(g.Keys)+len(g.Spans) > 0
	}
	return f.Overlaps(g)
}

// The counters are compared with a list of the operations. They may report an operation that is
// not there only if several sessions have touched a key since it was last untouched: then they
// no longer know whose the remaining ones are.
func TestTouchesAgainstAList(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for round := range 40 {
		alone := round%2 == 0 // one session only: then they are exact
		spans := round%4 > 1
		set := newTouches()
		var model []touching
		ordinal := uint64(0)
		for step := range 400 {
			session := uint64(1)
			if !alone {
				session += uint64(r.IntN(3))
			}
			if len(model) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(model))
				o := model[i]
				set.remove(&o.foot, o.session, o.strong)
				model = slices.Delete(model, i, i+1)
			} else {
				ordinal++
				o := touching{someFoot(r, spans), session, r.IntN(2) == 0, ordinal}
				set.add(&o.foot, o.session, o.strong, o.ordinal)
				model = append(model, o)
			}
			f := someFoot(r, spans)
			for own := range uint64(4) {
				var truth, foreign bool
				var last uint64
				for i := range model {
					o := &model[i]
					if !overlap(&f, &o.foot) {
						continue
					}
					foreign = foreign || o.session != own
					if own == 0 || o.session != own || o.strong {
						truth, last = true, max(last, o.ordinal)
					}
				}
				got, any := set.of(&f, own)
				if truth && (!any || got < last) {
					t.Fatalf("round %d, step %d: %v meets an operation with ordinal %d, of session %d; got %d, %v: %+v", round, step, f, last, own, got, any, model)
				}
				if foreign && own != 0 && !set.others(&f, own) {
					t.Fatalf("round %d, step %d: %v meets an operation of others than %d: %+v", round, step, f, own, model)
				}
				if alone && !spans && (any != truth || set.others(&f, own) != foreign) {
					t.Fatalf("round %d, step %d: %v, session %d: meets %v, others %v; want %v and %v: %+v", round, step, f, own, any, set.others(&f, own), truth, foreign, model)
				}
			}
			if len(model) == 0 && (len(set.keys) > 0 || set.spans != (touch{}) || set.all != (touch{})) {
				t.Fatalf("round %d, step %d: %+v is left of nothing", round, step, set)
			}
		}
	}
}

// A pool after many changes is like one that is filled anew.
func TestPoolAgainstAList(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := newPool()
	var model []*record
	for step := range 5000 {
		switch n := r.IntN(20); {
		case n < 10:
			id := opID{1 + uint64(r.IntN(4)), 1 + uint64(r.IntN(40))}
			if p.get(id) != nil {
				continue
			}
			rec := &record{id: id, foot: someFoot(r, true), bundle: someFoot(r, true)}
			rec.message = wire.Message{Kind: wire.Record, View: uint64(r.IntN(3)), Session: id.session, Seq: id.seq, Data: make([]byte, r.IntN(100))}
			p.add(rec)
			model = append(model, rec)
		case n < 18 && len(model) > 0:
			i := r.IntN(len(model))
			p.remove(model[i])
			p.remove(model[i]) // what is gone is gone
			model = slices.Delete(model, i, i+1)
		case n == 18:
			view := uint64(r.IntN(3))
			gone := func(o *record) bool { return o.message.View < view }
			p.drop(gone)
			model = slices.DeleteFunc(model, gone)
		}
		fresh := newPool()
		for _, o := range model {
			fresh.add(o)
		}
		if !slices.Equal(p.records, model) || len(p.byOp) != len(model) || p.bytes != fresh.bytes {
			t.Fatalf("step %d: %d records, %d by number, %d bytes; want %d of %d bytes", step, len(p.records), len(p.byOp), p.bytes, len(model), fresh.bytes)
		}
		probe := &record{id: opID{1 + uint64(r.IntN(5)), 99}, foot: someFoot(r, true), bundle: someFoot(r, true)}
		if probe.meets(&fresh.touched) && !probe.meets(&p.touched) {
			t.Fatalf("step %d: %+v meets the pool if it is filled anew, and does not as it is", step, probe)
		}
		for _, o := range model {
			if p.get(o.id) != o || !p.holds(o.id.session, o.id.seq) {
				t.Fatalf("step %d: %v is not found", step, o.id)
			}
			if !slowlyMeets(probe, o) {
				continue
			}
			if !probe.meets(&p.touched) {
				t.Fatalf("step %d: %+v does not commute with %+v", step, probe, o)
			}
		}
	}
}

// slowlyMeets reports that a new record must not be voted for because of one
// that is in the pool (S1).
func slowlyMeets(r, in *record) bool {
	other := r.id.session != in.id.session
	return overlap(&r.foot, &in.foot) || // the command's answer depends on it
		other && overlap(&r.foot, &in.bundle) ||
		other && (overlap(&r.bundle, &in.foot) || overlap(&r.bundle, &in.bundle))
}

func TestPoolIsBounded(t *testing.T) {
	p := newPool()
	large := func(n int) *record {
		r := &record{id: opID{1, uint64(len(p.records) + 1)}}
		r.message.Data = make([]byte, n)
		return r
	}
	if p.full(large(maxPoolBytes - 100)) {
		t.Error("an empty pool is full")
	}
	if !p.full(large(maxPoolBytes)) {
		t.Error("a record of more than the whole pool fits")
	}
	p.add(large(maxPoolBytes / 2))
	if !p.full(large(maxPoolBytes/2)) || p.full(large(maxPoolBytes/2-100)) {
		t.Error("the bytes of what is there are not counted")
	}
	p = newPool()
	for range maxPool {
		if p.full(large(0)) {
			t.Fatalf("full with %d records", len(p.records))
		}
		p.add(large(0))
	}
	if !p.full(large(0)) {
		t.Errorf("not full with %d records", len(p.records))
	}
}
