package consensus

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"testing"
)

var someEntries = []entry{
	{round: 1, idle: 1},
	{round: 7, time: -5, idle: 3600e9, ops: []op{{session: 3, seq: 4, ack: 2, flags: opWeak, command: []byte("set a 1")}}},
	{round: math.MaxUint64, time: math.MaxInt64, idle: math.MaxInt64, ops: []op{
		{seq: 4096}, // a grant of sessions
		{session: math.MaxUint64, seq: math.MaxUint64, ack: math.MaxUint64, flags: 255, command: []byte{0}},
		{session: 1, seq: 1},
	}},
}

func encoded(e *entry) []byte {
	b := appendEntryHead(nil, 1, e.round, e.time, e.idle, len(e.ops))
	for i := range e.ops {
		b = e.ops[i].append(b)
	}
	return b
}

// same reports that two entries say the same.
func same(a, b *entry) bool {
	if a.round != b.round || a.time != b.time || a.idle != b.idle || len(a.ops) != len(b.ops) {
		return false
	}
	for i := range a.ops {
		x, y := a.ops[i], b.ops[i]
		if string(x.command) != string(y.command) {
			return false
		}
		x.command, y.command = nil, nil
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

func TestEntryRoundTrip(t *testing.T) {
	var got entry // used again, as the core does
	for i := range someEntries {
		e := &someEntries[i]
		b := encoded(e)
		if err := got.decode(b); err != nil || !same(&got, e) {
			t.Errorf("entry %d: decoded as %+v, %v", i, got, err)
		}
		for n := range b {
			if err := got.decode(b[:n]); !errors.Is(err, errEntry) {
				t.Errorf("entry %d, the first %d of %d bytes: %v", i, n, len(b), err)
			}
		}
		if err := got.decode(append(b, 0)); !errors.Is(err, errEntry) {
			t.Errorf("entry %d, a byte more: %v", i, err)
		}
	}
}

// Memory is allocated by what is there, not by the announced count.
func TestEntryPromisesTooMuch(t *testing.T) {
	var e entry
	for _, count := range []uint64{1, 3, 1000, math.MaxUint64} {
		b := append([]byte{entryVersion, 1, 0, 1}, binary.AppendUvarint(nil, count)...)
		if err := e.decode(append(b, 1, 1, 0, 0)); !errors.Is(err, errEntry) {
			t.Errorf("%d operations in 4 bytes: %v", count, err)
		}
		if cap(e.ops) > 0 {
			t.Errorf("%d operations in 4 bytes: room for %d", count, cap(e.ops))
		}
	}
}

func TestEntryRefusals(t *testing.T) {
	var e entry
	for what, b := range map[string][]byte{
		"nothing":         nil,
		"another version": {entryVersion + 1, 1, 0, 1, 0},
		"no idle time":    {entryVersion, 1, 0, 0, 0},
		"a negative one":  append(binary.AppendUvarint([]byte{entryVersion, 1, 0}, 1<<63), 0),
	} {
		if err := e.decode(b); !errors.Is(err, errEntry) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzEntry(f *testing.F) {
	for i := range someEntries {
		f.Add(encoded(&someEntries[i]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again entry
		if e.decode(b) != nil {
			return
		}
		if err := again.decode(encoded(&e)); err != nil || !same(&e, &again) {
			t.Errorf("%q: %+v is read back as %+v, %v", b, e, again, err)
		}
	})
}
