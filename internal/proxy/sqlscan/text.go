package sqlscan

import "slices"

// A Text is a text that is cut into tokens once for all that is read of it. Its
// methods return what the functions of the same names do, NamesIn what Names does.
//
// A Text is meant to be used for one text after another, so that it allocates
// nothing. Between two calls of Read the text must not change.
type Text struct {
	sql    string
	cut    bool // tokens has all of them
	tokens []token
	// Where the first comment in front of the first token begins, and in front of the
	// end; -1 if there is none.
	lead, trail int

	backslash, broken bool // as the lexer has them at the end
}

// maxCut bounds the texts that are cut, and so the memory that a Text keeps. A
// longer one is lexed each time.
const maxCut = 16 << 10

// Read has the Text be sql from now on.
func (t *Text) Read(sql string) {
	t.sql, t.cut, t.tokens = sql, len(sql) <= maxCut, t.tokens[:0]
	if !t.cut {
		return
	}
	lex := lexer{sql: sql}
	for {
		tok := lex.next()
		if len(t.tokens) == 0 {
			t.lead = lex.comment
		}
		if tok.kind == tokEOF {
			t.trail, t.backslash, t.broken = lex.comment, lex.backslash, lex.broken
			return
		}
		t.tokens = append(t.tokens, tok)
	}
}

// String returns the text.
func (t *Text) String() string { return t.sql }

// lexer returns a lexer at the beginning of the text.
func (t *Text) lexer() lexer {
	if !t.cut {
		return lexer{sql: t.sql}
	}
	return lexer{sql: t.sql, cut: t, comment: -1, backslash: t.backslash, broken: t.broken}
}

// nextCut is next in a text that was cut.
func (l *lexer) nextCut() token {
	t := l.cut
	l.comment = -1
	if l.pos < len(t.tokens) {
		if l.pos == 0 {
			l.comment = t.lead
		}
		l.pos++
		return t.tokens[l.pos-1]
	}
	if l.pos == len(t.tokens) {
		l.comment = t.trail
		l.pos++
	}
	return token{kind: tokEOF, start: len(l.sql), end: len(l.sql)}
}

// Scan is the function Scan.
func (t *Text) Scan() Statement { return scan(t.lexer()) }

// Settings is the function Settings.
func (t *Text) Settings() (names []Touched, all bool) {
	if t.cut && !t.broken && !slices.ContainsFunc(t.tokens, func(tok token) bool { return isSetConfig(t.sql, tok) }) {
		return nil, true
	}
	return settings(t.lexer())
}

// Fingerprint is the function Fingerprint.
func (t *Text) Fingerprint() uint64 { return fingerprint(t.lexer()) }

// Insert is the function Insert.
func (t *Text) Insert() (InsertShape, bool) { return insert(t.lexer()) }

// NamesIn is the function Names.
func NamesIn[V any](t *Text, table map[string]V, hit func(name string, v V)) Reading {
	return names(t.lexer(), table, hit)
}
