package rowtext

import (
	"encoding/binary"
	"strings"
)

// The numbers of types are the same in every PostgreSQL.
const (
	typeBool    = 16
	typeInt8    = 20
	typeInt2    = 21
	typeInt4    = 23
	typeNumeric = 1700
)

// plainTypes are the types whose constants may become parameters.
var plainTypes = []uint32{
	typeBool, typeInt8, typeInt2, typeInt4, typeNumeric,
	17, 25, 1042, 1043, // bytea, text, char, varchar
	114, 3802, 2950, // json, jsonb, uuid
	700, 701, // float4, float8
	1082, 1083, 1266, 1114, 1184, // date, time and timetz, timestamp and timestamptz
	650, 869, 829, // cidr, inet, macaddr
	1560, 1562, // bit, varbit
	1000, 1005, 1007, 1016, 1009, 1022, 1231, 2951, // arrays: bool, int2, int4, int8, text, float8, numeric, uuid
}

// takes reports whether a parameter of one of plainTypes stores what a constant does in a
// column of that type.
func (c constant) takes(typ uint32) bool {
	switch c.kind {
	case quoted, null:
		return true
	case integer:
		return typ == typeInt4 || typ == typeInt8 || typ == typeInt2 || typ == typeNumeric
	case decimal:
		return typ == typeNumeric
	case yes, no:
		return typ == typeBool
	}
	return false
}

// AppendValues appends the constants of a row of VALUES, as text, as the values of a Bind
// message; types has one of plainTypes for each. It returns false if they cannot be parameters of
// these types, or if the row may not consist of constants.
func AppendValues(dst []byte, row string, types []uint32) ([]byte, bool) {
	i := 1
	for n, typ := range types {
		i = skipSpace(row, i)
		c, end := constantAt(row, i)
		if !c.takes(typ) {
			return dst, false
		}
		switch c.kind {
		case null:
			dst = append(dst, 0xff, 0xff, 0xff, 0xff)
		case quoted:
			dst = appendQuoted(dst, row[i+1:end-1])
		default:
			dst = binary.BigEndian.AppendUint32(dst, uint32(end-i))
			dst = append(dst, row[i:end]...)
		}
		if i = skipSpace(row, end); i >= len(row) {
			return dst, false
		}
		if last := n == len(types)-1; last != (row[i] == ')') || !last && row[i] != ',' {
			return dst, false
		}
		i++
	}
	return dst, i == len(row)
}

// appendQuoted appends the content of a quoted literal, with its length.
func appendQuoted(dst []byte, text string) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for {
		n := strings.IndexByte(text, '\'')
		if n < 0 {
			break
		}
		dst = append(dst, text[:n+1]...)
		text = text[n+2:]
	}
	dst = append(dst, text...)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}
