package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestEncodeAsOneDocument compares a manifest that is written in pieces with what the
// encoder of the standard library makes of it as a whole.
func TestEncodeAsOneDocument(t *testing.T) {
	some := Manifest{Options: map[string]string{"\n  \"chunks\": null": "\n  \"digest\": \""}, Attributes: map[string]string{"a": "<b>"}}
	some.Format, some.Version, some.ID = Format, FormatVersion, "one"
	for name, edit := range map[string]func(m *Manifest){
		"nothing":          func(*Manifest) {},
		"an empty list":    func(m *Manifest) { m.Chunks = []Chunk{} },
		"a database alone": func(m *Manifest) { m.Databases = []Database{{Name: "shop"}} },
		"all": func(m *Manifest) {
			m.Databases = []Database{
				{Name: "shop", Attributes: map[string]string{"owner": "me"}, Tables: []Table{{Schema: "public", Name: "orders", Columns: []string{"id", "a\"b"}}, {Name: "items", Rows: 7}}},
				{Name: "none"},
				{Name: "more", Tables: []Table{{Name: "x", Attributes: map[string]string{"k": "v"}}}},
			}
			for i := range 3 {
				m.Chunks = append(m.Chunks, Chunk{ChunkInfo: ChunkInfo{Path: fmt.Sprint("p", i), Kind: KindData, Attributes: map[string]string{"pages": "3"}}, File: fmt.Sprint("p", i, ".zst"), Rows: int64(i)})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := some
			edit(&m)
			got, err := m.encode()
			if err != nil {
				t.Fatal(err)
			}
			whole := m
			whole.Digest = noDigest
			doc, err := json.MarshalIndent(whole, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(doc)
			i := bytes.LastIndex(doc, []byte(noDigest))
			want := string(doc[:i]) + hex.EncodeToString(sum[:]) + string(doc[i+len(noDigest):]) + "\n"
			if string(got) != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			again, err := m.sign()
			if err != nil || again != sha256Hex(got) {
				t.Errorf("the sum of what is stored is %s, %v; want %s", again, err, sha256Hex(got))
			}
		})
	}
}

// largestWrite remembers how much was written at once at most.
type largestWrite struct{ most, all int }

func (l *largestWrite) Write(p []byte) (int, error) {
	l.most = max(l.most, len(p))
	l.all += len(p)
	return len(p), nil
}

// TestEncodeHoldsNoDocument writes the manifest of many tables, of which no large part
// may be in memory at once.
func TestEncodeHoldsNoDocument(t *testing.T) {
	var m Manifest
	m.Databases = []Database{{Name: "shop"}}
	for i := range 20_000 {
		name := fmt.Sprint("table", i)
		m.Databases[0].Tables = append(m.Databases[0].Tables, Table{Schema: "public", Name: name})
		m.Chunks = append(m.Chunks, Chunk{ChunkInfo: ChunkInfo{Path: "db/shop/data/" + name, Table: name}, File: strings.Repeat("f", 100)})
	}
	for what, write := range map[string]func(w *largestWrite) error{
		"manifest": func(w *largestWrite) error { return m.writeTo(w) },
		"sums":     func(w *largestWrite) error { return writeSums(w, &m, noDigest) },
	} {
		var w largestWrite
		if err := write(&w); err != nil {
			t.Fatal(err)
		}
		if w.all < 1<<20 || w.most > encodeBytes {
			t.Errorf("%s: %d bytes of %d were written at once", what, w.most, w.all)
		}
	}
}
