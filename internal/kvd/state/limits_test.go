package state

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func TestMalformedChangesNothing(t *testing.T) {
	s := filled(2, 2)
	for _, b := range [][]byte{
		{0},
		{1},
		{255, 255, 255},
		(&wire.Command{Verb: wire.Set, Cond: 77}).Append(nil),
		(&wire.Command{Verb: wire.LeaseTTL + 1}).Append(nil),
		(&wire.Command{Verb: wire.Transaction, Commands: []wire.Command{{Verb: wire.Set, Key: "new"}, {Verb: wire.LeaseGrant, TTL: 1}}}).Append(nil),
		make([]byte, wire.MaxCommand+1),
	} {
		length := s.Len()
		for _, result := range [][]byte{s.Evaluate(0, [][]byte{b}, b), s.Apply(s.Revision()+1, 0, b)} {
			if r, err := wire.ParseResult(result); err != nil || r.Code != wire.Malformed {
				t.Errorf("%.20x: %+v, %v", b, r, err)
			}
		}
		if s.Len() != length {
			t.Errorf("%.20x changed the store", b)
		}
		if len(b) <= wire.MaxCommand && s.Footprint(b, new(wire.Footprint)) == nil {
			t.Errorf("%.20x has a footprint", b)
		}
	}
}

func TestIncrementBounds(t *testing.T) {
	for _, c := range []struct {
		value string
		delta int64
		want  wire.Result
	}{
		{"5", -6, wire.Result{Number: -1}},
		{"9223372036854775806", 1, wire.Result{Number: math.MaxInt64}},
		{"9223372036854775807", 1, wire.Result{Code: wire.WrongType, Found: true}},
		{"-9223372036854775808", 0, wire.Result{Number: math.MinInt64}},
		{"-9223372036854775808", -1, wire.Result{Code: wire.WrongType, Found: true}},
		{"-1", math.MinInt64, wire.Result{Code: wire.WrongType, Found: true}},
		{"-1", math.MaxInt64, wire.Result{Number: math.MaxInt64 - 1}},
		{"9223372036854775808", 0, wire.Result{Code: wire.WrongType}},
		{"", 1, wire.Result{Code: wire.WrongType}},
		{"-0", 1, wire.Result{Code: wire.WrongType}},
		{"+1", 1, wire.Result{Code: wire.WrongType}},
		{"01", 1, wire.Result{Code: wire.WrongType}},
		{" 1", 1, wire.Result{Code: wire.WrongType}},
		{"1_0", 1, wire.Result{Code: wire.WrongType}},
		{"0x1", 1, wire.Result{Code: wire.WrongType}},
		{"1.0", 1, wire.Result{Code: wire.WrongType}},
	} {
		s := New(Config{})
		s.SetFormat(wire.FormatOverflow)
		apply(s, wire.Command{Verb: wire.Set, Key: "n", Value: []byte(c.value)})
		got := apply(s, wire.Command{Verb: wire.Increment, Key: "n", Delta: c.delta})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q + %d: %+v, want %+v", c.value, c.delta, got, c.want)
		}
		if it, _ := s.Get("n"); c.want.Code != wire.OK && string(it.Value) != c.value {
			t.Errorf("%q + %d leaves %q", c.value, c.delta, it.Value)
		}
	}
}

