package myscan

import "github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"

func fingerprint(lex lexer) uint64 {
	n := normalizer{lex: lex, out: lexicon.HashOnly()}
	n.run()
	return n.out.Sum()
}

// Normalize returns a readable form of sql for metrics and logs, in valid UTF-8
// and cut at max bytes: words in lower case, one space where spaces belong,
// comments and the last semicolon dropped, each literal and parameter as "?",
// "IN (1, 2, 3)" with one element, VALUES with its first row. The sign of a
// number is part of it.
func Normalize(sql string, mode Mode, max int) string {
	if max <= 0 {
		return ""
	}
	n := normalizer{lex: newLexer(sql, mode), out: lexicon.TextUpTo(max, len(sql)+16)}
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
	open      bool // a row was not closed; no further one is looked for
}

func (n *normalizer) run() {
	semicolon := false
	for t := n.lex.next(); t.kind != tokEOF && !n.out.Full(); t = n.lex.next() {
		if t.kind == ';' {
			semicolon = !n.out.Empty()
			n.rowsDepth = 0
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
	switch t.kind {
	case tokString, tokNumber, tokParam:
		n.put(t, "?")
		return
	case tokOp:
		if n.isSign(t) {
			return
		}
	case '(':
		if n.prev.kw == kwValues || n.prev.kw == kwValue {
			n.rowsDepth = n.depth + 1
		}
		if n.prev.kw == kwIn && n.constants() {
			n.put(t, "(")
			n.out.Write("?)")
			n.prev = token{kind: ')'}
			return
		}
		n.depth++
	case ')':
		n.depth--
	case ',':
		if n.rowsDepth == n.depth+1 && n.prev.kind == ')' && !n.open && n.row() {
			return
		}
	}
	n.put(t, n.lex.sql[t.start:t.end])
}

// isSign reports whether the operator is the sign of a number.
func (n *normalizer) isSign(t token) bool {
	if c := n.lex.sql[t.start]; c != '-' && c != '+' {
		return false
	}
	switch n.prev.kind {
	case tokString, tokNumber, tokParam, tokQuoted, tokUserVar, tokSysVar, ')':
		return false
	case tokWord:
		if !n.prev.kw.has(classGrammar | classExpression) {
			return false
		}
	}
	ahead := n.lex
	return ahead.next().kind == tokNumber
}

// constants skips the rest of a list if it has only constants and their signs up to the closing
// parenthesis.
func (n *normalizer) constants() bool {
	ahead := n.lex
	any := false
	for {
		t := ahead.next()
		switch t.kind {
		case ')':
			if any {
				n.lex = ahead
			}
			return any
		case tokString, tokNumber, tokParam:
			any = true
		case ',':
		case tokOp:
			if c := ahead.sql[t.start]; c != '-' && c != '+' {
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

// put writes text, which stands for t, with a space before it if one belongs there.
func (n *normalizer) put(t token, text string) {
	if !n.out.Empty() && n.spaced(t) {
		n.out.Write(" ")
	}
	if t.kind == tokWord {
		n.out.WriteFolded(text)
	} else {
		n.out.Write(text)
	}
	n.prev = t
}

// spaced reports whether a space belongs between prev and t. Bytes of one
// operator stay together.
func (n *normalizer) spaced(t token) bool {
	switch t.kind {
	case ',', ')', '.':
		return false
	case '(':
		named := n.prev.kind == tokQuoted || n.prev.kind == tokWord && n.prev.kw != kwValues && !n.prev.kw.has(classGrammar)
		return !named && n.prev.kind != '('
	case tokOp:
		if n.prev.kind == tokOp && n.prev.end == t.start {
			return false
		}
	}
	return n.prev.kind != '(' && n.prev.kind != '.'
}
