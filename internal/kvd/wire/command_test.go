package wire

import (
	"reflect"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	long := strings.Repeat("k", MaxKey+1)
	large := make([]byte, MaxValue+1)
	for _, c := range []struct {
		name string
		c    Command
		want string // part of the error, "" for none
	}{
		{"nothing", Command{}, "unknown verb 0"},
		{"later version's verb", Command{Verb: verbs + 1}, "unknown verb"},
		{"empty key", Command{Verb: Set}, ""},
		{"longest key", Command{Verb: Get, Key: long[1:]}, ""},
		{"long key", Command{Verb: Get, Key: long}, "key of 65537 bytes, at most 65536"},
		{"long end", Command{Verb: Range, End: long}, "key of"},
		{"long key in list", Command{Verb: Delete, Keys: []string{"a", long}}, "key of"},
		{"long key in pair", Command{Verb: SetMany, Pairs: []Pair{{Key: long}}}, "key of"},
		{"long key in guard", Command{Verb: Transaction, Guards: []Guard{{Key: long}}}, "key of"},
		{"largest value", Command{Verb: Set, Value: large[1:]}, ""},
		{"large value", Command{Verb: Set, Value: large}, "value of 8388609 bytes"},
		{"large value in pair", Command{Verb: SetMany, Pairs: []Pair{{Value: large}}}, "value of"},
		{"large command", Command{Verb: SetMany, Pairs: []Pair{{Value: large[1:]}, {Value: large[1:]}}}, "command of 16777"},
		{"many keys", Command{Verb: Many, Keys: make([]string, MaxItems+1)}, "list of 65537 elements"},
		{"condition of another verb", Command{Verb: Set, Cond: IfGreater}, "Set does not know condition"},
		{"no condition at all", Command{Verb: Set, Cond: 200}, "condition 200"},
		{"condition of a read", Command{Verb: Get, Cond: IfAbsent}, "Get does not know"},
		{"option of another verb", Command{Verb: Set, Options: Reverse}, "Set does not know options 0x8"},
		{"time to live", Command{Verb: Set, TTL: MaxTTL}, ""},
		{"time to live too long", Command{Verb: Set, TTL: MaxTTL + 1}, "time to live of"},
		{"negative time to live", Command{Verb: Set, TTL: -1}, "time to live of -1 ms"},
		{"moment 0", Command{Verb: Set, Options: Absolute}, "time to live of 0 ms"},
		{"keep and set", Command{Verb: Set, TTL: 1, Options: KeepTTL}, "keep and set"},
		{"expire in the past", Command{Verb: Expire, TTL: -5}, ""},
		{"expire too late", Command{Verb: Expire, TTL: MaxTTL + 1}, "at most"},
		{"lease of no time", Command{Verb: LeaseGrant}, "lease of 0 ms"},
		{"old values", Command{Verb: Delete, Options: ReturnOld, Keys: []string{"a", "b"}}, "takes one key, not 2"},
		{"conditions", Command{Verb: Delete, Cond: IfValue}, "takes one key, not 0"},
		{"old value", Command{Verb: Delete, Cond: IfRevision, Options: ReturnOld, Keys: []string{"a"}}, ""},
		{"transaction", Command{Verb: Transaction, Commands: []Command{{Verb: Get}, {Verb: LeaseKeep}}}, ""},
		{"nested", Command{Verb: Transaction, Commands: []Command{{Verb: Transaction}}}, "Transaction inside a Transaction"},
		{"grant inside", Command{Verb: Transaction, Commands: []Command{{Verb: LeaseGrant, TTL: 1}}}, "LeaseGrant inside"},
		{"bad inside", Command{Verb: Transaction, Commands: []Command{{Verb: Get}, {}}}, "command 2 of 2: unknown verb"},
	} {
		err := c.c.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestFootprint(t *testing.T) {
	const write, blind, fixed, timed = "write ", "blind ", "fixed ", "timed "
	keys := func(list ...string) []string { return list }
	for _, c := range []struct {
		name  string
		c     Command
		keys  []string
		spans []Span
		is    string
	}{
		{"set", Command{Verb: Set, Key: "k"}, keys("k"), nil, write + blind + fixed},
		{"set for a while", Command{Verb: Set, Key: "k", TTL: 5}, keys("k"), nil, write + blind + fixed + timed},
		{"set if absent", Command{Verb: Set, Cond: IfAbsent}, keys(""), nil, write + fixed},
		{"set, old value", Command{Verb: Set, Options: ReturnOld}, keys(""), nil, write + fixed},
		{"set on a lease", Command{Verb: Set, Lease: 1}, keys(""), nil, write + timed},
		{"silent set on a lease", Command{Verb: Set, Lease: 1, Options: NoReply}, keys(""), nil, write + blind + timed},
		{"delete", Command{Verb: Delete, Keys: keys("a", "b")}, keys("a", "b"), nil, write + fixed},
		{"silent delete", Command{Verb: Delete, Keys: keys("a"), Options: NoReply}, keys("a"), nil, write + blind + fixed},
		{"increment", Command{Verb: Increment, Key: "n"}, keys("n"), nil, write + fixed},
		{"silent increment", Command{Verb: Increment, Key: "n", Options: NoReply}, keys("n"), nil, write + blind + fixed},
		{"expire", Command{Verb: Expire, Key: "n", Options: NoReply}, keys("n"), nil, write + blind + fixed + timed},
		{"set many", Command{Verb: SetMany, Pairs: []Pair{{Key: "a"}, {Key: "b"}}}, keys("a", "b"), nil, write + blind + fixed},
		{"set until a moment", Command{Verb: Set, Key: "k", TTL: 5, Options: Absolute}, keys("k"), nil, write + blind + fixed + timed},
		{"set until a moment, then append", Command{Verb: Transaction, Commands: []Command{
			{Verb: Set, Key: "k", TTL: 5, Options: Absolute}, {Verb: Append, Key: "k"},
		}}, keys("k", "k"), nil, write + timed},
		{"set for a while, then append", Command{Verb: Transaction, Commands: []Command{
			{Verb: Set, Key: "k", TTL: 5}, {Verb: Append, Key: "k"},
		}}, keys("k", "k"), nil, write + fixed + timed},
		{"set none or all", Command{Verb: SetMany, Cond: IfAbsent, Pairs: []Pair{{Key: "a"}}}, keys("a"), nil, write + fixed},
		{"delete range", Command{Verb: DeleteRange, Key: "a", End: "b"}, nil, []Span{{"a", "b"}}, write + fixed},
		{"grant", Command{Verb: LeaseGrant, TTL: 1}, nil, nil, write},
		{"revoke", Command{Verb: LeaseRevoke, Lease: 1}, nil, []Span{{}}, write},
		{"get", Command{Verb: Get, Key: "k"}, keys("k"), nil, ""},
		{"range", Command{Verb: Range, Key: "k"}, nil, []Span{{"k", ""}}, ""},
		{"many", Command{Verb: Many, Keys: keys("a", "b")}, keys("a", "b"), nil, ""},
		{
			"guarded",
			Command{Verb: Transaction, Guards: []Guard{{Key: "g"}}, Commands: []Command{{Verb: Set, Key: "k", TTL: 9}}},
			keys("g", "k"), nil, write + fixed + timed,
		},
		{
			"silent transaction",
			Command{Verb: Transaction, Options: NoReply, Commands: []Command{{Verb: Increment}, {Verb: Set}}},
			keys("", ""), nil, write + blind + fixed,
		},
		{
			"shows its own revision",
			Command{Verb: Transaction, Commands: []Command{{Verb: Set, Key: "k"}, {Verb: Get, Key: "k"}}},
			keys("k", "k"), nil, write,
		},
	} {
		var f Footprint
		c.c.Footprint(&f)
		is := ""
		for name, has := range map[string]bool{write: f.Write, blind: f.Blind, fixed: f.Fixed, timed: f.Timed} {
			if has != strings.Contains(c.is, name) {
				is += name
			}
		}
		if is != "" || !reflect.DeepEqual(f.Keys, c.keys) || !reflect.DeepEqual(f.Spans, c.spans) {
			t.Errorf("%s: %+v, want %v %v %s", c.name, f, c.keys, c.spans, c.is)
		}
		if f.Reset(); len(f.Keys)+len(f.Spans) != 0 || f.Write || f.Blind || f.Fixed || f.Timed {
			t.Errorf("%s: after Reset %+v", c.name, f)
		}
	}
}

func TestFootprintGathers(t *testing.T) {
	var f Footprint
	for _, c := range []Command{{Verb: Set, Key: "a", TTL: 1}, {Verb: Range, Key: "b"}} {
		c.Footprint(&f)
	}
	if want := (Footprint{Keys: []string{"a"}, Spans: []Span{{"b", ""}}, Write: true, Timed: true}); !reflect.DeepEqual(f, want) {
		t.Errorf("%+v, want %+v", f, want)
	}
}

func TestOverlaps(t *testing.T) {
	key := func(k string) Footprint { return Footprint{Keys: []string{k}} }
	span := func(from, to string) Footprint { return Footprint{Spans: []Span{{from, to}}} }
	for _, c := range []struct {
		a, b Footprint
		want bool
	}{
		{key("a"), key("a"), true},
		{key("a"), key("b"), false},
		{key("b"), span("a", "c"), true},
		{key("c"), span("a", "c"), false},
		{key("a"), span("a", ""), true},
		{key("z"), span("", ""), true},
		{span("a", "c"), span("b", "d"), true},
		{span("a", "b"), span("b", "c"), false},
		{span("a", ""), span("", "b"), true},
		{span("b", ""), span("", "b"), false},
		{span("b", "b"), span("", ""), false},
		{span("c", "a"), span("", ""), false},
		{key(""), key("a"), false},
		{Footprint{}, span("", ""), false},
	} {
		if c.a.Overlaps(&c.b) != c.want || c.b.Overlaps(&c.a) != c.want {
			t.Errorf("%v and %v: want %v", c.a, c.b, c.want)
		}
	}
}
