package myscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// beginsTrivia has the bytes that can begin white space or a comment, and end an executable
// comment.
var beginsTrivia = [256]bool{
	' ': true, '\n': true, '\t': true, '\r': true, '\f': true, '\v': true, '#': true, '-': true, '/': true, '*': true,
}

// skipTrivia skips white space, comments and the marks of executable comments.
func (l *lexer) skipTrivia() {
	for l.pos < len(l.sql) {
		c := l.sql[l.pos]
		if lexicon.IsSpace(c) {
			l.pos++
			continue
		}
		start := l.pos
		switch {
		case c == '#' || c == '-' && l.dashes(start):
			l.pos = lineEnd(l.sql, start)
		case c == '/' && l.at(start+1) == '*':
			if l.executable(start) {
				continue
			}
		case c == '*' && l.executing && l.at(start+1) == '/':
			l.executing = false
			l.pos += 2
			continue
		default:
			return
		}
		if l.comment < 0 {
			l.comment = start
		}
	}
}

// dashes reports whether the "-" at i begins a comment: a second one must follow,
// and white space, a control character or the end.
func (l *lexer) dashes(i int) bool {
	if l.at(i+1) != '-' {
		return false
	}
	c := l.at(i + 2)
	if c >= 0x80 && l.mode.Charset == CharsetByte {
		l.doubtful = true
	}
	return c <= ' ' || c == 0x7f
}

// lineEnd returns the end of the line that contains sql[i], before the newline. A zero byte
// ends it, too.
func lineEnd(sql string, i int) int {
	for i < len(sql) && sql[i] != '\n' && sql[i] != 0 {
		i++
	}
	return i
}

// executable skips the comment at start, or only its opening mark if the server runs its
// content, and reports which.
func (l *lexer) executable(start int) bool {
	mark := start + 2
	mariadb := l.at(mark) == 'M' && l.at(mark+1) == '!'
	switch {
	case mariadb:
		mark++
	case l.at(mark) == '+':
		l.optimizerHint(start)
		return false
	case l.at(mark) != '!':
		l.pass(start+2, false)
		return false
	}
	mark++
	digits := 0
	for digits < 6 && isDigit(l.at(mark+digits)) {
		digits++
	}
	runs, doubt := runsVersion(l.mode, mariadb, l.sql[mark:mark+digits], l.at(mark+digits))
	if doubt {
		l.doubtful = true
	}
	if !runs {
		l.pass(mark, !mariadb || l.mode.MariaDB)
		return false
	}
	if l.executing {
		l.broken = true // they do not nest
	}
	l.executing, l.executed = true, true
	l.pos = mark
	if digits >= 5 {
		l.pos += digits
	}
	return true
}

// runsVersion reports whether the server runs an executable comment with the given version
// digits, at most 6, before the byte next. mark means MariaDB's form. doubt is true if that is
// not known.
func runsVersion(mode Mode, mark bool, digits string, next byte) (runs, doubt bool) {
	version := uint32(0)
	for i := range len(digits) {
		version = version*10 + uint32(digits[i]-'0')
	}
	if mode.Version == 0 {
		// Servers since MySQL 5.7 and MariaDB 10.0 run what MySQL 5.6 ran.
		return true, mark || len(digits) == 6 || len(digits) == 5 && version >= 50700
	}
	switch {
	case mode.MariaDB:
		if len(digits) < 5 {
			return true, false
		}
		return version <= mode.Version && (mark || version < 50700 || version > 99999), false
	case mark:
		return false, false
	case len(digits) < 5:
		return true, false
	case len(digits) == 6 && (mode.Version < 80100 || !lexicon.IsSpace(next)):
		return true, true // some versions take five digits and a number after them
	}
	return version <= mode.Version, false
}

// optimizerHint skips a comment of the form /*+ ... */.
func (l *lexer) optimizerHint(start int) {
	l.pass(start+2, false)
	const name = "set_var"
	for body := l.sql[start:l.pos]; len(body) >= len(name); body = body[1:] {
		if lexicon.EqualFold(body[:len(name)], name) {
			l.varies = true
			return
		}
	}
}

// pass skips a comment whose text begins at from, after its opening mark.
func (l *lexer) pass(from int, nests bool) {
	end, closed := commentEnd(l.sql, from, nests)
	l.pos, l.broken = end, l.broken || !closed
}

// commentEnd returns the end of the comment whose text begins at from. A comment that nests may
// contain comments that do not.
func commentEnd(sql string, from int, nests bool) (end int, closed bool) {
	for i := from; ; {
		star := strings.IndexByte(sql[i:], '*')
		if star < 0 {
			return len(sql), false
		}
		star += i
		switch {
		case nests && star > i && sql[star-1] == '/':
			i, _ = commentEnd(sql, star+1, false)
		case star+1 < len(sql) && sql[star+1] == '/':
			return star + 2, true
		default:
			i = star + 1
		}
	}
}
