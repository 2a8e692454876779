package state

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// randomizer makes valid commands on few keys, so that they meet.
type randomizer struct {
	*rand.Rand
	leases   []uint64
	revision uint64 // known revisions are at most this
	clockMs  int64
}

func (r *randomizer) key() string {
	return [...]string{"", "a", "ab", "b", "c", "c\x00", "d", "\xff"}[r.IntN(8)]
}

func (r *randomizer) value() []byte {
	switch r.IntN(6) {
	case 0:
		return nil
	case 1:
		return []byte("9223372036854775807")
	case 2:
		return fmt.Appendf(nil, "%d", r.IntN(100)-50)
	default:
		return bytes.Repeat([]byte{byte('a' + r.IntN(3))}, r.IntN(40))
	}
}

func (r *randomizer) known() uint64 { return r.Uint64N(r.revision + 1) }

func (r *randomizer) lease() uint64 {
	if len(r.leases) == 0 || r.IntN(5) == 0 {
		return r.known() + 1
	}
	return r.leases[r.IntN(len(r.leases))]
}

func (r *randomizer) options(allowed ...uint8) (o uint8) {
	for _, bit := range allowed {
		if r.IntN(4) == 0 {
			o |= bit
		}
	}
	return o
}

func (r *randomizer) command() wire.Command {
	c := wire.Command{Verb: wire.Verb(1 + r.IntN(int(wire.LeaseTTL)))}
	if r.IntN(3) == 0 {
		c.Verb = wire.Set
	}
	if r.IntN(6) > 0 && (c.Verb == wire.DeleteRange || c.Verb == wire.LeaseRevoke) {
		c.Verb = wire.Range
	}
	r.fill(&c)
	if c.Verb == wire.DeleteRange && r.IntN(3) == 0 {
		c.Key, c.End = "", ""
	}
	if c.Verb.IsWrite() && r.IntN(8) == 0 {
		c.Options |= wire.NoReply
	}
	return c
}

func (r *randomizer) fill(c *wire.Command) {
	c.Key, c.End = r.key(), r.key()
	switch c.Verb {
	case wire.Set:
		c.Cond, c.Options = uint8(r.IntN(5)), r.options(wire.ReturnOld, wire.KeepTTL)
		c.Value, c.Expect, c.Revision = r.value(), r.value(), r.known()
		if r.IntN(3) == 0 {
			c.Lease = r.lease()
		}
		if c.Options&wire.KeepTTL == 0 && r.IntN(4) == 0 {
			r.fillTTL(c, 1)
		}
	case wire.Delete, wire.Many:
		for range 1 + r.IntN(4) {
			c.Keys = append(c.Keys, r.key())
		}
		if c.Verb == wire.Many {
			c.Options = r.options(wire.KeysOnly)
		} else if len(c.Keys) == 1 {
			c.Cond, c.Options = [...]uint8{wire.Always, wire.IfRevision, wire.IfValue}[r.IntN(3)], r.options(wire.ReturnOld)
			c.Expect, c.Revision = r.value(), r.known()
		}
	case wire.Increment:
		c.Delta = int64(r.IntN(20) - 10)
	case wire.Append:
		c.Value = r.value()
	case wire.Expire:
		c.Cond = [...]uint8{wire.Always, wire.IfGreater, wire.IfLess, wire.IfNoTTL, wire.IfTTL}[r.IntN(5)]
		r.fillTTL(c, -10)
	case wire.SetMany:
		c.Cond = [...]uint8{wire.Always, wire.IfAbsent}[r.IntN(2)]
		for range r.IntN(4) {
			c.Pairs = append(c.Pairs, wire.Pair{Key: r.key(), Value: r.value()})
		}
	case wire.Transaction:
		r.fillTransaction(c)
	case wire.LeaseGrant:
		c.TTL = 20 + r.Int64N(200)
	case wire.LeaseKeep, wire.LeaseRevoke, wire.LeaseTTL:
		c.Lease = r.lease()
		if c.Verb == wire.LeaseTTL {
			c.Options = r.options(wire.KeysOnly)
		}
	case wire.Get:
		c.Options = r.options(wire.KeysOnly)
	case wire.Range:
		c.Options, c.Limit = r.options(wire.KeysOnly, wire.Reverse), r.Uint64N(5)
	case wire.TTL:
		c.Options = r.options(wire.Absolute)
	}
}

// fillTTL sets a time to live of at least least ms, or the moment of it.
func (r *randomizer) fillTTL(c *wire.Command, least int64) {
	c.TTL = least + r.Int64N(60)
	if r.IntN(3) == 0 {
		c.Options |= wire.Absolute
		c.TTL = r.clockMs + r.Int64N(80) - 20
	}
}

func (r *randomizer) fillTransaction(c *wire.Command) {
	for range r.IntN(2) {
		c.Guards = append(c.Guards, wire.Guard{Key: r.key(), Revision: r.known()})
	}
	for range r.IntN(4) {
		inner := r.command()
		for inner.Verb == wire.Transaction || inner.Verb == wire.LeaseGrant {
			inner = r.command()
		}
		c.Commands = append(c.Commands, inner)
	}
}

