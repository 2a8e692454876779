package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// noDigest takes the place of the digest while that is computed.
var noDigest = strings.Repeat("0", sha256.Size*2)

// digestKey precedes the digest. No string in the document can contain it, because a quote
// inside a string is escaped. The digest is the last field, so the last occurrence is it: an
// attribute may have the same name.
var digestKey = []byte("\n  \"digest\": \"")

// noChunks takes the place of the lists while everything else is encoded. No string in the
// document can contain it, as with digestKey, and only fields of the document itself have this
// indentation.
var noChunks = []byte("\n  \"chunks\": null")

// encode returns the manifest as it is stored, and sets its digest. For a manifest with many
// chunks, sign and writeTo use less memory.
func (m *Manifest) encode() ([]byte, error) {
	if _, err := m.sign(); err != nil {
		return nil, err
	}
	var data bytes.Buffer
	if err := m.writeTo(&data); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// sign sets the digest and returns the SHA-256, in hexadecimal, of the stored form of the
// manifest. It encodes the manifest without keeping the text.
func (m *Manifest) sign() (sum string, err error) {
	m.Digest = noDigest
	head, tail, err := m.shell()
	if err != nil {
		return "", err
	}
	doc := sha256.New()
	out := bufio.NewWriterSize(doc, encodeBytes)
	if err := m.writeLists(out, head); err != nil {
		return "", err
	}
	_ = out.Flush() // a hash never fails
	whole, err := doc.(hash.Cloner).Clone()
	if err != nil {
		return "", fmt.Errorf("write manifest: %w", err)
	}
	doc.Write(tail)
	m.Digest = hex.EncodeToString(doc.Sum(nil))
	_, _ = whole.Write(m.signed(tail))
	return hex.EncodeToString(whole.Sum(nil)), nil
}

// writeTo writes the stored form of a signed manifest. The lists, which may have hundreds of
// thousands of items, are encoded item by item: as one document they would be in memory three
// times.
func (m *Manifest) writeTo(w io.Writer) error {
	out := bufio.NewWriterSize(w, encodeBytes)
	head, tail, err := m.shell()
	if err != nil {
		return err
	}
	if err := m.writeLists(out, head); err != nil {
		return err
	}
	_, _ = out.Write(m.signed(tail)) // Flush returns the error
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// encodeBytes is the size of the write buffer.
const encodeBytes = 64 << 10

// signed returns the end of the document with the digest in its place, and a newline.
func (m *Manifest) signed(tail []byte) []byte {
	tail = append(bytes.Clone(tail), '\n')
	at := bytes.LastIndex(tail, digestKey) + len(digestKey)
	copy(tail[at:], m.Digest)
	return tail
}

// shell returns the text before and after the lists of databases and chunks.
func (m *Manifest) shell() (head, tail []byte, err error) {
	shell := *m
	shell.Databases, shell.Chunks = nil, nil
	doc, err := json.MarshalIndent(&shell, "", "  ")
	if err != nil {
		return nil, nil, fmt.Errorf("write manifest: %w", err)
	}
	head, tail, _ = bytes.Cut(doc, noChunks)
	return head, tail, nil
}

// writeLists writes the text before the lists, and the lists, as [json.MarshalIndent] would.
func (m *Manifest) writeLists(out *bufio.Writer, head []byte) error {
	_, _ = out.Write(head) // Flush returns the error, here and below
	if len(m.Databases) > 0 {
		_, _ = out.WriteString("\n  \"databases\": ")
		err := writeList(out, "  ", len(m.Databases), func(i int) error { return m.Databases[i].writeTo(out) })
		if err != nil {
			return err
		}
		_ = out.WriteByte(',')
	}
	_, _ = out.WriteString("\n  \"chunks\": ")
	if m.Chunks == nil {
		_, _ = out.WriteString("null")
		return nil
	}
	return writeList(out, "  ", len(m.Chunks), func(i int) error { return writeItem(out, "    ", &m.Chunks[i]) })
}

// writeTo writes a database as an item of the manifest's list.
func (d *Database) writeTo(out *bufio.Writer) error {
	shell := *d
	shell.Tables = nil
	doc, err := json.MarshalIndent(&shell, "    ", "  ")
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	end := []byte("\n    }")
	if len(d.Tables) == 0 {
		_, _ = out.Write(doc)
		return nil
	}
	_, _ = out.Write(bytes.TrimSuffix(doc, end))
	_, _ = out.WriteString(",\n      \"tables\": ")
	err = writeList(out, "      ", len(d.Tables), func(i int) error { return writeItem(out, "        ", &d.Tables[i]) })
	_, _ = out.Write(end)
	return err
}

// writeList writes a list whose key has the given indentation.
func writeList(out *bufio.Writer, indent string, n int, item func(i int) error) error {
	_ = out.WriteByte('[')
	for i := range n {
		if i > 0 {
			_ = out.WriteByte(',')
		}
		_, _ = out.WriteString("\n  " + indent)
		if err := item(i); err != nil {
			return err
		}
	}
	if n > 0 {
		_, _ = out.WriteString("\n" + indent)
	}
	return out.WriteByte(']')
}

func writeItem(out *bufio.Writer, indent string, item any) error {
	doc, err := json.MarshalIndent(item, indent, "  ")
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	_, err = out.Write(doc)
	return err
}

// ParseManifest parses a manifest and checks its version, its digest and its consistency. The
// errors match [ErrNewer] and [ErrEdited].
func ParseManifest(data []byte) (*Manifest, error) {
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
		Weir    string `json:"weir"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("read manifest: %w: %w", ErrEdited, err)
	}
	// In a damaged manifest the format or version may be wrong. They are right if the digest
	// is; but a later version may compute the digest differently.
	damaged := checkDigest(data)
	if err := checkVersion(head.Format, head.Version, head.Weir); err != nil {
		if damaged != nil {
			err = fmt.Errorf("%w (and %w)", err, damaged)
		}
		return nil, err
	}
	if damaged != nil {
		return nil, damaged
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read manifest: %w: %w", ErrEdited, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	m.share()
	return &m, nil
}

// share keeps one copy of strings and lists that many chunks and tables have in common, which
// halves the memory of a manifest with many. They must not be changed.
func (m *Manifest) share() {
	known := map[string]string{}
	one := func(s *string) {
		if k, ok := known[*s]; ok {
			*s = k
		} else {
			known[*s] = *s
		}
	}
	var attributes map[string]string
	for i := range m.Chunks {
		c := &m.Chunks[i]
		for _, s := range []*string{(*string)(&c.Kind), (*string)(&c.Codec), &c.Database, &c.Schema, &c.Content} {
			one(s)
		}
		if maps.Equal(c.Attributes, attributes) {
			c.Attributes = attributes
		}
		attributes = c.Attributes
	}
	var columns []string
	for i := range m.Databases {
		for j := range m.Databases[i].Tables {
			t := &m.Databases[i].Tables[j]
			one(&t.Schema)
			if slices.Equal(t.Columns, columns) {
				t.Columns = columns
			}
			columns = t.Columns
		}
	}
}

func checkVersion(format string, version int, weir string) error {
	switch {
	case format != Format:
		return fmt.Errorf("read manifest: format %q is not %q: this is no backup of weir", format, Format)
	case version > FormatVersion:
		return fmt.Errorf("read manifest: %w: it has format version %d, this weir reads up to %d; use weir %s or later",
			ErrNewer, version, FormatVersion, weir)
	case version < 1:
		return fmt.Errorf("read manifest: format version %d does not exist", version)
	}
	return nil
}

func checkDigest(data []byte) error {
	doc, whole := bytes.CutSuffix(data, []byte("\n"))
	if !whole {
		return fmt.Errorf("read manifest: %w: it does not end as it was written", ErrEdited)
	}
	at := bytes.LastIndex(doc, digestKey)
	if at < 0 || len(doc) < at+len(digestKey)+len(noDigest) {
		return fmt.Errorf("read manifest: %w: it has no digest", ErrEdited)
	}
	at += len(digestKey)
	want := string(doc[at:][:len(noDigest)])
	h := sha256.New()
	for _, part := range [][]byte{doc[:at], []byte(noDigest), doc[at+len(noDigest):]} {
		h.Write(part)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("read manifest: %w: its digest is %s, its content has %s", ErrEdited, want, got)
	}
	return nil
}

// check returns what is inconsistent in a manifest. The digest does not protect against an
// attacker, who can compute it: names of files must not lead out of the backup.
func (m *Manifest) check() error {
	if err := checkID("id", m.ID); err != nil {
		return err
	}
	if e := m.Encryption; e != nil && e.KeyFile != "" && e.KeyFile != keyName {
		return fmt.Errorf("key file %q: %s is its name", e.KeyFile, keyName)
	}
	paths, files := map[string]bool{}, map[string]bool{}
	for _, c := range m.Chunks {
		if err := c.check(); err != nil {
			return err
		}
		if paths[c.Path] || files[c.File] {
			return fmt.Errorf("chunk %s (%s) is listed twice", c.Path, c.File)
		}
		paths[c.Path], files[c.File] = true, true
	}
	if m.Sealed != "" && !paths[m.Sealed] {
		return fmt.Errorf("chunk %s, which has the full manifest, is not listed", m.Sealed)
	}
	return nil
}

// check returns what is inconsistent in the description of a chunk.
func (c Chunk) check() error {
	if err := checkPath(c.Path); err != nil {
		return err
	}
	if !fs.ValidPath(c.File) || c.File == "." || !strings.Contains(c.File, "/") && reserved(c.File) {
		return fmt.Errorf("chunk %s: file name %q", c.Path, c.File)
	}
	if err := (Compression{Codec: c.Codec}).validate(); err != nil {
		return fmt.Errorf("chunk %s: %w", c.Path, err)
	}
	if c.PlainBytes < 0 || c.StoredBytes < 0 || c.Rows < 0 || c.Segments < 0 {
		return fmt.Errorf("chunk %s: a negative count", c.Path)
	}
	if !isSum(c.StoredSHA256) || c.PlainSHA256 != "" && !isSum(c.PlainSHA256) {
		return fmt.Errorf("chunk %s: a SHA-256 has %d hexadecimal digits", c.Path, len(noDigest))
	}
	if _, err := hex.DecodeString(c.PlainXXH64); err != nil || c.PlainXXH64 != "" && len(c.PlainXXH64) != 16 || strings.ToLower(c.PlainXXH64) != c.PlainXXH64 {
		return fmt.Errorf("chunk %s: an XXH64 has 16 hexadecimal digits", c.Path)
	}
	return nil
}

func isSum(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && strings.ToLower(s) == s
}

// ReadSummary reads the head of a manifest from r. It stops before the long lists and does not
// check the digest.
func ReadSummary(r io.Reader) (Summary, error) {
	dec := json.NewDecoder(r)
	fields := map[string]json.RawMessage{}
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return Summary{}, errors.Join(errors.New("read manifest: no JSON object"), err)
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return Summary{}, fmt.Errorf("read manifest: %w", err)
		}
		name, ok := t.(string)
		if !ok || name == "options" || name == "databases" || name == "chunks" {
			break
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return Summary{}, fmt.Errorf("read manifest: %w", err)
		}
		fields[name] = value
	}
	head, err := json.Marshal(fields)
	if err != nil {
		return Summary{}, fmt.Errorf("read manifest: %w", err)
	}
	var s Summary
	if err := json.Unmarshal(head, &s); err != nil {
		return Summary{}, fmt.Errorf("read manifest: %w", err)
	}
	return s, checkVersion(s.Format, s.Version, s.Weir)
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
