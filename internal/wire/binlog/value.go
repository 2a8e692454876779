package binlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Kind is the kind of a Value.
type Kind byte

// The kinds of values.
const (
	KindAbsent    Kind = iota // not in this image: binlog_row_image is not FULL
	KindNull                  // NULL
	KindInt                   // an integer that is signed, or whose signedness is unknown
	KindUint                  // an unsigned integer
	KindFloat                 // FLOAT
	KindDouble                // DOUBLE
	KindDecimal               // DECIMAL: Bytes is its text
	KindBytes                 // CHAR, BINARY, VARCHAR, TEXT, BLOB, GEOMETRY, VECTOR, MariaDB's UUID and INET6
	KindJSON                  // MySQL's JSON: Bytes is its binary form, not text; MariaDB's JSON is KindBytes
	KindJSONDiff              // changes to the JSON of the row before, in MySQL's binary form
	KindBit                   // BIT
	KindEnum                  // ENUM: Uint64 is the number of the member, from 1 on; 0 is the invalid one
	KindSet                   // SET: Uint64 has a bit for each member
	KindYear                  // YEAR
	KindDate                  // DATE
	KindTime                  // TIME
	KindDatetime              // DATETIME
	KindTimestamp             // TIMESTAMP
)

// Value is one column of one row. The result of Bytes is valid until the next row.
type Value struct {
	b     []byte
	n     uint64 // integers: zero-extended; dates and times: see temporal.go
	kind  Kind
	width byte // integers: size in bytes; times: digits of the fraction
}

// Kind returns the kind of the value.
func (v Value) Kind() Kind { return v.kind }

// IsNull reports whether the value is NULL.
func (v Value) IsNull() bool { return v.kind == KindNull }

// Int64 returns an integer, interpreted as signed with its column's width. For BIT, ENUM, SET
// and YEAR it returns the same as Uint64.
func (v Value) Int64() int64 {
	if v.kind != KindInt && v.kind != KindUint {
		return int64(v.Uint64())
	}
	shift := 64 - 8*uint(v.width)
	return int64(v.n<<shift) >> shift
}

// Uint64 returns an integer, interpreted as unsigned with its column's width, or the number of
// BIT, ENUM, SET and YEAR; 0 for other kinds.
func (v Value) Uint64() uint64 {
	switch v.kind {
	case KindInt, KindUint, KindBit, KindEnum, KindSet, KindYear:
		return v.n
	}
	return 0
}

// Float64 returns the number of KindFloat and KindDouble; 0 for other kinds.
func (v Value) Float64() float64 {
	switch v.kind {
	case KindFloat:
		return float64(math.Float32frombits(uint32(v.n)))
	case KindDouble:
		return math.Float64frombits(v.n)
	}
	return 0
}

// Bytes returns the bytes of KindBytes, KindJSON and KindJSONDiff, and the text of KindDecimal;
// nil for other kinds. They are valid until the next row.
func (v Value) Bytes() []byte { return v.b }

// Time returns a date and time; ok is false for other kinds, and for invalid dates, such as
// 0000-00-00. TIMESTAMP is a point in time; DATE and DATETIME have no time zone, and are
// returned in UTC.
func (v Value) Time() (t time.Time, ok bool) {
	switch v.kind {
	case KindTimestamp:
		return time.UnixMicro(int64(v.n)).UTC(), v.n != 0
	case KindDate, KindDatetime:
		d := v.datetime()
		t = time.Date(d.year, time.Month(d.month), d.day, d.hour, d.minute, d.second, d.micro*1000, time.UTC)
		return t, d.month > 0 && d.day > 0 && t.Day() == d.day && int(t.Month()) == d.month
	}
	return time.Time{}, false
}

// AppendText appends the value as the server prints it in a result: numbers and dates as text,
// TIMESTAMP in UTC, bytes unchanged, ENUM and SET as numbers. FLOAT has all of its digits,
// whereas servers round to six. NULL and absent values append nothing.
func (v Value) AppendText(dst []byte) []byte {
	switch v.kind {
	case KindInt:
		return strconv.AppendInt(dst, v.Int64(), 10)
	case KindUint, KindBit, KindEnum, KindSet:
		return strconv.AppendUint(dst, v.n, 10)
	case KindYear:
		return fmt.Appendf(dst, "%04d", v.n)
	case KindFloat:
		return appendFloat(dst, v.Float64(), 32)
	case KindDouble:
		return appendFloat(dst, v.Float64(), 64)
	case KindDecimal, KindBytes, KindJSON, KindJSONDiff:
		return append(dst, v.b...)
	case KindDate, KindDatetime, KindTimestamp, KindTime:
		return v.appendTime(dst)
	}
	return dst
}

