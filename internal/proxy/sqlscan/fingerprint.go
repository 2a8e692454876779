package sqlscan

import "github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"

// Fingerprint returns the 64-bit FNV-1a hash of what Normalize returns uncut,
// so texts that differ only in literals, lengths of lists, white space, comments
// and the case of words share it. Others may share it by chance, or because
// a client makes them so: use it for statistics, never to decide what runs.
func Fingerprint(sql string) uint64 { return fingerprint(lexer{sql: sql}) }

func fingerprint(lex lexer) uint64 {
	n := normalizer{lex: lex, out: lexicon.HashOnly()}
	n.run()
	return n.out.Sum()
}

// Normalize returns a readable form of sql for metrics and logs, in valid UTF-8
// and cut at max bytes: words in lower case, one space where spaces belong,
// comments and the last semicolon dropped, each literal and parameter as "?",
// "IN (1, 2, 3)" and "ARRAY[1, 2]" with one element, VALUES with its first row.
// The sign of a number is part of it. What SET gives a setting is one "?", since
// values may be written as words.
func Normalize(sql string, max int) string {
	if max <= 0 {
		return ""
	}
	n := normalizer{lex: lexer{sql: sql}, out: lexicon.TextUpTo(max, len(sql)+16)}
	n.run()
	return n.out.String()
}

// normalizer writes the normal form of a text.
type normalizer struct {
	lex  lexer
	prev token
	out  lexicon.Normal

	depth     int
	rowsDepth int  // depth of the last VALUES list, plus 1; 0 for none
	open      bool // a row was not closed; do not look for another
	words     int  // of the statement so far
	set       bool // the statement is SET
}

func (n *normalizer) run() {
	semicolon := false
	for t := n.lex.next(); t.kind != tokEOF && !n.out.Full(); t = n.lex.next() {
		if t.kind == ';' {
			semicolon = !n.out.Empty()
			n.rowsDepth, n.words, n.set = 0, 0, false
			continue
		}
		if semicolon {
			n.out.Write(";")
			n.prev, semicolon = token{kind: ';'}, false
		}
		n.token(t)
	}
}

// token writes one token, and may skip those that follow it.
func (n *normalizer) token(t token) {
	if n.words++; n.words == 1 {
		n.set = t.kw == kwSet
	}
	if n.set && (t.kw == kwTo || t.kind == tokOp && n.lex.sql[t.start:t.end] == "=") {
		n.put(t, n.lex.sql[t.start:t.end])
		n.value()
		return
	}
	switch t.kind {
	case tokString, tokNumber, tokParam:
		n.put(t, "?")
		return
	case tokOp:
		if n.isSign(t) {
			return
		}
	case '(':
		if n.prev.kw == kwValues {
			n.rowsDepth = n.depth + 1
		}
		if n.prev.kw == kwIn && n.constants(')') {
			n.put(t, "(")
			n.out.Write("?)")
			n.prev = token{kind: ')'}
			return
		}
		n.depth++
	case '[':
		if n.prev.kw == kwArray && n.constants(']') {
			n.put(t, "[")
			n.out.Write("?]")
			n.prev = token{kind: ']'}
			return
		}
	case ')':
		n.depth--
	case ',':
		if n.rowsDepth == n.depth+1 && n.prev.kind == ')' && !n.open && n.row() {
			return
		}
	}
	n.put(t, n.lex.sql[t.start:t.end])
}

// value skips the rest of a statement, which is a value.
func (n *normalizer) value() {
	for {
		ahead := n.lex
		if t := ahead.next(); t.kind == tokEOF || t.kind == ';' {
			n.put(token{kind: tokString}, "?")
			return
		}
		n.lex = ahead
	}
}

// isSign reports whether the operator is the sign of a number.
func (n *normalizer) isSign(t token) bool {
	if t.end-t.start != 1 || n.lex.sql[t.start] != '-' && n.lex.sql[t.start] != '+' {
		return false
	}
	switch n.prev.kind {
	case tokString, tokNumber, tokParam, tokQuoted, ')', ']':
		return false
	case tokWord:
		if n.prev.kw.isFunctionName() {
			return false
		}
	}
	ahead := n.lex
	return ahead.next().kind == tokNumber
}

// constants skips the rest of a list if it has nothing but constants, their
// signs and casts to simple types up to the closing bracket.
func (n *normalizer) constants(closing tokenKind) bool {
	ahead := n.lex
	any := false
	for {
		t := ahead.next()
		switch t.kind {
		case closing:
			if any {
				n.lex = ahead
			}
			return any
		case tokString, tokNumber, tokParam:
			any = true
		case tokCast:
			if ahead.next().kind != tokWord {
				return false
			}
		case ',':
		case tokOp:
			if c := ahead.sql[t.start]; t.end-t.start != 1 || c != '-' && c != '+' {
				return false
			}
		default:
			return false
		}
	}
}

// row skips a further row of VALUES after its comma.
func (n *normalizer) row() bool {
	ahead := n.lex
	if ahead.next().kind != '(' {
		return false
	}
	for depth := 1; depth > 0; {
		switch ahead.next().kind {
		case '(':
			depth++
		case ')':
			depth--
		case tokEOF:
			n.open = true
			return false
		}
	}
	n.lex = ahead
	return true
}

// put writes text in place of t, after a space if one belongs there.
func (n *normalizer) put(t token, text string) {
	if !n.out.Empty() && spaced(n.prev, t) {
		n.out.Write(" ")
	}
	if t.kind == tokWord {
		n.out.WriteFolded(text)
	} else {
		n.out.Write(text)
	}
	n.prev = t
}

func spaced(prev, t token) bool {
	switch t.kind {
	case ',', ')', '[', ']', '.', tokCast:
		return false
	case '(':
		named := prev.kind == tokQuoted || prev.kind == tokWord && prev.kw == notKeyword
		return !named && prev.kind != '(' && prev.kind != '['
	}
	switch prev.kind {
	case '(', '[', '.', tokCast:
		return false
	}
	return true
}
