package myscan

import "github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"

// setCommand handles SET; tok is its first word.
func (s *scanner) setCommand() {
	ahead := s.lex
	first := ahead.next()
	second := ahead.next()
	switch {
	case first.kw == kwStatement:
		s.next()
		s.assignments(true)
		if !s.accept(kwFor) {
			s.effects |= EffUnknown
			return
		}
		s.inner(VerbOther)
	case first.kw == kwPassword:
		s.effects |= EffDDL | EffImplicitCommit
		s.inert = true
	case first.kw == kwDefault && second.kw == kwRole:
		s.effects |= EffDDL | EffImplicitCommit
		s.inert = true
	case first.kw == kwRole:
		s.effects |= EffRole
		s.inert = true
	case first.kw == kwResource:
		s.effects |= EffSet | EffSetUnknown | EffGroup
		s.inert = true
	default:
		s.assignments(false)
	}
}

// assignments processes the items of SET; those of SET STATEMENT apply only to the statement
// after FOR. It leaves the scanner at their end.
func (s *scanner) assignments(statement bool) {
	s.lex = s.lex.bytewise()
	outer, w := s.lex, newSetWalker(s.lex)
	w.forEnds = statement
	for w.more() {
		a := w.item()
		if statement {
			s.effects |= EffStatementSet
			if a.Name == "" {
				s.effects |= EffUnknown
			}
		} else {
			s.effects |= a.effects()
		}
		if a.Name == "" {
			break
		}
		if a.Kind == ValueExpr {
			s.observeValue(w.value)
		}
	}
	for !w.ends() {
		w.next()
	}
	if !statement {
		s.set.lex = outer
		s.set.lex.sql = outer.sql[:max(outer.pos, int(w.prev.end))]
	}
	s.lex, s.prev, s.tok = w.lex, w.prev, w.tok
}

// observeValue processes an expression.
func (s *scanner) observeValue(value token) {
	outer := s.lex
	s.lex.sql, s.lex.pos = s.lex.sql[:value.end], int(value.start)
	s.lex.dotted = dotNone
	s.tok = token{kind: tokOp, start: value.start, end: value.start}
	for s.tok.kind != tokEOF {
		s.next()
	}
	s.lex = outer
}

// effects returns the effects of the assignment on a session.
func (a Assignment) effects() Effect {
	switch {
	case a.Name == "":
		return EffSet | EffSetUnknown
	case a.Scope == ScopeUser:
		return EffUserVarWrite
	case a.Scope == ScopeNext:
		return EffNextTx
	case a.Scope != ScopeSession:
		return EffSetGlobal
	}
	e := EffSet
	if a.Bare {
		e |= EffSetBare
	}
	if a.Kind == ValueExpr || unreplayed.Find(a.Name, lexicon.Hash(a.Name), false) >= 0 {
		e |= EffSetUnknown
	}
	switch a.Name {
	case "last_insert_id", "identity":
		e |= EffSetLastID
	case "autocommit":
		switch a.Value {
		case "0", "OFF", "off":
		default:
			e |= EffImplicitCommit
		}
	}
	return e
}
