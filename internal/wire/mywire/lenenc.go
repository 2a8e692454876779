package mywire

import (
	"bytes"
	"encoding/binary"
)

// AppendLenenc appends a length-encoded integer.
func AppendLenenc(dst []byte, n uint64) []byte {
	switch {
	case n < 0xfb:
		return append(dst, byte(n))
	case n < 1<<16:
		return append(dst, 0xfc, byte(n), byte(n>>8))
	case n < 1<<24:
		return append(dst, 0xfd, byte(n), byte(n>>8), byte(n>>16))
	}
	return binary.LittleEndian.AppendUint64(append(dst, 0xfe), n)
}

// ParseLenenc parses a length-encoded integer at the start of b. ok is false if b is too short,
// or starts with 0xFB (NULL) or 0xFF, which are no integers.
func ParseLenenc(b []byte) (n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	switch c := b[0]; {
	case c < 0xfb:
		return uint64(c), b[1:], true
	case c == 0xfc && len(b) >= 3:
		return uint64(b[1]) | uint64(b[2])<<8, b[3:], true
	case c == 0xfd && len(b) >= 4:
		return uint64(b[1]) | uint64(b[2])<<8 | uint64(b[3])<<16, b[4:], true
	case c == 0xfe && len(b) >= 9:
		return binary.LittleEndian.Uint64(b[1:]), b[9:], true
	}
	return 0, nil, false
}

// AppendLenencString appends a string with its length-encoded length before it.
func AppendLenencString[S string | []byte](dst []byte, s S) []byte {
	return append(AppendLenenc(dst, uint64(len(s))), s...)
}

// ParseLenencString reads a length-encoded string from the start of b. s
// aliases b and is never nil when ok.
func ParseLenencString(b []byte) (s, rest []byte, ok bool) {
	n, rest, ok := ParseLenenc(b)
	if !ok || n > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:n:n], rest[n:], true
}

// cstring splits b after its first NUL: s is what precedes it, rest what follows. ok is false
// if b has no NUL.
func cstring(b []byte) (s, rest []byte, ok bool) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return nil, nil, false
	}
	return b[:i:i], b[i+1:], true
}

func appendCString(dst []byte, s string) []byte {
	return append(append(dst, s...), 0)
}
