package wire

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

var messages = []Message{
	{Kind: Strong},
	{
		Kind: Strong, Flags: FlagFast, View: 3, Session: 1 << 40, Seq: 128, Ack: 127, Prior: 126, Data: []byte("command"),
		Bundle: []Write{{Seq: 120, Command: []byte("a")}, {Seq: 121}},
	},
	{Kind: Done, View: 3, Session: 9, Seq: 10, Stable: 10, Index: math.MaxUint64, Revision: math.MaxUint64, Data: []byte{0}},
	{Kind: Refused, Code: CodeExpired, Request: 5, Leader: 2, Count: 3, Time: math.MinInt64},
	{Kind: Pool, View: 4, Records: []Message{
		{Kind: Record, Session: 1, Seq: 2, Data: []byte("x"), Bundle: []Write{{Seq: 1, Command: []byte("y")}}},
		{Kind: Record, Session: 2, Seq: 2},
	}},
	{Kind: Lease, Flags: FlagYes, Time: 1_700_000_000_000_000_000},
}

var commands = []Command{
	{},
	{Verb: Set, Key: "k", Value: []byte("v")},
	{Verb: Set, Cond: IfValue, Options: ReturnOld | KeepTTL, Key: "k", Value: []byte("v"), Expect: []byte("e"), TTL: -1, Lease: 7},
	{Verb: Set, Cond: IfRevision, Key: "k", Revision: math.MaxUint64},
	{Verb: Increment, Key: "n", Delta: math.MinInt64},
	{Verb: Delete, Keys: []string{"a", "", "c"}},
	{Verb: SetMany, Pairs: []Pair{{Key: "a", Value: []byte("1")}, {Revision: 9}}},
	{Verb: Range, Key: "a", End: "b", Limit: 10, Options: Reverse | KeysOnly},
	{
		Verb: Transaction, Guards: []Guard{{Key: "a"}, {Key: "b", Revision: 300}},
		Commands: []Command{{Verb: Get, Key: "a"}, {Verb: SetMany, Pairs: []Pair{{Key: "b"}}}},
	},
}

var results = []Result{
	{},
	{Found: true, Value: []byte("v"), Revision: 8, Lease: 9},
	{Code: NotFound},
	{Number: -1},
	{More: true, Pairs: []Pair{{Key: "a", Value: []byte("1"), Revision: 2}, {Key: "b"}}},
	{Results: []Result{{Found: true}, {Results: []Result{{Code: NotFound}, {Found: true, Value: []byte("x")}}}}},
}

func TestMessageRoundTrip(t *testing.T) {
	for _, m := range messages {
		b := m.Append(nil)
		if len(b) != m.Size() {
			t.Errorf("%v: Size %d, form of %d bytes", &m, m.Size(), len(b))
		}
		var back Message
		if err := back.Decode(b); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%v: decoded as %v, %v", &m, &back, err)
		}
		for cut := range b {
			if back.Decode(b[:cut]) == nil {
				t.Errorf("%v: decodes from %d of %d bytes", &m, cut, len(b))
			}
		}
		if err := back.Decode(append(b, 0)); !errors.Is(err, errLeft) {
			t.Errorf("%v: a byte more: %v", &m, err)
		}
	}
}

func TestCommandRoundTrip(t *testing.T) {
	for _, c := range commands {
		b := c.Append(nil)
		if len(b) != c.Size() {
			t.Errorf("%+v: Size %d, form of %d bytes", c, c.Size(), len(b))
		}
		back, err := ParseCommand(b)
		if err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%+v: decoded as %+v, %v", c, back, err)
		}
		var borrowed Command
		if err := borrowed.Borrow(b); err != nil || !reflect.DeepEqual(borrowed, c) {
			t.Errorf("%+v: borrowed as %+v, %v", c, borrowed, err)
		}
		for cut := range b {
			if _, err := ParseCommand(b[:cut]); err == nil {
				t.Errorf("%+v: decodes from %d of %d bytes", c, cut, len(b))
			}
		}
		clear(b)
		if !reflect.DeepEqual(back.Keys, c.Keys) || back.Key != c.Key {
			t.Errorf("%+v: keys changed with the bytes they came from", c)
		}
	}
}

func TestResultRoundTrip(t *testing.T) {
	for _, r := range results {
		b := r.Append(nil)
		if len(b) != r.Size() {
			t.Errorf("%+v: Size %d, form of %d bytes", r, r.Size(), len(b))
		}
		back, err := ParseResult(b)
		if err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%+v: decoded as %+v, %v", r, back, err)
		}
		for cut := range b {
			if _, err := ParseResult(b[:cut]); err == nil {
				t.Errorf("%+v: decodes from %d of %d bytes", r, cut, len(b))
			}
		}
	}
}

