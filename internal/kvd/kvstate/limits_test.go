package kvstate

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/weirdb/weir/internal/kvd/kvwire"
)

func TestMalformedChangesNothing(t *testing.T) {
	s := filled(2, 2)
	for _, b := range [][]byte{
		{0},
		{1},
		{255, 255, 255},
		(&kvwire.Command{Verb: kvwire.Set, Cond: 77}).Append(nil),
		(&kvwire.Command{Verb: kvwire.LeaseTTL + 1}).Append(nil),
		(&kvwire.Command{Verb: kvwire.Transaction, Commands: []kvwire.Command{{Verb: kvwire.Set, Key: "new"}, {Verb: kvwire.LeaseGrant, TTL: 1}}}).Append(nil),
		make([]byte, kvwire.MaxCommand+1),
	} {
		length := s.Len()
		for _, result := range [][]byte{s.Evaluate(0, [][]byte{b}, b), s.Apply(s.Revision()+1, 0, b)} {
			if r, err := kvwire.ParseResult(result); err != nil || r.Code != kvwire.Malformed {
				t.Errorf("%.20x: %+v, %v", b, r, err)
			}
		}
		if s.Len() != length {
			t.Errorf("%.20x changed the store", b)
		}
		if len(b) <= kvwire.MaxCommand && s.Footprint(b, new(kvwire.Footprint)) == nil {
			t.Errorf("%.20x has a footprint", b)
		}
	}
}

func TestIncrementBounds(t *testing.T) {
	for _, c := range []struct {
		value string
		delta int64
		want  kvwire.Result
	}{
		{"5", -6, kvwire.Result{Number: -1}},
		{"9223372036854775806", 1, kvwire.Result{Number: math.MaxInt64}},
		{"9223372036854775807", 1, kvwire.Result{Code: kvwire.WrongType}},
		{"-9223372036854775808", 0, kvwire.Result{Number: math.MinInt64}},
		{"-9223372036854775808", -1, kvwire.Result{Code: kvwire.WrongType}},
		{"-1", math.MinInt64, kvwire.Result{Code: kvwire.WrongType}},
		{"-1", math.MaxInt64, kvwire.Result{Number: math.MaxInt64 - 1}},
		{"9223372036854775808", 0, kvwire.Result{Code: kvwire.WrongType}},
		{"", 1, kvwire.Result{Code: kvwire.WrongType}},
		{"-0", 1, kvwire.Result{Code: kvwire.WrongType}},
		{"+1", 1, kvwire.Result{Code: kvwire.WrongType}},
		{"01", 1, kvwire.Result{Code: kvwire.WrongType}},
		{" 1", 1, kvwire.Result{Code: kvwire.WrongType}},
		{"1_0", 1, kvwire.Result{Code: kvwire.WrongType}},
		{"0x1", 1, kvwire.Result{Code: kvwire.WrongType}},
		{"1.0", 1, kvwire.Result{Code: kvwire.WrongType}},
	} {
		s := New(Config{})
		apply(s, kvwire.Command{Verb: kvwire.Set, Key: "n", Value: []byte(c.value)})
		got := apply(s, kvwire.Command{Verb: kvwire.Increment, Key: "n", Delta: c.delta})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q + %d: %+v, want %+v", c.value, c.delta, got, c.want)
		}
		if it, _ := s.Get("n"); c.want.Code != kvwire.OK && string(it.Value) != c.value {
			t.Errorf("%q + %d leaves %q", c.value, c.delta, it.Value)
		}
	}
}

func TestTimeToLiveBounds(t *testing.T) {
	s := New(Config{})
	apply(s, kvwire.Command{Verb: kvwire.Set, Key: "k", TTL: kvwire.MaxTTL})
	if it, _ := s.Get("k"); it.Deadline != math.MaxInt64 {
		t.Errorf("deadline %d", it.Deadline)
	}
	apply(s, kvwire.Command{Verb: kvwire.Set, Key: "k", TTL: kvwire.MaxTTL, Options: kvwire.Absolute})
	if got := apply(s, kvwire.Command{Verb: kvwire.TTL, Key: "k", Options: kvwire.Absolute}); got.Number != kvwire.MaxTTL {
		t.Errorf("%+v", got)
	}
	apply(s, kvwire.Command{Verb: kvwire.Expire, Key: "k", TTL: -kvwire.MaxTTL})
	if s.Len() != 0 || s.Due() != 0 {
		t.Error("a key expired before 1970 is there")
	}
}

