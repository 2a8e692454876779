package myscan

import (
	"iter"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// InsertShape is an INSERT of one row of VALUES, split where further rows can be inserted. Its
// strings are substrings of the text, except for a quoted Schema or Table that contains its
// quote.
type InsertShape struct {
	lexicon.Shape
	Target     string // the table as written, qualified or not
	Schema     string // the database without quotes; "" if the table is not qualified
	Table      string // the table without quotes
	ColumnList string // the columns as written, from "(" to ")"; "" without a list
	Params     int    // parameters in Tuple

	mode Mode
}

// maxParams is the protocol's limit, 16 bits, on the parameters of a statement.
const maxParams = 65535

// Insert parses an INSERT that may share a multi-row statement with others. It must be one
// statement of the form
//
//	INSERT [INTO] [database.]table [(columns)] {VALUES | VALUE} (row) [RETURNING list] [;]
//
// without LOW_PRIORITY, DELAYED, HIGH_PRIORITY, IGNORE, PARTITION, a row alias, ON DUPLICATE
// KEY UPDATE, subqueries and executable comments. The row, which may be empty, consists of
// constants, parameters, DEFAULT, operators and built-in functions whose value does not depend
// on the session or on other rows: NOW() is allowed, and is then the same for all rows of a
// shared statement; RAND(), UUID(), LAST_INSERT_ID(), variables and names of columns are not.
// Comments are allowed anywhere; those around the statement and before the row are dropped.
//
// The text shows neither the triggers of the table, nor whether it is a view, nor how sql_mode
// changes the values; the caller must know. Without strict mode a statement of several rows is
// more lenient than one of one row: where NULL meets a column that is NOT NULL, it stores the
// type's own default.
func Insert(sql string, mode Mode) (InsertShape, bool) { return insert(newLexer(sql, mode)) }

func insert(lex lexer) (InsertShape, bool) {
	s := scanner{observer: observer{lex: lex}}
	s.reset()
	s.next()
	shape := InsertShape{mode: lex.mode}
	if !s.insert(&shape) {
		return InsertShape{}, false
	}
	return shape, true
}

// insert fills shape from the statement at tok.
func (s *scanner) insert(shape *InsertShape) bool {
	start := s.tok.start
	if !s.accept(kwInsert) {
		return false
	}
	s.accept(kwInto)
	if !s.insertTarget(shape) || !s.is(kwValues, kwValue) {
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
		if s.done() || !s.returningList() {
			return false
		}
		shape.Suffix = s.lex.sql[end:s.prev.end]
	}
	for s.tok.kind == ';' {
		s.next()
	}
	return s.tok.kind == tokEOF && s.Depth == 0 && s.effects == EffWrites && shape.Params <= maxParams &&
		!s.lex.broken && !s.lex.doubtful && !s.lex.executed
}

// insertTarget reads the table and the list of columns.
func (s *scanner) insertTarget(shape *InsertShape) bool {
	first, parts := s.tok, 0
	for {
		if !s.isName() {
			return false
		}
		shape.Schema, shape.Table = shape.Table, unquote(s.text(s.tok))
		s.next()
		if parts++; s.tok.kind != '.' {
			break
		}
		s.next()
	}
	if parts > 2 {
		return false
	}
	shape.Target = s.lex.sql[first.start:s.prev.end]
	if s.tok.kind != '(' {
		return true
	}
	start := s.tok.start
	s.next()
	if s.tok.kind == ')' {
		s.next()
		shape.ColumnList = s.lex.sql[start:s.prev.end]
		return true
	}
	for {
		if !s.isName() && !s.is(kwValue) { // VALUE is not reserved
			return false
		}
		s.next()
		switch s.tok.kind {
		case ')':
			s.next()
			shape.ColumnList = s.lex.sql[start:s.prev.end]
			return true
		case ',':
			s.next()
		default:
			return false
		}
	}
}

// isName reports whether tok may name a table or a column. Keywords that would make it another
// statement do not count.
func (s *scanner) isName() bool {
	switch s.tok.kind {
	case tokQuoted:
		return true
	case tokWord:
		return !s.is(kwSelect, kwWith, kwTable, kwValues, kwValue, kwSet, kwIgnore, kwLowPriority, kwDelayed,
			kwHighPriority, kwPartition, kwInto)
	}
	return false
}

// insertRow parses the row; tok is the token after it when it returns.
func (s *scanner) insertRow(shape *InsertShape) bool {
	if s.tok.kind != '(' {
		return false
	}
	start := s.tok.start
	shape.TupleAt = int(start)
	s.next()
	if s.tok.kind != ')' {
		shape.Arity = 1
	}
	for ; s.Depth > 0; s.next() {
		switch s.tok.kind {
		case tokEOF, ';', '.', tokQuoted, tokUserVar, tokSysVar, tokAssign:
			return false
		case ',':
			if s.Depth == 1 {
				shape.Arity++
			}
		case tokString, tokNumber:
			shape.Literals = true
		case tokParam:
			shape.Params++
		case tokWord:
			if !s.rowWord() {
				return false
			}
			if s.is(kwTrue, kwFalse, kwNull) {
				shape.Literals = true
			}
		}
	}
	shape.Tuple = s.lex.sql[start:s.tok.end]
	s.next()
	return true
}

// rowWord reports whether the word tok may stand in the row: it is no column, no subquery and
// no function that must not be shared. The effects of a function on the session are in effects.
func (s *scanner) rowWord() bool {
	kw := s.tok.kw
	next := s.nextByte()
	switch {
	case kw == kwDefault:
		return next != '('
	case kw == kwSelect || kw == kwWith || kw == kwTable || kw == kwValues || kw == kwValue || kw == kwRow:
		return false
	case kw.has(classExpression):
		return true
	case next == '(':
		return kw.has(classFunction) && !kw.has(classVolatile)
	case next == '\'' || next == '"' && !s.lex.mode.AnsiQuotes:
		// An introducer, or DATE '2020-01-01'. Nothing else precedes a string.
		return s.lex.sql[s.tok.start] == '_' || s.endsOperand() || s.equalWord("date") || s.equalWord("time") || s.equalWord("timestamp")
	}
	switch s.prev.kw {
	case kwAs, kwCollate, kwUsing:
		return true // a type, a collation, a character set
	}
	return s.endsOperand() // a unit of INTERVAL, END, ...
}

// endsOperand reports whether prev ends an operand, so that tok begins none.
func (s *scanner) endsOperand() bool {
	switch s.prev.kind {
	case tokString, tokNumber, tokParam, ')':
		return true
	}
	return false
}

// returningList parses the list after RETURNING, which must not have parameters, variables and
// subqueries.
func (s *scanner) returningList() bool {
	for !s.done() {
		switch s.tok.kind {
		case tokParam, tokUserVar, tokSysVar, tokAssign:
			return false
		}
		if s.is(kwSelect, kwValues, kwTable, kwWith) {
			return false
		}
		s.next()
	}
	return true
}

// Columns iterates over the names in ColumnList, without quotes.
func (s InsertShape) Columns() iter.Seq[string] {
	return func(yield func(string) bool) {
		l := newLexer(s.ColumnList, s.mode)
		for t := l.next(); t.kind != tokEOF; t = l.next() {
			if (t.kind == tokWord || t.kind == tokQuoted) && !yield(unquote(l.sql[t.start:t.end])) {
				return
			}
		}
	}
}

// AppendMulti appends the statement with n copies of Tuple, for n at least 1: the text to
// prepare for n rows, whose parameters are those of the rows in turn.
func (s InsertShape) AppendMulti(dst []byte, n int) []byte {
	dst = append(dst, s.Prefix...)
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, s.Tuple...)
	}
	return append(dst, s.Suffix...)
}

// ShapeKey returns a hash of what inserts must have in common to share one statement. Equal
// keys are a strong hint only: Compatible decides.
func (s InsertShape) ShapeKey() uint64 { return s.Key(s.Params > 0) }

// Compatible reports whether s and o can share one multi-row statement. Both must have been
// read in the same Mode.
func (s InsertShape) Compatible(o InsertShape) bool {
	return s.Fits(&o.Shape, s.Params > 0 || o.Params > 0)
}