// A sum that does not fit is distinguished from a value that is not an integer only when all
// replicas do so, and an answer that may still become another one is not sent before the
// commit.
func TestOverflowInOlderFormats(t *testing.T) {
	s := New(Config{})
	apply(s, wire.Command{Verb: wire.Set, Key: "n", Value: []byte("9223372036854775807")})
	add := wire.Command{Verb: wire.Increment, Key: "n", Delta: 1}
	both := wire.Command{Verb: wire.Transaction, Commands: []wire.Command{add}}
	for format := uint64(1); format <= wire.FormatOverflow; format++ {
		s.SetFormat(format)
		newest := format == wire.FormatOverflow
		if got := apply(s, add); got.Code != wire.WrongType || got.Found != newest {
			t.Errorf("format %d: %+v", format, got)
		}
		if got, err := wire.ParseResult(s.Evaluate(0, nil, add.Append(nil))); err != nil || got.Found != newest {
			t.Errorf("format %d, evaluated: %+v, %v", format, got, err)
		}
		var f wire.Footprint
		if err := s.Footprint(add.Append(nil), &f); err != nil || f.Fixed != newest {
			t.Errorf("format %d: %+v, %v", format, f, err)
		}
		f = wire.Footprint{}
		if err := s.Footprint(both.Append(nil), &f); err != nil || f.Fixed && !newest {
			t.Errorf("format %d, in a transaction: %+v, %v", format, f, err)
		}
	}
}

func TestTimeToLiveBounds(t *testing.T) {
	s := New(Config{})
	apply(s, wire.Command{Verb: wire.Set, Key: "k", TTL: wire.MaxTTL})
	if it, _ := s.Get("k"); it.Deadline != math.MaxInt64 {
		t.Errorf("deadline %d", it.Deadline)
	}
	apply(s, wire.Command{Verb: wire.Set, Key: "k", TTL: wire.MaxTTL, Options: wire.Absolute})
	if got := apply(s, wire.Command{Verb: wire.TTL, Key: "k", Options: wire.Absolute}); got.Number != wire.MaxTTL {
		t.Errorf("%+v", got)
	}
	apply(s, wire.Command{Verb: wire.Expire, Key: "k", TTL: -wire.MaxTTL})
	if s.Len() != 0 || s.Due() != 0 {
		t.Error("a key expired before 1970 is there")
	}
}