const start = int64(1_700_000_000_000_000_000)

// TestOracle runs random commands on the Store and on the model: results,
// changes and contents agree, what Evaluate says in advance comes true, and the
// store survives snapshots.
func TestOracle(t *testing.T) {
	steps := testkit.Rounds(3_000, 100_000)
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			oracle(t, &randomizer{Rand: rand.New(rand.NewPCG(seed, 1))}, steps)
		})
	}
}

func oracle(t *testing.T, r *randomizer, steps int) {
	s, m := New(Config{Changes: 1 << 20}), newModel()
	whole := start
	for step := range steps {
		whole += (r.Int64N(5) - 1) * 1_000_000
		now := whole // mostly whole ms, so that clocks hit deadlines
		if r.IntN(8) == 0 {
			now += r.Int64N(1_000_000)
		}
		r.clockMs = now / 1e6
		if r.IntN(10) == 0 {
			s = restored(t, s, Config{Changes: 1 << 20})
		}
		for range r.IntN(3) {
			checkEvaluate(t, r, s, m, now)
		}
		c := r.command()
		revision := s.Revision() + 1 + r.Uint64N(2)
		got := s.Apply(revision, now, c.Append(nil))
		want := m.apply(revision, now, &c)
		if c.Verb == wire.LeaseGrant {
			r.leases = append(r.leases, revision)
			r.leases = r.leases[max(0, len(r.leases)-4):]
		}
		r.revision = revision
		if form := want.Append(nil); !bytes.Equal(got, form) {
			have, err := wire.ParseResult(got)
			t.Fatalf("step %d: %+v\n gives %+v, %v\n want %+v", step, c, have, err, want)
		}
		compare(t, s, m, fmt.Sprintf("step %d: after %+v", step, c))
		if changes := s.Changes(); !sameChanges(changes, m.changes) {
			t.Fatalf("step %d: %+v\n changes %+v\n want    %+v", step, c, changes, m.changes)
		}
		m.changes = nil
	}
}

// checkEvaluate compares Evaluate with the model and, of what may be told
// before the commit, with Apply on a copy.
func checkEvaluate(t *testing.T, r *randomizer, s *Store, m *model, now int64) {
	t.Helper()
	now += r.Int64N(20) * 1_000_000
	twin, copied := restored(t, s, Config{}), m.clone()
	copied.revision = 0
	var writes [][]byte
	revision := s.Revision()
	copied.pass(now)
	for range r.IntN(6) {
		w := r.command()
		if w.Verb == wire.LeaseGrant {
			continue
		}
		writes = append(writes, w.Append(nil))
		copied.run(&w)
		revision++
		twin.Apply(revision, now, w.Append(nil))
	}
	c := r.command()
	if r.IntN(3) == 0 {
		c = wire.Command{Verb: [...]wire.Verb{wire.Range, wire.Count, wire.LeaseTTL}[r.IntN(3)]}
		r.fill(&c)
	}
	var f wire.Footprint
	c.Footprint(&f)
	before := s.Digest()
	got := s.Evaluate(now, writes, c.Append(nil))
	want := copied.run(&c)
	if c.Verb == wire.Many && c.Options&wire.KeysOnly != 0 && want.Code == wire.OK {
		want.Revision = s.Revision()
	}
	if form := want.Append(nil); !bytes.Equal(got, form) {
		have, err := wire.ParseResult(got)
		t.Fatalf("evaluate %+v over %d writes\n gives %+v, %v\n want %+v", c, len(writes), have, err, want)
	}
	if s.Digest() != before {
		t.Fatalf("evaluating %+v over %d writes changed the store", c, len(writes))
	}
	if applied := twin.Apply(revision+1, now, c.Append(nil)); f.Fixed && !bytes.Equal(got, applied) {
		t.Fatalf("%+v: evaluated %x, applied %x", c, got, applied)
	}
}

func restored(t *testing.T, s *Store, c Config) *Store {
	t.Helper()
	var b bytes.Buffer
	n, err := s.Snapshot().WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("write snapshot: %d of %d bytes, %v", n, b.Len(), err)
	}
	form := bytes.Clone(b.Bytes())
	fresh := New(c)
	if err := fresh.Restore(&b); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if _, err := fresh.Snapshot().WriteTo(&b); err != nil || !bytes.Equal(b.Bytes(), form) {
		t.Fatalf("the snapshot of a restored store differs from the one that it comes from (%v)", err)
	}
	return fresh
}

