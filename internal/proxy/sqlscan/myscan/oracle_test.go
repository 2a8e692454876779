package myscan

import (
	"regexp"
	"strings"
)

// piece is what the oracle cuts a text into.
type piece struct {
	kind tokenKind
	text string
}

const (
	oracleName = `[A-Za-z0-9_$\x{80}-\x{10FFFF}]`
	oracleBack = "`(?:[^`\\x00]|``)*`"
)

// The patterns of the manuals' chapters on lexical structure, tried in turn.
var (
	oracleSpace   = regexp.MustCompile(`^[ \t\n\r\f\v]+`)
	oracleLine    = regexp.MustCompile(`^(?:#|--(?:[\x01-\x20\x7f]|\x00|$))`)
	oracleVersion = regexp.MustCompile(`^/\*M?!([0-9]{5,6})?`)
	oracleHex     = regexp.MustCompile(`^[xX]'(?:[0-9a-fA-F]{2})*'`)
	oracleBit     = regexp.MustCompile(`^[bB]'[01]*'`)
	oracleReal    = regexp.MustCompile(`^(?:[0-9]+\.[0-9]*|\.[0-9]+)`)
	oracleExp     = regexp.MustCompile(`^[eE][+-]?[0-9]+`)
	oracleInt     = regexp.MustCompile(`^(?:0x[0-9a-fA-F]+|0b[01]+|[0-9]+)`)
	oracleWord    = regexp.MustCompile(`^` + oracleName + `+`)
	oracleHost    = regexp.MustCompile(`^@(?:` + oracleName + `|\.)*`)
	oracleQuoted  = regexp.MustCompile(`^` + oracleBack)
	oracleDouble  = regexp.MustCompile(`^"(?:[^"\x00]|"")*"`)

	oracleEscaped = regexp.MustCompile(`(?s)^(?:'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")`)
	oraclePlain   = regexp.MustCompile(`^(?:'(?:[^']|'')*'|"(?:[^"]|"")*")`)
)

// oracle is the slow and obvious second reading of the lexical rules.
type oracle struct {
	mode      Mode
	rest      string
	executing bool
	pieces    []piece
	failed    bool
}

// oracleSplit cuts a text into all its tokens. ok is false if something is not
// closed or the server refuses a byte; then the pieces end there.
func oracleSplit(sql string, mode Mode) (pieces []piece, ok bool) {
	o := oracle{mode: mode, rest: sql}
	for o.rest != "" && !o.failed {
		o.step()
	}
	return o.pieces, !o.failed && !o.executing
}

// take adds the first n bytes of the rest as a token.
func (o *oracle) take(kind tokenKind, n int) {
	o.pieces = append(o.pieces, piece{kind, o.rest[:n]})
	o.rest = o.rest[n:]
}

// match takes what the pattern finds, if anything.
func (o *oracle) match(kind tokenKind, re *regexp.Regexp) bool {
	if m := re.FindString(o.rest); m != "" {
		o.take(kind, len(m))
		return true
	}
	return false
}

func (o *oracle) literal() *regexp.Regexp {
	if o.mode.NoBackslashEscapes {
		return oraclePlain
	}
	return oracleEscaped
}

func (o *oracle) step() {
	if m := oracleSpace.FindString(o.rest); m != "" {
		o.rest = o.rest[len(m):]
		return
	}
	if oracleLine.MatchString(o.rest) {
		if i := strings.IndexAny(o.rest, "\n\x00"); i >= 0 {
			o.rest = o.rest[i:]
		} else {
			o.rest = ""
		}
		return
	}
	switch {
	case strings.HasPrefix(o.rest, "/*!"), strings.HasPrefix(o.rest, "/*M!"):
		o.failed = o.executing
		o.executing = true
		o.rest = o.rest[len(oracleVersion.FindString(o.rest)):]
	case strings.HasPrefix(o.rest, "/*"):
		end := strings.Index(o.rest[2:], "*/")
		if end < 0 {
			o.failed = true
			return
		}
		o.rest = o.rest[end+4:]
	case o.executing && strings.HasPrefix(o.rest, "*/"):
		o.executing = false
		o.rest = o.rest[2:]
	default:
		o.token()
	}
}

