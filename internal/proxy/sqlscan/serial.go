package sqlscan

import "strings"

// SerialShape is an UPDATE or DELETE of one table of whose expressions the text shows
// all that is run: operators, a few functions and casts to types of the server's own,
// and names of columns. Such statements do to a table of which as much is known the
// same in one transaction, one behind the other, as in a transaction each. The strings
// are substrings of the text.
type SerialShape struct {
	Table     string   // as written, qualified or not
	Fields    []string // names that stand behind a dot, as the catalogue has them: columns, or functions
	Returning bool
}

// Serial is the function Serial.
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

// quiet reports whether the server runs nothing for the token that the shape does not
// show.
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
		return s.prev.kind != tokCast // a type by its name: whose may be anybody's
	case tokString:
		// Behind a word it may be of a type of that name.
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
	// quietBefore are words behind which a constant or a parenthesis is not what the
	// word is about.
	quietBefore = set("and or not where set in between like ilike returning case when then else any all is default escape")
	quietCalls  = set("now coalesce greatest least nullif")
	// systemColumns tell transactions and versions of rows apart: a client that keeps
	// xmin to see whether the row was changed since would not see the next member's
	// change, which is of the same transaction.
	systemColumns = set("xmin xmax cmin cmax ctid")
	quietTypes    = set("int int2 int4 int8 integer smallint bigint numeric decimal real float4 float8 text varchar " +
		"bool boolean date timestamp timestamptz interval uuid json jsonb bytea")
)

// QuietOperators are the operators that Serial lets pass: a table's owner may have made
// others of these names for types of the server's own.
func QuietOperators() []string {
	return []string{"=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||", "->", "->>", "~~", "~~*", "!~~", "!~~*"}
}
