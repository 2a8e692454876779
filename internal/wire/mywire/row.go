package mywire

import "encoding/binary"

// Column is a column definition, of a result or of a statement's parameters. As
// a view, its slices alias the payload.
type Column struct {
	Schema   []byte
	Table    []byte // alias
	OrgTable []byte
	Name     []byte // alias
	OrgName  []byte
	Extended []byte // MariaDB's CapExtendedMetadata: type name and format
	Charset  uint16 // collation number; CharsetBinary for values that are no text
	Length   uint32 // longest value, in bytes as text
	Type     byte
	Flags    uint16
	Decimals byte // 0x1f: not fixed
}

// AppendColumn appends a column definition.
func AppendColumn(dst []byte, seq byte, caps Caps, c *Column) []byte {
	dst, at := begin(dst, seq)
	dst = AppendLenencString(dst, "def")
	for _, s := range [...][]byte{c.Schema, c.Table, c.OrgTable, c.Name, c.OrgName} {
		dst = AppendLenencString(dst, s)
	}
	if caps.Has(CapExtendedMetadata) {
		dst = AppendLenencString(dst, c.Extended)
	}
	dst = append(dst, 12)
	dst = binary.LittleEndian.AppendUint16(dst, c.Charset)
	dst = binary.LittleEndian.AppendUint32(dst, c.Length)
	dst = append(dst, c.Type)
	dst = binary.LittleEndian.AppendUint16(dst, c.Flags)
	return end(append(dst, c.Decimals, 0, 0), at)
}

// ParseColumn parses a column definition. It skips the default value after those of
// COM_FIELD_LIST.
func ParseColumn(payload []byte, caps Caps) (Column, error) {
	var c Column
	var catalog []byte
	rest, ok := payload, true
	for _, s := range [...]*[]byte{&catalog, &c.Schema, &c.Table, &c.OrgTable, &c.Name, &c.OrgName} {
		if *s, rest, ok = ParseLenencString(rest); !ok {
			return Column{}, ErrMalformed
		}
	}
	if caps.Has(CapExtendedMetadata) {
		if c.Extended, rest, ok = ParseLenencString(rest); !ok {
			return Column{}, ErrMalformed
		}
	}
	if len(rest) < 13 || rest[0] != 12 {
		return Column{}, ErrMalformed
	}
	c.Charset = binary.LittleEndian.Uint16(rest[1:])
	c.Length = binary.LittleEndian.Uint32(rest[3:])
	c.Type = rest[7]
	c.Flags = binary.LittleEndian.Uint16(rest[8:])
	c.Decimals = rest[10]
	return c, nil
}

// AppendColumnCount appends the packet that opens a result with n columns.
func AppendColumnCount(dst []byte, seq byte, n int) []byte {
	dst, at := begin(dst, seq)
	return end(AppendLenenc(dst, uint64(n)), at)
}

// AppendTextRow appends a row of a COM_QUERY's result. A nil value is NULL.
func AppendTextRow(dst []byte, seq byte, values [][]byte) []byte {
	dst, at := begin(dst, seq)
	for _, v := range values {
		if v == nil {
			dst = append(dst, 0xfb)
			continue
		}
		dst = AppendLenencString(dst, v)
	}
	return end(dst, at)
}

// ParseTextRow appends the n values of a row of a COM_QUERY's result to dst.
// They alias the payload; nil is NULL.
func ParseTextRow(payload []byte, n int, dst [][]byte) ([][]byte, error) {
	rest := payload
	for range n {
		if len(rest) > 0 && rest[0] == 0xfb {
			dst, rest = append(dst, nil), rest[1:]
			continue
		}
		v, tail, ok := ParseLenencString(rest)
		if !ok {
			return dst, ErrMalformed
		}
		dst, rest = append(dst, v), tail
	}
	if len(rest) != 0 {
		return dst, ErrMalformed
	}
	return dst, nil
}

// AppendTextResult appends the whole answer to a COM_QUERY: columns of type VARCHAR in utf8mb4
// and their rows. weir answers its own SHOW statements with it.
func AppendTextResult(dst []byte, caps Caps, status Status, names []string, rows [][][]byte) []byte {
	seq := byte(1)
	dst, seq = AppendColumnCount(dst, seq, len(names)), seq+1
	for _, name := range names {
		c := Column{Name: []byte(name), Charset: CharsetUTF8MB4, Length: 1 << 16, Type: TypeVarString, Decimals: 0x1f}
		dst, seq = AppendColumn(dst, seq, caps, &c), seq+1
	}
	if !caps.Has(CapDeprecateEOF) {
		dst, seq = AppendEOF(dst, seq, 0, status), seq+1
	}
	for _, row := range rows {
		dst, seq = AppendTextRow(dst, seq, row), seq+1
	}
	return AppendEnd(dst, seq, caps, &OK{Status: status})
}