func TestDecodersRefuse(t *testing.T) {
	nested := Message{Kind: Pool, Records: []Message{{Kind: Pool, Records: []Message{{Kind: Record}}}}}
	inner := Command{Verb: Transaction, Commands: []Command{{Verb: Transaction, Commands: []Command{{Verb: Get}}}}}
	deep := Result{Results: []Result{{Results: []Result{{Results: []Result{{}}}}}}}
	keys := Command{Verb: Delete, Keys: make([]string, MaxItems+1)}
	message := func(b []byte) error { return new(Message).Decode(b) }
	command := func(b []byte) error { _, err := ParseCommand(b); return err }
	result := func(b []byte) error { _, err := ParseResult(b); return err }
	for _, c := range []struct {
		name   string
		decode func([]byte) error
		b      []byte
		want   error
	}{
		{"kind 0", message, []byte{0, 0}, errUnknown},
		{"unknown kind", message, []byte{byte(kinds) + 1, 0}, errUnknown},
		{"unknown field", message, appendUint([]byte{1}, messageFields+1), errUnknown},
		{"zero that is present", message, []byte{1, hasView, 0}, errCanonical},
		{"empty data that is present", message, []byte{1, hasData, 0}, errCanonical},
		{"long zero", message, []byte{1, hasView, 0x81, 0}, errCanonical},
		{"number of 65 bits", message, append([]byte{1, hasView}, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2), errRange},
		{"records in records", message, nested.Append(nil), errDepth},
		{"bundle that is announced only", message, append(appendUint([]byte{byte(Strong)}, hasBundle), 0xff, 0x7f), errShort},
		{"transaction in transaction", command, inner.Append(nil), errDepth},
		{"too many keys", command, keys.Append(nil), errCount},
		{"results too deep", result, deep.Append(nil), errDepth},
		{"unknown bit", result, appendUint(nil, resultFields+1), errUnknown},
	} {
		if err := c.decode(c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	b := make([]byte, 0, 4096)
	m, c, r := &messages[1], &commands[1], &results[1]
	if n := testing.AllocsPerRun(100, func() { b = r.Append(c.Append(m.Append(b[:0]))) }); n != 0 {
		t.Errorf("Append allocates %v times", n)
	}
	form := commands[1].Append(nil)
	var borrowed Command
	if n := testing.AllocsPerRun(100, func() {
		if borrowed.Borrow(form) != nil {
			panic("does not decode")
		}
	}); n != 0 {
		t.Errorf("Borrow allocates %v times", n)
	}
}

func TestNames(t *testing.T) {
	for k := Strong; k <= kinds; k++ {
		if strings.HasPrefix(k.String(), "Kind(") || k.String() == "" {
			t.Errorf("kind %d has no name", k)
		}
	}
	for v := Set; v <= verbs; v++ {
		if strings.HasPrefix(v.String(), "Verb(") || v.String() == "" {
			t.Errorf("verb %d has no name", v)
		}
	}
	if Lease.String() != "Lease" || LeaseTTL.String() != "LeaseTTL" || Get.String() != "Get" {
		t.Error("names are shifted")
	}
	if got, want := messages[1].String(), "Strong fast view=3 session=1099511627776 seq=128 ack=127 prior=126 data=7 bundle=2"; got != want {
		t.Errorf("String: %s, want %s", got, want)
	}
}

func FuzzMessage(f *testing.F) {
	for i := range messages {
		f.Add(messages[i].Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		if m.Decode(b) != nil {
			return
		}
		if form := m.Append(nil); !bytes.Equal(form, b) || m.Size() != len(b) {
			t.Errorf("%x decodes, its message has the form %x, size %d", b, form, m.Size())
		}
		_ = m.String()
	})
}

func FuzzCommand(f *testing.F) {
	for i := range commands {
		f.Add(commands[i].Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCommand(b)
		if err != nil {
			return
		}
		if form := c.Append(nil); !bytes.Equal(form, b) || c.Size() != len(b) {
			t.Errorf("%x decodes, its command has the form %x, size %d", b, form, c.Size())
		}
		if c.Validate() == nil {
			c.Footprint(new(Footprint))
		}
	})
}

func FuzzResult(f *testing.F) {
	for i := range results {
		f.Add(results[i].Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseResult(b)
		if err != nil {
			return
		}
		if form := r.Append(nil); !bytes.Equal(form, b) || r.Size() != len(b) {
			t.Errorf("%x decodes, its result has the form %x, size %d", b, form, r.Size())
		}
	})
}
