package myscan

import "github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"

// tokenKind is the ASCII code for punctuation, otherwise one of the constants.
type tokenKind uint8

const (
	tokEOF     tokenKind = iota
	tokWord              // keyword or unquoted identifier
	tokQuoted            // `...`, and "..." with ANSI_QUOTES
	tokString            // any literal in quotes: '', "", N'', X'', B''
	tokNumber            // 1, 1.5e3, 0x1F, 0b01, \N
	tokParam             // ?
	tokUserVar           // @x, @`x`, @'x'
	tokSysVar            // @@x; of @@global.x the part before the dot
	tokOp                // any other byte
	tokAssign            // :=
)

// token is sql[start:end]. It is small because it is copied often; no server accepts a text of
// more than 1 GiB.
type token struct {
	kind       tokenKind
	kw         keyword // of a tokWord
	start, end int32
}

// lexer splits a text into tokens by the rules of the servers' sql_lex.cc. It never fails:
// bytes that the server would refuse become operators, an unterminated token extends to the end
// and sets broken.
//
// It lexes executable comments whose content the server runs as code; their marks are white
// space.
type lexer struct {
	sql  string
	pos  int
	mode Mode
	// comment is the offset of the first comment before the last token, or -1. The marks of
	// executable comments do not count.
	comment int
	// dotted is what must follow to read "name.name" as the server does.
	dotted dotState

	ended     bool // the end was reached; comment keeps its value from there
	executing bool // within an executable comment
	executed  bool // an executable comment was run, or may have been
	doubtful  bool // unknown whether an executable comment runs, or bytes may mean something else
	broken    bool // an unterminated token, or a byte that the server refuses
	varies    bool // an optimizer hint sets a variable for the statement

	cut *Text // if not nil, pos indexes its tokens, and next returns them
}

// dotState says what follows an unquoted name immediately.
type dotState uint8

const (
	dotNone dotState = iota
	dotNext          // a "." and a further name
	dotPart          // that name, which is neither a keyword nor a number
)

// newLexer returns a lexer at the beginning of sql.
func newLexer(sql string, mode Mode) lexer {
	l := lexer{sql: sql, mode: mode}
	if mode.Charset == CharsetTrail && hasHigh(sql) {
		l.doubtful = true
	}
	return l
}

// hasHigh reports whether text has a byte above 127.
func hasHigh(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return true
		}
	}
	return false
}

// next returns the next token, and at the end always tokEOF.
func (l *lexer) next() token {
	if l.cut != nil {
		return l.nextCut()
	}
	if l.dotted != dotNone {
		return l.dot()
	}
	if l.ended {
		return l.upTo(tokEOF, l.pos)
	}
	l.comment = -1
	for l.pos < len(l.sql) && l.sql[l.pos] == ' ' {
		l.pos++
	}
	if l.pos < len(l.sql) && beginsTrivia[l.sql[l.pos]] {
		l.skipTrivia()
	}
	start := l.pos
	if start >= len(l.sql) {
		l.ended, l.broken = true, l.broken || l.executing
		return l.upTo(tokEOF, start)
	}
	c := l.sql[start]
	if lexicon.Fold[c] != 0 {
		if '0' <= c && c <= '9' {
			return l.number(start)
		}
		return l.word(start)
	}
	switch c {
	case '\'':
		return l.literal(start, start)
	case '"':
		if l.mode.AnsiQuotes {
			return l.quoted(start, start, tokQuoted)
		}
		return l.literal(start, start)
	case '`':
		return l.quoted(start, start, tokQuoted)
	case '(', ')', ',', ';':
		l.pos++
		return l.upTo(tokenKind(c), start)
	case '.':
		if isDigit(l.at(start + 1)) {
			return l.fraction(start, start+1)
		}
		l.pos++
		if lexicon.Fold[l.at(l.pos)] != 0 {
			l.dotted = dotPart
		}
		return l.upTo('.', start)
	case '@':
		return l.variable(start)
	case '?':
		if lexicon.Fold[l.at(start+1)] == 0 {
			l.pos++
			return l.upTo(tokParam, start)
		}
	case ':':
		if l.at(start+1) == '=' {
			l.pos += 2
			return l.upTo(tokAssign, start)
		}
	case '\\':
		if l.at(start+1) == 'N' {
			l.pos += 2
			return l.upTo(tokNumber, start)
		}
		l.broken = true
	case 0:
		l.broken = true
	}
	l.pos++
	return l.upTo(tokOp, start)
}

// upTo returns the token from start to the lexer's position.
func (l *lexer) upTo(kind tokenKind, start int) token {
	return token{kind: kind, start: int32(start), end: int32(l.pos)}
}

// dot lexes what follows an unquoted name without white space.
func (l *lexer) dot() token {
	start := l.pos
	if l.dotted == dotNext {
		l.pos++
		l.dotted = dotPart
		return l.upTo('.', start)
	}
	return l.name(start)
}

// at returns the byte at i, or 0 beyond the end.
func (l *lexer) at(i int) byte {
	if i < len(l.sql) {
		return l.sql[i]
	}
	return 0
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }

