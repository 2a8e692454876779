package binlog

import (
	"fmt"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// Column types in TABLE_MAP: those of the protocol, and two that occur only in logs.
const (
	typeTiny       = mywire.TypeTiny
	typeShort      = mywire.TypeShort
	typeInt24      = mywire.TypeInt24
	typeLong       = mywire.TypeLong
	typeLongLong   = mywire.TypeLongLong
	typeFloat      = mywire.TypeFloat
	typeDouble     = mywire.TypeDouble
	typeNewDecimal = mywire.TypeNewDecimal
	typeYear       = mywire.TypeYear
	typeBit        = mywire.TypeBit
	typeEnum       = mywire.TypeEnum
	typeSet        = mywire.TypeSet
	typeString     = mywire.TypeString
	typeVarchar    = mywire.TypeVarchar
	typeVarString  = mywire.TypeVarString
	typeTinyBlob   = mywire.TypeTinyBlob
	typeMediumBlob = mywire.TypeMediumBlob
	typeLongBlob   = mywire.TypeLongBlob
	typeBlob       = mywire.TypeBlob
	typeGeometry   = mywire.TypeGeometry
	typeVector     = mywire.TypeVector
	typeJSON       = mywire.TypeJSON
	typeDate       = mywire.TypeDate
	typeNewDate    = mywire.TypeNewDate
	typeTime       = mywire.TypeTime
	typeTime2      = mywire.TypeTime2
	typeDatetime   = mywire.TypeDatetime
	typeDatetime2  = mywire.TypeDatetime2
	typeTimestamp  = mywire.TypeTimestamp
	typeTimestamp2 = mywire.TypeTimestamp2

	typeBlobCompressed    = 140 // MariaDB: a COMPRESSED column
	typeVarcharCompressed = 141

	charsetBinary = mywire.CharsetBinary
)

// maxColumns is more than any table has.
const maxColumns = 4096

// Table is a table as it was when the log was written.
type Table struct {
	// ID is the server's number for this definition of the table, until the server restarts.
	ID           uint64
	Schema, Name string
	Columns      []Column
	// PrimaryKey holds the indexes in Columns of the primary key's columns; nil unless
	// binlog_row_metadata is FULL.
	PrimaryKey []int

	raw []byte // the body that it was parsed from
}

// String returns schema.name.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// Sign says whether a numeric column is unsigned.
type Sign byte

// The values of Sign.
const (
	SignUnknown Sign = iota
	Signed
	Unsigned
)

// Column is a column of a Table. ReaderConfig.Describe may fill in what the log does not have.
type Column struct {
	// Name is empty unless binlog_row_metadata is FULL.
	Name string
	// Type is one of mywire's types; for ENUM, SET and types that are stored as another type,
	// it is the real type. TEXT and BLOB differ only in Charset.
	Type byte
	// Meta is the type's metadata, as in the log.
	Meta     uint16
	Nullable bool
	// Sign is known with MySQL, and with MariaDB unless binlog_row_metadata is NO_LOG.
	Sign Sign
	// Charset is the number of the collation of text, mywire.CharsetBinary for bytes; 0 if
	// unknown. It is known if Sign is.
	Charset uint32
	// Length is the maximum length of CHAR, BINARY, VARCHAR and VARBINARY in bytes; 0 for other
	// types.
	Length int
	// Members are those of an ENUM or SET; nil unless binlog_row_metadata is FULL.
	Members []string
}

func integerWidth(typ byte) byte {
	switch typ {
	case typeTiny:
		return 1
	case typeShort:
		return 2
	case typeInt24:
		return 3
	case typeLong:
		return 4
	}
	return 8
}

// numeric reports whether the log has the signedness of columns of this type.
func (c *Column) numeric() bool {
	switch c.Type {
	case typeTiny, typeShort, typeInt24, typeLong, typeLongLong, typeNewDecimal, typeFloat, typeDouble, typeYear:
		return true
	}
	return false
}

// textual reports whether the log has the character set of columns of this type.
func (c *Column) textual() bool {
	switch c.Type {
	case typeString, typeVarString, typeVarchar, typeBlob, typeTinyBlob, typeMediumBlob, typeLongBlob,
		typeVarcharCompressed, typeBlobCompressed:
		return true
	}
	return false
}

// tableName reads the identity of a TABLE_MAP event, up to its columns. The names alias the
// body.
func tableName(c *cursor) (id uint64, schema, name []byte) {
	id = c.u48()
	c.u16() // flags
	schema = c.bytes(int(c.u8()))
	c.u8() // NUL
	name = c.bytes(int(c.u8()))
	c.u8()
	return id, schema, name
}

// parseTable parses the body of a TABLE_MAP event.
func parseTable(body []byte) (*Table, error) {
	c := cursor{b: body}
	id, schema, name := tableName(&c)
	count := c.lenenc()
	if count > maxColumns || c.bad {
		return nil, fmt.Errorf("TABLE_MAP: %w", ErrMalformed)
	}
	t := &Table{ID: id, Schema: string(schema), Name: string(name), raw: append([]byte(nil), body...)}
	types := c.bytes(int(count))
	meta := cursor{b: c.bytes64(c.lenenc())}
	nulls := c.bytes((int(count) + 7) / 8)
	if c.bad {
		return nil, fmt.Errorf("TABLE_MAP of %s: %w", t, ErrMalformed)
	}
	t.Columns = make([]Column, count)
	for i := range t.Columns {
		col := &t.Columns[i]
		col.Type = types[i]
		col.Nullable = nulls[i/8]&(1<<(i%8)) != 0
		if err := col.metadata(&meta); err != nil {
			return nil, fmt.Errorf("TABLE_MAP of %s: %w", t, err)
		}
	}
	if err := t.optional(&c); err != nil {
		return nil, fmt.Errorf("TABLE_MAP of %s: %w", t, err)
	}
	return t, nil
}

// metadata reads the metadata of the column's type. For an unknown type, even its length is
// unknown.
func (c *Column) metadata(meta *cursor) error {
	switch c.Type {
	case typeFloat, typeDouble, typeBlob, typeTinyBlob, typeMediumBlob, typeLongBlob, typeGeometry, typeJSON,
		typeTime2, typeDatetime2, typeTimestamp2, typeVector, typeBlobCompressed:
		c.Meta = uint16(meta.u8())
	case typeVarchar, typeVarString, typeVarcharCompressed:
		c.Meta = meta.u16()
		c.Length = int(c.Meta)
	case typeBit, typeNewDecimal, typeEnum, typeSet:
		c.Meta = meta.u16()
	case typeString:
		c.Meta = meta.u16()
		c.char()
	case typeTiny, typeShort, typeInt24, typeLong, typeLongLong, typeYear, typeDate, typeNewDate, typeTime,
		typeDatetime, typeTimestamp:
	default:
		return fmt.Errorf("column type %d: unknown: %w", c.Type, ErrMalformed)
	}
	if meta.bad {
		return fmt.Errorf("column type %d: %w", c.Type, ErrMalformed)
	}
	return nil
}

// char finds the real type of a column that is logged as a string: it is the first byte of the
// metadata, in which two inverted bits are the highest bits of the length.
func (c *Column) char() {
	real := byte(c.Meta)
	if real == typeEnum || real == typeSet {
		c.Type = real
		return
	}
	c.Length = int(c.Meta>>8) | int((real&0x30)^0x30)<<4
}

// Kinds of optional metadata in TABLE_MAP.
const (
	metaSignedness = iota + 1
	metaDefaultCharset
	metaColumnCharset
	metaColumnName
	metaSetMembers
	metaEnumMembers
	metaGeometryType
	metaPrimaryKey
	metaPrimaryKeyPrefix
)

func (t *Table) optional(c *cursor) error {
	for len(c.b) > 0 && !c.bad {
		kind := c.u8()
		field := cursor{b: c.bytes64(c.lenenc())}
		switch kind {
		case metaSignedness:
			t.signs(&field)
		case metaDefaultCharset:
			t.defaultCharset(&field)
		case metaColumnCharset:
			for i := range t.Columns {
				if t.Columns[i].textual() {
					t.Columns[i].Charset = uint32(field.lenenc())
				}
			}
		case metaColumnName:
			for i := range t.Columns {
				t.Columns[i].Name = string(field.bytes64(field.lenenc()))
			}
		case metaSetMembers:
			t.members(&field, typeSet)
		case metaEnumMembers:
			t.members(&field, typeEnum)
		case metaPrimaryKey, metaPrimaryKeyPrefix:
			t.primaryKey(&field, kind == metaPrimaryKeyPrefix)
		}
		c.bad = c.bad || field.bad
	}
	if c.bad {
		return fmt.Errorf("optional metadata: %w", ErrMalformed)
	}
	return nil
}

// signs reads one bit for each numeric column, from the top of each byte.
func (t *Table) signs(c *cursor) {
	n := 0
	for i := range t.Columns {
		if !t.Columns[i].numeric() {
			continue
		}
		if n/8 >= len(c.b) {
			c.bad = true
			return
		}
		t.Columns[i].Sign = Signed
		if c.b[n/8]&(0x80>>(n%8)) != 0 {
			t.Columns[i].Sign = Unsigned
		}
		n++
	}
}

// defaultCharset reads the character set of most text columns, and pairs of index and character
// set for the others.
func (t *Table) defaultCharset(c *cursor) {
	most := uint32(c.lenenc())
	var text []*Column
	for i := range t.Columns {
		if col := &t.Columns[i]; col.textual() {
			col.Charset = most
			text = append(text, col)
		}
	}
	for len(c.b) > 0 && !c.bad {
		i, charset := c.lenenc(), c.lenenc()
		if i >= uint64(len(text)) {
			c.bad = true
			return
		}
		text[i].Charset = uint32(charset)
	}
}

func (t *Table) members(c *cursor, typ byte) {
	for i := range t.Columns {
		if t.Columns[i].Type != typ || len(c.b) == 0 {
			continue
		}
		for n := c.lenenc(); n > 0 && !c.bad; n-- {
			t.Columns[i].Members = append(t.Columns[i].Members, string(c.bytes64(c.lenenc())))
		}
	}
}

func (t *Table) primaryKey(c *cursor, prefixes bool) {
	for len(c.b) > 0 && !c.bad {
		i := c.lenenc()
		if prefixes {
			c.lenenc() // length of the column's prefix in the key
		}
		if i >= uint64(len(t.Columns)) {
			c.bad = true
			return
		}
		t.PrimaryKey = append(t.PrimaryKey, int(i))
	}
}
