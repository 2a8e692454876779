package pgrepl

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// The writer of messages writes what the protocol's documentation says, field by
// field: "1" one byte, "2", "4", "8" numbers, "s" a string, "b" bytes with their
// length before them.
func message(typ byte, form string, fields ...any) []byte {
	b := []byte{typ}
	number := func(v any) uint64 {
		switch v := v.(type) {
		case int:
			return uint64(v)
		case byte:
			return uint64(v)
		case rune:
			return uint64(v)
		case LSN:
			return uint64(v)
		}
		panic(v)
	}
	for i, f := range form {
		switch f {
		case '1':
			b = append(b, byte(number(fields[i])))
		case '2':
			b = binary.BigEndian.AppendUint16(b, uint16(number(fields[i])))
		case '4':
			b = binary.BigEndian.AppendUint32(b, uint32(number(fields[i])))
		case '8':
			b = binary.BigEndian.AppendUint64(b, number(fields[i]))
		case 's':
			b = append(append(b, fields[i].(string)...), 0)
		case 'b':
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(fields[i].(string)))), fields[i].(string)...)
		}
	}
	return b
}

// relation7 describes table shop.t (id int, v text), the first the key.
func relation7() []byte {
	return message('R', "4ss121s441s44", 7, "shop", "t", 'd', 2, 1, "id", 23, -1, 0, "v", 25, 9)
}

const noon = 12 * 3600 * 1000000 // microseconds

