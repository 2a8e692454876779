package backupdata

import (
	"encoding/binary"
	"fmt"
	"time"
)

// manyTableBytes is the size of each of many small tables, and mostTables their largest number;
// for larger databases the tables grow instead.
const (
	manyTableBytes = 64 << 10
	mostTables     = 2000
)

// many is a database whose cost is that of its tables, not of its rows.
func many(bytes int64) []*Table {
	n := min(max(bytes/manyTableBytes, 1), mostTables)
	out := make([]*Table, n)
	for i := range out {
		out[i] = &Table{
			Name: fmt.Sprintf("tenant_%04d", i+1), bytes: bytes / n, Indexes: []string{"name"},
			Columns: []Column{{"id", Int, false}, {"created_at", Time, false}, {"name", String, false}, {"amount", Money, false}, {"note", Text, true}},
			fill: func(r *row) {
				r.time(time.Hour)
				r.text([]byte(of(r, lastNames) + " " + word(r.rng)))
				r.money(r.rng.Int64N(1_000_000))
				if r.rng.IntN(2) == 0 {
					r.null()
				} else {
					r.text(r.words(4 + r.rng.IntN(16)))
				}
			},
		}
	}
	return out
}

// huge is one table of measurements.
func huge(bytes int64) []*Table {
	return []*Table{{
		Name: "measurements", bytes: bytes, Indexes: []string{"sensor"},
		Columns: []Column{{"id", Int, false}, {"sensor", Int, false}, {"at", Time, false}, {"value", Float, false}, {"quality", Bool, false}, {"remark", String, true}},
		fill: func(r *row) {
			r.int(r.skewed(5000))
			r.time(time.Second)
			r.float(float64(int64(r.rng.NormFloat64()*1e5+2e6)) / 1e5)
			r.bool(r.rng.IntN(50) > 0)
			if r.rng.IntN(6) > 0 {
				r.null()
			} else {
				r.text(r.words(3 + r.rng.IntN(8)))
			}
		},
	}}
}

// texts has only documents.
func texts(bytes int64) []*Table { return []*Table{documents(bytes)} }

// files has only attachments.
func files(bytes int64) []*Table { return []*Table{attachments(bytes)} }

// noise has random bytes, which compress to half of their text, since that is hexadecimal.
func noise(bytes int64) []*Table {
	return []*Table{{
		Name: "secrets", bytes: bytes,
		Columns: []Column{{"id", Int, false}, {"content", Bytes, false}},
		fill: func(r *row) {
			b := r.buffer(4096)
			r.random(b)
			r.bytes(b)
		},
	}}
}

func (r *row) buffer(n int) []byte {
	if cap(r.scratch) < n {
		r.scratch = make([]byte, n)
	}
	return r.scratch[:n]
}

// random fills b with random bytes.
func (r *row) random(b []byte) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.rng.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.rng.Uint32())
	}
}

// file makes n bytes that resemble files: a common header, a table of increasing numbers, and
// two thirds of compressed data.
func (r *row) file(n int) []byte {
	b := r.buffer(n)
	at := copy(b, "\x89FILE\r\n\x1a\n\x00\x00\x00\rIHDR version 1.4; created by shop/4.12; colour space sRGB; ")
	var number uint32
	for ; at+4 <= n/3; at += 4 {
		number += 1 + uint32(r.rng.IntN(700))
		binary.BigEndian.PutUint32(b[at:], number)
	}
	r.random(b[at:])
	return b
}
