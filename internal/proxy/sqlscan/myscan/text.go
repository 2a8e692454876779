package myscan

import (
	"slices"
	"strings"
)

// A Text is a text that is split into tokens once for all its readers. Scan and Insert
// return what the functions of the same names do.
//
// A Text is meant to be reused for one text after another, so that it allocates nothing.
// Between two calls of Read the text must not change.
type Text struct {
	sql    string
	mode   Mode
	cut    bool // tokens has all of them
	tokens []token
	// Offsets of the first comment before the first token, and before the end; -1 if there is
	// none.
	lead, trail int
	varies      bool // the lexer's value at the end
}

// maxCut bounds the texts that are split, and so the memory that a Text keeps. A longer one is
// lexed each time.
const maxCut = 16 << 10

// Read sets the text to sql. Texts with an executable comment that runs, and those that servers
// would not understand, or not all in the same way, are also lexed each time: their reading
// depends on the lexer's position.
func (t *Text) Read(sql string, mode Mode) {
	t.sql, t.mode, t.cut, t.tokens = sql, mode, false, t.tokens[:0]
	if len(sql) > maxCut {
		return
	}
	lex := newLexer(sql, mode)
	for {
		tok := lex.next()
		if len(t.tokens) == 0 {
			t.lead = lex.comment
		}
		if tok.kind == tokEOF {
			t.trail, t.varies = lex.comment, lex.varies
			t.cut = !lex.broken && !lex.doubtful && !lex.executed
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

// Is reports whether the Text was read from sql in the given mode.
func (t *Text) Is(sql string, mode Mode) bool { return t.sql == sql && t.mode == mode }

// String returns the text.
func (t *Text) String() string { return t.sql }

// WithoutConstants returns the text's tokens with "?" for each string and number. Two texts
// with the same result name the same tables, columns and routines in the same places. It
// returns false for a text that is lexed each time, see Read.
func (t *Text) WithoutConstants() (string, bool) {
	if !t.cut {
		return "", false
	}
	var b strings.Builder
	for _, tok := range t.tokens {
		if tok.kind == tokString || tok.kind == tokNumber {
			b.WriteString("? ")
			continue
		}
		b.WriteString(t.sql[tok.start:tok.end])
		b.WriteByte(' ')
	}
	return b.String(), true
}

// lexer returns a lexer at the beginning of the text.
func (t *Text) lexer() lexer {
	if !t.cut {
		return newLexer(t.sql, t.mode)
	}
	return lexer{sql: t.sql, mode: t.mode, cut: t, comment: -1, varies: t.varies}
}

// nextCut is next for a text that was split.
func (l *lexer) nextCut() token {
	t := l.cut
	switch i := l.pos; {
	case i < len(t.tokens):
		l.comment = -1
		if i == 0 {
			l.comment = t.lead
		}
		l.pos++
		return t.tokens[i]
	case i == len(t.tokens):
		l.comment = t.trail
		l.pos++
	}
	return token{kind: tokEOF, start: int32(len(l.sql)), end: int32(len(l.sql))}
}

// bytewise returns a lexer after the token that l has returned last, which reads the bytes
// themselves: for callers that keep it, or let it read a part of the text.
func (l lexer) bytewise() lexer {
	if l.cut == nil {
		return l
	}
	at := 0
	if n := min(l.pos, len(l.cut.tokens)); n > 0 {
		at = int(l.cut.tokens[n-1].end)
	}
	return lexer{sql: l.sql, mode: l.mode, pos: at, comment: l.comment, varies: l.varies}
}

// Scan is the function Scan.
func (t *Text) Scan() Statement { return scan(t.lexer()) }

// Fingerprint returns the 64-bit FNV-1a hash of the uncut result of Normalize, so texts that
// differ only in literals, lengths of lists, white space, comments and the case of words share
// it. Other texts may share it by chance or by a client's intent: use it for statistics, never
// to decide what runs.
func (t *Text) Fingerprint() uint64 { return fingerprint(t.lexer()) }

// Insert is the function Insert.
func (t *Text) Insert() (InsertShape, bool) { return insert(t.lexer()) }

// Target returns the one table that an INSERT, REPLACE, UPDATE or DELETE writes to, without
// quotes; schema is "" if the table is not qualified. ok is false for any other text, and for
// one that writes, or might write, to several tables.
func (t *Text) Target() (schema, table string, ok bool) { return target(t.lexer()) }

// ReadsTable reports whether a statement certainly reads a table: whether a SELECT in it has a
// FROM, unlike a function such as EXTRACT(YEAR FROM a).
func (t *Text) ReadsTable() bool {
	lex, prev := t.lexer(), token{}
	selects := []bool{false} // whether there is a SELECT, for each open parenthesis
	for tok := lex.next(); tok.kind != tokEOF; prev, tok = tok, lex.next() {
		in := len(selects) - 1
		switch {
		case tok.kind == '(':
			selects = append(selects, false)
		case tok.kind == ')' && in > 0:
			selects = selects[:in]
		case tok.kind != tokWord || prev.kind == '.':
		case tok.kw == kwSelect:
			selects[in] = true
		case tok.kw == kwFrom && selects[in]:
			table := lex.next()
			if table.kind == '(' || table.kind == tokQuoted || table.kind == tokWord && !strings.EqualFold(t.sql[table.start:table.end], "dual") {
				return !lex.doubtful
			}
			tok = table
		}
	}
	return false
}

// Names calls yield with each identifier of the text, in lower case and without quotes, until
// yield returns false. Among them are all names of tables, views and routines, and any other
// names. call means that the name stands where a routine is called.
func (t *Text) Names(yield func(name string, call bool) bool) { names(t.lexer(), yield) }
