package sqlscan

import (
	"slices"
	"strings"
)

// A Text is a statement's text, split into tokens once for several uses. Its methods
// return what the functions of the same names do, NamesIn what Names does.
//
// Reuse a Text for one statement after another, so that it allocates nothing. The text
// must not change until the next call of Read.
type Text struct {
	sql    string
	cut    bool // tokens has all of them
	tokens []token
	// Start of the first comment before the first token, and of the first one after the
	// last; -1 if there is none.
	lead, trail int

	backslash, broken bool // as in the lexer at the end
}

// maxCut is the longest text that is split in advance, and so bounds the memory that a
// Text keeps. A longer one is lexed each time.
const maxCut = 16 << 10

// Read makes sql the text.
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

// Clone returns a copy that shares no memory with t or with the text that t has read.
func (t *Text) Clone() *Text {
	own := *t
	own.sql, own.tokens = strings.Clone(t.sql), nil
	if t.cut {
		own.tokens = slices.Clone(t.tokens)
	}
	return &own
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

// nextCut is next for a text that was split in advance.
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

// Scan is Scan of the text.
func (t *Text) Scan() Statement { return scan(t.lexer()) }

// Settings is Settings of the text.
func (t *Text) Settings() (names []Touched, all bool) {
	if t.cut && !t.broken && !slices.ContainsFunc(t.tokens, func(tok token) bool { return isSetConfig(t.sql, tok) }) {
		return nil, true
	}
	return settings(t.lexer())
}

// Fingerprint is Fingerprint of the text.
func (t *Text) Fingerprint() uint64 { return fingerprint(t.lexer()) }

// Insert is Insert of the text.
func (t *Text) Insert() (InsertShape, bool) { return insert(t.lexer()) }

// NamesIn is Names of the text t.
func NamesIn[V any](t *Text, table map[string]V, hit func(name string, v V)) Reading {
	return names(t.lexer(), table, hit)
}
