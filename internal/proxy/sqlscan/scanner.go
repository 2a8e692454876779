package sqlscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// scanner walks the tokens of a text. Each call of next takes one token into
// account by observe; the handlers of single commands only move on and look.
//
// It needs no stack: what it must know of an enclosing parenthesis is one bit
// per depth. Beyond maxDepth it gives up and says EffUnknown.
type scanner struct {
	lex   lexer
	prev2 token
	prev  token
	tok   token

	// The name that ends in prev or tok: chain counts its dotted parts, before
	// is the token in front of it, qualifier the part before the last one.
	chain     int
	before    token
	qualifier token
	part      token

	depth    int    // open parentheses
	withs    uint64 // bit d: at depth d a WITH list waits for its main verb
	operands uint64 // bit d: the parenthesis that closes to depth d is not followed by an alias

	expect    bool // the statement's verb has not been seen
	mainDepth int  // where it will be
	verb      Verb
	calls     bool // unknown names before "(" are function calls
	asRuns    bool // what follows AS at depth 0 is a query that runs
	routine   bool // CREATE FUNCTION or PROCEDURE
	atomic    int  // open BEGIN ATOMIC and CASE of a routine's body

	effects Effect
	set     SetClause
	name    string
}

const maxDepth = 64

// Scan reads sql. It allocates nothing unless a name must be folded, a hint is
// unusable, or one of several statements is SET. It retains nothing; the strings in the result may alias sql.
//
// Literals are read as with standard_conforming_strings=on, the server's
// default; see Conform for sessions that have it off.
func Scan(sql string) Statement { return scan(lexer{sql: sql}) }

func scan(lex lexer) Statement {
	sql := lex.sql
	var out Statement
	s := scanner{lex: lex}
	s.reset()
	s.next()
	if s.lex.comment >= 0 {
		leadingHints(&out.Hints, sql[s.lex.comment:s.tok.start])
	}
	for s.tok.kind != tokEOF {
		if s.done() {
			s.reset()
			s.next()
			continue
		}
		s.set = SetClause{}
		s.statement()
		if out.Count++; out.Count == 1 {
			out.Verb, out.Set, out.Name = s.verb, s.set, s.name
			continue
		}
		if out.Count == 2 && out.Set != (SetClause{}) {
			out.Sets = append(out.Sets, out.Set)
		}
		if s.set != (SetClause{}) {
			out.Sets = append(out.Sets, s.set)
		}
	}
	if out.Count > 0 && s.lex.comment >= 0 {
		trailingHints(&out.Hints, sql[s.lex.comment:])
	}
	out.Effects = s.effects
	if out.Count > 1 {
		out.Effects |= EffMulti
	}
	if s.lex.backslash {
		out.Effects |= EffBackslash
	}
	if s.lex.broken {
		out.Effects |= EffUnknown
	}
	return out
}

// reset makes ready for the first token of a statement.
func (s *scanner) reset() {
	s.tok, s.prev = token{}, token{}
	s.chain, s.depth, s.withs, s.operands = 0, 0, 0, 0
	s.expect, s.mainDepth, s.verb, s.calls = true, 0, VerbOther, true
	s.asRuns, s.routine, s.atomic = false, false, 0
}

// done reports whether tok ends the statement.
func (s *scanner) done() bool {
	return s.tok.kind == tokEOF || s.tok.kind == ';' && s.depth == 0 && s.atomic == 0
}

// skip moves to the end of the statement.
func (s *scanner) skip() {
	for !s.done() {
		s.next()
	}
}

func (s *scanner) next() {
	s.prev2, s.prev = s.prev, s.tok
	s.tok = s.lex.next()
	s.observe()
}

// is reports whether tok is one of the keywords.
func (s *scanner) is(words ...keyword) bool {
	for _, w := range words {
		if s.tok.kw == w {
			return s.tok.kind == tokWord
		}
	}
	return false
}

// accept moves on if tok is the keyword.
func (s *scanner) accept(w keyword) bool {
	if s.tok.kw != w || s.tok.kind != tokWord {
		return false
	}
	s.next()
	return true
}

func (s *scanner) text(t token) string { return s.lex.sql[t.start:t.end] }

// observe takes tok into account.
func (s *scanner) observe() {
	switch s.tok.kind {
	case tokWord, tokQuoted:
		s.observeName()
	case '(':
		s.open()
	case ')':
		s.close()
	}
}

func (s *scanner) open() {
	if s.prev.kind == tokWord || s.prev.kind == tokQuoted {
		s.call()
	}
	if s.depth < maxDepth {
		bit := uint64(1) << s.depth
		s.operands &^= bit
		if s.prev.kw == kwOperator || s.prev.kw == kwOn && s.before.kw == kwDistinct {
			s.operands |= bit
		}
		if s.withs&bit != 0 && s.prev.kind == ')' { // WITH ... (SELECT ...)
			s.withs &^= bit
			if s.expect && s.mainDepth == s.depth {
				s.mainDepth++
			}
		} else if s.expect && s.withs == 0 && s.mainDepth == s.depth {
			s.mainDepth++
		}
	} else {
		s.effects |= EffUnknown
	}
	s.depth++
}

