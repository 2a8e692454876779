package dump

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
	"unicode/utf8"

	"github.com/weirdb/weir/kv"
)

// Version is the version of the format that this package writes.
const Version = 1

// maxLine is the length of the longest line: a key and a value of the largest size in JSON,
// which may escape a byte with six.
const maxLine = 64 << 20

// Head is the first line of a dump.
type Head struct {
	Version int       `json:"weir_kv_export"`
	Cluster string    `json:"cluster,omitempty"`
	Time    time.Time `json:"time"`
	Weak    bool      `json:"weak,omitempty"` // read from one replica, which may have been behind
}

// line is an item, or the last line.
type line struct {
	Key         *string `json:"key,omitempty"`
	KeyBase64   []byte  `json:"key_base64,omitempty"`
	Value       string  `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
	Revision    uint64  `json:"revision,omitempty"`
	TTL         int64   `json:"ttl_ms,omitempty"`
	Lease       uint64  `json:"lease,omitempty"`

	End    bool   `json:"end,omitempty"`
	Keys   int    `json:"keys,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Summary summarizes the contents of a dump or of a cluster.
type Summary struct {
	Keys   int   `json:"keys"`   // number of keys
	Timed  int   `json:"timed"`  // those of them that have a time to live
	Leased int   `json:"leased"` // those with a lease
	Bytes  int64 `json:"bytes"`  // of keys and values
	// Digest is the SHA-256, in hex, of the keys and values without a time to live and without
	// a lease.
	Digest string `json:"digest"`
	// Ageless says that the dump has no information on times to live and leases.
	Ageless bool `json:"ageless,omitempty"`
}

// sum computes a Summary.
type sum struct {
	Summary
	hash hash.Hash
}

func newSum() *sum { return &sum{hash: sha256.New()} }

// permanent reports whether an item has neither a time to live nor a lease.
func permanent(i *kv.Item) bool { return i.TTL == 0 && i.Lease == 0 }

func (s *sum) add(i *kv.Item) {
	s.Keys++
	s.Bytes += int64(len(i.Key) + len(i.Value))
	if i.TTL != 0 {
		s.Timed++
	}
	if i.Lease != 0 {
		s.Leased++
	}
	if permanent(i) {
		s.digest(i)
	}
}

func (s *sum) digest(i *kv.Item) {
	var size [2 * binary.MaxVarintLen64]byte
	s.hash.Write(binary.AppendUvarint(size[:0], uint64(len(i.Key))))
	io.WriteString(s.hash, i.Key)
	s.hash.Write(binary.AppendUvarint(size[:0], uint64(len(i.Value))))
	s.hash.Write(i.Value)
}

func (s *sum) total() Summary {
	s.Digest = hex.EncodeToString(s.hash.Sum(nil))
	return s.Summary
}

// Writer writes a dump.
type Writer struct {
	out  *bufio.Writer
	json *json.Encoder
	file hash.Hash // of the lines
	sum  *sum
}

// NewWriter returns a Writer after writing the head.
func NewWriter(w io.Writer, h Head) (*Writer, error) {
	x := &Writer{out: bufio.NewWriterSize(w, 64<<10), file: sha256.New(), sum: newSum()}
	x.json = json.NewEncoder(io.MultiWriter(x.out, x.file))
	h.Version = Version
	if err := x.json.Encode(h); err != nil {
		return nil, fmt.Errorf("write the head: %w", err)
	}
	return x, nil
}

// Add writes an item. Keys must be ascending.
func (w *Writer) Add(i *kv.Item) error {
	l := line{Revision: i.Revision, Lease: i.Lease, TTL: i.TTL.Milliseconds()}
	if utf8.ValidString(i.Key) {
		l.Key = &i.Key
	} else {
		l.KeyBase64 = []byte(i.Key)
	}
	if utf8.Valid(i.Value) {
		l.Value = string(i.Value)
	} else {
		l.ValueBase64 = i.Value
	}
	w.sum.add(i)
	if err := w.json.Encode(l); err != nil {
		return fmt.Errorf("write %q: %w", i.Key, err)
	}
	return nil
}

// Close writes the last line and returns a summary. It does not close the underlying writer.
func (w *Writer) Close() (Summary, error) {
	end := line{End: true, Keys: w.sum.Keys, SHA256: hex.EncodeToString(w.file.Sum(nil))}
	if err := w.json.Encode(end); err != nil {
		return Summary{}, fmt.Errorf("write the last line: %w", err)
	}
	if err := w.out.Flush(); err != nil {
		return Summary{}, fmt.Errorf("write the last line: %w", err)
	}
	return w.sum.total(), nil
}

// DamagedError says why a dump cannot be read, or only in part.
type DamagedError struct {
	Line int // 0: unknown
	Why  string
}

func (e *DamagedError) Error() string {
	if e.Line == 0 {
		return e.Why
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Why)
}

// Reader reads a dump and checks it.
type Reader struct {
	Head    Head
	Ageless bool // it has no information on times to live and leases

	in    *bufio.Reader
	list  *json.Decoder // the output of weir kv range, instead of lines
	file  hash.Hash
	at    int // current line
	keys  int
	last  string
	ended bool
}

// NewReader returns a Reader after reading the head.
func NewReader(r io.Reader) (*Reader, error) {
	d := &Reader{in: bufio.NewReaderSize(r, 64<<10), file: sha256.New()}
	begin, err := d.in.Peek(256)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the head: %w", err)
	}
	if !bytes.Contains(begin, []byte(`"weir_kv_export"`)) {
		return d, d.openList()
	}
	text, err := d.line()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &d.Head); err != nil {
		return nil, d.damaged("the head makes no sense: %v", err)
	}
	if d.Head.Version != Version {
		return nil, d.damaged("a dump of version %d, and this weir knows version %d: read it with the weir that wrote it, or a newer one", d.Head.Version, Version)
	}
	d.file.Write(text)
	return d, nil
}

