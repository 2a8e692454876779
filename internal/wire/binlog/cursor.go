package binlog

import (
	"encoding/binary"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// cursor reads a body from front to back. Reading past the end sets bad and yields zeros, so
// that a caller checks once.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.bad, c.b = true, nil
		return nil
	}
	s := c.b[:n:n]
	c.b = c.b[n:]
	return s
}

func (c *cursor) bytes64(n uint64) []byte {
	if n > uint64(len(c.b)) {
		return c.bytes(-1)
	}
	return c.bytes(int(n))
}

func (c *cursor) u8() byte {
	if s := c.bytes(1); s != nil {
		return s[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if s := c.bytes(2); s != nil {
		return binary.LittleEndian.Uint16(s)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if s := c.bytes(4); s != nil {
		return binary.LittleEndian.Uint32(s)
	}
	return 0
}

func (c *cursor) u48() uint64 {
	if s := c.bytes(6); s != nil {
		return uint64(binary.LittleEndian.Uint32(s)) | uint64(binary.LittleEndian.Uint16(s[4:]))<<32
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if s := c.bytes(8); s != nil {
		return binary.LittleEndian.Uint64(s)
	}
	return 0
}

// lenenc reads a length-encoded integer.
func (c *cursor) lenenc() uint64 {
	n, rest, ok := mywire.ParseLenenc(c.b)
	if !ok {
		c.bytes(-1)
		return 0
	}
	c.b = rest
	return n
}

// varlen reads an integer of MySQL's serialization library: the number of ones at the low end
// of the first byte is the number of further bytes, and the value is above the zero that ends
// them.
func (c *cursor) varlen() uint64 {
	first := c.u8()
	extra := 0
	for first&(1<<extra) != 0 && extra < 8 {
		extra++
	}
	var v uint64
	for i, x := range c.bytes(extra) {
		v |= uint64(x) << (8 * i)
	}
	if extra >= 7 {
		return v // the first byte has no bits of the value
	}
	return v<<(7-extra) | uint64(first)>>(extra+1)
}

// appendVarlen appends an integer that varlen reads, for values below 128.
func appendVarlen(dst []byte, v uint64) []byte { return append(dst, byte(v<<1)) }

// zigzag reads a signed integer of MySQL's serialization library, whose lowest bit is the sign.
// Transaction numbers are never negative.
func (c *cursor) zigzag() uint64 { return c.varlen() >> 1 }
