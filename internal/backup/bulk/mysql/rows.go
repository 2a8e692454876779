package mysql

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// A Form is the representation of a column's values in an archive.
type Form byte

// The forms.
const (
	// Direct: as the server prints them; strings are bytes in the column's own character set.
	Direct Form = 'd'
	// Bits: BIT as a decimal number, the only form that LOAD DATA accepts; and ENUM and SET if
	// the text of a value is ambiguous.
	Bits Form = 'b'
	// Float: FLOAT as the DOUBLE of the same value: servers print only six digits of a FLOAT,
	// which can lose precision.
	Float Form = 'f'
	// Text: types that accept text only in a character set for text, such as MySQL's JSON and
	// MariaDB's INET6.
	Text Form = 't'
	// End: the time until which a row of a system-versioned table was valid; NULL if it still
	// is, because servers print that differently. A layout with this form has all historical
	// rows of the table.
	End Form = 'e'
)

// direct are the types whose form is Direct.
var direct = []string{
	"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "double", "char", "varchar", "tinytext", "text", "mediumtext",
	"longtext", "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "date", "datetime", "timestamp", "time", "year",
	"enum", "set", "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection",
	"geomcollection", "vector",
}

// FormOf returns the form of a type by DATA_TYPE and COLUMN_TYPE in information_schema.
func FormOf(dataType, columnType string) Form {
	switch t := strings.ToLower(dataType); {
	case t == "bit", (t == "enum" || t == "set") && !distinct(columnType):
		return Bits
	case t == "float":
		return Float
	case slices.Contains(direct, t):
		return Direct
	}
	return Text
}

// distinct reports whether the texts of an ENUM or SET identify its values. They do not if a
// member is empty, like the error value and a SET without members, or if a collation treats two
// members as equal. Members that are not ASCII count as ambiguous.
func distinct(columnType string) bool {
	_, list, _ := strings.Cut(columnType, "('")
	list, ok := strings.CutSuffix(list, "')")
	if !ok || strings.Contains(list, "''") || strings.ContainsFunc(list, func(r rune) bool { return r < ' ' || r > '~' || r == '\\' }) {
		return false
	}
	seen := map[string]bool{}
	for member := range strings.SplitSeq(list, "','") {
		// Some languages' collations treat these letters as equal.
		member = strings.NewReplacer("w", "v", "u", "v", "y", "i", "j", "i").Replace(strings.ToLower(strings.TrimRight(member, " ")))
		if member == "" || seen[member] {
			return false
		}
		seen[member] = true
	}
	return true
}

// Layout says which columns of a table are archived, in which order and form.
type Layout struct {
	Columns []string
	Forms   []Form
	Auto    string // the AUTO_INCREMENT column, or ""
}

// NewLayout returns a layout of columns with the letters of their forms.
func NewLayout(columns []string, forms string) (Layout, error) {
	l := Layout{Columns: columns, Forms: make([]Form, len(forms))}
	for i := range len(forms) {
		if !strings.ContainsRune("dbfte", rune(forms[i])) {
			return l, fmt.Errorf("form %q of column %d: unknown", forms[i], i+1)
		}
		l.Forms[i] = Form(forms[i])
	}
	if len(columns) != len(forms) {
		return l, fmt.Errorf("%d columns with %d forms", len(columns), len(forms))
	}
	return l, nil
}

// Letters returns the forms as NewLayout takes them.
func (l Layout) Letters() string {
	b := make([]byte, len(l.Forms))
	for i, f := range l.Forms {
		b[i] = byte(f)
	}
	return string(b)
}

// Width returns the number of values in a line. It is at least one, because a table with only
// generated columns also has rows.
func (l Layout) Width() int { return max(1, len(l.Columns)) }

// History reports whether the rows include the historical ones.
func (l Layout) History() bool { return slices.Contains(l.Forms, End) }

// inForce is the end of a row that is still valid, as servers write it: the last moment of a
// TIMESTAMP.
const inForce = "COALESCE(/*M!110500 FROM_UNIXTIME(4294967295.999999), */ FROM_UNIXTIME(2147483647.999999))"

// Select returns the statement that reads the rows; rest follows the name of the table.
func (l Layout) Select(table, rest string) string {
	exprs := make([]string, len(l.Columns))
	for i, c := range l.Columns {
		switch exprs[i] = Ident(c); l.Forms[i] {
		case Bits:
			exprs[i] = "CAST(" + exprs[i] + " AS UNSIGNED)"
		case Float:
			exprs[i] += " * 1e0"
		case End:
			exprs[i] = "NULLIF(" + exprs[i] + ", " + inForce + ")"
		}
	}
	if len(exprs) == 0 {
		exprs = []string{"NULL"}
	}
	sql := "SELECT " + strings.Join(exprs, ", ") + " FROM " + table
	if l.History() {
		sql += " FOR SYSTEM_TIME ALL"
	}
	if rest != "" {
		sql += " " + rest
	}
	return sql
}

// Load returns the statement that loads a file of lines.
func (l Layout) Load(file, table string) string {
	var targets, sets []string
	set := slices.ContainsFunc(l.Forms, func(f Form) bool { return f == Bits || f == Text || f == End })
	for i, c := range l.Columns {
		v := fmt.Sprintf("@c%d", i+1)
		switch f := l.Forms[i]; {
		case f == Bits:
			sets = append(sets, Ident(c)+" = CAST("+v+" AS UNSIGNED)")
		case f == Text:
			sets = append(sets, Ident(c)+" = CONVERT("+v+" USING utf8mb4)")
		case f == End:
			sets = append(sets, Ident(c)+" = COALESCE("+v+", "+inForce+")")
		case set && c == l.Auto:
			// With SET, a zero in the AUTO_INCREMENT column would be replaced by a new number.
			sets = append(sets, Ident(c)+" = "+v)
		default:
			v = Ident(c)
		}
		targets = append(targets, v)
	}
	if len(targets) == 0 {
		targets = []string{"@c1"}
	}
	sql := "LOAD DATA LOCAL INFILE " + Literal(file) + " INTO TABLE " + table + " CHARACTER SET binary FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' " +
		"LINES TERMINATED BY '\\n' (" + strings.Join(targets, ", ") + ")"
	if len(sets) > 0 {
		sql += " SET " + strings.Join(sets, ", ")
	}
	return sql
}

