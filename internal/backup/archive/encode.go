package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// noDigest stands in the place of the digest while it is computed.
var noDigest = strings.Repeat("0", sha256.Size*2)

// digestKey precedes the digest. No string of the document can hold it, for a
// quote inside a string is escaped; the digest is the last field, and the
// last of several (an attribute may be called so, too) is it.
var digestKey = []byte("\n  \"digest\": \"")

// noChunks stands in the place of the chunks while everything else is encoded. No
// string of the document can hold it, for the same reason as with digestKey, and
// only fields of the document itself have this indentation.
var noChunks = []byte("\n  \"chunks\": null")

// encode returns the manifest as it is stored, and sets its digest. The chunks, of
// which there may be hundreds of thousands, are encoded one by one into the place
// where they belong: as one document all of them would be in memory three times.
func (m *Manifest) encode() ([]byte, error) {
	m.Digest = noDigest
	shell := *m
	if len(m.Chunks) > 0 {
		shell.Chunks = nil
	}
	rest, err := json.MarshalIndent(&shell, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write manifest: %w", err)
	}
	var data bytes.Buffer
	if len(m.Chunks) > 0 {
		before, after, _ := bytes.Cut(rest, noChunks)
		if err := m.encodeChunks(&data, before, len(after)); err != nil {
			return nil, err
		}
		rest = after
	}
	data.Write(rest)
	doc := data.Bytes()
	sum := sha256.Sum256(doc)
	m.Digest = hex.EncodeToString(sum[:])
	at := bytes.LastIndex(doc, digestKey) + len(digestKey)
	copy(doc[at:], m.Digest)
	data.WriteByte('\n')
	return data.Bytes(), nil
}

// encodeChunks writes what comes before the chunks, and the chunks. So many more
// bytes come after.
func (m *Manifest) encodeChunks(data *bytes.Buffer, before []byte, after int) error {
	for i, c := range m.Chunks {
		line, err := json.MarshalIndent(c, "    ", "  ")
		if err != nil {
			return fmt.Errorf("write manifest: %w", err)
		}
		if i == 0 { // others are about as long
			data.Grow(len(before) + len(m.Chunks)*(len(line)+len(line)/8+6) + after + 64)
			data.Write(before)
			data.WriteString("\n  \"chunks\": [")
		} else {
			data.WriteByte(',')
		}
		data.WriteString("\n    ")
		data.Write(line)
	}
	data.WriteString("\n  ]")
	return nil
}

// ParseManifest reads a manifest and checks it: its version, its digest, and that
// it makes sense. The errors match [ErrNewer] and [ErrEdited].
func ParseManifest(data []byte) (*Manifest, error) {
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
		Weir    string `json:"weir"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("read manifest: %w: %w", ErrEdited, err)
	}
	// A damaged byte may look like another format or version; what is whole says
	// truly what it is, and a version to come may have another digest.
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

// share keeps one copy of what many chunks and tables have in common, which saves
// half of the memory that a manifest of many takes. Nobody changes any of it.
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

// check returns what makes no sense in a manifest. A digest does not protect from
// anyone who computes it anew: names of files must still not lead out of the backup.
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

// check returns what makes no sense in a chunk's description.
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

// ReadSummary reads the head of a manifest from r and no more of it than it must:
// it stops before the long lists. It does not see the digest.
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
