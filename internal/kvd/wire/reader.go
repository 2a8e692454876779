package wire

import (
	"errors"
	"math/bits"
	"unsafe"
)

// Errors for invalid encodings.
var (
	errShort     = errors.New("the bytes end too early")
	errLeft      = errors.New("bytes are left over")
	errCanonical = errors.New("not the shortest form")
	errUnknown   = errors.New("unknown field")
	errCount     = errors.New("more elements than allowed")
	errDepth     = errors.New("nested too deep")
	errRange     = errors.New("number out of range")
)

// reader decodes a canonical encoding: each value has only one, so that what it decodes is
// encoded to the same bytes. The first error stays, and everything read after it is zero.
type reader struct {
	b     []byte
	err   error
	alias bool // strings share the memory of b
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

// byte reads one byte.
func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail(errShort)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// uint reads a varint, which must be in its shortest form.
func (r *reader) uint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 {
		v := uint64(r.b[0])
		r.b = r.b[1:]
		return v
	}
	return r.longUint()
}

func (r *reader) longUint() uint64 {
	var v uint64
	for i, c := range r.b {
		if i == 9 && c > 1 {
			r.fail(errRange)
			return 0
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			if c == 0 && i > 0 {
				r.fail(errCanonical)
				return 0
			}
			r.b = r.b[i+1:]
			return v
		}
	}
	r.fail(errShort)
	return 0
}

// present reads a number whose bit in the bitmap is set: it must not be 0.
func (r *reader) present() uint64 {
	v := r.uint()
	if v == 0 {
		r.fail(errCanonical)
	}
	return v
}

// presentByte is present for a field of one byte.
func (r *reader) presentByte() uint8 {
	v := r.byte()
	if v == 0 {
		r.fail(errCanonical)
	}
	return v
}

// presentInt is present for a signed number.
func (r *reader) presentInt() int64 {
	v := r.present()
	return int64(v>>1) ^ -int64(v&1)
}

// bytes reads a byte string, which shares r's memory. An empty one is nil.
func (r *reader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.fail(errShort)
		return nil
	}
	if n == 0 {
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// presentBytes is bytes for a field whose bit in the bitmap is set.
func (r *reader) presentBytes() []byte {
	v := r.bytes()
	if len(v) == 0 {
		r.fail(errCanonical)
	}
	return v
}

// string reads a string.
func (r *reader) string() string {
	return r.toString(r.bytes())
}

func (r *reader) presentString() string {
	return r.toString(r.presentBytes())
}

func (r *reader) toString(v []byte) string {
	if r.alias {
		return unsafe.String(unsafe.SliceData(v), len(v))
	}
	return string(v)
}

// count reads the number of elements of a list whose bit in the bitmap is set. each is the
// least size of an element.
func (r *reader) count(limit, each int) int {
	n := r.present()
	if n > uint64(limit) {
		r.fail(errCount)
		return 0
	}
	if n > uint64(len(r.b)/each) {
		r.fail(errShort)
		return 0
	}
	return int(n)
}

// bitmap reads the bitmap of fields; known has the bits that are defined.
func (r *reader) bitmap(known uint64) uint64 {
	v := r.uint()
	if v&^known != 0 {
		r.fail(errUnknown)
		return 0
	}
	return v
}

// end returns the first error, or an error if bytes follow the value.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return errLeft
	}
	return r.err
}

// appendUint appends v as a varint.
func appendUint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

// appendInt appends v in zigzag encoding: numbers near 0 of either sign are short.
func appendInt(b []byte, v int64) []byte {
	return appendUint(b, uint64(v<<1)^uint64(v>>63))
}

// appendString appends a byte string after its length.
func appendString[S ~string | ~[]byte](b []byte, v S) []byte {
	b = appendUint(b, uint64(len(v)))
	return append(b, v...)
}

// sizeUint returns the number of bytes that appendUint appends.
func sizeUint(v uint64) int {
	return (bits.Len64(v|1) + 6) / 7
}

func sizeInt(v int64) int {
	return sizeUint(uint64(v<<1) ^ uint64(v>>63))
}

func sizeString(n int) int {
	return sizeUint(uint64(n)) + n
}
