package myscan

// observeBlock counts the blocks of a stored routine that are open. An IF, a
// REPEAT or a FOR opens one only where a statement begins; elsewhere they are
// functions, or part of IF EXISTS, HANDLER FOR and the like.
func (s *scanner) observeBlock() {
	if s.prev.kw == kwEnd {
		return // END IF, END LOOP, ...
	}
	switch s.tok.kw {
	case kwBegin, kwCase, kwLoop, kwWhile:
		s.blocks++
	case kwIf, kwRepeat, kwFor:
		if s.beginsStatement() && (s.nextByte() != '(' || s.tok.kw == kwIf && s.thenFollows()) {
			s.blocks++
		}
	case kwEnd:
		if s.blocks > 0 {
			s.blocks--
		}
	}
}

// beginsStatement reports whether a statement of a routine may begin at tok.
func (s *scanner) beginsStatement() bool {
	switch s.prev.kind {
	case ';', ')', tokString, tokEOF:
		return true
	case tokOp:
		return s.text(s.prev) == ":" // a label
	}
	switch s.prev.kw {
	case kwBegin, kwThen, kwElse, kwDo, kwLoop, kwRepeat, kwRow, kwData, kwDefiner:
		return true
	}
	return false
}

// thenFollows reports whether the IF that tok is, with "(" behind it, is the
// statement and not the function. If it takes long to tell, it says that it is
// not: then the routine seems to end early, which is the safe mistake.
func (s *scanner) thenFollows() bool {
	const most = 256
	ahead, depth := s.lex, 0
	for range most {
		switch t := ahead.next(); {
		case t.kind == '(':
			depth++
		case t.kind == ')':
			depth--
		case depth > 0 && t.kind != tokEOF:
		case t.kw == kwThen:
			return true
		case t.kind == tokEOF, t.kind == ';', t.kind == ',', t.kw == kwWhen, t.kw == kwElse, t.kw == kwEnd:
			return false
		}
	}
	return false
}
