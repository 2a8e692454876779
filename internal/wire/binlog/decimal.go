package binlog

import "strconv"

// Decimals are stored in groups of nine digits, four bytes each, big-endian, with shorter
// groups at both outer ends. The top bit of the first byte is inverted, and all bits are if the
// number is negative.
const (
	groupDigits = 9
	groupBytes  = 4
	maxDecimals = 65 + 30
)

// shortGroup is the size in bytes of a group with fewer digits.
var shortGroup = [groupDigits]int{0, 1, 1, 2, 2, 3, 3, 4, 4}

// decimal decodes a DECIMAL(precision, scale) to text, such as "-12.30".
func (d *decoder) decimal(precision, scale int) Value {
	whole := precision - scale
	if whole < 0 || precision > maxDecimals {
		d.bytes(-1)
		return Value{}
	}
	n := whole/groupDigits*groupBytes + shortGroup[whole%groupDigits] +
		scale/groupDigits*groupBytes + shortGroup[scale%groupDigits]
	raw := d.bytes(n)
	if len(raw) == 0 {
		d.bad = true
		return Value{}
	}
	var buf [maxDecimals * groupBytes]byte
	b := buf[:copy(buf[:], raw)]
	negative := b[0]&0x80 == 0
	b[0] ^= 0x80
	if negative {
		for i := range b {
			b[i] = ^b[i]
		}
	}
	at := len(d.scratch)
	if negative {
		d.scratch = append(d.scratch, '-')
	}
	first := len(d.scratch)
	b = d.group(b, whole%groupDigits)
	for range whole / groupDigits {
		b = d.group(b, groupDigits)
	}
	d.scratch = trimZeros(d.scratch, first)
	if scale > 0 {
		d.scratch = append(d.scratch, '.')
		for range scale / groupDigits {
			b = d.group(b, groupDigits)
		}
		d.group(b, scale%groupDigits)
	}
	return Value{kind: KindDecimal, b: d.scratch[at:len(d.scratch):len(d.scratch)]}
}

// group appends the digits of the group at the start of b and returns the rest.
func (d *decoder) group(b []byte, digits int) []byte {
	n := groupBytes
	if digits < groupDigits {
		n = shortGroup[digits]
	}
	if n == 0 {
		return b
	}
	var v uint64
	for _, x := range b[:n] {
		v = v<<8 | uint64(x)
	}
	var text [20]byte
	s := strconv.AppendUint(text[:0], v, 10)
	for range digits - len(s) {
		d.scratch = append(d.scratch, '0')
	}
	d.scratch = append(d.scratch, s...)
	return b[n:]
}

// trimZeros removes leading zeros from the digits at first, but keeps at least one digit.
func trimZeros(b []byte, first int) []byte {
	zeros := 0
	for first+zeros < len(b) && b[first+zeros] == '0' {
		zeros++
	}
	b = append(b[:first], b[first+zeros:]...)
	if len(b) == first {
		b = append(b, '0')
	}
	return b
}
