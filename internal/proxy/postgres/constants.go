package postgres

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file runs a group of INSERTs with literals as a prepared statement whose
// parameters are the constants of their rows: the server parses and plans a text with
// literals each time, which is more than half of the cost of such a group.
//
// A parameter stores what the constant would, or fails, and then the members run again as
// text. If a constant has another type than its column, such as a number for a text column,
// that would not be true; then the group is sent as text:
//
//   - A quoted literal has no type of its own. The server passes it to the input
//     function of the column's type, as it does with a parameter, and applies the column's
//     length to the result of either. Only the input function of interval also gets the
//     column's fields.
//   - An integer for a column of integers or numeric, a number with a point for numeric,
//     and TRUE and FALSE for boolean, give the same result by the input function as by the parser.
//
// Only types in plainTypes are supported: no domains, enums, or other user-defined types.
//
// All this needs the types that the columns have when the INSERT runs. weir learned them
// some time before, and nothing in the server keeps them: columns may be dropped, renamed
// and given another type while pg_class is unchanged. So columnsGuardSQL compares all
// columns with what was learned, after the INSERT and in its transaction.

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

// appendConstants appends the constants of a row of VALUES, as text, as the values of a Bind
// message; types has one of plainTypes for each. It returns false if they cannot be parameters of
// these types, or if the row may not consist of constants.
func appendConstants(dst []byte, row string, types []uint32) ([]byte, bool) {
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

// A column is a column of a table.
type column struct {
	name string
	typ  uint32
}

// columnsSQL asks for the columns of the table c, and their number.
const columnsSQL = `(SELECT pg_catalog.concat(pg_catalog.count(*), pg_catalog.chr(1),
  pg_catalog.string_agg(pg_catalog.concat(a.attnum, ' ', a.atttypid, ' ', a.atttypmod, ' ', a.attname), pg_catalog.chr(1) ORDER BY a.attnum))
 FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)`

// plainColumnsSQL is the same for a table with ASCII names; others might not
// be representable in the client's encoding.
const plainColumnsSQL = `CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname !~ '^[ -~]+$') THEN ` + columnsSQL + ` END`

// Bounds of what is sent as parameters: the server needs much memory for the plans of statements
// with many parameters.
const (
	maxConstants       = 4096 // of one statement
	maxConstantColumns = 100  // of a table
)

// readColumns parses the answer to columnsSQL; nil if it is ambiguous, or
// too long.
func readColumns(answer string) []column {
	list := strings.Split(answer, "\x01")
	if n, err := strconv.Atoi(list[0]); err != nil || n != len(list)-1 || n > maxConstantColumns {
		return nil
	}
	columns := make([]column, 0, len(list)-1)
	for _, s := range list[1:] {
		parts := strings.SplitN(s, " ", 4) // number, type, modifier, name
		if len(parts) != 4 {
			return nil
		}
		n, err := strconv.ParseUint(parts[1], 10, 32)
		if err != nil {
			return nil
		}
		columns = append(columns, column{parts[3], uint32(n)})
	}
	return columns
}

// typesOf returns the types of the columns that an INSERT without parameters names, or
// implies; nil if its constants cannot be parameters of these types.
func (f *tableFacts) typesOf(ins *sqlscan.InsertShape) []uint32 {
	if !plainNames(ins.Prefix, "()") || !plainNames(ins.Suffix, "*") {
		return nil
	}
	var types []uint32
	if ins.ColumnList == "" {
		for _, c := range f.columns {
			types = append(types, c.typ)
		}
		types = types[:min(len(types), ins.Arity)]
	} else {
		names, ok := ins.Columns()
		if !ok {
			return nil
		}
		for _, name := range names {
			i := slices.IndexFunc(f.columns, func(c column) bool { return c.name == name })
			if i < 0 {
				return nil
			}
			types = append(types, f.columns[i].typ)
		}
	}
	if len(types) != ins.Arity || slices.ContainsFunc(types, func(t uint32) bool { return !slices.Contains(plainTypes, t) }) {
		return nil
	}
	return types
}

// maxName is the longest name that the server does not truncate; a longer one causes a notice
// each time it is parsed.
const maxName = 63

// plainNames reports whether a text consists of ASCII names and the characters in and:
// then parsing it causes no notice, which a prepared statement would only cause once.
func plainNames(s, and string) bool {
	for i := 0; i < len(s); {
		end := i
		for end < len(s) && (isLetter(s[end]) || isDigit(s[end]) || s[end] == '_') {
			end++
		}
		switch {
		case end > i:
			if end-i > maxName {
				return false
			}
		case s[i] == '"':
			n := strings.IndexByte(s[i+1:], '"')
			if end = i + 1 + n + 1; n < 0 || n > maxName || strings.HasPrefix(s[end:], `"`) || !plainASCII(s[i:end]) {
				return false
			}
		case s[i] == '.' || s[i] == ',' || skipSpace(s, i) > i || strings.IndexByte(and, s[i]) >= 0:
			end = i + 1
		default:
			return false
		}
		i = end
	}
	return true
}

// plainASCII reports whether a text consists of printable ASCII characters without a backslash.
func plainASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' || r == '\\' })
}

// boundRows are the constants of the rows of a group, as putConstants sends them.
type boundRows struct {
	values []byte
	ends   []int // of each row
}

// maxBound is how much memory is kept for the next group.
const maxBound = 1 << 20

// bind collects the rows of simple queries. It returns false if their constants cannot be
// parameters of these types.
func (r *boundRows) bind(units []*unit, types []uint32) bool {
	if types == nil {
		return false
	}
	if cap(r.values) > maxBound {
		r.values = nil
	}
	r.values, r.ends = r.values[:0], r.ends[:0]
	for _, u := range units {
		var ok bool
		if r.values, ok = appendConstants(r.values, text(u.raw[u.row.at:u.row.end]), types); !ok {
			return false
		}
		r.ends = append(r.ends, len(r.values))
	}
	return true
}

// of returns the values of n rows, beginning with from.
func (r *boundRows) of(from, n int) []byte {
	begin := 0
	if from > 0 {
		begin = r.ends[from-1]
	}
	return r.values[begin:r.ends[from+n-1]]
}

// putConstants appends one prepared multi-row statement for n of the rows that the loop has
// bound, beginning with from.
func (g *group) putConstants(b *backend, from, n int, describe bool) {
	r := g.ln.rows
	st := r.multi(n)
	b.need(g.u, st)
	out := b.s.OutBuf()
	at := len(out)
	out = append(out, pgwire.ClientBind, 0, 0, 0, 0, 0)
	out = append(append(out, st.srvName...), 0)
	out = append(out, 0, 0) // all as text
	out = binary.BigEndian.AppendUint16(out, uint16(n*len(r.types)))
	out = append(out, b.p.l.bound.of(from, n)...)
	out = append(out, 0, 0)
	binary.BigEndian.PutUint32(out[at+1:], uint32(len(out)-at-1))
	if describe {
		out = pgwire.AppendDescribe(out, pgwire.KindPortal, "")
	}
	b.s.Out = pgwire.AppendExecute(out, "", 0)
	g.sizes = append(g.sizes, n)
}
