package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// A RowSum is a checksum of the rows of a COPY stream that does not depend on their order: the
// sum of the XXH64 hashes of the rows, modulo 2^64, with their number. A restored table has its
// rows in another order, and a table that is read in ranges has none at all; sums of parts add
// up to the sum of the whole.
//
// It detects accidents: lost, duplicated and changed rows. It is no protection against forged
// rows; the archive's SHA-256 is.
//
// The zero RowSum is for text. It is used by one goroutine.
type RowSum struct {
	// Binary says that the stream is in COPY's binary format.
	Binary bool

	sum  uint64
	rows int64

	partial xxhash.Digest // of a row whose beginning was in an earlier piece
	begun   bool
	walk    binaryWalk
}

// Write adds a piece of the stream. Pieces may end anywhere.
func (r *RowSum) Write(p []byte) error {
	if r.Binary {
		return r.writeBinary(p)
	}
	// In text format, only a newline ends a row: newlines in values are written as \n.
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			r.begin()
			_, _ = r.partial.Write(p) // never fails
			return nil
		}
		if r.begun {
			_, _ = r.partial.Write(p[:i])
			r.add(r.partial.Sum64())
			r.begun = false
		} else {
			r.add(xxhash.Sum64(p[:i]))
		}
		p = p[i+1:]
	}
	return nil
}

func (r *RowSum) begin() {
	if !r.begun {
		r.partial.Reset()
		r.begun = true
	}
}

func (r *RowSum) add(h uint64) {
	r.sum += h
	r.rows++
}

// End ends the stream. An incomplete row is an error.
func (r *RowSum) End() error {
	if r.begun || r.Binary && !r.walk.ended() {
		return errors.New("the rows end in the middle of one")
	}
	return nil
}

// Add adds the sum of other rows of the same table.
func (r *RowSum) Add(other *RowSum) {
	r.sum += other.sum
	r.rows += other.rows
}

// Rows returns the number of rows.
func (r *RowSum) Rows() int64 { return r.rows }

// String returns the sum in the form "xxh64-text:0123456789abcdef" or "xxh64-binary:…".
func (r *RowSum) String() string {
	if r.Binary {
		return fmt.Sprintf("xxh64-binary:%016x", r.sum)
	}
	return fmt.Sprintf("xxh64-text:%016x", r.sum)
}

// binaryWalk parses a binary stream into rows:
//
//	PGCOPY\n\377\r\n\0, flags (4), length of the extension (4), extension
//	for each row: number of fields (2), for each field length (4) and bytes
//	-1 (2)
type binaryWalk struct {
	state  byte
	number [19]byte // of the fixed-size part being read
	have   int
	skip   int64 // bytes of an extension or field to skip
	fields int
}

const (
	inHeader byte = iota
	inExtension
	inCount
	inLength
	inField
	inEnd
)

var binarySignature = []byte("PGCOPY\n\377\r\n\x00")

func (w *binaryWalk) ended() bool { return w.state == inEnd }

// take collects n bytes of a fixed-size part. ok is false while some are missing.
func (w *binaryWalk) take(p []byte, n int) (rest []byte, ok bool) {
	m := copy(w.number[w.have:n], p)
	w.have += m
	if w.have < n {
		return p[m:], false
	}
	w.have = 0
	return p[m:], true
}

func (r *RowSum) writeBinary(p []byte) error {
	w := &r.walk
	var ok bool
	for len(p) > 0 {
		switch w.state {
		case inHeader:
			if p, ok = w.take(p, 19); !ok {
				return nil
			}
			if !bytes.Equal(w.number[:11], binarySignature) {
				return errors.New("no binary COPY stream")
			}
			w.skip = int64(binary.BigEndian.Uint32(w.number[15:19]))
			w.state = inExtension
			if w.skip == 0 {
				w.state = inCount
			}
		case inExtension:
			n := min(w.skip, int64(len(p)))
			p = p[n:]
			if w.skip -= n; w.skip == 0 {
				w.state = inCount
			}
		case inCount:
			if p, ok = w.take(p, 2); !ok {
				return nil
			}
			if err := r.beginRow(int16(binary.BigEndian.Uint16(w.number[:2]))); err != nil {
				return err
			}
		case inLength:
			if p, ok = w.take(p, 4); !ok {
				return nil
			}
			_, _ = r.partial.Write(w.number[:4])
			n := int32(binary.BigEndian.Uint32(w.number[:4]))
			if n < -1 {
				return fmt.Errorf("binary COPY stream: field of %d bytes", n)
			}
			if w.skip = int64(n); n > 0 {
				w.state = inField
			} else {
				r.endField()
			}
		case inField:
			n := min(w.skip, int64(len(p)))
			_, _ = r.partial.Write(p[:n])
			p = p[n:]
			if w.skip -= n; w.skip == 0 {
				r.endField()
			}
		case inEnd:
			return errors.New("binary COPY stream: bytes after its end")
		}
	}
	return nil
}

func (r *RowSum) beginRow(fields int16) error {
	w := &r.walk
	switch {
	case fields == -1:
		w.state = inEnd
	case fields < -1:
		return fmt.Errorf("binary COPY stream: row of %d fields", fields)
	case fields == 0:
		r.add(xxhash.Sum64(nil))
	default:
		r.begin()
		w.fields, w.state = int(fields), inLength
	}
	return nil
}

func (r *RowSum) endField() {
	w := &r.walk
	w.state = inLength
	if w.fields--; w.fields == 0 {
		r.add(r.partial.Sum64())
		r.begun = false
		w.state = inCount
	}
}
