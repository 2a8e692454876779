package measure

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"io"
	"slices"
	"testing"
)

// decodeHDR is the obvious reader of the V2 encoding, written from the format's
// description: enough to check what EncodeHDR writes.
func decodeHDR(t *testing.T, s string) []uint64 {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := binary.BigEndian.Uint32(raw); got != hdrCompressedCookie {
		t.Fatalf("outer cookie = %#x", got)
	}
	if got := binary.BigEndian.Uint32(raw[4:]); int(got) != len(raw)-8 {
		t.Fatalf("compressed length = %d, want %d", got, len(raw)-8)
	}
	z, err := zlib.NewReader(bytes.NewReader(raw[8:]))
	if err != nil {
		t.Fatal(err)
	}
	raw, err = io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if got := binary.BigEndian.Uint32(raw); got != hdrCookie {
		t.Fatalf("inner cookie = %#x", got)
	}
	payload := raw[hdrHeaderBytes:]
	if got := binary.BigEndian.Uint32(raw[4:]); int(got) != len(payload) {
		t.Fatalf("payload length = %d, want %d", got, len(payload))
	}
	var counts []uint64
	for len(payload) > 0 {
		var u uint64
		n := 0
		for {
			b := payload[n]
			n++
			if n == 9 {
				u |= uint64(b) << 56
				break
			}
			u |= uint64(b&0x7f) << (7 * (n - 1))
			if b < 0x80 {
				break
			}
		}
		payload = payload[n:]
		v := int64(u>>1) ^ -int64(u&1)
		if v < 0 {
			counts = append(counts, make([]uint64, -v)...)
		} else {
			counts = append(counts, uint64(v))
		}
	}
	return counts
}

func TestEncodeHDRKeepsEveryCount(t *testing.T) {
	var h Hist
	for _, v := range []struct {
		ns int64
		n  uint64
	}{{0, 3}, {1, 1}, {255, 70}, {256, 1}, {1_000_000, 1 << 40}, {4_000_000_000_000, 1 << 62}} {
		h.RecordN(v.ns, v.n)
	}
	s, err := h.EncodeHDR()
	if err != nil {
		t.Fatal(err)
	}
	got := decodeHDR(t, s)
	want := h.counts[:bucketOf(h.Max())+1]
	if !slices.Equal(got, want) {
		t.Error("counts changed in the encoding")
	}
}

// The reference implementation's HistogramEncodingTest lays values out so that
// a histogram with two digits has bucket 1 of value 1 and 128 buckets for each
// power of two from 256 on. Were our layout another one, readers would shift
// every value.
func TestHDRLayout(t *testing.T) {
	for value, index := range map[int64]int{0: 0, 1: 1, 255: 255, 256: 256, 257: 256, 258: 257, 511: 383, 512: 384, 1023: 511, 1 << 20: 128*13 + 128} {
		if got := bucketOf(value); got != index {
			t.Errorf("bucket of %d = %d, want %d", value, got, index)
		}
	}
}
