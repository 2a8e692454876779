package myscan

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
	lex  lexer
	tok  token
	prev token   // the one before tok
	past keyword // of the one before prev

	// The name that ends in prev or tok: chain counts its dotted parts, before
	// is the token in front of it, part its last part.
	chain  int
	before token
	part   token

	depth     int    // open parentheses
	withs     uint64 // bit d: at depth d a WITH list waits for its main verb
	expect    bool   // the statement's verb has not been seen
	mainDepth int    // where it will be
	verb      Verb
	inert     bool // nothing of the text runs now: the definition of an object
	asRuns    bool // but a query in it does: CREATE TABLE ... SELECT
	target    bool // INSERT or REPLACE: the table has not been seen to its end
	into      bool // user variables are written: the list of INTO
	routine   bool // a stored routine or a compound statement: ";" may be part of it
	blocks    int  // BEGIN, CASE, IF, LOOP, ... of a routine that wait for END

	effects Effect
	set     SetList
	kill    Kill
	name    string
}

const maxDepth = 64

// ends is what the server drops at the end of a text before it looks.
const ends = "; \n\t\r\f\v"

// Scan reads sql. It allocates nothing unless a name must be unquoted or a hint
// is unusable. It retains nothing; the strings in the result may alias sql.
func Scan(sql string, mode Mode) Statement { return scan(newLexer(sql, mode)) }

func scan(lex lexer) Statement {
	var out Statement
	sql := lex.sql
	s := scanner{lex: lex}
	s.reset()
	s.next()
	if s.lex.comment >= 0 {
		leadingHints(&out.Hints, s.lex, int(s.tok.start))
	}
	switch rest := strings.Trim(sql, ends); {
	case rest == "":
		s.lex.pos, s.tok = len(sql), token{}
	case s.tok.kind == tokEOF:
		out.Count = 1 // a comment: the server says OK to it
	}
	for s.tok.kind != tokEOF {
		s.statement()
		if out.Count++; out.Count == 1 {
			out.Verb, out.Set, out.Name, out.Kill = s.verb, s.set, s.name, s.kill
			out.First = s.effects
		}
		if s.tok.kind == ';' {
			out.Count += s.semicolon()
		}
	}
	if out.Verb != VerbEmpty && s.lex.comment >= 0 {
		trailingHints(&out.Hints, s.lex, s.lex.comment)
	}
	out.Effects = s.outcome(out.Count)
	return out
}

// outcome returns the effects of the text, which has count statements.
func (s *scanner) outcome(count int) Effect {
	e := s.effects
	if count > 1 {
		e |= EffMulti
		if e.Has(EffSet | EffUse) {
			e |= EffSetUnknown
		}
	}
	if s.lex.varies {
		e |= EffStatementSet
	}
	if s.lex.broken || s.lex.doubtful {
		e |= EffUnknown
	}
	return e
}

// semicolon moves behind the ";" that ends a statement, and returns 1 if the
// server takes what is left for one more statement although it has only
// comments.
func (s *scanner) semicolon() int {
	if s.lex.executing {
		s.effects |= EffUnknown
	}
	last := s.tok.end
	s.reset()
	s.next()
	rest := strings.TrimRight(s.lex.sql[last:], ends)
	switch {
	case s.tok.kind == tokEOF:
		if rest != "" && s.lex.mode.Multi {
			return 1
		}
	case s.tok.kind == ';' && rest != "" || s.tok.kind != ';' && !s.lex.mode.Multi:
		s.effects |= EffUnknown // an empty statement, or one too many, is an error
	}
	for s.tok.kind == ';' || s.tok.kind != tokEOF && !s.lex.mode.Multi {
		s.next()
	}
	return 0
}

// reset makes ready for the first token of a statement.
func (s *scanner) reset() {
	s.tok, s.prev = token{}, token{}
	s.chain, s.depth, s.withs = 0, 0, 0
	s.expect, s.mainDepth, s.verb = true, 0, VerbOther
	s.inert, s.asRuns, s.target, s.into, s.routine, s.blocks = false, false, false, false, false, 0
}

// done reports whether tok ends the statement.
func (s *scanner) done() bool {
	return s.tok.kind == tokEOF || s.tok.kind == ';' && s.blocks == 0
}

