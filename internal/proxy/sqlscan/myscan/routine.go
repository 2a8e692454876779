package myscan

// observeBlock counts the open blocks of a stored routine. IF, REPEAT and FOR open one only
// where a statement begins; elsewhere they are functions, or part of IF EXISTS, HANDLER FOR and
// the like.
func (o *observer) observeBlock() {
	if o.prev.kw == kwEnd {
		return // END IF, END LOOP, ...
	}
	switch o.tok.kw {
	case kwBegin, kwCase, kwLoop, kwWhile:
		o.blocks++
	case kwIf, kwRepeat, kwFor:
		if o.beginsStatement() && (o.nextByte() != '(' || o.tok.kw == kwIf && o.thenFollows()) {
			o.blocks++
		}
	case kwEnd:
		if o.blocks > 0 {
			o.blocks--
		}
	}
}

// beginsStatement reports whether a statement of a routine may begin at tok.
func (o *observer) beginsStatement() bool {
	switch o.prev.kind {
	case ';', ')', tokString, tokEOF:
		return true
	case tokOp:
		return o.text(o.prev) == ":" // a label
	}
	switch o.prev.kw {
	case kwBegin, kwThen, kwElse, kwDo, kwLoop, kwRepeat, kwRow, kwData, kwDefiner:
		return true
	}
	return false
}

// thenFollows reports whether the IF at tok, which "(" follows, is the statement and not the
// function. It returns false if it would have to look too far ahead: then the routine seems to
// end early, which is the safe mistake.
func (o *observer) thenFollows() bool {
	const most = 256
	ahead, depth := o.lex, 0
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