// Magnitudes between which servers print numbers without an exponent.
const (
	leastPlain = 1e-15
	mostPlain  = 1e15
)

// appendFloat appends the shortest text that parses to the same number.
func appendFloat(dst []byte, f float64, bits int) []byte {
	if a := math.Abs(f); a == 0 || a >= leastPlain && a < mostPlain {
		return strconv.AppendFloat(dst, f, 'f', -1, bits)
	}
	at := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, bits)
	if i := bytes.IndexByte(dst[at:], '+'); i >= 0 {
		dst = append(dst[:at+i], dst[at+i+1:]...)
	}
	return dst
}

// decoder decodes the bytes of a row to values. It is used by one goroutine.
type decoder struct {
	cursor
	scratch []byte // for texts and decompressed values, until the next row
}

// value decodes the value of a column that is not NULL.
func (d *decoder) value(c *Column) (Value, error) {
	switch c.Type {
	case typeTiny, typeShort, typeInt24, typeLong, typeLongLong:
		return d.integer(c), nil
	case typeFloat:
		return Value{kind: KindFloat, n: uint64(d.u32())}, nil
	case typeDouble:
		return Value{kind: KindDouble, n: d.u64()}, nil
	case typeNewDecimal:
		return d.decimal(int(c.Meta&0xff), int(c.Meta>>8)), nil
	case typeYear:
		y := uint64(d.u8())
		if y > 0 {
			y += 1900
		}
		return Value{kind: KindYear, n: y}, nil
	case typeBit:
		n := int(c.Meta&0xff) + 8*int(c.Meta>>8)
		return Value{kind: KindBit, n: d.big((n + 7) / 8)}, nil
	case typeEnum:
		return Value{kind: KindEnum, n: d.little(int(c.Meta >> 8))}, nil
	case typeSet:
		return Value{kind: KindSet, n: d.little(int(c.Meta >> 8))}, nil
	case typeString:
		return d.char(c), nil
	case typeVarchar, typeVarString:
		return Value{kind: KindBytes, b: d.bytes(d.length(lengthBytes(c.Length)))}, nil
	case typeBlob, typeTinyBlob, typeMediumBlob, typeLongBlob, typeGeometry, typeVector:
		return Value{kind: KindBytes, b: d.bytes(d.length(int(c.Meta)))}, nil
	case typeJSON:
		return Value{kind: KindJSON, b: d.bytes(d.length(int(c.Meta)))}, nil
	case typeVarcharCompressed:
		return d.inflate(d.bytes(d.length(lengthBytes(c.Length))))
	case typeBlobCompressed:
		return d.inflate(d.bytes(d.length(int(c.Meta))))
	}
	return d.temporal(c)
}

func (d *decoder) integer(c *Column) Value {
	v := Value{kind: KindInt, width: integerWidth(c.Type)}
	if c.Sign == Unsigned {
		v.kind = KindUint
	}
	v.n = d.little(int(v.width))
	return v
}

// lengthBytes returns the size of the length of a string of up to longest bytes.
func lengthBytes(longest int) int {
	if longest > 255 {
		return 2
	}
	return 1
}

// length reads a length of n bytes.
func (d *decoder) length(n int) int {
	if n > 4 {
		d.bytes(-1)
		return 0
	}
	return int(d.little(n))
}

// char decodes a CHAR or BINARY. Servers strip the padding; for a known BINARY, the zero bytes
// are restored.
func (d *decoder) char(c *Column) Value {
	b := d.bytes(d.length(lengthBytes(c.Length)))
	if c.Charset == charsetBinary && len(b) < c.Length && !d.bad {
		at := len(d.scratch)
		d.scratch = append(d.scratch, b...)
		for range c.Length - len(b) {
			d.scratch = append(d.scratch, 0)
		}
		b = d.scratch[at:len(d.scratch):len(d.scratch)]
	}
	return Value{kind: KindBytes, b: b}
}

// little reads an unsigned little-endian integer of n bytes, n up to 8.
func (d *decoder) little(n int) uint64 {
	switch n {
	case 1:
		return uint64(d.u8())
	case 4:
		return uint64(d.u32())
	case 8:
		return d.u64()
	}
	var v uint64
	for i, x := range d.bytes(n) {
		v |= uint64(x) << (8 * uint(i))
	}
	return v
}

// big reads an unsigned big-endian integer of n bytes, n up to 8.
func (d *decoder) big(n int) uint64 {
	if n > 8 {
		d.bytes(-1)
		return 0
	}
	var b [8]byte
	copy(b[8-n:], d.bytes(n))
	return binary.BigEndian.Uint64(b[:])
}
