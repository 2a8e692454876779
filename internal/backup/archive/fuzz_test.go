package archive

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// FuzzManifest expects that what is accepted says the same when it is written
// again, and that no file of it leads out of the backup.
func FuzzManifest(f *testing.F) {
	m := Manifest{Summary: Summary{Format: Format, Version: 1, ID: "b"}, Chunks: []Chunk{{
		ChunkInfo: ChunkInfo{Path: "x/y", Attributes: map[string]string{"digest": "\n  \"digest\": \""}}, File: "x/y.zst", Codec: Zstd, StoredSHA256: noDigest,
	}}}
	data, err := m.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"format":"weir-archive","version":2}`))
	f.Add([]byte("{\n  \"digest\": \""))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := ReadSummary(bytes.NewReader(data)); err == nil {
			_, _ = ParseManifest(data)
		}
		m, err := ParseManifest(data)
		if err != nil {
			return
		}
		for _, c := range m.Chunks {
			if strings.HasPrefix(c.File, "/") || slices.Contains(strings.Split(c.File, "/"), "..") {
				t.Fatalf("file %q is accepted", c.File)
			}
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseManifest(again); err != nil {
			t.Fatalf("written again: %v", err)
		}
	})
}

// FuzzJournal expects that a journal never makes more of a text than it proves.
func FuzzJournal(f *testing.F) {
	line, err := chunkLine(Chunk{ChunkInfo: ChunkInfo{Path: "x/y"}, File: "x/y.zst", Codec: Zstd, StoredSHA256: noDigest})
	if err != nil {
		f.Fatal(err)
	}
	gone, err := discardLine("x/y")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add(append(slices.Clone(line), gone...))
	f.Add(line[:len(line)/2])
	f.Add([]byte("\n\n{}\nnull\n[]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		done := map[string]Chunk{}
		if _, err := readJournal(bytes.NewReader(data), done); err != nil {
			t.Fatalf("a text of bytes: %v", err)
		}
		for path, c := range done {
			if c.Path != path || c.check() != nil {
				t.Fatalf("chunk %+v is accepted as %s", c, path)
			}
		}
	})
}

// FuzzStream opens and verifies whatever looks like a tar stream.
func FuzzStream(f *testing.F) {
	var stream bytes.Buffer
	w, err := CreateStream(f.Context(), &stream, Options{ID: "b", Now: func() time.Time { return time.Unix(1, 0) }})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := writeAll(f.Context(), w, map[string][]byte{"globals.sql": []byte("SELECT 1;\n")}, Manifest{}); err != nil {
		f.Fatal(err)
	}
	f.Add(stream.Bytes())
	f.Add(stream.Bytes()[:1000])
	f.Add(bytes.Replace(stream.Bytes(), []byte("b/globals"), []byte("../lobals"), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := OpenStream(t.Context(), bytes.NewReader(data), ReadOptions{})
		if err != nil {
			return
		}
		if _, err := r.Verify(t.Context(), VerifyOptions{Parallel: 1}); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzDecoder reads what may not be of a codec at all, in bounded memory.
func FuzzDecoder(f *testing.F) {
	for _, c := range Codecs() {
		var b bytes.Buffer
		e, err := newEncoder(Compression{Codec: c}, 1)
		if err != nil {
			f.Fatal(err)
		}
		e.Reset(&b)
		if _, err := e.Write(copyRows(1, 300)); err != nil {
			f.Fatal(err)
		}
		if err := e.Close(); err != nil {
			f.Fatal(err)
		}
		f.Add(string(c), b.Bytes())
	}
	f.Fuzz(func(t *testing.T, codec string, data []byte) {
		d, err := NewDecoder(bytes.NewReader(data), Codec(codec))
		if err != nil {
			return
		}
		defer d.Close()
		if n, err := io.CopyN(io.Discard, d, 1<<20); err == nil && n != 1<<20 {
			t.Fatalf("%d bytes without an error", n)
		}
	})
}

func TestJournalSkipsWhatIsTorn(t *testing.T) {
	t.Parallel()
	chunk := func(path string) []byte {
		line, err := chunkLine(Chunk{ChunkInfo: ChunkInfo{Path: path}, File: path, Codec: None, StoredSHA256: noDigest})
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	gone, err := discardLine("x/1")
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(chunk("x/3"), []byte("x/3"), []byte("x/4"), 1)
	long := append(bytes.Repeat([]byte("x"), maxJournalLine+5), '\n')
	text := slices.Concat(chunk("x/1"), chunk("x/2"), gone, changed, long, chunk("x/5"), chunk("x/6")[:40])
	done := map[string]Chunk{}
	bad, err := readJournal(bytes.NewReader(text), done)
	if err != nil || bad != 3 {
		t.Errorf("%d bad lines, %v; want 3", bad, err)
	}
	for _, path := range []string{"x/2", "x/5"} {
		if _, ok := done[path]; !ok {
			t.Errorf("%s is missing", path)
		}
	}
	if len(done) != 2 {
		t.Errorf("%d chunks count, want 2", len(done))
	}
}
