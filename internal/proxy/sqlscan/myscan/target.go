package myscan

func target(lex lexer) (schema, table string, ok bool) {
	s := observer{lex: lex}
	s.reset()
	s.next()
	verb := s.tok.kw
	s.next()
	for s.is(kwLowPriority, kwHighPriority, kwDelayed, kwIgnore) || (verb == kwDelete && s.equalWord("quick")) {
		s.next()
	}
	switch verb {
	case kwInsert, kwReplace:
		s.accept(kwInto)
	case kwDelete:
		if !s.accept(kwFrom) {
			return "", "", false // DELETE t1, t2 FROM ...
		}
	case kwUpdate:
	default:
		return "", "", false
	}
	for {
		if s.tok.kind != tokQuoted && (s.tok.kind != tokWord || s.is(kwSelect, kwWith, kwSet, kwValues, kwTable)) {
			return "", "", false
		}
		schema, table = table, unquote(s.text(s.tok))
		s.next()
		if s.tok.kind != '.' {
			break
		}
		s.next()
		if schema != "" {
			return "", "", false
		}
	}
	switch verb {
	case kwUpdate:
		// A comma or JOIN would name another table.
		if s.accept(kwAs); !s.is(kwSet) && (s.tok.kind == tokWord || s.tok.kind == tokQuoted) && !s.equalWord("partition") {
			s.next() // an alias
		}
		ok = s.is(kwSet)
	case kwDelete:
		ok = s.is(kwWhere, kwOrder, kwLimit, kwReturning) || s.tok.kind == tokEOF || s.tok.kind == ';'
	default:
		ok = s.tok.kind == '(' || s.is(kwValues, kwValue, kwSet, kwSelect, kwWith, kwTable)
	}
	return schema, table, ok && !s.lex.broken && !s.lex.doubtful
}