func TestDecode(t *testing.T) {
	rel := &Relation{OID: 7, Namespace: "shop", Name: "t", Identity: 'd', Columns: []Column{
		{Name: "id", TypeOID: 23, TypeMod: -1, Key: true}, {Name: "v", TypeOID: 25, TypeMod: 9},
	}}
	at := time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)
	text := func(s string) Value { return Value{Text, []byte(s)} }
	for _, tt := range []struct {
		name string
		data []byte
		want Message
	}{
		{"begin", message('B', "884", 0x10, noon, 99), &Begin{0x10, at, 99}},
		{"commit", message('C', "1888", 0, 0x10, 0x20, noon), &Commit{0x10, 0x20, at}},
		{"origin", message('O', "8s", 0x10, "far"), &Origin{0x10, "far"}},
		{"relation", relation7(), rel},
		{"relation of the catalog", message('R', "4ss12", 1, "", "pg_x", 'n', 0), &Relation{OID: 1, Namespace: "pg_catalog", Name: "pg_x", Identity: 'n'}},
		{"type", message('Y', "4ss", 5, "shop", "mood"), &Type{5, "shop", "mood"}},
		{"insert", message('I', "4121b1b", 7, 'N', 2, 't', "1", 't', ""), &Insert{rel, []Value{text("1"), {Text, []byte{}}}}},
		{"insert of null", message('I', "4121b1", 7, 'N', 2, 'b', "\x00", 'n'), &Insert{rel, []Value{{Binary, []byte{0}}, {Kind: Null}}}},
		{"update", message('U', "4121b1", 7, 'N', 2, 't', "1", 'u'), &Update{Relation: rel, New: []Value{text("1"), {Kind: Unchanged}}}},
		{
			"update of a key", message('U', "4121b1121b1b", 7, 'K', 2, 't', "1", 'n', 'N', 2, 't', "2", 't', "x"),
			&Update{rel, OldKey, []Value{text("1"), {Kind: Null}}, []Value{text("2"), text("x")}},
		},
		{
			"update of a full row", message('U', "4121b1b121b1b", 7, 'O', 2, 't', "1", 't', "w", 'N', 2, 't', "2", 't', "x"),
			&Update{rel, OldRow, []Value{text("1"), text("w")}, []Value{text("2"), text("x")}},
		},
		{"delete", message('D', "4121b1", 7, 'K', 2, 't', "1", 'n'), &Delete{rel, OldKey, []Value{text("1"), {Kind: Null}}}},
		{"truncate", message('T', "4144", 2, 3, 7, 7), &Truncate{[]*Relation{rel, rel}, true, true}},
		{"message", message('M', "18sb", 1, 0x10, "weir", "\x00\xff"), &LogicalMessage{true, 0x10, "weir", []byte{0, 0xff}}},
		{"message outside", message('M', "18sb", 0, 0x10, "", ""), &LogicalMessage{false, 0x10, "", []byte{}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d Decoder
			if _, err := d.Decode(relation7()); err != nil {
				t.Fatal(err)
			}
			got, err := d.Decode(tt.data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// Every beginning of it is too short, and no byte may follow.
			for n := range tt.data {
				if m, err := d.Decode(tt.data[:n]); !errors.Is(err, pgwire.ErrMalformed) {
					t.Errorf("of %d bytes: %+v, %v", n, m, err)
				}
			}
			if m, err := d.Decode(append(tt.data[:len(tt.data):len(tt.data)], 0)); !errors.Is(err, pgwire.ErrMalformed) {
				t.Errorf("a byte too long: %+v, %v", m, err)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, data := range map[string][]byte{
		"unknown type":          {'z'},
		"unknown relation":      message('I', "4121b1b", 8, 'N', 2, 't', "1", 't', ""),
		"truncate of unknown":   message('T', "414", 1, 0, 8),
		"too few columns":       message('I', "4121b", 7, 'N', 1, 't', "1"),
		"unknown kind of value": message('I', "4121b1b", 7, 'N', 2, 'x', "1", 't', ""),
		"unknown kind of row":   message('I', "4121b1b", 7, 'O', 2, 't', "1", 't', ""),
		"delete of a new row":   message('D', "4121b1b", 7, 'N', 2, 't', "1", 't', ""),
		"negative length":       message('I', "412141", 7, 'N', 2, 't', -1, 'n'),
		"enormous length":       message('I', "412141", 7, 'N', 2, 't', 1<<31-1, 'n'),
		"enormous truncate":     message('T', "41", 1<<32-1, 0),
	} {
		var d Decoder
		if _, err := d.Decode(relation7()); err != nil {
			t.Fatal(err)
		}
		if m, err := d.Decode(data); !errors.Is(err, pgwire.ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	for _, typ := range []byte("ScEApPbKr") {
		var d Decoder
		if m, err := d.Decode([]byte{typ, 1, 2, 3}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%c: %+v, %v", typ, m, err)
		}
	}
}

func TestDecodeAllocatesNothing(t *testing.T) {
	var d Decoder
	if _, err := d.Decode(relation7()); err != nil {
		t.Fatal(err)
	}
	data := message('I', "4121b1b", 7, 'N', 2, 't', "1", 't', "value")
	if n := testing.AllocsPerRun(100, func() {
		if _, err := d.Decode(data); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a row", n)
	}
}

// A tail must not follow a stream that is out of order.
func TestTailRefusesDisorder(t *testing.T) {
	insert := message('I', "4121b1b", 7, 'N', 2, 't', "1", 't', "value")
	begin, commit := message('B', "884", 16, 0, 1), message('C', "1888", 0, 16, 32, 0)
	for name, messages := range map[string][][]byte{
		"a change outside":           {relation7(), insert},
		"a truncate outside":         {relation7(), message('T', "414", 1, 0, 7)},
		"two begins":                 {begin, begin},
		"a commit without begin":     {commit},
		"another commit":             {begin, message('C', "1888", 0, 17, 32, 0)},
		"a message outside":          {message('M', "18sb", 1, 16, "weir", "")},
		"a change of unknown table":  {begin, insert},
		"a message of a new version": {{'S', 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s, played := copyBoth(t, StreamConfig{})
			tl := &Tail{stream: s, cfg: TailConfig{Slot: "s", Messages: []string{"weir"}}, wanted: map[uint32]bool{}}
			for _, m := range messages {
				write(t, played, data(1, string(m)))
			}
			e, err := tl.Next(patient(t))
			if !errors.Is(err, pgwire.ErrMalformed) && !errors.Is(err, ErrUnsupported) {
				t.Errorf("%+v, %v", e, err)
			}
			if s.conn.failed() == nil {
				t.Error("the connection is still in use")
			}
		})
	}
}

// BenchmarkDecode is what a row of a 512-byte value costs beyond the network:
// the frame around it and the row itself.
func BenchmarkDecode(b *testing.B) {
	var d Decoder
	if _, err := d.Decode(relation7()); err != nil {
		b.Fatal(err)
	}
	row := message('I', "4121b1b", 7, 'N', 2, 't', "1234567", 't', strings.Repeat("v", 512))
	frame := data(1, string(row))[pgwire.HeaderLen:]
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		f, err := parseFrame(frame)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := d.Decode(f.Data); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