func TestAppendBounds(t *testing.T) {
	s := New(Config{})
	apply(s, wire.Command{Verb: wire.Set, Key: "k", Value: make([]byte, wire.MaxValue-1)})
	for _, want := range []wire.Result{{Number: wire.MaxValue}, {Code: wire.TooLarge}} {
		if got := apply(s, wire.Command{Verb: wire.Append, Key: "k", Value: []byte("x")}); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestAnswersAreBounded asks for more than an answer may hold.
func TestAnswersAreBounded(t *testing.T) {
	s := New(Config{})
	value := bytes.Repeat([]byte("v"), 5<<20)
	var keys []string
	for _, key := range []string{"a", "b", "c", "d"} {
		keys = append(keys, key)
		apply(s, wire.Command{Verb: wire.Set, Key: key, Value: value})
	}
	if r := apply(s, wire.Command{Verb: wire.Range}); len(r.Pairs) != 3 || !r.More {
		t.Errorf("a range of %d pairs, more %v", len(r.Pairs), r.More)
	}
	if r := apply(s, wire.Command{Verb: wire.Range, Options: wire.KeysOnly}); len(r.Pairs) != 4 || r.More {
		t.Errorf("a range of %d keys, more %v", len(r.Pairs), r.More)
	}
	if r := apply(s, wire.Command{Verb: wire.Many, Keys: keys}); r.Code != wire.TooLarge || r.Results != nil {
		t.Errorf("code %d, %d results", r.Code, len(r.Results))
	}
	if r := apply(s, wire.Command{Verb: wire.Many, Keys: keys[:3]}); r.Code != wire.OK || len(r.Results) != 3 {
		t.Errorf("code %d, %d results", r.Code, len(r.Results))
	}
	get := wire.Command{Verb: wire.Get, Key: "a"}
	replace := wire.Command{Verb: wire.Set, Key: "b", Options: wire.ReturnOld}
	remove := wire.Command{Verb: wire.Delete, Keys: []string{"c"}, Options: wire.ReturnOld}
	r := apply(s, wire.Command{Verb: wire.Transaction, Commands: []wire.Command{get, get, get, get, replace, remove}})
	var codes []uint8
	for i := range r.Results {
		codes = append(codes, r.Results[i].Code)
	}
	if want := []uint8{0, 0, 0, wire.TooLarge, wire.TooLarge, wire.TooLarge}; !bytes.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
	if it, _ := s.Get("b"); len(it.Value) != len(value) || s.Len() != 4 {
		t.Error("a write whose old value does not fit into the answer was done")
	}
	for _, key := range keys[:2] {
		apply(s, wire.Command{Verb: wire.Set, Key: key, Value: make([]byte, wire.MaxValue-10_000)})
	}
	small := wire.Command{Verb: wire.Transaction, Commands: []wire.Command{get, {Verb: wire.Get, Key: "b"}}}
	for range 60_000 {
		small.Commands = append(small.Commands, wire.Command{Verb: wire.TTL, Key: "none"})
	}
	if result := s.Evaluate(start, nil, small.Append(nil)); len(result) > wire.MaxResult {
		t.Errorf("an answer of %d bytes", len(result))
	}
	many := wire.Command{Verb: wire.Transaction}
	for range 10 {
		many.Commands = append(many.Commands, wire.Command{Verb: wire.Many, Keys: make([]string, 60_000)})
	}
	if result := s.Evaluate(start, nil, many.Append(nil)); len(result) > wire.MaxResult {
		t.Errorf("an answer of %d bytes", len(result))
	}
}

func TestEvaluateIsCheap(t *testing.T) {
	s := filled(1000, 100)
	set := (&wire.Command{Verb: wire.Set, Key: "k5", Value: make([]byte, 50)}).Append(nil)
	get := (&wire.Command{Verb: wire.Get, Key: "k5"}).Append(nil)
	erase := [][]byte{(&wire.Command{Verb: wire.DeleteRange, Options: wire.NoReply}).Append(nil)}
	for _, c := range []struct {
		name    string
		writes  [][]byte
		command []byte
		most    float64
	}{
		{"get", nil, get, 1},
		{"set", nil, set, 0},
		{"get after everything was deleted", erase, get, 10},
	} {
		if n := testing.AllocsPerRun(100, func() { s.Evaluate(start, c.writes, c.command) }); n > c.most {
			t.Errorf("%s allocates %v times", c.name, n)
		}
	}
}

// TestReadKeepsNothing: the store shares no memory with the commands that it
// was given.
func TestReadKeepsNothing(t *testing.T) {
	s := New(Config{Changes: 100})
	pair := wire.Command{Verb: wire.SetMany, Pairs: []wire.Pair{{Key: "pair", Value: []byte("1")}}}
	for _, c := range []wire.Command{
		{Verb: wire.Set, Key: "set", Value: []byte("1"), TTL: 10},
		{Verb: wire.Append, Key: "append", Value: []byte("1")},
		{Verb: wire.Append, Key: "append", Value: []byte("2")},
		{Verb: wire.Increment, Key: "increment", Delta: 1},
		{Verb: wire.LeaseGrant, TTL: 1000},
		{Verb: wire.Set, Key: "leased", Lease: 5},
		pair,
		{Verb: wire.Transaction, Commands: []wire.Command{pair}},
		{Verb: wire.Delete, Keys: []string{"increment"}},
	} {
		b := c.Append(nil)
		s.Apply(s.Revision()+1, start, b)
		s.Evaluate(start, [][]byte{b}, b)
		for i := range b {
			b[i] = 0xee
		}
	}
	want := "+set@1 +append@2 +append@3 +increment@4 +leased@6 +pair@7 +pair@8 -increment@9"
	if got := told(s.Changes()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, key := range []string{"set", "append", "leased", "pair"} {
		if it, ok := s.Get(key); !ok || bytes.Contains(it.Value, []byte{0xee}) {
			t.Errorf("%s: %q, %v", key, it.Value, ok)
		}
	}
	restored(t, s, Config{})
	s.Apply(s.Revision()+1, start+1_000_000_000, nil)
	if got := told(s.Changes()); got != "xset@10 xleased@10" || s.Len() != 2 {
		t.Errorf("%s, %d keys are left", got, s.Len())
	}
}
