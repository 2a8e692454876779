package sqlscan

import (
	"unicode/utf8"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// tokenKind is the ASCII code for punctuation, else one of the constants.
type tokenKind uint8

const (
	tokEOF    tokenKind = iota
	tokWord             // keyword or unquoted identifier
	tokQuoted           // "..." or U&"..."
	tokString           // any literal in quotes: '', E'', B'', X'', N'', U&'', $$ $$
	tokNumber           // 1, 1.5e3, 0x1F
	tokParam            // $1
	tokOp               // operator
	tokCast             // ::
	tokAssign           // :=
)

// token is sql[start:end].
type token struct {
	kind       tokenKind
	kw         keyword // of a tokWord
	start, end int
}

// lexer splits a text into tokens by the rules of PostgreSQL's scan.l with
// standard_conforming_strings=on. It never fails: bytes that the server would
// refuse become operators, an unterminated token reaches to the end and sets
// broken.
type lexer struct {
	sql string
	pos int
	cut *Text // the tokens were cut before, and pos counts them; nil if not
	// comment is where the first comment in front of the last token begins;
	// -1 if there is none.
	comment int
	// signsEnd is the end of a run of + and - that an operator gave back: up
	// to there each byte is an operator, without another look ahead.
	signsEnd  int
	escapes   bool // standard_conforming_strings is off: see Conform
	backslash bool // a plain literal held a backslash
	broken    bool // there was an unterminated token
}

// next returns the next token; at the end always tokEOF.
func (l *lexer) next() token {
	if l.cut != nil {
		return l.nextCut()
	}
	l.skipTrivia()
	start := l.pos
	if start >= len(l.sql) {
		return token{kind: tokEOF, start: len(l.sql), end: len(l.sql)}
	}
	switch c := l.sql[start]; c {
	case '\'':
		l.literal(start, l.escapes)
		return token{kind: tokString, start: start, end: l.pos}
	case '"':
		l.quoted(start)
		return token{kind: tokQuoted, start: start, end: l.pos}
	case '(', ')', ',', ';', '[', ']':
		l.pos++
		return token{kind: tokenKind(c), start: start, end: l.pos}
	case '$':
		return l.dollar(start)
	case '.':
		if l.digitAt(start + 1) {
			return l.number(start)
		}
		l.pos++
		return token{kind: '.', start: start, end: l.pos}
	case ':':
		l.pos++
		kind := tokenKind(':')
		switch l.at(start + 1) {
		case ':':
			kind = tokCast
			l.pos++
		case '=':
			kind = tokAssign
			l.pos++
		}
		return token{kind: kind, start: start, end: l.pos}
	default:
		if '0' <= c && c <= '9' {
			return l.number(start)
		}
		if lexicon.Fold[c] != 0 {
			return l.word(start)
		}
		return l.operator(start)
	}
}

// at returns the byte at i, 0 beyond the end.
func (l *lexer) at(i int) byte {
	if i < len(l.sql) {
		return l.sql[i]
	}
	return 0
}

func (l *lexer) digitAt(i int) bool { c := l.at(i); return '0' <= c && c <= '9' }

// skipTrivia passes white space and comments.
func (l *lexer) skipTrivia() {
	l.comment = -1
	for l.pos < len(l.sql) {
		c := l.sql[l.pos]
		if lexicon.IsSpace(c) {
			l.pos++
			continue
		}
		start := l.pos
		switch {
		case c == '-' && l.at(start+1) == '-':
			l.pos = lineEnd(l.sql, start)
		case c == '/' && l.at(start+1) == '*':
			end, ok := blockEnd(l.sql, start)
			l.pos, l.broken = end, l.broken || !ok
		default:
			return
		}
		if l.comment < 0 {
			l.comment = start
		}
	}
}

// lineEnd returns where the line that holds sql[i] ends, before the newline.
func lineEnd(sql string, i int) int {
	for i < len(sql) && sql[i] != '\n' && sql[i] != '\r' {
		i++
	}
	return i
}

// blockEnd returns where the comment that begins at sql[i] ends; such comments
// nest. ok is false if it is not closed.
func blockEnd(sql string, i int) (end int, ok bool) {
	depth := 0
	for i+1 < len(sql) {
		switch {
		case sql[i] == '/' && sql[i+1] == '*':
			depth++
			i += 2
		case sql[i] == '*' && sql[i+1] == '/':
			depth--
			i += 2
			if depth == 0 {
				return i, true
			}
		default:
			i++
		}
	}
	return len(sql), false
}

// word lexes an identifier, or the prefix of a literal and the literal.
func (l *lexer) word(start int) token {
	if q := l.at(start + 1); q == '\'' {
		switch l.sql[start] {
		case 'e', 'E':
			l.literal(start+1, true)
			return token{kind: tokString, start: start, end: l.pos}
		case 'b', 'B', 'x', 'X':
			l.literal(start+1, false)
			return token{kind: tokString, start: start, end: l.pos}
		case 'n', 'N':
			l.literal(start+1, l.escapes)
			return token{kind: tokString, start: start, end: l.pos}
		}
	} else if q == '&' && (l.sql[start] == 'u' || l.sql[start] == 'U') {
		switch l.at(start + 2) {
		case '\'':
			l.literal(start+2, false)
			return token{kind: tokString, start: start, end: l.pos}
		case '"':
			l.quoted(start + 2)
			return token{kind: tokQuoted, start: start, end: l.pos}
		}
	}
	h, i := lexicon.HashBasis, start
	for i < len(l.sql) {
		c := lexicon.Fold[l.sql[i]]
		if c == 0 {
			break
		}
		h = (h ^ uint32(c)) * lexicon.HashPrime
		i++
	}
	l.pos = i
	return token{kind: tokWord, kw: lookupKeyword(l.sql[start:i], h), start: start, end: i}
}

// literal passes the literal whose opening quote is at open, and the pieces that
// continue it: a piece follows after white space with a newline in it, and
// has the rules of the first.
func (l *lexer) literal(open int, escapes bool) {
	i := open + 1
	for i < len(l.sql) {
		switch l.sql[i] {
		case '\\':
			if escapes {
				i++
			} else {
				l.backslash = true
			}
			i++
		case '\'':
			if l.at(i+1) == '\'' {
				i += 2
				continue
			}
			next := continuation(l.sql, i+1)
			if next < 0 {
				l.pos = i + 1
				return
			}
			i = next + 1
		default:
			i++
		}
	}
	l.pos, l.broken = len(l.sql), true
}

// continuation returns the position of the quote that continues a literal which
// ended before i, or -1. Between them may be white space and "--" comments but
// must be a newline.
func continuation(sql string, i int) int {
	newline := false
	for i < len(sql) {
		switch c := sql[i]; {
		case c == '\n' || c == '\r':
			newline = true
			i++
		case lexicon.IsSpace(c):
			i++
		case c == '-' && i+1 < len(sql) && sql[i+1] == '-':
			i = lineEnd(sql, i)
		case c == '\'' && newline:
			return i
		default:
			return -1
		}
	}
	return -1
}

// quoted passes the identifier whose opening quote is at open.
func (l *lexer) quoted(open int) {
	for i := open + 1; i < len(l.sql); i++ {
		if l.sql[i] != '"' {
			continue
		}
		if l.at(i+1) != '"' {
			l.pos = i + 1
			return
		}
		i++
	}
	l.pos, l.broken = len(l.sql), true
}

// dollar lexes $1, $$...$$ and $tag$...$tag$.
func (l *lexer) dollar(start int) token {
	i := start + 1
	if l.digitAt(i) {
		for l.digitAt(i) {
			i++
		}
		l.pos = i
		return token{kind: tokParam, start: start, end: i}
	}
	for i < len(l.sql) && l.sql[i] != '$' && lexicon.Fold[l.sql[i]] != 0 {
		i++
	}
	if l.at(i) != '$' {
		l.pos = start + 1 // a lone dollar sign, which the server refuses
		return token{kind: tokOp, start: start, end: l.pos}
	}
	delimiter := l.sql[start : i+1]
	for i++; i+len(delimiter) <= len(l.sql); i++ {
		if l.sql[i] == '$' && l.sql[i:i+len(delimiter)] == delimiter {
			l.pos = i + len(delimiter)
			return token{kind: tokString, start: start, end: l.pos}
		}
	}
	l.pos, l.broken = len(l.sql), true
	return token{kind: tokString, start: start, end: l.pos}
}

// number lexes a number. Letters that follow it begin a new token; servers from
// 15 on refuse that.
func (l *lexer) number(start int) token {
	i := start
	if x := l.at(i+1) | 0x20; l.sql[i] == '0' && (x == 'x' || x == 'o' || x == 'b') && hexOrUnderscore(l.at(i+2)) {
		i += 2
		for hexOrUnderscore(l.at(i)) {
			i++
		}
		l.pos = i
		return token{kind: tokNumber, start: start, end: i}
	}
	i = l.digits(i)
	if l.at(i) == '.' && l.at(i+1) != '.' {
		i = l.digits(i + 1)
	}
	if l.at(i)|0x20 == 'e' {
		j := i + 1
		if c := l.at(j); c == '+' || c == '-' {
			j++
		}
		if l.digitAt(j) {
			i = l.digits(j)
		}
	}
	l.pos = i
	return token{kind: tokNumber, start: start, end: i}
}

func (l *lexer) digits(i int) int {
	for l.digitAt(i) || l.at(i) == '_' && l.digitAt(i+1) {
		i++
	}
	return i
}

func hexOrUnderscore(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' || c == '_'
}

func isOperator(c byte) bool {
	switch c {
	case '~', '!', '@', '#', '^', '&', '|', '`', '?', '+', '-', '*', '/', '%', '<', '>', '=':
		return true
	}
	return false
}

// operator lexes the longest run of operator bytes that begins no comment. As
// the server does, it gives back a trailing + or - unless the run has a byte
// that SQL's own operators lack: "=-1" is "=" and "-1", "@-1" is "@-" and "1".
func (l *lexer) operator(start int) token {
	if start < l.signsEnd {
		l.pos = start + 1
		return token{kind: tokOp, start: start, end: l.pos}
	}
	i, special := start, false
	for i < len(l.sql) && isOperator(l.sql[i]) {
		c, next := l.sql[i], l.at(i+1)
		if i > start && (c == '/' && next == '*' || c == '-' && next == '-') {
			break
		}
		switch c {
		case '~', '!', '@', '#', '^', '&', '|', '`', '?', '%':
			special = true
		}
		i++
	}
	if i == start { // a byte that the server refuses
		_, size := utf8.DecodeRuneInString(l.sql[start:])
		i += size
	}
	if !special {
		l.signsEnd = i
	}
	for !special && i > start+1 && (l.sql[i-1] == '+' || l.sql[i-1] == '-') {
		i--
	}
	l.pos = i
	return token{kind: tokOp, start: start, end: i}
}
