package rowtext

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// Columns are the columns of a table, in order.
type Columns []column

type column struct {
	name string
	typ  uint32
}

// ColumnsSQL asks for the columns of the table c, and their number.
const ColumnsSQL = `(SELECT pg_catalog.concat(pg_catalog.count(*), pg_catalog.chr(1),
  pg_catalog.string_agg(pg_catalog.concat(a.attnum, ' ', a.atttypid, ' ', a.atttypmod, ' ', a.attname), pg_catalog.chr(1) ORDER BY a.attnum))
 FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)`

// PlainColumnsSQL is the same for a table with ASCII names; others might not
// be representable in the client's encoding.
const PlainColumnsSQL = `CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname !~ '^[ -~]+$') THEN ` + ColumnsSQL + ` END`

// Bounds of what is sent as parameters: the server needs much memory for the plans of statements
// with many parameters.
const (
	MaxValues  = 4096 // of one statement
	maxColumns = 100  // of a table
)

// ReadColumns parses the answer to ColumnsSQL; nil if it is ambiguous, or
// too long.
func ReadColumns(answer string) Columns {
	list := strings.Split(answer, "\x01")
	if n, err := strconv.Atoi(list[0]); err != nil || n != len(list)-1 || n > maxColumns {
		return nil
	}
	columns := make(Columns, 0, len(list)-1)
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

// TypesOf returns the types of the columns that an INSERT without parameters names, or
// implies; nil if its constants cannot be parameters of these types.
func (all Columns) TypesOf(ins *sqlscan.InsertShape) []uint32 {
	if !plainNames(ins.Prefix, "()") || !plainNames(ins.Suffix, "*") {
		return nil
	}
	var types []uint32
	if ins.ColumnList == "" {
		for _, c := range all {
			types = append(types, c.typ)
		}
		types = types[:min(len(types), ins.Arity)]
	} else {
		names, ok := ins.Columns()
		if !ok {
			return nil
		}
		for _, name := range names {
			i := slices.IndexFunc(all, func(c column) bool { return c.name == name })
			if i < 0 {
				return nil
			}
			types = append(types, all[i].typ)
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
