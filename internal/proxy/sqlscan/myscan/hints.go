package myscan

import "github.com/weirdb/weir/internal/proxy/sqlscan"

// The grammar of hints is that of package sqlscan. Hints stand in ordinary comments: the
// contents of executable comments and optimizer hints are the server's. An executable comment
// that the server runs is code, which ends the search for leading hints.

// leadingHints reads the comments before the first token, which begins at to.
func leadingHints(h *sqlscan.Hints, l lexer, to int) {
	forComments(l, 0, to, func(body string, kind commentKind) bool {
		if kind == commentCode {
			return false
		}
		h.ReadLeading(body)
		return true
	})
}

// trailingHints reads the block comments from the given offset to the end of the text.
func trailingHints(h *sqlscan.Hints, l lexer, from int) {
	forComments(l, from, len(l.sql), func(body string, kind commentKind) bool {
		if kind == commentBlock {
			h.ReadTrailing(body)
		}
		return true
	})
}

// commentKind is the form of a comment that forComments finds.
type commentKind uint8

const (
	commentLine  commentKind = iota // # and --
	commentBlock                    // /* */
	commentCode                     // the mark of an executable comment that runs
)

// forComments calls f for each comment in l.sql[from:to], which has no tokens, until f returns
// false. It omits executable comments that do not run, and optimizer hints.
func forComments(l lexer, from, to int, f func(body string, kind commentKind) bool) {
	more := true
	for l.pos, l.broken = from, false; more && l.pos < to; {
		start := l.pos
		switch c := l.sql[start]; {
		case c == '#' || c == '-':
			l.pos = lineEnd(l.sql, start)
			more = f(l.sql[min(start+markLen(c), l.pos):l.pos], commentLine)
		case c == '/' && l.at(start+1) == '*':
			if l.executable(start) {
				more = f("", commentCode)
			} else if mark := l.at(start + 2); mark != '+' && mark != '!' && (mark != 'M' || l.at(start+3) != '!') && !l.broken {
				more = f(l.sql[start+2:l.pos-2], commentBlock)
			}
		default:
			l.pos++
		}
	}
}

// markLen returns the length of the mark that begins a line comment.
func markLen(c byte) int {
	if c == '#' {
		return 1
	}
	return 2
}