// skip moves to the end of the statement.
func (s *scanner) skip() {
	for !s.done() {
		s.next()
	}
}

func (s *scanner) next() {
	s.past = s.prev.kw
	s.prev.kind, s.prev.kw, s.prev.start, s.prev.end = s.tok.kind, s.tok.kw, s.tok.start, s.tok.end
	s.tok = s.lex.next()
	s.observe()
}

// is reports whether tok is one of the keywords.
func (s *scanner) is(words ...keyword) bool {
	for _, w := range words {
		if s.tok.kw == w {
			return true
		}
	}
	return false
}

// accept moves on if tok is the keyword.
func (s *scanner) accept(w keyword) bool {
	if s.tok.kw != w {
		return false
	}
	s.next()
	return true
}

func (s *scanner) text(t token) string { return s.lex.sql[t.start:t.end] }

// statement takes one statement into account; tok is its first token at the
// call and its end afterwards.
func (s *scanner) statement() {
	for s.expect && !s.done() {
		s.next()
	}
	s.command()
	if s.verb == VerbOther || s.verb == VerbCompound {
		s.effects |= EffUnknown
	}
	s.skip()
	if s.depth != 0 || s.blocks != 0 {
		s.effects |= EffUnknown
	}
}

// observe takes tok into account.
func (s *scanner) observe() {
	if s.into && s.tok.kind != tokUserVar && s.tok.kind != ',' {
		s.into = false
	}
	switch s.tok.kind {
	case tokWord, tokQuoted:
		s.observeName()
	case '(':
		s.open()
	case ')':
		s.close()
	case tokUserVar:
		if !s.inert {
			s.observeUserVar()
		}
	case tokSysVar:
		s.chain, s.before, s.part = 1, s.prev, s.tok
		if !s.inert {
			s.effects |= readingVariable(unquote(s.text(s.tok)[2:]))
		}
	}
	if s.expect && s.prev.kind == tokEOF && s.tok.kind != tokWord && s.tok.kind != '(' {
		s.expect = false // no command begins like this
	}
}

// observeUserVar handles a user variable.
func (s *scanner) observeUserVar() {
	ahead := s.lex
	switch {
	case s.prev.kw == kwInto || s.into && s.prev.kind == ',':
		s.into = true
		s.effects |= EffUserVarWrite
	case ahead.next().kind == tokAssign:
		s.effects |= EffUserVarWrite
	default:
		s.effects |= EffUserVarRead
	}
}

func (s *scanner) open() {
	if s.prev.kind == tokWord || s.prev.kind == tokQuoted {
		s.call()
	}
	if s.depth < maxDepth {
		bit := uint64(1) << s.depth
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
		s.effects |= EffUnknown // the server will refuse it
		return
	}
	if s.depth < maxDepth {
		s.withs &^= uint64(1) << s.depth
	}
	s.depth--
}

// observeName handles words and quoted identifiers.
func (s *scanner) observeName() {
	kw := s.tok.kw
	if s.prev.kind == '.' && s.chain > 0 {
		s.chain++
		if !s.inert {
			s.observeQualified()
		}
		s.part = s.tok
		return
	}
	s.chain, s.before, s.part = 1, s.prev, s.tok
	switch {
	case s.inert:
		s.observeInert()
		return
	case kw == notKeyword:
		if s.tok.kind == tokQuoted && isSessionRelation(unquote(s.text(s.tok))) {
			s.effects |= EffSessionRead
		}
	case kw > lastKeyword:
		if kw.has(classRelation) {
			s.effects |= EffSessionRead
		}
	default:
		s.observeKeyword()
		return
	}
	if s.expect && s.depth == s.mainDepth && s.withs == 0 {
		s.expect = false // no command begins like this
	}
}

// observeInert handles a name in the definition of an object.
func (s *scanner) observeInert() {
	if s.asRuns && s.tok.kw == kwSelect {
		s.inert = false
		s.effects |= EffWrites
	}
	if s.routine {
		s.observeBlock()
	}
}

