package archive

import (
	"bytes"
	"io"
	"testing"
)

func TestNewEncoderIsTheCounterpartOfNewDecoder(t *testing.T) {
	data := copyRows(1, 1<<20)
	for _, codec := range Codecs() {
		var packed bytes.Buffer
		w, err := NewEncoder(&packed, Compression{Codec: codec}, 2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := NewDecoder(&packed, codec)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes came back of %d, or others", codec, len(got), len(data))
		}
	}
	if _, err := NewEncoder(io.Discard, Compression{Codec: "brotli"}, 1); err == nil {
		t.Error("a codec that does not exist was taken")
	}
}

func TestBufferProbeGivesAllBack(t *testing.T) {
	p := NewBufferProbe(2, 4096)
	for range 5 {
		if err := p.Cycle(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if s := p.pool.stats(); s.Leased != 0 || s.Allocated == 0 || s.Allocated > s.Total {
		t.Errorf("after all were given back: %+v", s)
	}
}
