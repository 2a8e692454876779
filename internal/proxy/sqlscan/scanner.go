package sqlscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// observer walks the tokens of a text. Each call of next adds the effects of one
// token, and keeps the verb and the position in the statement. If parentheses are nested too
// deeply, it adds EffUnknown.
type observer struct {
	lexicon.Nesting

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

	operands uint64 // bit d: the parenthesis that closes to depth d is not followed by an alias

	verb    Verb
	calls   bool // unknown names before "(" are function calls
	asRuns  bool // what follows AS at depth 0 is a query that runs
	routine bool // CREATE FUNCTION or PROCEDURE
	atomic  int  // open BEGIN ATOMIC and CASE of a routine's body

	effects Effect
}

// scanner reads commands. Its handlers of single commands only move on and look at
// tokens; the observer adds the tokens' effects.
type scanner struct {
	observer

	set  SetClause
	name string
}

// Scan reads sql. It allocates nothing unless a name must be folded, a hint is
// unusable, or one of several statements is SET or has a name. It retains nothing; the strings in the result may alias sql.
//
// Literals are read as with standard_conforming_strings=on, the server's
// default; see Conform for sessions that have it off.
func Scan(sql string) Statement { return scan(lexer{sql: sql}) }

func scan(lex lexer) Statement {
	sql := lex.sql
	var out Statement
	s := scanner{observer: observer{lex: lex}}
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
		s.set, s.name = SetClause{}, ""
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
		if s.name != "" {
			out.Names = append(out.Names, s.name)
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

// reset prepares for the first token of a statement.
func (o *observer) reset() {
	o.tok, o.prev = token{}, token{}
	o.Begin()
	o.chain, o.operands, o.verb, o.calls = 0, 0, VerbOther, true
	o.asRuns, o.routine, o.atomic = false, false, 0
}

// done reports whether tok ends the statement.
func (o *observer) done() bool {
	return o.tok.kind == tokEOF || o.tok.kind == ';' && o.Depth == 0 && o.atomic == 0
}

// skip moves to the end of the statement.
func (o *observer) skip() {
	for !o.done() {
		o.next()
	}
}

func (o *observer) next() {
	o.prev2, o.prev = o.prev, o.tok
	o.tok = o.lex.next()
	o.observe()
}

// is reports whether tok is one of the keywords.
func (o *observer) is(words ...keyword) bool {
	for _, w := range words {
		if o.tok.kw == w {
			return o.tok.kind == tokWord
		}
	}
	return false
}

// accept moves on if tok is the keyword.
func (o *observer) accept(w keyword) bool {
	if o.tok.kw != w || o.tok.kind != tokWord {
		return false
	}
	o.next()
	return true
}

func (o *observer) text(t token) string { return o.lex.sql[t.start:t.end] }

// observe adds the effects of tok.
func (o *observer) observe() {
	switch o.tok.kind {
	case tokWord, tokQuoted:
		o.observeName()
	case '(':
		o.open()
	case ')':
		o.close()
	}
}

func (o *observer) open() {
	if o.prev.kind == tokWord || o.prev.kind == tokQuoted {
		o.call()
	}
	if o.Depth < lexicon.MaxDepth {
		bit := uint64(1) << o.Depth
		o.operands &^= bit
		if o.prev.kw == kwOperator || o.prev.kw == kwOn && o.before.kw == kwDistinct {
			o.operands |= bit
		}
	}
	if !o.Open(o.prev.kind == ')') {
		o.effects |= EffUnknown
	}
}

func (o *observer) close() {
	if !o.Close() {
		return // the server will refuse it
	}
	if o.Depth < lexicon.MaxDepth && o.operands&(1<<o.Depth) != 0 {
		// An expression follows; with the kind of an operator the parenthesis no longer looks
		// like the end of an aliased item.
		o.tok.kind = tokOp
	}
}

// observeName handles words and quoted identifiers.
func (o *observer) observeName() {
	if o.prev.kind == '.' && o.chain > 0 {
		o.chain++
		o.qualifier = o.part
	} else {
		o.chain = 1
		o.before = o.prev
	}
	o.part = o.tok
	if o.tok.kw != notKeyword {
		if o.chain == 1 {
			o.observeKeyword()
		}
		return
	}
	o.NoVerb()
	name, quoted := o.identifier(o.tok)
	if len(name) > 3 && name[0]|0x20 == 'p' && name[2] == '_' {
		o.observeSystemName(name, quoted)
	}
}

// identifier returns a name without its quotes. A quoted name with escapes
// keeps them, and so matches nothing.
func (o *observer) identifier(t token) (name string, quoted bool) {
	name = o.text(t)
	if t.kind != tokQuoted {
		return name, false
	}
	if len(name) > 2 && name[0] == '"' {
		name = name[1 : len(name)-1]
	}
	return name, true
}

func (o *observer) observeSystemName(name string, quoted bool) {
	if len(name) >= 7 && lexicon.EqualFold(name[:7], "pg_temp") && (len(name) == 7 || len(name) > 8 && name[7] == '_' && isDigits(name[8:])) {
		o.effects |= EffTemp
		return
	}
	if sessionRelationTable.Find(name, lexicon.Hash(name), !quoted) >= 0 {
		o.effects |= EffSessionRead
	}
}

func isDigits(t string) bool {
	return strings.Trim(t, "0123456789") == ""
}

// observeKeyword handles a keyword that is not part of a dotted name.
func (o *observer) observeKeyword() {
	switch kw := o.tok.kw; kw {
	case kwWith:
		if o.With(o.prev.kind == '(') {
			return
		}
	case kwInto:
		if o.prev.kw == kwInsert || o.prev.kw == kwMerge {
			o.effects |= EffWrites
		} else if o.verb == VerbSelect {
			o.effects |= EffWrites | EffDDL
		}
	case kwTemp, kwTemporary:
		if o.prev.kw == kwInto || o.prev.kw == kwLocal || o.prev.kw == kwGlobal {
			o.effects |= EffTemp
		}
	case kwFrom:
		if o.prev.kw == kwDelete && o.prev2.kind == '(' {
			o.effects |= EffWrites
		}
	case kwUpdate, kwShare:
		if o.prev.kw == kwFor || o.prev.kw == kwKey {
			o.effects |= EffLockRows
		} else if kw == kwUpdate && o.prev.kind == '(' {
			o.effects |= EffWrites
		}
	case kwExecute:
		if o.verb == VerbDDL && o.prev.kw == kwAs {
			o.effects |= EffPrepare
		}
	case kwAs:
		if o.asRuns && o.Depth == 0 {
			o.calls = true
		}
	case kwAtomic:
		if o.routine && o.prev.kw == kwBegin {
			o.atomic = 1
		}
	case kwCase:
		if o.atomic > 0 {
			o.atomic++
		}
	case kwEnd:
		if o.atomic > 0 {
			o.atomic--
		}
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
	var v Verb
	switch o.tok.kw {
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
		v = verbOf(o.tok.kw)
	}
	// In "WITH a AS (...) main" the main verb follows a parenthesis or the
	// column that ends a SEARCH or CYCLE clause. Anything else is a name.
	if listed && o.prev.kind != ')' && !o.endsSearch() {
		return
	}
	o.Verb()
	if main {
		o.verb = v
	}
	if main || listed {
		o.effects |= verbEffects[v]
	}
}

// endsSearch reports whether prev is the column after SET or USING.
func (o *observer) endsSearch() bool {
	return (o.prev.kind == tokWord || o.prev.kind == tokQuoted) &&
		(o.prev2.kw == kwSet || o.prev2.kw == kwUsing)
}

// call handles "(" after a name.
func (o *observer) call() {
	kw := o.prev.kw
	if o.chain == 1 && (!kw.isFunctionName() || o.isGrammar(kw)) {
		return
	}
	switch o.before.kind {
	case tokCast, ')', tokQuoted:
		return // a type with modifiers, an alias with columns
	case tokWord:
		switch o.before.kw {
		case notKeyword, kwAs, kwInto, kwRecursive, kwOrdinality, kwExecute:
			return
		}
	}
	if o.Listed() {
		return // the columns of WITH name (...)
	}
	name, quoted := o.identifier(o.prev)
	if o.chain > 2 || o.chain == 2 && !o.isCatalog(o.qualifier) {
		o.unknownCall()
		return
	}
	if len(name) == len("set_config") && (name == "set_config" || !quoted && lexicon.EqualFold(name, "set_config")) {
		if !o.localConfig() {
			o.effects |= EffSetConfig
		}
		return
	}
	e := functionEffects(name, !quoted)
	if e == EffUnknownFunc {
		o.unknownCall()
		return
	}
	o.effects |= e
}

func (o *observer) unknownCall() {
	if o.calls {
		o.effects |= EffUnknownFunc
	}
}

func (o *observer) isCatalog(t token) bool {
	name, quoted := o.identifier(t)
	return name == "pg_catalog" || !quoted && lexicon.EqualFold(name, "pg_catalog")
}

// isGrammar reports whether an unreserved keyword before "(" is there as a
// keyword, which the token before it shows. In doubt it counts as a function, which errs
// on the safe side.
func (o *observer) isGrammar(kw keyword) bool {
	switch kw {
	case notKeyword:
		return false
	case kwBy:
		return o.before.kw == kwGroup || o.before.kw == kwOrder || o.before.kw == kwPartition
	case kwSets:
		return o.before.kw == kwGrouping
	case kwRollup:
		return true
	case kwMaterialized:
		return o.before.kw == kwAs || o.before.kw == kwNot
	case kwConflict:
		return o.before.kw == kwOn
	case kwOperator, kwEscape, kwRepeatable, kwJoin, kwPassing, kwLike, kwIlike, kwVarying:
		return o.afterOperand()
	case kwZone:
		return o.before.kw == kwTime
	case kwOver, kwFilter:
		return o.before.kind == ')'
	case kwInsert:
		return o.before.kw == kwThen
	case kwFirst, kwNext:
		return o.before.kw == kwFetch
	case kwDocument, kwContent:
		return o.before.kind == '('
	case kwSet:
		return o.effects.Has(EffWrites)
	case kwExplain:
		return o.before.kind == tokEOF
	}
	return false
}

// afterOperand reports whether before ends an operand, a table or the first
// half of a keyword such as INNER JOIN, so that no expression can follow it.
func (o *observer) afterOperand() bool {
	switch o.before.kind {
	case tokString, tokNumber, tokParam, tokQuoted, ')', ']':
		return true
	case tokWord:
		switch o.before.kw {
		case kwBy, kwZone, kwEscape, kwLike, kwIlike:
			return false
		case kwNot, kwBit, kwChar, kwCharacter, kwNchar:
			return true
		}
		return o.before.kw.isFunctionName()
	}
	return false
}

// localConfig reports whether the arguments that begin at the current "("
// end with the third one being the word true.
func (o *observer) localConfig() bool {
	if o.Depth >= lexicon.MaxDepth {
		return false // nested calls would each read the rest of the text
	}
	ahead := o.lex
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