func compare(t *testing.T, s *Store, m *model, when string) {
	t.Helper()
	var bytesHeld, due int64
	steady, moments := true, len(m.leases)
	for key, want := range m.keys {
		if got, ok := s.Get(key); !ok || got.Revision != want.Revision || got.Lease != want.Lease || got.Deadline != want.Deadline || !bytes.Equal(got.Value, want.Value) {
			t.Fatalf("%s: %q holds %+v, %v, want %+v", when, key, got, ok, want)
		}
		bytesHeld += int64(len(key) + len(want.Value))
		if want.Deadline != 0 {
			moments++
			if due == 0 || want.Deadline < due {
				due = want.Deadline
			}
		}
		timed := want.Deadline != 0 || want.Lease != 0
		steady = steady && !timed
		if s.Steady(&wire.Footprint{Keys: []string{key}}) == timed {
			t.Fatalf("%s: Steady of %q is %v", when, key, timed)
		}
	}
	for _, l := range m.leases {
		if due == 0 || l.deadline < due {
			due = l.deadline
		}
	}
	if s.Len() != len(m.keys) || s.Bytes() != bytesHeld || s.Due() != due || s.Clock() != m.clock || s.Revision() != m.revision {
		t.Fatalf("%s: Len %d, Bytes %d, Due %d, Clock %d, Revision %d, want %d, %d, %d, %d, %d", when,
			s.Len(), s.Bytes(), s.Due(), s.Clock(), s.Revision(), len(m.keys), bytesHeld, due, m.clock, m.revision)
	}
	if s.items.Len() != len(m.keys) || s.leases.Len() != len(m.leases) || s.expiry.Len() != moments {
		t.Fatalf("%s: %d items, %d leases, %d moments, want %d, %d, %d", when,
			s.items.Len(), s.leases.Len(), s.expiry.Len(), len(m.keys), len(m.leases), moments)
	}
	for id, keys := range s.held {
		if got, want := keys.Keys(), m.keysOf(id); len(got) == 0 || !slices.Equal(got, want) {
			t.Fatalf("%s: lease %d holds %q, want %q", when, id, got, want)
		}
	}
	if got := s.Steady(&wire.Footprint{Spans: []wire.Span{{}}}); got != steady {
		t.Fatalf("%s: Steady of everything is %v", when, got)
	}
}

// TestDigest: what replicas must agree on shows in the digest, the way there
// does not.
func TestDigest(t *testing.T) {
	lease := wire.Command{Verb: wire.LeaseGrant, TTL: 1000}
	set := wire.Command{Verb: wire.Set, Key: "k", Value: []byte("v")}
	vary := func(change func(c *wire.Command)) wire.Command {
		c := set
		change(&c)
		return c
	}
	digests := map[uint64]string{}
	for name, c := range map[string][]wire.Command{
		"plain":    {lease, lease, set},
		"key":      {lease, lease, vary(func(c *wire.Command) { c.Key = "K" })},
		"value":    {lease, lease, vary(func(c *wire.Command) { c.Value = []byte("V") })},
		"moved":    {lease, lease, vary(func(c *wire.Command) { c.Key, c.Value = "kv", nil })},
		"deadline": {lease, lease, vary(func(c *wire.Command) { c.TTL = 1 })},
		"later":    {lease, lease, vary(func(c *wire.Command) { c.TTL = 2 })},
		"lease 1":  {lease, lease, vary(func(c *wire.Command) { c.Lease = 1 })},
		"lease 2":  {lease, lease, vary(func(c *wire.Command) { c.Lease = 2 })},
		"no key":   {lease, lease, {Verb: wire.Get}},
		"no lease": {lease, set, {Verb: wire.LeaseRevoke, Lease: 1}},
		"revision": {lease, set, lease},
		"longer":   {lease, {Verb: wire.LeaseGrant, TTL: 1001}, set},
	} {
		s := New(Config{})
		for _, one := range c {
			apply(s, one)
		}
		if other, ok := digests[s.Digest()]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		digests[s.Digest()] = name
	}
	a, b := New(Config{}), New(Config{})
	apply(a, set)
	apply(a, vary(func(c *wire.Command) { c.Key = "gone" }))
	apply(a, wire.Command{Verb: wire.DeleteRange, Key: "g", End: "h"})
	apply(b, set)
	b.Apply(3, start, nil)
	if a.Digest() != b.Digest() {
		t.Error("equal states have different digests")
	}
	if b.Apply(3, start+1, nil); a.Digest() == b.Digest() {
		t.Error("the clock does not show in the digest")
	}
	if b.Apply(4, start, nil); a.Digest() == b.Digest() {
		t.Error("the revision does not show in the digest")
	}
}

func sameChanges(a, b []Change) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		if !bytes.Equal(x.Value, y.Value) {
			return false
		}
		x.Value, y.Value = nil, nil
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

// An operation that needs a newer format than the cluster has may mean something else when it
// is executed: its answer must not be sent before.
func TestFootprintOfANewerFormat(t *testing.T) {
	s := New(Config{})
	newer := wire.Command{Verb: wire.Expire, Cond: wire.IfValue, Key: "lock", Expect: []byte("me"), TTL: 1000}
	for _, format := range []uint64{1, 2} {
		s.SetFormat(format)
		var f wire.Footprint
		if err := s.Footprint(newer.Append(nil), &f); err != nil || len(f.Keys) != 1 || f.Fixed != (format == 2) {
			t.Errorf("format %d: %+v, %v", format, f, err)
		}
	}
}