func (d *Reader) damaged(format string, args ...any) error {
	return &DamagedError{Line: d.at, Why: fmt.Sprintf(format, args...)}
}

// cutShort describes a dump without its last line.
const cutShort = "the dump ends before its last line: it was cut short; export again"

// line reads a line including the newline.
func (d *Reader) line() ([]byte, error) {
	d.at++
	var text []byte
	for {
		part, err := d.in.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(text) <= maxLine:
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, d.damaged("a line of more than %d bytes", maxLine)
		case errors.Is(err, io.EOF):
			return nil, d.damaged(cutShort)
		case err != nil:
			return nil, fmt.Errorf("read line %d: %w", d.at, err)
		}
		return text, nil
	}
}

// Next returns the next item, or io.EOF after the last item of a complete dump.
func (d *Reader) Next() (*kv.Item, error) {
	if d.ended {
		return nil, io.EOF
	}
	var l line
	if d.list != nil {
		more, err := d.nextOfList(&l)
		if err != nil {
			return nil, err
		}
		if !more {
			d.ended = true
			return nil, io.EOF
		}
	} else {
		text, err := d.line()
		if err != nil {
			return nil, err
		}
		if err := strictly(text, &l); err != nil {
			return nil, d.damaged("%v", err)
		}
		if l.End {
			return nil, d.end(&l, text)
		}
		d.file.Write(text)
	}
	return d.item(&l)
}

func strictly(text []byte, l *line) error {
	x := json.NewDecoder(bytes.NewReader(text))
	x.DisallowUnknownFields()
	return x.Decode(l)
}

func (d *Reader) item(l *line) (*kv.Item, error) {
	if l.Key == nil && l.KeyBase64 == nil {
		return nil, d.damaged("want an item with a key")
	}
	i := &kv.Item{Key: string(l.KeyBase64), Value: l.ValueBase64, Revision: l.Revision, Lease: l.Lease, TTL: time.Duration(l.TTL) * time.Millisecond}
	if l.KeyBase64 == nil {
		i.Key = *l.Key
	}
	if l.ValueBase64 == nil {
		i.Value = []byte(l.Value)
	}
	if d.keys > 0 && i.Key <= d.last {
		return nil, d.damaged("key %q comes after %q: keys must rise", i.Key, d.last)
	}
	d.keys++
	d.last = i.Key
	return i, nil
}

// end checks the last line, which the digest does not cover: it must be exactly what a Writer
// writes.
func (d *Reader) end(l *line, text []byte) error {
	if exact, err := json.Marshal(l); err != nil || !bytes.Equal(append(exact, '\n'), text) {
		return d.damaged("the last line is damaged")
	}
	if have := hex.EncodeToString(d.file.Sum(nil)); l.SHA256 != have || l.Keys != d.keys {
		return &DamagedError{Why: fmt.Sprintf("the dump is damaged: its last line names %d keys and SHA-256 %s, what is before it has %d keys and %s", l.Keys, l.SHA256, d.keys, have)}
	}
	if _, err := d.in.ReadByte(); !errors.Is(err, io.EOF) {
		return d.damaged("something follows the last line")
	}
	d.ended = true
	return io.EOF
}

// Check reads a dump to its end and returns a summary.
func Check(r io.Reader) (Summary, error) {
	d, err := NewReader(r)
	if err != nil {
		return Summary{}, err
	}
	s := newSum()
	for {
		i, err := d.Next()
		if errors.Is(err, io.EOF) {
			s.Ageless = d.Ageless
			return s.total(), nil
		}
		if err != nil {
			return Summary{}, err
		}
		s.add(i)
	}
}