// observeQualified handles tok as a further part of a dotted name.
func (s *scanner) observeQualified() {
	name := unquote(s.text(s.tok))
	if s.part.kind == tokSysVar {
		s.effects |= readingVariable(name)
		return
	}
	if isSessionRelation(name) || isSessionDatabase(unquote(s.text(s.part))) {
		s.effects |= EffSessionRead
	}
}

// observeKeyword handles a keyword that is not part of a dotted name.
func (s *scanner) observeKeyword() {
	switch s.tok.kw {
	case kwWith:
		if s.depth < maxDepth && (s.expect && s.depth == s.mainDepth || s.prev.kind == '(') {
			s.withs |= 1 << s.depth
			return
		}
	case kwOutfile, kwDumpfile:
		if s.prev.kw == kwInto {
			s.effects |= EffFile | EffWrites
		}
	case kwUpdate:
		if s.prev.kw == kwFor {
			s.effects |= EffLockRows
		}
	case kwShare:
		if s.prev.kw == kwFor || s.prev.kw == kwIn && s.past == kwLock {
			s.effects |= EffLockRows
		}
	case kwSqlCalcFoundRows:
		s.effects |= EffCalcFoundRows
	case kwFor:
		if s.prev.kw == kwValue && s.past == kwNext {
			s.effects |= EffSequence | EffWrites
		}
		if s.prev.kw == kwValue && s.past == kwPrevious {
			s.effects |= EffSequenceRead
		}
	case kwProcesslist:
		s.effects |= EffSessionRead
	case kwSelect, kwValues, kwValue, kwTable, kwSet:
		s.target = false
	}
	s.observeVerb()
}

// observeVerb looks whether the keyword tok begins a statement, or the main part
// of one that began by WITH.
func (s *scanner) observeVerb() {
	listed := s.depth < maxDepth && s.withs&(1<<s.depth) != 0
	if !listed && !s.expect {
		return
	}
	main := s.expect && s.depth == s.mainDepth
	// In "WITH a AS (...) main" the main verb follows a parenthesis, or the end
	// of MariaDB's CYCLE clause. Anything else is a name.
	if listed && s.prev.kind != ')' && s.prev.kw != kwRestrict {
		return
	}
	v := queryVerb(s.tok.kw)
	if v == VerbOther {
		if listed || !main {
			return
		}
		v = verbOf(s.tok.kw)
	}
	if listed {
		s.withs &^= 1 << s.depth
	}
	if main {
		s.verb, s.expect = v, false
		s.effects |= verbEffects[v]
		s.target = v == VerbInsert || v == VerbReplace
	}
}

// call handles "(" after a name.
func (s *scanner) call() {
	kw := s.prev.kw
	switch {
	case s.inert:
		return
	case s.target && s.depth == s.mainDepth && s.prev.kw != kwPartition:
		s.target = false // the columns of INSERT INTO name (...)
		return
	case s.chain == 1 && kw.has(classGrammar) && s.prev.kind == tokWord:
		return
	}
	switch s.before.kind {
	case tokString, tokNumber, tokParam, ')':
		return // an alias with columns, or a word within an expression
	case tokWord:
		if s.before.kw == kwAs || s.before.kw == kwRecursive || s.before.kw == kwWith {
			return // a type, or a name with columns
		}
	}
	if s.depth < maxDepth && s.withs&(1<<s.depth) != 0 {
		return // the columns of WITH name (...)
	}
	tight := s.prev.end == s.tok.start
	if s.chain > 1 || s.prev.kind == tokQuoted || !kw.isFunction(s.lex.mode) || !tight && kw.has(classTight) {
		ahead := s.lex
		if first := ahead.next().kw; first != kwSelect && first != kwWith { // LATERAL (SELECT ...) and the like
			s.effects |= EffUnknownFunc
		}
		return
	}
	e := words.effects[kw]
	if e == EffLastID && s.nextByte() != ')' {
		e = EffSetLastID | EffWrites
	}
	s.effects |= e
}

// nextByte returns the first byte of the token behind tok, 0 at the end.
func (s *scanner) nextByte() byte {
	ahead := s.lex
	return ahead.at(int(ahead.next().start))
}

// equalWord reports whether tok is an unquoted word that folds to lower.
func (s *scanner) equalWord(lower string) bool {
	return s.tok.kind == tokWord && lexicon.EqualFold(s.text(s.tok), lower)
}
