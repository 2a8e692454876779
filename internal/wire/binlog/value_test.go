package binlog

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"
)

func TestOldTemporalTypes(t *testing.T) {
	datetime := binary.LittleEndian.AppendUint64(nil, 20260228235958)
	negative := []byte{0xff, 0xff, 0xff} // -000001
	for _, tc := range []struct {
		typ  byte
		raw  []byte
		want string
		kind Kind
	}{
		{typeDatetime, datetime, "2026-02-28 23:59:58", KindDatetime},
		{typeTime, []byte{0x40, 0xe2, 0x01}, "12:34:56", KindTime},
		{typeTime, negative, "-00:00:01", KindTime},
		{typeTimestamp, []byte{1, 0, 0, 0}, "1970-01-01 00:00:01", KindTimestamp},
		{typeTimestamp, []byte{0, 0, 0, 0}, "0000-00-00 00:00:00", KindTimestamp},
		{typeNewDate, []byte{0x5c, 0xd4, 0x0f}, "2026-02-28", KindDate},
	} {
		d := decoder{cursor: cursor{b: tc.raw}}
		v, err := d.value(&Column{Type: tc.typ})
		if got := string(v.AppendText(nil)); err != nil || got != tc.want || v.Kind() != tc.kind || d.bad || len(d.b) != 0 {
			t.Errorf("type %d, %x: %q, %v, want %q", tc.typ, tc.raw, got, err, tc.want)
		}
	}
	d := decoder{}
	if _, err := d.value(&Column{Type: 99}); !errors.Is(err, ErrMalformed) {
		t.Errorf("unknown type: %v", err)
	}
}

func TestValuesAsGoTypes(t *testing.T) {
	date := func(c civil, kind Kind) Value { return Value{kind: kind, n: packed(c)} }
	for _, tc := range []struct {
		v    Value
		want time.Time
		ok   bool
	}{
		{date(civil{2026, 2, 28, 1, 2, 3, 4}, KindDatetime), time.Date(2026, 2, 28, 1, 2, 3, 4000, time.UTC), true},
		{date(civil{2026, 2, 29, 0, 0, 0, 0}, KindDate), time.Time{}, false},
		{date(civil{2026, 0, 1, 0, 0, 0, 0}, KindDate), time.Time{}, false},
		{date(civil{}, KindDatetime), time.Time{}, false},
		{Value{kind: KindTimestamp, n: 1_500_000}, time.Unix(1, 500_000_000), true},
		{Value{kind: KindTimestamp}, time.Time{}, false},
		{Value{kind: KindInt, n: 1, width: 8}, time.Time{}, false},
	} {
		got, ok := tc.v.Time()
		if ok != tc.ok || ok && !got.Equal(tc.want) {
			t.Errorf("%+v is %v, %v, want %v", tc.v, got, ok, tc.want)
		}
	}
	minute := int64(-60_000_000)
	if got := (Value{kind: KindTime, n: uint64(minute)}).Duration(); got != -time.Minute {
		t.Errorf("%v, want a minute before", got)
	}
	if got := (Value{kind: KindInt, n: 0xfe, width: 1}); got.Int64() != -2 || got.Uint64() != 254 || got.Duration() != 0 || got.Float64() != 0 {
		t.Errorf("%d and %d, want both readings of a byte", got.Int64(), got.Uint64())
	}
	if got := (Value{kind: KindDouble, n: math.Float64bits(-2.5)}); got.Float64() != -2.5 || got.Uint64() != 0 {
		t.Errorf("%v", got.Float64())
	}
	if got := (Value{kind: KindBytes, b: []byte("x")}); string(got.Bytes()) != "x" || got.IsNull() {
		t.Errorf("%q", got.Bytes())
	}
	for want, f := range map[string]float64{"1e15": 1e15, "-1.5e-16": -1.5e-16, "0.001": 0.001, "123456789": 123456789, "0": 0} {
		if got := string(appendFloat(nil, f, 64)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