// word lexes an identifier, a keyword, or a literal that begins with a letter.
func (l *lexer) word(start int) token {
	if l.at(start+1) == '\'' {
		switch l.sql[start] {
		case 'n', 'N':
			return l.literal(start, start+1)
		case 'x', 'X':
			return l.digits(start, true)
		case 'b', 'B':
			return l.digits(start, false)
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
	l.checkHigh(start)
	if l.at(i) == '.' && lexicon.Fold[l.at(i+1)] != 0 {
		l.dotted = dotNext
		return l.upTo(tokWord, start)
	}
	return token{kind: tokWord, kw: lookupKeyword(l.sql[start:i], h), start: int32(start), end: int32(i)}
}

// checkHigh checks the unquoted name that begins at start for bytes above 127. In a single-byte
// character set they may be white space.
func (l *lexer) checkHigh(start int) {
	if l.mode.Charset == CharsetByte && hasHigh(l.sql[start:l.pos]) {
		l.doubtful = true
	}
}

// name lexes a name that is no keyword and may begin with a digit.
func (l *lexer) name(start int) token {
	i := start
	for i < len(l.sql) && lexicon.Fold[l.sql[i]] != 0 {
		i++
	}
	l.pos, l.dotted = i, dotNone
	l.checkHigh(start)
	if l.at(i) == '.' && lexicon.Fold[l.at(i+1)] != 0 {
		l.dotted = dotNext
	}
	return l.upTo(tokWord, start)
}

// literal lexes the literal whose opening quote is at open.
func (l *lexer) literal(start, open int) token {
	quote := l.sql[open]
	for i := open + 1; i < len(l.sql); i++ {
		switch l.sql[i] {
		case quote:
			if l.at(i+1) != quote {
				l.pos = i + 1
				return l.upTo(tokString, start)
			}
			i++
		case '\\':
			if !l.mode.NoBackslashEscapes {
				i++
			}
		}
	}
	l.pos, l.broken = len(l.sql), true
	return l.upTo(tokString, start)
}

// digits lexes x'...' and b'...'. The server refuses other digits, and an odd number of
// hexadecimal ones.
func (l *lexer) digits(start int, hex bool) token {
	i := start + 2
	for hex && isHex(l.at(i)) || l.at(i) == '0' || l.at(i) == '1' {
		i++
	}
	if l.at(i) != '\'' || hex && (i-start)%2 != 0 {
		l.broken = true
		return l.literal(start, start+1)
	}
	l.pos = i + 1
	return l.upTo(tokString, start)
}

// quoted lexes a quoted identifier whose opening quote is at open.
func (l *lexer) quoted(start, open int, kind tokenKind) token {
	quote := l.sql[open]
	for i := open + 1; i < len(l.sql); i++ {
		switch l.sql[i] {
		case quote:
			if l.at(i+1) != quote {
				l.pos = i + 1
				return l.upTo(kind, start)
			}
			i++
		case 0:
			l.broken = true
		}
	}
	l.pos, l.broken = len(l.sql), true
	return l.upTo(kind, start)
}

// variable lexes a token that begins with "@".
func (l *lexer) variable(start int) token {
	switch i := start + 1; l.at(i) {
	case '@':
		if l.at(i+1) == '`' {
			return l.quoted(start, i+1, tokSysVar)
		}
		t := l.name(i + 1)
		if l.pos == i+1 {
			l.broken = true
		}
		t.kind, t.start = tokSysVar, int32(start)
		return t
	case '`':
		return l.quoted(start, i, tokUserVar)
	case '\'':
		t := l.literal(start, i)
		t.kind = tokUserVar
		return t
	case '"':
		if l.mode.AnsiQuotes {
			return l.quoted(start, i, tokUserVar)
		}
		t := l.literal(start, i)
		t.kind = tokUserVar
		return t
	default:
		for c := l.at(i); lexicon.Fold[c] != 0 || c == '.'; c = l.at(i) {
			i++
		}
		l.pos = i
		l.checkHigh(start)
		return l.upTo(tokUserVar, start)
	}
}

// number lexes a number, or a name that begins with a digit.
func (l *lexer) number(start int) token {
	i := start
	if l.sql[i] == '0' && (l.at(i+1) == 'x' || l.at(i+1) == 'b') {
		hex := l.at(i+1) == 'x'
		i += 2
		for hex && isHex(l.at(i)) || l.at(i) == '0' || l.at(i) == '1' {
			i++
		}
		if i > start+2 && lexicon.Fold[l.at(i)] == 0 {
			l.pos = i
			return l.upTo(tokNumber, start)
		}
		return l.name(start)
	}
	for isDigit(l.at(i)) {
		i++
	}
	switch c := l.at(i); {
	case c == '.':
		return l.fraction(start, i+1)
	case lexicon.Fold[c] == 0:
		l.pos = i
		return l.upTo(tokNumber, start)
	case c|0x20 == 'e':
		j := i + 1
		if c := l.at(j); c == '+' || c == '-' {
			j++
		}
		if isDigit(l.at(j)) {
			for isDigit(l.at(j)) {
				j++
			}
			l.pos = j
			return l.upTo(tokNumber, start)
		}
	}
	return l.name(start)
}

// fraction lexes the rest of a number after its point.
func (l *lexer) fraction(start, i int) token {
	for isDigit(l.at(i)) {
		i++
	}
	if l.at(i)|0x20 == 'e' {
		i++
		if c := l.at(i); c == '+' || c == '-' {
			i++
		}
		if !isDigit(l.at(i)) {
			l.broken = true // the server takes "1.e" neither as a number nor as a name
		}
		for isDigit(l.at(i)) {
			i++
		}
	}
	l.pos = i
	return l.upTo(tokNumber, start)
}
