package rowtext

import "strings"

// Cut finds the row of constants after the word VALUES of a text, and appends to key what it
// has in common with the texts that differ from it in constants alone: the text around the row
// and the kinds of the constants. It returns false for a text of another form. Whether the row is
// what it looks like, only the parsing of one of these texts shows.
func Cut(key []byte, sql string) (_ []byte, at, end int, ok bool) {
	at = strings.Index(sql, "VALUES")
	if at < 0 {
		if at = strings.Index(sql, "values"); at < 0 {
			return key, 0, 0, false
		}
	}
	at = skipSpace(sql, at+len("VALUES"))
	if at >= len(sql) || sql[at] != '(' {
		return key, 0, 0, false
	}
	key = append(append(key, sql[:at]...), 0)
	if key, end, ok = kinds(key, sql, at+1); !ok {
		return key, 0, 0, false
	}
	return append(append(key, 0), sql[end:]...), at, end, true
}

// kinds appends the kinds of the constants from i on to a key, up to the parenthesis after
// the last one, and returns where that ends.
func kinds(key []byte, sql string, i int) (_ []byte, end int, ok bool) {
	for {
		c, at := constantAt(sql, skipSpace(sql, i))
		switch c.kind {
		case 0:
			return key, 0, false
		case quoted, integer, decimal: // one shape, whatever their type
			kind := byte('c')
			if c.signed {
				kind = '-'
			}
			key = append(key, kind)
		default:
			key = append(key, byte(c.kind))
		}
		if i = skipSpace(sql, at); i >= len(sql) {
			return key, 0, false
		}
		switch sql[i] {
		case ',':
			i++
		case ')':
			return key, i + 1, true
		default:
			return key, 0, false
		}
	}
}

// A constant is a constant of a row.
type constant struct {
	kind   constantKind
	signed bool // a number with a minus sign
}

// A constantKind is how a constant is written; 0: an unknown form.
type constantKind byte

const (
	quoted    constantKind = 'q' // '...', without a backslash
	integer   constantKind = 'i' // digits
	decimal   constantKind = '.' // digits, a point and digits
	null      constantKind = 'n'
	yes       constantKind = 't'
	no        constantKind = 'f'
	byDefault constantKind = 'd'
)

// constantAt reads the constant that begins at i, and returns where it ends.
func constantAt(sql string, i int) (c constant, end int) {
	if i < len(sql) && sql[i] == '-' {
		c.signed = true
		if i++; i >= len(sql) || !isDigit(sql[i]) {
			return constant{}, i
		}
	}
	switch {
	case i >= len(sql):
	case sql[i] == '\'':
		var ok bool
		if i, ok = quotedEnd(sql, i+1); ok {
			c.kind = quoted
		}
	case isDigit(sql[i]):
		c.kind = integer
		for i < len(sql) && isDigit(sql[i]) {
			i++
		}
		if i+1 < len(sql) && sql[i] == '.' && isDigit(sql[i+1]) {
			c.kind = decimal
			for i++; i < len(sql) && isDigit(sql[i]); {
				i++
			}
		}
	default:
		from := i
		for i < len(sql) && isLetter(sql[i]) {
			i++
		}
		switch word := sql[from:i]; {
		case strings.EqualFold(word, "null"):
			c.kind = null
		case strings.EqualFold(word, "true"):
			c.kind = yes
		case strings.EqualFold(word, "false"):
			c.kind = no
		case strings.EqualFold(word, "default"):
			c.kind = byDefault
		}
	}
	return c, i
}

// quotedEnd is the index after the quote that ends the literal whose text begins at i. A literal
// with a backslash is not handled here.
func quotedEnd(sql string, i int) (end int, ok bool) {
	for {
		n := strings.IndexByte(sql[i:], '\'')
		if n < 0 || strings.IndexByte(sql[i:i+n], '\\') >= 0 {
			return 0, false
		}
		if i += n + 1; i >= len(sql) || sql[i] != '\'' {
			return i, true
		}
		i++
	}
}

func skipSpace(sql string, i int) int {
	for i < len(sql) && (sql[i] == ' ' || sql[i] == '\n' || sql[i] == '\t' || sql[i] == '\r') {
		i++
	}
	return i
}

func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