func (o *oracle) token() {
	c, second := o.rest[0], byte(0)
	if len(o.rest) > 1 {
		second = o.rest[1]
	}
	switch {
	case c == '`':
		o.failed = !o.match(tokQuoted, oracleQuoted)
	case c == '"' && o.mode.AnsiQuotes:
		o.failed = !o.match(tokQuoted, oracleDouble)
	case c == '\'' || c == '"':
		o.failed = !o.match(tokString, o.literal())
	case strings.IndexByte("nN", c) >= 0 && second == '\'':
		m := o.literal().FindString(o.rest[1:])
		if o.failed = m == ""; !o.failed {
			o.take(tokString, len(m)+1)
		}
	case strings.IndexByte("xX", c) >= 0 && second == '\'':
		o.failed = !o.match(tokString, oracleHex)
	case strings.IndexByte("bB", c) >= 0 && second == '\'':
		o.failed = !o.match(tokString, oracleBit)
	case c == '@':
		o.variable(second)
	case c == '\\':
		if o.failed = second != 'N'; !o.failed {
			o.take(tokNumber, 2)
		}
	case c == 0:
		o.failed = true
	case oracleReal.MatchString(o.rest):
		n := len(oracleReal.FindString(o.rest))
		if after := o.rest[n:]; after != "" && after[0]|0x20 == 'e' {
			e := oracleExp.FindString(after)
			o.failed = e == ""
			n += len(e)
		}
		o.take(tokNumber, n)
	case c == '.':
		o.take('.', 1)
		o.part()
	case '0' <= c && c <= '9':
		o.number()
	case oracleWord.MatchString(o.rest):
		o.match(tokWord, oracleWord)
		o.dot()
	case strings.HasPrefix(o.rest, ":="):
		o.take(tokAssign, 2)
	case c == '?' && !oracleWord.MatchString(o.rest[1:]):
		o.take(tokParam, 1)
	case strings.IndexByte("(),;", c) >= 0:
		o.take(tokenKind(c), 1)
	default:
		o.take(tokOp, 1)
	}
}

func (o *oracle) number() {
	m := oracleInt.FindString(o.rest)
	if after := o.rest[len(m):]; strings.HasPrefix(m, "0x") || strings.HasPrefix(m, "0b") || !oracleExp.MatchString(after) {
		if !oracleWord.MatchString(after) {
			o.take(tokNumber, len(m))
			return
		}
		o.match(tokWord, oracleWord) // a name that begins with a digit
		o.dot()
		return
	} else {
		o.take(tokNumber, len(m)+len(oracleExp.FindString(after)))
	}
}

// dot takes a "." directly behind a name, if a name follows at once.
func (o *oracle) dot() {
	if strings.HasPrefix(o.rest, ".") && oracleWord.MatchString(o.rest[1:]) {
		o.take('.', 1)
		o.part()
	}
}

// part takes a name directly behind a ".".
func (o *oracle) part() {
	if o.match(tokWord, oracleWord) {
		o.dot()
	}
}

func (o *oracle) variable(second byte) {
	kind, at, re := tokUserVar, 1, (*regexp.Regexp)(nil)
	switch {
	case second == '@':
		kind, at, re = tokSysVar, 2, oracleWord
		if strings.HasPrefix(o.rest, "@@`") {
			re = oracleQuoted
		}
	case second == '`':
		re = oracleQuoted
	case second == '"' && o.mode.AnsiQuotes:
		re = oracleDouble
	case second == '\'' || second == '"':
		re = o.literal()
	default:
		o.match(tokUserVar, oracleHost)
		return
	}
	m := re.FindString(o.rest[at:])
	if o.failed = m == ""; o.failed {
		return
	}
	o.take(kind, at+len(m))
	if re == oracleWord {
		o.dot()
	}
}