func (s *scanner) close() {
	if s.depth == 0 {
		return // the server will refuse it
	}
	if s.depth < maxDepth {
		s.withs &^= uint64(1) << s.depth
	}
	s.depth--
	if s.depth < maxDepth && s.operands&(1<<s.depth) != 0 {
		// What follows is an expression; with the kind of an operator the
		// parenthesis no longer looks like the end of an aliased item.
		s.tok.kind = tokOp
	}
}

// observeName handles words and quoted identifiers.
func (s *scanner) observeName() {
	if s.prev.kind == '.' && s.chain > 0 {
		s.chain++
		s.qualifier = s.part
	} else {
		s.chain = 1
		s.before = s.prev
	}
	s.part = s.tok
	if s.tok.kw != notKeyword {
		if s.chain == 1 {
			s.observeKeyword()
		}
		return
	}
	if s.expect && s.depth == s.mainDepth && s.withs == 0 {
		s.expect = false // no command begins like this
	}
	name, quoted := s.identifier(s.tok)
	if len(name) > 3 && name[0]|0x20 == 'p' && name[2] == '_' {
		s.observeSystemName(name, quoted)
	}
}

// identifier returns a name without its quotes. A quoted name with escapes in
// it comes back with them and so matches nothing.
func (s *scanner) identifier(t token) (name string, quoted bool) {
	name = s.text(t)
	if t.kind != tokQuoted {
		return name, false
	}
	if len(name) > 2 && name[0] == '"' {
		name = name[1 : len(name)-1]
	}
	return name, true
}

func (s *scanner) observeSystemName(name string, quoted bool) {
	if len(name) >= 7 && lexicon.EqualFold(name[:7], "pg_temp") && (len(name) == 7 || len(name) > 8 && name[7] == '_' && isDigits(name[8:])) {
		s.effects |= EffTemp
		return
	}
	if sessionRelationTable.Find(name, lexicon.Hash(name), !quoted) >= 0 {
		s.effects |= EffSessionRead
	}
}

func isDigits(t string) bool {
	return strings.Trim(t, "0123456789") == ""
}

// observeKeyword handles a keyword that is not part of a dotted name.
func (s *scanner) observeKeyword() {
	switch kw := s.tok.kw; kw {
	case kwWith:
		if s.depth < maxDepth && (s.expect && s.depth == s.mainDepth || s.prev.kind == '(') {
			s.withs |= 1 << s.depth
			return
		}
	case kwInto:
		if s.prev.kw == kwInsert || s.prev.kw == kwMerge {
			s.effects |= EffWrites
		} else if s.verb == VerbSelect {
			s.effects |= EffWrites | EffDDL
		}
	case kwTemp, kwTemporary:
		if s.prev.kw == kwInto || s.prev.kw == kwLocal || s.prev.kw == kwGlobal {
			s.effects |= EffTemp
		}
	case kwFrom:
		if s.prev.kw == kwDelete && s.prev2.kind == '(' {
			s.effects |= EffWrites
		}
	case kwUpdate, kwShare:
		if s.prev.kw == kwFor || s.prev.kw == kwKey {
			s.effects |= EffLockRows
		} else if kw == kwUpdate && s.prev.kind == '(' {
			s.effects |= EffWrites
		}
	case kwExecute:
		if s.verb == VerbDDL && s.prev.kw == kwAs {
			s.effects |= EffPrepare
		}
	case kwAs:
		if s.asRuns && s.depth == 0 {
			s.calls = true
		}
	case kwAtomic:
		if s.routine && s.prev.kw == kwBegin {
			s.atomic = 1
		}
	case kwCase:
		if s.atomic > 0 {
			s.atomic++
		}
	case kwEnd:
		if s.atomic > 0 {
			s.atomic--
		}
	}
	s.observeVerb()
}

// observeVerb looks whether the keyword tok begins a statement, or the main part of one that
// began by WITH.
func (s *scanner) observeVerb() {
	listed := s.depth < maxDepth && s.withs&(1<<s.depth) != 0
	if !listed && !s.expect {
		return
	}
	main := s.expect && s.depth == s.mainDepth
	var v Verb
	switch s.tok.kw {
	case kwSelect:
		v = VerbSelect
	case kwValues:
		v = VerbValues
	case kwTable:
		v = VerbTable
	case kwInsert:
		v = VerbInsert
	case kwUpdate:
		v = VerbUpdate
	case kwDelete:
		v = VerbDelete
	case kwMerge:
		v = VerbMerge
	default:
		if listed || !main {
			return
		}
		v = verbOf(s.tok.kw)
	}
	// In "WITH a AS (...) main" the main verb follows a parenthesis or the
	// column that ends a SEARCH or CYCLE clause. Anything else is a name.
	if listed && s.prev.kind != ')' && !s.endsSearch() {
		return
	}
	if listed {
		s.withs &^= 1 << s.depth
	}
	if main {
		s.verb, s.expect = v, false
	}
	if main || listed {
		s.effects |= verbEffects[v]
	}
}