// Insert returns the beginning of an INSERT statement, up to VALUES.
func (l Layout) Insert(table string) string {
	return "INSERT INTO " + table + " (" + Idents(l.Columns) + ") VALUES "
}

// AppendTuple appends a row in the syntax of INSERT.
func (l Layout) AppendTuple(dst []byte, values [][]byte) []byte {
	dst = append(dst, '(')
	for i := range l.Columns {
		if i > 0 {
			dst = append(dst, ',')
		}
		switch v := values[i]; {
		case v == nil && l.Forms[i] == End:
			dst = append(dst, inForce...)
		case v == nil:
			dst = append(dst, "NULL"...)
		case l.Forms[i] == Bits, l.Forms[i] == Float:
			dst = append(dst, v...)
		case l.Forms[i] == Text:
			dst = append(appendQuoted(append(dst, "CONVERT("...), v), " USING utf8mb4)"...)
		default:
			dst = appendQuoted(dst, v)
		}
	}
	return append(dst, ')')
}

// linesSize is about how many bytes of lines are passed on at a time.
const linesSize = 128 << 10

// ReadRows runs a Select of the layout and passes its rows to sink, many lines at a time. sum,
// if not nil, also gets them.
func (s *Session) ReadRows(ctx context.Context, sql string, sum *RowSum, sink func(lines []byte) error) (rows int64, err error) {
	buf := make([]byte, 0, linesSize+linesSize/4)
	_, err = s.Run(ctx, sql, func(values [][]byte) error {
		from := len(buf)
		buf = AppendText(buf, values)
		rows++
		if sum != nil {
			sum.Line(buf[from:])
		}
		if len(buf) < linesSize {
			return nil
		}
		err := sink(buf)
		buf = buf[:0]
		return err
	}, nil)
	if err == nil && len(buf) > 0 {
		err = sink(buf)
	}
	return rows, err
}

// Inserter converts lines to INSERT statements.
type Inserter struct {
	layout Layout
	prefix string
	limit  int

	sql    []byte
	rows   int
	values [][]byte
}

// NewInserter returns an Inserter whose statements have at most limit bytes, except for single
// rows that are longer.
func NewInserter(l Layout, table string, limit int) *Inserter {
	return &Inserter{layout: l, prefix: l.Insert(table), limit: limit}
}

// Line takes a line without its line feed, and overwrites it. If a statement is full, it
// returns it with the number of its rows; the statement is valid until the next call.
func (n *Inserter) Line(line []byte) (sql []byte, rows int, err error) {
	if n.values, err = ParseText(line, n.layout.Width(), n.values[:0]); err != nil {
		return nil, 0, err
	}
	if n.rows == 0 {
		n.sql = append(n.sql[:0], n.prefix...)
	}
	before := len(n.sql)
	if n.rows > 0 {
		n.sql = append(n.sql, ',')
	}
	n.sql = n.layout.AppendTuple(n.sql, n.values)
	n.rows++
	if len(n.sql) <= n.limit || n.rows == 1 {
		return nil, 0, nil
	}
	tuple := slices.Clone(n.sql[before+1:])
	full, rows := n.sql[:before], n.rows-1
	n.sql, n.rows = append([]byte(n.prefix), tuple...), 1
	return full, rows, nil
}

// Rest returns the last statement, with the number of its rows; 0 if there is none.
func (n *Inserter) Rest() (sql []byte, rows int) {
	rows, n.rows = n.rows, 0
	return n.sql, rows
}

// MaxLine is the maximum length of a line, in bytes: the longest row that a server sends, with
// each byte escaped.
const MaxLine = 2*maxMessage + 1

// Lines calls f with each line of r, without its line feed. f may overwrite the line.
func Lines(r io.Reader, f func(line []byte) error) error {
	in := bufio.NewReaderSize(r, 256<<10)
	var long []byte
	for {
		piece, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if long = append(long, piece...); len(long) > MaxLine {
				return fmt.Errorf("a line of more than %d bytes: %w", MaxLine, ErrText)
			}
			continue
		case errors.Is(err, io.EOF) && len(piece)+len(long) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the last line has no end: %w", ErrText)
		case err != nil:
			return err
		}
		line := piece[:len(piece)-1]
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		if err := f(line); err != nil {
			return err
		}
		long = long[:0]
	}
}

// Missing reports whether err says that a database, table or other object does not exist.
func Missing(err error) bool {
	switch ErrorCode(err) {
	case mywire.ErrNoSuchTable, mywire.ErrUnknownDatabase, 1008, 1051, 1305, 1360, 1539, 4091, 4092:
		return true // also databases, tables, routines, triggers, events, sequences, and views to drop
	}
	return false
}

// Denied reports whether err says that the account lacks a privilege.
func Denied(err error) bool {
	switch ErrorCode(err) {
	case mywire.ErrDBAccessDenied, mywire.ErrAccessDenied, 1142, 1143, 1227, 1370:
		return true // for a table, a column, privileges in general, a routine
	}
	return false
}
