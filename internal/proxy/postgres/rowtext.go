package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file recognizes the texts of INSERTs that differ from an earlier one only in the
// constants of their row: a simple query with literals is parsed once for its
// shape, not each time.

// A rowText is the result of parsing such a text.
type rowText struct {
	info   catalogue.Reading
	as     lexical
	epoch  uint64 // of the index
	shape  *sight.Shape
	insert sqlscan.InsertShape
	key    uint64
}

// rowTexts are a pool's, by the text around the row and the kinds of its constants.
type rowTexts struct {
	m     map[string]*rowText
	bytes int // of the keys
	key   []byte
}

// Bounds of what is remembered.
const (
	maxRowTexts     = 1000
	maxRowTextBytes = 1 << 20
)

// cut finds the row of a text and makes its key. It returns false for a text of another
// form; whether the row is what it looks like is proved by a text in the table.
func (rs *rowTexts) cut(sql string) (row span, ok bool) {
	at := strings.Index(sql, "VALUES")
	if at < 0 {
		if at = strings.Index(sql, "values"); at < 0 {
			return span{}, false
		}
	}
	at = skipSpace(sql, at+len("VALUES"))
	if at >= len(sql) || sql[at] != '(' {
		return span{}, false
	}
	rs.key = append(append(rs.key[:0], sql[:at]...), 0)
	end, ok := rs.constants(sql, at+1)
	if !ok {
		return span{}, false
	}
	rs.key = append(append(rs.key, 0), sql[end:]...)
	return span{at, end}, true
}

// constants adds the kinds of the constants from i on to the key, up to the parenthesis
// after the last one, and returns where that ends.
func (rs *rowTexts) constants(sql string, i int) (end int, ok bool) {
	for {
		c, at := constantAt(sql, skipSpace(sql, i))
		switch c.kind {
		case 0:
			return 0, false
		case quoted, integer, decimal: // one shape, whatever their type
			kind := byte('c')
			if c.signed {
				kind = '-'
			}
			rs.key = append(rs.key, kind)
		default:
			rs.key = append(rs.key, byte(c.kind))
		}
		if i = skipSpace(sql, at); i >= len(sql) {
			return 0, false
		}
		switch sql[i] {
		case ',':
			i++
		case ')':
			return i + 1, true
		default:
			return 0, false
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

// find returns what is known of a text, or nil.
func (rs *rowTexts) find(sql string) (*rowText, span) {
	if len(rs.m) == 0 {
		return nil, span{}
	}
	row, ok := rs.cut(sql)
	if !ok {
		return nil, span{}
	}
	return rs.m[string(rs.key)], row
}

// keep remembers the result of parsing a text whose row was found at row. Hints that concern
// one statement alone are not remembered.
func (rs *rowTexts) keep(sql string, row span, t *rowText) {
	h := &t.info.Hints
	if h.File != "" || h.Trace != "" || h.TTL != 0 || h.Bad != nil || t.info.Effects.Has(sqlscan.EffBackslash) {
		return
	}
	if got, ok := rs.cut(sql); !ok || got != row {
		return
	}
	if len(rs.m) >= maxRowTexts || rs.bytes+len(rs.key) > maxRowTextBytes {
		clear(rs.m)
		rs.bytes = 0
	}
	if rs.m == nil {
		rs.m = make(map[string]*rowText)
	}
	if _, there := rs.m[string(rs.key)]; !there {
		rs.bytes += len(rs.key)
	}
	rs.m[string(rs.key)] = t
}

// remember keeps the result of parsing a text that joined a rows lane.
func (rt *router) remember(ln *lane, sql string, info *catalogue.Reading, sh *sight.Shape, row span) {
	c := rt.c
	c.p.rowTexts.keep(sql, span{row.at - pgwire.HeaderLen, row.end - pgwire.HeaderLen}, &rowText{
		info: catalogue.Reading{Statement: sqlscan.Statement{Verb: info.Verb, Effects: info.Effects, Count: info.Count, Hints: info.Hints}},
		as:   c.texts.lexical(), epoch: c.p.catalogue.epoch, shape: sh, insert: ln.rows.insert, key: ln.key.shape,
	})
}
