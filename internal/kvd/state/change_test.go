package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// told shows changes as kind, key and revision.
func told(changes []Change) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%c%s@%d ", "?+-x"[c.Kind], c.Key, c.Revision)
	}
	return strings.TrimSpace(b.String())
}

// A store says that a key was touched where it does not know better.
func TestUntouched(t *testing.T) {
	s := New(Config{Changes: 3})
	run := func(c wire.Command) {
		apply(s, c)
		s.Changes()
	}
	check := func(what, key string, after uint64, want bool) {
		t.Helper()
		since := map[string]uint64{key: after, "nobody's": s.revision, "unknown": s.revision + 1}
		s.Untouched(since)
		if _, untouched := since[key]; untouched == want {
			t.Errorf("%s: %q touched after %d: %v", what, key, after, !untouched)
		}
		if _, untouched := since["nobody's"]; !untouched || since["unknown"] != 0 {
			t.Errorf("%s: of others: %v", what, since)
		}
	}
	check("an empty store", "k", 0, false)
	check("an empty store", "k", 1, true) // which it does not know of
	run(wire.Command{Verb: wire.Set, Key: "k"})
	check("a new key", "k", 0, true)
	check("a new key", "k", 1, false)
	run(wire.Command{Verb: wire.Delete, Keys: []string{"k"}})
	check("made and removed", "k", 0, true)
	check("removed", "k", 1, true)
	check("long removed", "k", 2, false)
	check("another's", "k2", 0, false)
	check("another's", "", 0, false)
	for range 3 {
		run(wire.Command{Verb: wire.Set, Key: "other"})
	}
	check("more than is kept", "k2", 0, true)
	check("what is kept", "k2", 4, false)
	s = restored(t, s, Config{Changes: 3})
	check("restored", "k2", 4, true)
	check("restored", "k2", 5, false)
	s = New(Config{}) // which keeps nothing
	apply(s, wire.Command{Verb: wire.Set, Key: "other"})
	check("without a history", "k", 0, true)
	check("without a history", "k", 1, false)
}

func TestHistory(t *testing.T) {
	s := New(Config{Changes: 4})
	set := func(keys ...string) {
		var pairs []wire.Pair
		for _, key := range keys {
			pairs = append(pairs, wire.Pair{Key: key})
		}
		apply(s, wire.Command{Verb: wire.SetMany, Pairs: pairs})
		s.Changes()
	}
	all := wire.Span{}
	check := func(from uint64, span wire.Span, limit int, want string) {
		t.Helper()
		changes, next, compacted := s.History(from, span, limit)
		got := fmt.Sprintf("%s next %d", told(changes), next)
		if compacted {
			got = "compacted"
		}
		if got != want {
			t.Errorf("from %d, %v, limit %d: %s, want %s", from, span, limit, got, want)
		}
	}
	check(1, all, 0, " next 1")
	check(7, all, 0, " next 7")
	set("a")      // 1
	set("b", "c") // 2
	set("d")      // 3
	check(1, all, 0, "+a@1 +b@2 +c@2 +d@3 next 4")
	check(0, all, 0, "compacted")
	check(2, all, 0, "+b@2 +c@2 +d@3 next 4")
	check(1, all, 1, "+a@1 next 2")
	check(1, all, 2, "+a@1 +b@2 +c@2 next 3")
	check(1, wire.Span{From: "b", To: "c"}, 0, "+b@2 next 4")
	check(1, wire.Span{From: "b", To: "c"}, 1, "+b@2 next 3")
	check(4, all, 0, " next 4")
	set("e") // 4: now a fifth change
	set()    // 5 changes nothing
	check(1, all, 0, "compacted")
	check(2, all, 0, "+b@2 +c@2 +d@3 +e@4 next 6")
	set("f") // 6: half of revision 2 is gone
	check(2, all, 0, "compacted")
	check(3, all, 0, "+d@3 +e@4 +f@6 next 7")
}

