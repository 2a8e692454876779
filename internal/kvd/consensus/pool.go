package consensus

import (
	"slices"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// pool is the set of operations that a witness has voted for and that it has not seen in the
// log yet. They commute with each other (S1). An operation is on disk before the vote is sent
// (S2).
type pool struct {
	records []*record // in order of arrival
	byOp    map[opID]*record
	bytes   int // of the records' messages
	age     int // ticks since the last check for records that stay
	touched touches
}

// Limits of a pool, in records and in bytes: a new leader receives it in one message. A witness
// whose pool is full votes no.
const (
	maxPool      = 16 << 10
	maxPoolBytes = 16 << 20
)

func (p *pool) full(r *record) bool {
	return len(p.records) >= maxPool || p.bytes+r.message.Size() > maxPoolBytes
}

// opID identifies an operation.
type opID struct{ session, seq uint64 }

type record struct {
	id      opID
	message wire.Message   // as the client sent it: bundle and command
	foot    wire.Footprint // of the command
	bundle  wire.Footprint // of the writes in its bundle
	stays   bool           // it was here at the last check
}

func newPool() *pool { return &pool{byOp: map[opID]*record{}, touched: newTouches()} }

func (p *pool) get(id opID) *record { return p.byOp[id] }

// holds reports whether p has a record of the session at seq.
func (p *pool) holds(session, seq uint64) bool { return p.byOp[opID{session, seq}] != nil }

func (p *pool) add(r *record) {
	p.records = append(p.records, r)
	p.byOp[r.id] = r
	p.bytes += r.message.Size()
	p.touched.add(&r.foot, r.id.session, true, 0)
	p.touched.add(&r.bundle, r.id.session, false, 0)
}

func (p *pool) forget(r *record) {
	delete(p.byOp, r.id)
	p.bytes -= r.message.Size()
	p.touched.remove(&r.foot, r.id.session, true)
	p.touched.remove(&r.bundle, r.id.session, false)
}

func (p *pool) remove(r *record) {
	if p.byOp[r.id] == r {
		at := slices.Index(p.records, r) // near the front: records are applied in about this order
		p.records = slices.Delete(p.records, at, at+1)
		p.forget(r)
	}
}

// drop removes the records for which gone returns true.
func (p *pool) drop(gone func(*record) bool) {
	p.records = slices.DeleteFunc(p.records, func(r *record) bool {
		if gone(r) {
			p.forget(r)
			return true
		}
		return false
	})
}

// meets reports whether r does not commute with an operation of the set t. The weak writes of
// its own session do not count, because r carries those that matter. Strong ones count for the
// command, whose result may depend on them, but not for the bundle, whose place in the session
// is fixed.
func (r *record) meets(t *touches) bool {
	_, command := t.of(&r.foot, r.id.session)
	return command || t.others(&r.bundle, r.id.session)
}

// touches counts the operations of a set that change each key, to find out whether a footprint
// conflicts with one of them. A span conflicts with everything: spans are rare, and it is
// always correct to wait for a commit.
type touches struct {
	keys  map[string]touch
	spans touch
	all   touch
}

// touch counts the operations on one key.
type touch struct {
	count   int
	strong  int
	session uint64 // the session of all of them; 0 if they are of several sessions
	last    uint64 // ordinal of the last one
}

func newTouches() touches { return touches{keys: map[string]touch{}} }

func (t touch) with(session uint64, strong bool, ordinal uint64) touch {
	if t.count == 0 {
		t.session = session
	} else if t.session != session {
		t.session = 0
	}
	t.count++
	if strong {
		t.strong++
	}
	t.last = max(t.last, ordinal)
	return t
}

func (t touch) without(strong bool) touch {
	t.count--
	if strong {
		t.strong--
	}
	if t.count == 0 {
		return touch{}
	}
	return t
}

func (t *touches) add(f *wire.Footprint, session uint64, strong bool, ordinal uint64) {
	for _, k := range f.Keys {
		t.keys[k] = t.keys[k].with(session, strong, ordinal)
	}
	if len(f.Spans) > 0 {
		t.spans = t.spans.with(session, strong, ordinal)
	}
	t.all = t.all.with(session, strong, ordinal)
}

func (t *touches) remove(f *wire.Footprint, session uint64, strong bool) {
	for _, k := range f.Keys {
		left := t.keys[k].without(strong)
		if left.count == 0 {
			delete(t.keys, k)
		} else {
			t.keys[k] = left
		}
	}
	if len(f.Spans) > 0 {
		t.spans = t.spans.without(strong)
	}
	t.all = t.all.without(strong)
}

// others reports whether f conflicts with an operation of another session than own.
func (t *touches) others(f *wire.Footprint, own uint64) bool {
	foreign := func(x touch) bool { return x.count > 0 && x.session != own }
	if len(f.Spans) > 0 {
		return foreign(t.all)
	}
	for _, k := range f.Keys {
		if foreign(t.keys[k]) {
			return true
		}
	}
	return len(f.Keys) > 0 && foreign(t.spans)
}

// of reports whether f conflicts with an operation of the set, and the ordinal of the last such
// operation. Weak operations of the session own do not count; with own 0 all do.
func (t *touches) of(f *wire.Footprint, own uint64) (last uint64, any bool) {
	see := func(x touch) {
		if x.count == 0 || own != 0 && x.session == own && x.strong == 0 {
			return
		}
		any, last = true, max(last, x.last)
	}
	if len(f.Spans) > 0 {
		see(t.all)
		return last, any
	}
	for _, k := range f.Keys {
		if x, ok := t.keys[k]; ok {
			see(x)
		}
	}
	see(t.spans)
	return last, any
}
