package sqlscan

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// InsertShape is an INSERT of one row of VALUES, split where further rows may be added.
type InsertShape struct {
	lexicon.Shape
	Table      string     // as written, qualified or not
	ColumnList string     // the columns as written, from "(" to ")"; "" without a list
	Params     []ParamRef // parameters in Tuple, in their order in the text
	MaxParam   int        // the highest n of $n in Tuple; 0 without parameters
}

// ParamRef is the position of one $n: Tuple[Start:End] == "$N".
type ParamRef struct {
	Start, End int
	N          int
}

// maxParams is the protocol's limit, 16 bits, on the parameters of a statement.
const maxParams = 65535

// insertEffects are the effects that an INSERT may have and still share a
// statement: each row draws its own values from sequences.
const insertEffects = EffWrites | EffSequence | EffBackslash

// Insert splits an INSERT that may share a multi-row statement with others.
// It is one statement of the form
//
//	INSERT INTO table [AS alias] [(columns)] [OVERRIDING {USER|SYSTEM} VALUE]
//	VALUES (one row) [RETURNING list] [;]
//
// without ON CONFLICT, subqueries, session effects and functions that are not
// known to be harmless; parameters stand within the row only. Comments may stand
// anywhere; those around the statement and in front of the row are dropped.
//
// The text does not show what belongs to the table (statement triggers, rules, views); the
// caller must know. In a session with standard_conforming_strings=off the result is invalid if
// Scan finds EffBackslash.
func Insert(sql string) (InsertShape, bool) { return insert(lexer{sql: sql}) }

func insert(lex lexer) (InsertShape, bool) {
	s := scanner{observer: observer{lex: lex}}
	s.reset()
	s.next()
	var shape InsertShape
	if !s.insert(&shape) {
		return InsertShape{}, false
	}
	return shape, true
}

// insert fills shape from the statement at tok.
func (s *scanner) insert(shape *InsertShape) bool {
	start := s.tok.start
	if !s.accept(kwInsert) || !s.accept(kwInto) || !s.insertTarget(shape) {
		return false
	}
	if s.accept(kwOverriding) {
		if !s.is(kwUser, kwSystem) {
			return false
		}
		s.next()
		if !s.accept(kwValue) {
			return false
		}
	}
	if !s.is(kwValues) {
		return false
	}
	shape.Prefix = s.lex.sql[start:s.tok.end]
	s.next()
	if !s.insertRow(shape) {
		return false
	}
	end := s.prev.end
	if s.is(kwReturning) {
		shape.Returning = true
		s.next()
		if s.done() {
			return false
		}
		for !s.done() {
			if s.tok.kind == tokParam || s.is(kwSelect, kwValues, kwTable, kwWith) {
				return false
			}
			s.next()
		}
		shape.Suffix = s.lex.sql[end:s.prev.end]
	}
	for s.tok.kind == ';' {
		s.next()
	}
	return s.tok.kind == tokEOF && s.Depth == 0 && !s.lex.broken && s.effects&^insertEffects == 0
}

// insertTarget reads the table, its alias and the list of columns. It refuses
// subscripts and fields in that list, which are rare.
func (s *scanner) insertTarget(shape *InsertShape) bool {
	start := s.tok.start
	for {
		if s.tok.kind != tokWord && s.tok.kind != tokQuoted {
			return false
		}
		s.next()
		if s.tok.kind != '.' {
			break
		}
		s.next()
	}
	shape.Table = s.lex.sql[start:s.prev.end]
	if s.accept(kwAs) {
		if s.tok.kind != tokWord && s.tok.kind != tokQuoted {
			return false
		}
		s.next()
	}
	if s.tok.kind != '(' {
		return true
	}
	start = s.tok.start
	for {
		s.next()
		if s.tok.kind != tokWord && s.tok.kind != tokQuoted || s.is(kwSelect, kwWith, kwTable) {
			return false
		}
		s.next()
		if s.tok.kind == ')' {
			s.next()
			shape.ColumnList = s.lex.sql[start:s.prev.end]
			return true
		}
		if s.tok.kind != ',' {
			return false
		}
	}
}

// insertRow reads the row; tok is then the token after it.
func (s *scanner) insertRow(shape *InsertShape) bool {
	if s.tok.kind != '(' {
		return false
	}
	start := s.tok.start
	brackets := 0
	shape.Arity = 1
	s.next()
	if s.tok.kind == ')' {
		return false
	}
	for ; s.Depth > 0; s.next() {
		switch s.tok.kind {
		case tokEOF, ';':
			return false
		case ',':
			if s.Depth == 1 && brackets == 0 {
				shape.Arity++
			}
		case '[':
			brackets++
		case ']':
			brackets--
		case tokString, tokNumber:
			shape.Literals = true
		case tokParam:
			n, ok := paramNumber(s.text(s.tok))
			if !ok {
				return false
			}
			shape.Params = append(shape.Params, ParamRef{Start: s.tok.start - start, End: s.tok.end - start, N: n})
			shape.MaxParam = max(shape.MaxParam, n)
		case tokWord:
			if s.is(kwSelect, kwValues, kwTable, kwWith) && s.chain == 1 {
				return false
			}
			if s.is(kwTrue, kwFalse, kwNull) {
				shape.Literals = true
			}
		}
	}
	shape.Tuple, shape.TupleAt = s.lex.sql[start:s.tok.end], start
	s.next()
	return true
}

// Columns returns the names of ColumnList as the catalogue has them. It reports false if
// it cannot know one: a name with escapes, or an unquoted one with non-ASCII letters.
func (s InsertShape) Columns() (names []string, ok bool) {
	l := lexer{sql: s.ColumnList}
	for t := l.next(); t.kind != tokEOF; t = l.next() {
		name := s.ColumnList[t.start:t.end]
		switch t.kind {
		case tokWord:
			if strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
				return nil, false
			}
			names = append(names, strings.ToLower(name))
		case tokQuoted:
			inner := strings.Trim(name, `"`)
			if name != `"`+inner+`"` || strings.Contains(inner, `"`) {
				return nil, false
			}
			names = append(names, inner)
		}
	}
	return names, true
}

// paramNumber reads "$n". Zero and leading zeros are refused.
func paramNumber(text string) (int, bool) {
	if len(text) > len("$65535") || text[1] == '0' {
		return 0, false
	}
	n, err := strconv.Atoi(text[1:])
	return n, err == nil && n <= maxParams
}

// AppendTuple appends Tuple with every parameter $n renumbered to $(base+n). It copies
// all else, including literals and comments, unchanged.
func (s InsertShape) AppendTuple(dst []byte, base int) []byte {
	from := 0
	for _, p := range s.Params {
		dst = append(dst, s.Tuple[from:p.Start+1]...)
		dst = strconv.AppendInt(dst, int64(base+p.N), 10)
		from = p.End
	}
	return append(dst, s.Tuple[from:]...)
}

// ShapeKey returns a hash of what inserts that may share one statement have in common.
// Equal keys are not enough: Compatible decides.
func (s InsertShape) ShapeKey() uint64 { return s.Key(len(s.Params) > 0) }

// Compatible reports whether s and o may share one multi-row statement.
func (s InsertShape) Compatible(o InsertShape) bool {
	return s.Fits(&o.Shape, len(s.Params) > 0 || len(o.Params) > 0)
}
