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
	"strings"
)

// noDigest stands in the place of the digest while it is computed.
var noDigest = strings.Repeat("0", sha256.Size*2)

// digestKey precedes the digest. No string of the document can hold it, for a
// quote inside a string is escaped; the digest is the last field, and the
// last of several (an attribute may be called so, too) is it.
var digestKey = []byte("\n  \"digest\": \"")

// encode returns the manifest as it is stored, and sets its digest.
func (m *Manifest) encode() ([]byte, error) {
	m.Digest = noDigest
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write manifest: %w", err)
	}
	sum := sha256.Sum256(data)
	m.Digest = hex.EncodeToString(sum[:])
	at := bytes.LastIndex(data, digestKey) + len(digestKey)
	copy(data[at:], m.Digest)
	return append(data, '\n'), nil
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
	if err := checkVersion(head.Format, head.Version, head.Weir); err != nil {
		return nil, err
	}
	if err := checkDigest(data); err != nil {
		return nil, err
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read manifest: %w: %w", ErrEdited, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	return &m, nil
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
	doc := bytes.TrimSuffix(bytes.Clone(data), []byte("\n"))
	at := bytes.LastIndex(doc, digestKey)
	if at < 0 || len(doc) < at+len(digestKey)+len(noDigest) {
		return fmt.Errorf("read manifest: %w: it has no digest", ErrEdited)
	}
	place := doc[at+len(digestKey):][:len(noDigest)]
	want := string(place)
	copy(place, noDigest)
	sum := sha256.Sum256(doc)
	if got := hex.EncodeToString(sum[:]); got != want {
		return fmt.Errorf("read manifest: %w: its digest is %s, its content has %s", ErrEdited, want, got)
	}
	return nil
}

// check returns what makes no sense in a manifest. A digest does not protect from
// whoever computes it anew: names of files must still not lead out of the backup.
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