func TestHistoryIsBoundedInBytes(t *testing.T) {
	s := New(Config{Changes: 1000, ChangeBytes: 1000})
	for range 100 {
		apply(s, wire.Command{Verb: wire.Set, Key: "k", Value: make([]byte, 99)})
		if n := len(s.Changes()); n != 1 {
			t.Fatalf("%d changes", n)
		}
	}
	if len(s.log.kept) > 30 || s.log.bytes > 1100 {
		t.Errorf("%d changes of %d bytes are kept", len(s.log.kept), s.log.bytes)
	}
	if changes, _, compacted := s.History(91, wire.Span{}, 0); compacted || len(changes) != 10 {
		t.Errorf("%d changes, compacted %v", len(changes), compacted)
	}
}

// TestChangesOfOneTurn drains more changes at once than are kept.
func TestChangesOfOneTurn(t *testing.T) {
	s := New(Config{Changes: 2})
	var want []string
	for range 3 {
		for i := range 10 {
			key := fmt.Sprint("k", i)
			apply(s, wire.Command{Verb: wire.Set, Key: key})
			want = append(want, key)
		}
		var got []string
		for _, c := range s.Changes() {
			got = append(got, c.Key)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		if got := s.Changes(); len(got) != 0 {
			t.Fatalf("told twice: %v", got)
		}
		want = nil
	}
	if changes, _, compacted := s.History(29, wire.Span{}, 0); compacted || told(changes) != "+k8@29 +k9@30" {
		t.Errorf("%s, compacted %v", told(changes), compacted)
	}
}

func TestHistoryAfterRestore(t *testing.T) {
	s := restored(t, filled(3, 3), Config{Changes: 10})
	if _, _, compacted := s.History(s.Revision(), wire.Span{}, 0); !compacted {
		t.Error("history before the snapshot is known")
	}
	if changes, next, compacted := s.History(s.Revision()+1, wire.Span{}, 0); compacted || len(changes) != 0 || next != s.Revision()+1 {
		t.Error("a watch cannot go on after the snapshot")
	}
	apply(s, wire.Command{Verb: wire.Delete, Keys: []string{"k1"}})
	if got := told(s.Changes()); got != "-k1@7" {
		t.Errorf("changes %s", got)
	}
}

func TestNothingIsRecordedUnasked(t *testing.T) {
	s := filled(3, 3)
	if len(s.Changes()) != 0 || len(s.log.kept) != 0 {
		t.Error("changes were recorded")
	}
	if _, _, compacted := s.History(s.Revision(), wire.Span{}, 0); !compacted {
		t.Error("history is known that was not recorded")
	}
	if _, _, compacted := s.History(s.Revision()+1, wire.Span{}, 0); compacted {
		t.Error("the future is compacted")
	}
}

// TestExpiryOrder: what is due goes in the order of its moments, keys before
// leases, and before the command that brings the clock.
func TestExpiryOrder(t *testing.T) {
	s := New(Config{Changes: 100})
	for _, c := range []wire.Command{
		{Verb: wire.LeaseGrant, TTL: 20},
		{Verb: wire.Set, Key: "z", TTL: 10},
		{Verb: wire.Set, Key: "b", TTL: 20},
		{Verb: wire.Set, Key: "a", TTL: 20},
		{Verb: wire.Set, Key: "m", Lease: 1},
		{Verb: wire.Set, Key: "l", Lease: 1, TTL: 30},
		{Verb: wire.Set, Key: "stays", TTL: 21},
	} {
		apply(s, c)
	}
	s.Changes()
	s.Apply(8, start+20_000_000, (&wire.Command{Verb: wire.Set, Key: "a", Cond: wire.IfAbsent}).Append(nil))
	if got, want := told(s.Changes()), "xz@8 xa@8 xb@8 xl@8 xm@8 +a@8"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if s.Apply(9, start, nil) != nil || s.Clock() != start+20_000_000 || s.Revision() != 9 {
		t.Errorf("an empty command: clock %d, revision %d", s.Clock(), s.Revision())
	}
	if s.Due() != start+21_000_000 {
		t.Errorf("due %d", s.Due())
	}
	s.Apply(10, s.Due(), nil)
	if got := told(s.Changes()); got != "xstays@10" || s.Due() != 0 {
		t.Errorf("%s, due %d", got, s.Due())
	}
}
