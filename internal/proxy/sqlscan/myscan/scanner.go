package myscan

import (
	"iter"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// observer walks the tokens of a text. Each call of next processes one token: the effects, the
// verb, and the position in the statement. If parentheses are deeper than it tracks, it reports
// EffUnknown.
type observer struct {
	lexicon.Nesting

	lex  lexer
	tok  token
	prev token   // the token before tok
	past keyword // of the token before prev

	// The name that ends in prev or tok: chain counts its dotted parts, before is the token
	// before it, part its last part.
	chain  int
	before token
	part   token

	verb    Verb
	inert   bool // none of the text runs now: the definition of an object
	asRuns  bool // except a query in it: CREATE TABLE ... SELECT
	target  bool // INSERT or REPLACE: the table has not ended yet
	into    bool // in the list of INTO, which writes user variables
	routine bool // a stored routine or a compound statement: it may contain ";"
	blocks  int  // open BEGIN, CASE, IF, LOOP, ... of a routine

	effects Effect
}

// scanner reads commands. Its handlers of single commands only advance and check; the observer
// processes the tokens.
type scanner struct {
	observer

	set  SetList
	kill Kill
	name string
}

// ends are the bytes that the server strips from the end of a text.
const ends = "; \n\t\r\f\v"

// Scan reads sql. It allocates nothing unless a name must be unquoted or a hint is invalid. It
// retains nothing; the strings in the result may alias sql.
func Scan(sql string, mode Mode) Statement { return scan(newLexer(sql, mode)) }

func scan(lex lexer) Statement {
	var out Statement
	sql := lex.sql
	s := scanner{observer: observer{lex: lex}}
	s.reset()
	s.next()
	if s.lex.comment >= 0 {
		leadingHints(&out.Hints, s.lex, int(s.tok.start))
	}
	switch rest := strings.Trim(sql, ends); {
	case rest == "":
		s.lex.pos, s.tok = len(sql), token{}
	case s.tok.kind == tokEOF:
		out.Count = 1 // a comment: the server answers it with OK
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

// Later yields the statements of a text after the first, each by itself: its verb, name,
// assignments and effects.
func Later(sql string, mode Mode) iter.Seq[Statement] {
	return func(yield func(Statement) bool) {
		s := scanner{observer: observer{lex: newLexer(sql, mode)}}
		s.reset()
		s.next()
		for n := 0; s.tok.kind != tokEOF; n++ {
			s.set, s.name, s.effects = SetList{}, "", 0
			s.statement()
			if n > 0 && !yield(Statement{Verb: s.verb, Effects: s.effects, First: s.effects, Set: s.set, Name: s.name, Count: 1}) {
				return
			}
			if s.tok.kind == ';' {
				s.semicolon()
			}
		}
	}
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

// semicolon moves past the ";" that ends a statement, and returns 1 if the server takes the
// rest for one more statement although it has only comments.
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

// reset prepares for the first token of a statement.
func (o *observer) reset() {
	o.tok, o.prev = token{}, token{}
	o.Begin()
	o.chain, o.verb = 0, VerbOther
	o.inert, o.asRuns, o.target, o.into, o.routine, o.blocks = false, false, false, false, false, 0
}

// done reports whether tok ends the statement.
func (o *observer) done() bool {
	return o.tok.kind == tokEOF || o.tok.kind == ';' && o.blocks == 0
}

// skip moves to the end of the statement.
func (o *observer) skip() {
	for !o.done() {
		o.next()
	}
}

func (o *observer) next() {
	o.past = o.prev.kw
	o.prev.kind, o.prev.kw, o.prev.start, o.prev.end = o.tok.kind, o.tok.kw, o.tok.start, o.tok.end
	o.tok = o.lex.next()
	o.observe()
}

// is reports whether tok is one of the keywords.
func (o *observer) is(words ...keyword) bool {
	for _, w := range words {
		if o.tok.kw == w {
			return true
		}
	}
	return false
}

// accept advances if tok is the keyword, and reports whether it is.
func (o *observer) accept(w keyword) bool {
	if o.tok.kw != w {
		return false
	}
	o.next()
	return true
}

func (o *observer) text(t token) string { return o.lex.sql[t.start:t.end] }

// statement processes one statement; tok is its first token before, and its end after.
func (s *scanner) statement() {
	for s.Expect && !s.done() {
		s.next()
	}
	s.command()
	if s.verb == VerbOther || s.verb == VerbCompound {
		s.effects |= EffUnknown
	}
	s.skip()
	if s.Depth != 0 || s.blocks != 0 {
		s.effects |= EffUnknown
	}
}

// observe processes tok.
func (o *observer) observe() {
	if o.into && o.tok.kind != tokUserVar && o.tok.kind != ',' {
		o.into = false
	}
	switch o.tok.kind {
	case tokWord, tokQuoted:
		o.observeName()
	case '(':
		o.open()
	case ')':
		o.close()
	case tokUserVar:
		if !o.inert {
			o.observeUserVar()
		}
	case tokSysVar:
		o.chain, o.before, o.part = 1, o.prev, o.tok
		if !o.inert {
			o.effects |= readingVariable(unquote(o.text(o.tok)[2:]))
		}
	}
	if o.Expect && o.prev.kind == tokEOF && o.tok.kind != tokWord && o.tok.kind != '(' {
		o.Expect = false // no command begins like this
	}
}

// observeUserVar handles a user variable.
func (o *observer) observeUserVar() {
	ahead := o.lex
	switch {
	case o.prev.kw == kwInto || o.into && o.prev.kind == ',':
		o.into = true
		o.effects |= EffUserVarWrite
	case ahead.next().kind == tokAssign:
		o.effects |= EffUserVarWrite
	default:
		o.effects |= EffUserVarRead
	}
}

func (o *observer) open() {
	if o.prev.kind == tokWord || o.prev.kind == tokQuoted {
		o.call()
	}
	if !o.Open(o.prev.kind == ')') {
		o.effects |= EffUnknown
	}
}

func (o *observer) close() {
	if !o.Close() {
		o.effects |= EffUnknown // the server will refuse it
	}
}

// observeName handles words and quoted identifiers.
func (o *observer) observeName() {
	kw := o.tok.kw
	if o.prev.kind == '.' && o.chain > 0 {
		o.chain++
		if !o.inert {
			o.observeQualified()
		}
		o.part = o.tok
		return
	}
	o.chain, o.before, o.part = 1, o.prev, o.tok
	switch {
	case o.inert:
		o.observeInert()
		return
	case kw == notKeyword:
		if o.tok.kind == tokQuoted && isSessionRelation(unquote(o.text(o.tok))) {
			o.effects |= EffSessionRead
		}
	case kw > lastKeyword:
		if kw.has(classRelation) {
			o.effects |= EffSessionRead
		}
	default:
		o.observeKeyword()
		return
	}
	o.NoVerb()
}

// observeInert handles a name in the definition of an object.
func (o *observer) observeInert() {
	if o.asRuns && o.tok.kw == kwSelect {
		o.inert = false
		o.effects |= EffWrites
	}
	if o.routine {
		o.observeBlock()
	}
}

// observeQualified handles tok as a further part of a dotted name.
func (o *observer) observeQualified() {
	name := unquote(o.text(o.tok))
	if o.part.kind == tokSysVar {
		o.effects |= readingVariable(name)
		return
	}
	if isSessionRelation(name) || isSessionDatabase(unquote(o.text(o.part))) {
		o.effects |= EffSessionRead
	}
}

// observeKeyword handles a keyword that is not part of a dotted name.
func (o *observer) observeKeyword() {
	switch o.tok.kw {
	case kwWith:
		if o.With(o.prev.kind == '(') {
			return
		}
	case kwOutfile, kwDumpfile:
		if o.prev.kw == kwInto {
			o.effects |= EffFile | EffWrites
		}
	case kwUpdate:
		if o.prev.kw == kwFor {
			o.effects |= EffLockRows
		}
	case kwShare:
		if o.prev.kw == kwFor || o.prev.kw == kwIn && o.past == kwLock {
			o.effects |= EffLockRows
		}
	case kwSqlCalcFoundRows:
		o.effects |= EffCalcFoundRows
	case kwFor:
		if o.prev.kw == kwValue && o.past == kwNext {
			o.effects |= EffSequence | EffWrites
		}
		if o.prev.kw == kwValue && o.past == kwPrevious {
			o.effects |= EffSequenceRead
		}
	case kwProcesslist:
		o.effects |= EffSessionRead
	case kwSelect, kwValues, kwValue, kwTable, kwSet:
		o.target = false
	}
	o.observeVerb()
}

// observeVerb checks whether the keyword tok begins a statement, or the main part of one that
// began with WITH.
func (o *observer) observeVerb() {
	listed := o.Listed()
	if !listed && !o.Expect {
		return
	}
	main := o.Main()
	// In "WITH a AS (...) main" the main verb follows a parenthesis, or the end
	// of MariaDB's CYCLE clause. Anything else is a name.
	if listed && o.prev.kind != ')' && o.prev.kw != kwRestrict {
		return
	}
	v := queryVerb(o.tok.kw)
	if v == VerbOther {
		if listed || !main {
			return
		}
		v = verbOf(o.tok.kw)
	}
	o.Verb()
	if main {
		o.verb = v
		o.effects |= verbEffects[v]
		o.target = v == VerbInsert || v == VerbReplace
	}
}

// call handles "(" after a name.
func (o *observer) call() {
	kw := o.prev.kw
	switch {
	case o.inert:
		return
	case o.target && o.Depth == o.MainDepth && o.prev.kw != kwPartition:
		o.target = false // the columns of INSERT INTO name (...)
		return
	case o.chain == 1 && kw.has(classGrammar) && o.prev.kind == tokWord:
		return
	}
	switch o.before.kind {
	case tokString, tokNumber, tokParam, ')':
		return // an alias with columns, or a word within an expression
	case tokWord:
		if o.before.kw == kwAs || o.before.kw == kwRecursive || o.before.kw == kwWith {
			return // a type, or a name with columns
		}
	}
	if o.Listed() {
		return // the columns of WITH name (...)
	}
	tight := o.prev.end == o.tok.start
	if o.chain > 1 || o.prev.kind == tokQuoted || !kw.isFunction(o.lex.mode) || !tight && kw.has(classTight) {
		ahead := o.lex
		if first := ahead.next().kw; first != kwSelect && first != kwWith { // LATERAL (SELECT ...) and the like
			o.effects |= EffUnknownFunc
		}
		return
	}
	e := words.effects[kw]
	if e == EffLastID && o.nextByte() != ')' {
		e = EffSetLastID | EffWrites
	}
	o.effects |= e
}

// nextByte returns the first byte of the token after tok, or 0 at the end.
func (o *observer) nextByte() byte {
	ahead := o.lex
	return ahead.at(int(ahead.next().start))
}

// equalWord reports whether tok is an unquoted word that folds to lower.
func (o *observer) equalWord(lower string) bool {
	return o.tok.kind == tokWord && lexicon.EqualFold(o.text(o.tok), lower)
}