// endsSearch reports whether prev is the column after SET or USING.
func (s *scanner) endsSearch() bool {
	return (s.prev.kind == tokWord || s.prev.kind == tokQuoted) &&
		(s.prev2.kw == kwSet || s.prev2.kw == kwUsing)
}

// call handles "(" after a name.
func (s *scanner) call() {
	kw := s.prev.kw
	if s.chain == 1 && (!kw.isFunctionName() || s.isGrammar(kw)) {
		return
	}
	switch s.before.kind {
	case tokCast, ')', tokQuoted:
		return // a type with modifiers, an alias with columns
	case tokWord:
		switch s.before.kw {
		case notKeyword, kwAs, kwInto, kwRecursive, kwOrdinality, kwExecute:
			return
		}
	}
	if s.depth < maxDepth && s.withs&(1<<s.depth) != 0 {
		return // the columns of WITH name (...)
	}
	name, quoted := s.identifier(s.prev)
	if s.chain > 2 || s.chain == 2 && !s.isCatalog(s.qualifier) {
		s.unknownCall()
		return
	}
	if len(name) == len("set_config") && (name == "set_config" || !quoted && lexicon.EqualFold(name, "set_config")) {
		if !s.localConfig() {
			s.effects |= EffSetConfig
		}
		return
	}
	e := functionEffects(name, !quoted)
	if e == EffUnknownFunc {
		s.unknownCall()
		return
	}
	s.effects |= e
}

func (s *scanner) unknownCall() {
	if s.calls {
		s.effects |= EffUnknownFunc
	}
}

func (s *scanner) isCatalog(t token) bool {
	name, quoted := s.identifier(t)
	return name == "pg_catalog" || !quoted && lexicon.EqualFold(name, "pg_catalog")
}

// isGrammar reports whether an unreserved keyword before "(" is there as a
// keyword, which the token in front of it tells. Where in doubt it is a
// function, which is the safe mistake.
func (s *scanner) isGrammar(kw keyword) bool {
	switch kw {
	case notKeyword:
		return false
	case kwBy:
		return s.before.kw == kwGroup || s.before.kw == kwOrder || s.before.kw == kwPartition
	case kwSets:
		return s.before.kw == kwGrouping
	case kwRollup:
		return true
	case kwMaterialized:
		return s.before.kw == kwAs || s.before.kw == kwNot
	case kwConflict:
		return s.before.kw == kwOn
	case kwOperator, kwEscape, kwRepeatable, kwJoin, kwPassing, kwLike, kwIlike, kwVarying:
		return s.afterOperand()
	case kwZone:
		return s.before.kw == kwTime
	case kwOver, kwFilter:
		return s.before.kind == ')'
	case kwInsert:
		return s.before.kw == kwThen
	case kwFirst, kwNext:
		return s.before.kw == kwFetch
	case kwDocument, kwContent:
		return s.before.kind == '('
	case kwSet:
		return s.effects.Has(EffWrites)
	case kwExplain:
		return s.before.kind == tokEOF
	}
	return false
}

// afterOperand reports whether before ends an operand, a table or the first
// half of a keyword such as INNER JOIN, so that no expression can begin behind it.
func (s *scanner) afterOperand() bool {
	switch s.before.kind {
	case tokString, tokNumber, tokParam, tokQuoted, ')', ']':
		return true
	case tokWord:
		switch s.before.kw {
		case kwBy, kwZone, kwEscape, kwLike, kwIlike:
			return false
		case kwNot, kwBit, kwChar, kwCharacter, kwNchar:
			return true
		}
		return s.before.kw.isFunctionName()
	}
	return false
}

// localConfig reports whether the arguments that begin at the current "("
// end with the third one being the word true.
func (s *scanner) localConfig() bool {
	if s.depth >= maxDepth {
		return false // nested calls would each read the rest of the text
	}
	ahead := s.lex
	depth, commas, words := 1, 0, 0
	isTrue := false
	for depth > 0 {
		t := ahead.next()
		switch t.kind {
		case tokEOF:
			return false
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 1 {
				commas++
				words, isTrue = 0, false
				continue
			}
		}
		if depth > 0 {
			words++
			isTrue = t.kw == kwTrue
		}
	}
	return commas == 2 && words == 1 && isTrue
}
