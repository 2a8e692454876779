package sqlscan

import (
	"regexp"
	"strings"
)

// piece is what the oracle cuts a text into: code, a comment or a literal.
type piece struct {
	kind string // "code", "comment", "literal", "quoted"
	text string
}

var oracleRules = []struct {
	kind string
	re   *regexp.Regexp
}{
	{"comment", regexp.MustCompile(`^--[^\n\r]*`)},
	{"literal", regexp.MustCompile(`(?s)^[eE]'(?:[^'\\]|\\.|'')*'` + oracleContinued(`(?:[^'\\]|\\.|'')*`))},
	{"literal", regexp.MustCompile(`(?s)^(?:[bBxXnN]|[uU]&)?'(?:[^']|'')*'` + oracleContinued(`(?:[^']|'')*`))},
	{"quoted", regexp.MustCompile(`(?s)^(?:[uU]&)?"(?:[^"]|"")*"`)},
	{"code", regexp.MustCompile(`^[A-Za-z_\x{80}-\x{10FFFF}][A-Za-z0-9_$\x{80}-\x{10FFFF}]*`)},
	{"code", regexp.MustCompile(`^\$[0-9]+`)},
}

var oracleTag = regexp.MustCompile(`^\$(?:[A-Za-z_\x{80}-\x{10FFFF}][A-Za-z0-9_\x{80}-\x{10FFFF}]*)?\$`)

// oracleOpen matches the beginning of a literal or quoted identifier.
var oracleOpen = regexp.MustCompile(`^(?:(?:[eEbBxXnN]|[uU]&)?'|(?:[uU]&)?")`)

// oracleContinued matches the further pieces of a literal.
func oracleContinued(body string) string {
	const comment = `(?:--[^\n\r]*)`
	return `(?:(?:[ \t\f\v]|` + comment + `)*[\n\r](?:[ \t\f\v\n\r]|` + comment + `[\n\r])*'` + body + `')*`
}

// oracleSplit is the slow and obvious second reading of the lexical rules: at
// each place try the patterns of the manual's chapter on lexical structure in
// turn. ok is false if something is not closed; then the pieces end there.
func oracleSplit(sql string) (pieces []piece, ok bool) {
	for sql != "" {
		kind, n := "code", 1
		switch {
		case strings.HasPrefix(sql, "/*"):
			if n = oracleBlock(sql); n < 0 {
				return pieces, false
			}
			kind = "comment"
		case oracleTag.MatchString(sql):
			tag := oracleTag.FindString(sql)
			end := strings.Index(sql[len(tag):], tag)
			if end < 0 {
				return pieces, false
			}
			kind, n = "literal", end+2*len(tag)
		default:
			matched := false
			opens := oracleOpen.MatchString(sql)
			for _, rule := range oracleRules {
				if m := rule.re.FindString(sql); m != "" && (!opens || rule.kind != "code") {
					kind, n, matched = rule.kind, len(m), true
					break
				}
			}
			if opens && !matched {
				return pieces, false
			}
		}
		pieces = append(pieces, piece{kind, sql[:n]})
		sql = sql[n:]
	}
	return pieces, true
}

// oracleBlock returns the length of the comment at the start of sql.
func oracleBlock(sql string) int {
	end := 2
	for end < len(sql) {
		switch {
		case strings.HasPrefix(sql[end:], "*/"):
			return end + 2
		case strings.HasPrefix(sql[end:], "/*"):
			n := oracleBlock(sql[end:])
			if n < 0 {
				return -1
			}
			end += n
		default:
			end++
		}
	}
	return -1
}
