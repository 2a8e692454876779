package myscan

import "github.com/weirdb/weir/internal/sqlscan"

// The grammar of hints is that of package sqlscan. They stand in ordinary
// comments: what is in an executable comment or in an optimizer hint is the
// server's, and ends the search.

// leadingHints reads the comments in trivia, which holds nothing but comments
// and white space.
func leadingHints(h *sqlscan.Hints, trivia string) {
	forComments(trivia, func(body string, _ bool) { h.ReadLeading(body) })
}

// trailingHints reads the block comments at the end of a text.
func trailingHints(h *sqlscan.Hints, trivia string) {
	forComments(trivia, func(body string, block bool) {
		if block {
			h.ReadTrailing(body)
		}
	})
}

// forComments calls f for each ordinary comment up to the first executable one.
func forComments(trivia string, f func(body string, block bool)) {
	for i := 0; i < len(trivia); {
		switch c := trivia[i]; {
		case c == '#':
			end := lineEnd(trivia, i)
			f(trivia[i+1:end], false)
			i = end
		case c == '-':
			end := lineEnd(trivia, i)
			f(trivia[min(i+2, end):end], false)
			i = end
		case c == '/' && i+2 < len(trivia):
			switch trivia[i+2] {
			case '!':
				return
			case 'M':
				if i+3 < len(trivia) && trivia[i+3] == '!' {
					return
				}
			}
			end, closed := commentEnd(trivia, i+2, false)
			if closed && trivia[i+2] != '+' {
				f(trivia[i+2:end-2], true)
			}
			i = end
		default:
			i++
		}
	}
}
