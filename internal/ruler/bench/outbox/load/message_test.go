package outboxload

import (
	"bytes"
	"strings"
	"testing"
)

func TestPayloadsNameTheirMessages(t *testing.T) {
	for _, size := range []int{MinPayload, 128, 131072} {
		p, err := newPayloads(size)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []Message{{Key: 0, N: 0}, {Key: 17, N: 3}, {Key: 1<<31 - 1, N: 1 << 40}} {
			m := p.message(want.Key, want.N)
			key, n, err := ParsePayload(m.Payload)
			if err != nil || key != want.Key || n != want.N || len(m.Payload) != size {
				t.Errorf("size %d: %d bytes name key %d, number %d, %v; want %d and %d", size, len(m.Payload), key, n, err, want.Key, want.N)
			}
		}
	}
	if _, err := newPayloads(MinPayload - 1); err == nil {
		t.Error("a payload that cannot hold its name is made")
	}
}

// Payloads must be as long in JSON and SQL as they are.
func TestPayloadsNeedNoEscapes(t *testing.T) {
	if bad := bytes.Trim(Filler(4096), alphabet); len(bad) > 0 {
		t.Errorf("the filler holds %q", bad)
	}
	if len(alphabet) != 64 || strings.ContainsAny(alphabet, `"'\<>&`) {
		t.Error("the alphabet is not 64 characters without special ones")
	}
}

func FuzzParsePayload(f *testing.F) {
	p, err := newPayloads(64)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p.message(5, 7).Payload)
	f.Add([]byte("short"))
	f.Add(bytes.Repeat([]byte("f"), MinPayload))
	f.Fuzz(func(t *testing.T, b []byte) {
		key, n, err := ParsePayload(b)
		if err != nil {
			return
		}
		if key < 0 || n < 0 {
			t.Fatalf("%q names key %d, number %d", b, key, n)
		}
		again := payloads{b}.message(key, n)
		if !bytes.Equal(again.Payload, b) {
			t.Fatalf("%q is written again as %q", b, again.Payload)
		}
	})
}