func TestAppendBounds(t *testing.T) {
	s := New(Config{})
	apply(s, kvwire.Command{Verb: kvwire.Set, Key: "k", Value: make([]byte, kvwire.MaxValue-1)})
	for _, want := range []kvwire.Result{{Number: kvwire.MaxValue}, {Code: kvwire.TooLarge}} {
		if got := apply(s, kvwire.Command{Verb: kvwire.Append, Key: "k", Value: []byte("x")}); !reflect.DeepEqual(got, want) {
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
		apply(s, kvwire.Command{Verb: kvwire.Set, Key: key, Value: value})
	}
	if r := apply(s, kvwire.Command{Verb: kvwire.Range}); len(r.Pairs) != 3 || !r.More {
		t.Errorf("a range of %d pairs, more %v", len(r.Pairs), r.More)
	}
	if r := apply(s, kvwire.Command{Verb: kvwire.Range, Options: kvwire.KeysOnly}); len(r.Pairs) != 4 || r.More {
		t.Errorf("a range of %d keys, more %v", len(r.Pairs), r.More)
	}
	if r := apply(s, kvwire.Command{Verb: kvwire.Many, Keys: keys}); r.Code != kvwire.TooLarge || r.Results != nil {
		t.Errorf("code %d, %d results", r.Code, len(r.Results))
	}
	if r := apply(s, kvwire.Command{Verb: kvwire.Many, Keys: keys[:3]}); r.Code != kvwire.OK || len(r.Results) != 3 {
		t.Errorf("code %d, %d results", r.Code, len(r.Results))
	}
	get := kvwire.Command{Verb: kvwire.Get, Key: "a"}
	replace := kvwire.Command{Verb: kvwire.Set, Key: "b", Options: kvwire.ReturnOld}
	remove := kvwire.Command{Verb: kvwire.Delete, Keys: []string{"c"}, Options: kvwire.ReturnOld}
	r := apply(s, kvwire.Command{Verb: kvwire.Transaction, Commands: []kvwire.Command{get, get, get, get, replace, remove}})
	var codes []uint8
	for i := range r.Results {
		codes = append(codes, r.Results[i].Code)
	}
	if want := []uint8{0, 0, 0, kvwire.TooLarge, kvwire.TooLarge, kvwire.TooLarge}; !bytes.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
	if it, _ := s.Get("b"); len(it.Value) != len(value) || s.Len() != 4 {
		t.Error("a write whose old value does not fit into the answer was done")
	}
	for _, key := range keys[:2] {
		apply(s, kvwire.Command{Verb: kvwire.Set, Key: key, Value: make([]byte, kvwire.MaxValue-10_000)})
	}
	small := kvwire.Command{Verb: kvwire.Transaction, Commands: []kvwire.Command{get, {Verb: kvwire.Get, Key: "b"}}}
	for range 60_000 {
		small.Commands = append(small.Commands, kvwire.Command{Verb: kvwire.TTL, Key: "none"})
	}
	if result := s.Evaluate(start, nil, small.Append(nil)); len(result) > kvwire.MaxResult {
		t.Errorf("an answer of %d bytes", len(result))
	}
	many := kvwire.Command{Verb: kvwire.Transaction}
	for range 10 {
		many.Commands = append(many.Commands, kvwire.Command{Verb: kvwire.Many, Keys: make([]string, 60_000)})
	}
	if result := s.Evaluate(start, nil, many.Append(nil)); len(result) > kvwire.MaxResult {
		t.Errorf("an answer of %d bytes", len(result))
	}
}

func TestEvaluateIsCheap(t *testing.T) {
	s := filled(1000, 100)
	set := (&kvwire.Command{Verb: kvwire.Set, Key: "k5", Value: make([]byte, 50)}).Append(nil)
	get := (&kvwire.Command{Verb: kvwire.Get, Key: "k5"}).Append(nil)
	erase := [][]byte{(&kvwire.Command{Verb: kvwire.DeleteRange, Options: kvwire.NoReply}).Append(nil)}
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
	pair := kvwire.Command{Verb: kvwire.SetMany, Pairs: []kvwire.Pair{{Key: "pair", Value: []byte("1")}}}
	for _, c := range []kvwire.Command{
		{Verb: kvwire.Set, Key: "set", Value: []byte("1"), TTL: 10},
		{Verb: kvwire.Append, Key: "append", Value: []byte("1")},
		{Verb: kvwire.Append, Key: "append", Value: []byte("2")},
		{Verb: kvwire.Increment, Key: "increment", Delta: 1},
		{Verb: kvwire.LeaseGrant, TTL: 1000},
		{Verb: kvwire.Set, Key: "leased", Lease: 5},
		pair,
		{Verb: kvwire.Transaction, Commands: []kvwire.Command{pair}},
		{Verb: kvwire.Delete, Keys: []string{"increment"}},
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
