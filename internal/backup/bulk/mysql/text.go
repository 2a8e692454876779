package mysql

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// escapes maps each byte that LOAD DATA would misread to the letter that represents it after a
// backslash.
var escapes = [256]byte{'\\': '\\', '\t': 't', '\n': 'n', 0: '0'}

// AppendText appends a row as a line. NULL is nil.
func AppendText(dst []byte, values [][]byte) []byte {
	for i, v := range values {
		if i > 0 {
			dst = append(dst, '\t')
		}
		if v == nil {
			dst = append(dst, '\\', 'N')
			continue
		}
		dst = appendEscaped(dst, v)
	}
	return append(dst, '\n')
}

func appendEscaped(dst, v []byte) []byte {
	from, i := 0, 0
	for {
		// Most bytes need no escape: check eight at a time.
		for i+8 <= len(v) && !misread(binary.LittleEndian.Uint64(v[i:])) {
			i += 8
		}
		if i >= len(v) {
			return append(dst, v[from:]...)
		}
		for end := min(i+8, len(v)); i < end; i++ {
			if e := escapes[v[i]]; e != 0 {
				dst = append(append(dst, v[from:i]...), '\\', e)
				from = i + 1
			}
		}
	}
}

// misread reports whether one of eight bytes is in escapes.
func misread(v uint64) bool {
	const each = 0x0101010101010101
	// x - each borrows in a byte of x that is zero, whose highest bit is not set.
	a, b, c := v^each*'\\', v^each*'\t', v^each*'\n'
	return ((v-each)&^v|(a-each)&^a|(b-each)&^b|(c-each)&^c)&(each<<7) != 0
}

// ErrText says that a line does not have the format of AppendText.
var ErrText = errors.New("malformed row")

// ParseText parses a line without its line feed into n values, which it stores in dst. It
// unescapes values in place and overwrites the line; the values alias it.
func ParseText(line []byte, n int, dst [][]byte) ([][]byte, error) {
	for i := range n {
		field := line
		if i < n-1 {
			tab := bytes.IndexByte(line, '\t')
			if tab < 0 {
				return dst, fmt.Errorf("%d values instead of %d: %w", i+1, n, ErrText)
			}
			field, line = line[:tab], line[tab+1:]
		} else if bytes.IndexByte(line, '\t') >= 0 {
			return dst, fmt.Errorf("more than %d values: %w", n, ErrText)
		}
		v, err := unescape(field)
		if err != nil {
			return dst, err
		}
		dst = append(dst, v)
	}
	return dst, nil
}

// unescape undoes appendEscaped, in place.
func unescape(field []byte) ([]byte, error) {
	at := bytes.IndexByte(field, '\\')
	if at < 0 {
		return field, nil
	}
	if len(field) == 2 && field[1] == 'N' {
		return nil, nil
	}
	out := field[:at]
	for i := at; i < len(field); i++ {
		c := field[i]
		if c == '\\' {
			i++
			if i == len(field) {
				return nil, fmt.Errorf("a backslash at the end of a value: %w", ErrText)
			}
			switch field[i] {
			case '\\':
				c = '\\'
			case 't':
				c = '\t'
			case 'n':
				c = '\n'
			case '0':
				c = 0
			default:
				return nil, fmt.Errorf("\\%c in a value: %w", field[i], ErrText)
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// appendQuoted appends a value as a string literal of bytes.
func appendQuoted(dst, v []byte) []byte {
	dst = append(dst, "_binary'"...)
	from := 0
	for i, c := range v {
		e := c
		switch c {
		case '\'', '\\':
		case 0:
			e = '0'
		case '\n':
			e = 'n'
		case '\r':
			e = 'r'
		case 0x1a:
			e = 'Z'
		default:
			continue
		}
		dst = append(append(dst, v[from:i]...), '\\', e)
		from = i + 1
	}
	return append(append(dst, v[from:]...), '\'')
}

// A RowSum is a checksum of rows that does not depend on their order: the sum of the XXH64
// hashes of their lines, modulo 2^64, with their number. Sums of parts of a table add up to the
// sum of the whole.
//
// It detects accidents: lost, duplicated and changed rows. It is no protection against forged
// rows; the archive's SHA-256 is.
type RowSum struct {
	sum  uint64
	rows int64
}

// Line adds a line, with its line feed.
func (r *RowSum) Line(line []byte) {
	r.sum += xxhash.Sum64(line[:len(line)-1])
	r.rows++
}

// Add adds the sum of other rows of the same table.
func (r *RowSum) Add(other RowSum) {
	r.sum += other.sum
	r.rows += other.rows
}

// Rows returns the number of rows.
func (r *RowSum) Rows() int64 { return r.rows }

// String returns the sum in the form "xxh64-tsv:0123456789abcdef".
func (r *RowSum) String() string { return fmt.Sprintf("xxh64-tsv:%016x", r.sum) }
