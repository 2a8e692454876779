package sqlscan

import "strings"

// SerialShape is an UPDATE or DELETE of one table whose text shows everything that its
// expressions run: operators, a few functions, casts to built-in types, and names of
// columns. If as much is known about the table, several such statements in one transaction,
// one after the other, have the same result as each in its own. The strings are substrings
// of the text.
type SerialShape struct {
	Table     string   // as written, qualified or not
	Fields    []string // names after a dot, as the catalogue has them: columns, or functions
	Returning bool
}

// Serial splits an UPDATE or DELETE of the form
//
//	UPDATE [ONLY] table [[AS] alias] SET ... [WHERE ...] [RETURNING ...] [;]
//	DELETE FROM [ONLY] table [[AS] alias] [WHERE ...] [RETURNING ...] [;]
//
// without other tables, subqueries, cursors, and anything that may run code which the
// text does not show. In a session with standard_conforming_strings=off the result is
// invalid if Scan finds EffBackslash.
func (t *Text) Serial() (SerialShape, bool) { return serial(t.lexer()) }

func serial(lex lexer) (SerialShape, bool) {
	s := scanner{observer: observer{lex: lex}}
	s.reset()
	s.next()
	var shape SerialShape
	if !s.serial(&shape) {
		return SerialShape{}, false
	}
	return shape, true
}

// serial fills shape from the statement at tok.
func (s *scanner) serial(shape *SerialShape) bool {
	update := s.accept(kwUpdate)
	if !update && (!s.accept(kwDelete) || !s.accept(kwFrom)) {
		return false
	}
	s.accept(kwOnly)
	start := s.tok.start
	for {
		if !s.isName() {
			return false
		}
		s.next()
		if s.tok.kind != '.' {
			break
		}
		s.next()
	}
	shape.Table = s.lex.sql[start:s.prev.end]
	if s.accept(kwAs) || !s.is(kwSet, kwWhere, kwReturning, kwUsing, kwFrom) && s.isName() {
		if !s.isName() {
			return false
		}
		s.next()
	}
	if update && !s.is(kwSet) {
		return false
	}
	for ; !s.done(); s.next() {
		if !s.quiet(shape) {
			return false
		}
	}
	for s.tok.kind == ';' {
		s.next()
	}
	return s.tok.kind == tokEOF && s.Depth == 0 && !s.lex.broken && s.effects&^EffWrites == 0
}

func (s *scanner) isName() bool { return s.tok.kind == tokWord || s.tok.kind == tokQuoted }

// quiet reports whether the server runs no code for tok that the shape does not show.
func (s *scanner) quiet(shape *SerialShape) bool {
	if s.prev.kind == '.' {
		if !s.isName() {
			return s.text(s.tok) == "*"
		}
		name, quoted := s.identifier(s.tok)
		if !quoted {
			name = strings.ToLower(name)
		}
		shape.Fields = append(shape.Fields, name)
		return true
	}
	if s.isName() {
		if name, _ := s.identifier(s.tok); systemColumns[strings.ToLower(name)] {
			return false
		}
	}
	switch s.tok.kind {
	case tokWord:
		if s.is(kwSelect, kwValues, kwTable, kwWith, kwFrom, kwUsing, kwCurrent) {
			return false
		}
		if s.is(kwReturning) {
			shape.Returning = true
		}
		return s.prev.kind != tokCast || quietTypes[strings.ToLower(s.text(s.tok))]
	case tokQuoted:
		return s.prev.kind != tokCast // a type by name, which may be a user's
	case tokString:
		// After a word it may be a literal of the type of that name.
		return s.prev.kind != tokQuoted && (s.prev.kind != tokWord || quietBefore[strings.ToLower(s.text(s.prev))] || quietTypes[strings.ToLower(s.text(s.prev))])
	case tokOp:
		return quietOperators[s.text(s.tok)]
	case '(':
		switch s.prev.kind {
		case tokOp, ',', '(':
			return true
		case tokWord:
			word := strings.ToLower(s.text(s.prev))
			return s.prev2.kind != '.' && (quietBefore[word] || quietCalls[word] || s.prev2.kind == tokCast && quietTypes[word])
		}
		return false
	case tokAssign, ':':
		return false
	}
	return true
}

func set(words string) map[string]bool {
	m := make(map[string]bool)
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

var (
	quietOperators = set("= <> != < > <= >= + - * / || -> ->>")
	// quietBefore are words after which a constant is not a literal of a type of that
	// name, and a parenthesis not a call.
	quietBefore = set("and or not where set in between like ilike returning case when then else any all is default escape")
	quietCalls  = set("now coalesce greatest least nullif")
	// systemColumns distinguish transactions and versions of rows: a client that keeps
	// xmin to see whether the row was changed since would not notice the change
	// of the group's next member, which is made in the same transaction.
	systemColumns = set("xmin xmax cmin cmax ctid")
	quietTypes    = set("int int2 int4 int8 integer smallint bigint numeric decimal real float4 float8 text varchar " +
		"bool boolean date timestamp timestamptz interval uuid json jsonb bytea")
)

// QuietOperators are the operators that Serial accepts. A user may have created others of
// these names for built-in types, so the caller must check.
func QuietOperators() []string {
	return []string{"=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||", "->", "->>", "~~", "~~*", "!~~", "!~~*"}
}
