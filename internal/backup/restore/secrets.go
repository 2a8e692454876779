package restore

import (
	"regexp"
	"strings"
)

// secretName matches names of options, columns and functions whose values must not appear on a
// screen or in a log.
var secretName = regexp.MustCompile(`(?i)passw|passphrase|passcode|secret|token|credential|api_?key|^"?pwd"?$`)

// within match secrets inside a text: in a connection string, and in a URL.
var within = []*regexp.Regexp{
	regexp.MustCompile(`(?is)(?:passw(?:or)?d|\bpwd)\s*=(.+)`),
	regexp.MustCompile(`(?i)://[^\s:/@']*:([^\s']*@|[^\s@'/]+)`),
}

// HideSecrets returns a statement of PostgreSQL or MySQL without its secrets: texts after a
// word like PASSWORD, after IDENTIFIED, and the connection string of a subscription. If the
// statement was cut inside a text, the rest belongs to that text.
func HideSecrets(sql string) string {
	hidden := make([]bool, len(sql))
	// The two servers, and some of their settings, disagree about where a text ends: a text is
	// hidden if it is a secret by either reading.
	for _, mysql := range []bool{true, false} {
		l := secretLexer{}
		for i := 0; i < len(sql); {
			kind, end := piece(sql, i, mysql)
			mark := func(from, to int) {
				for j := from; j < to; j++ {
					hidden[j] = true
				}
			}
			switch {
			case l.secret(kind, sql[i:end]):
				mark(i, end)
			case kind == sqlText:
				for _, w := range within {
					for _, m := range w.FindAllStringSubmatchIndex(sql[i:end], -1) {
						mark(i+m[2], i+m[3])
					}
				}
			}
			i = end
		}
	}
	var out strings.Builder
	for i := range len(sql) {
		switch {
		case !hidden[i]:
			out.WriteByte(sql[i])
		case i > 0 && hidden[i-1]:
		case strings.IndexByte(`'"$0`, sql[i]) >= 0:
			out.WriteString(hiddenText)
		default:
			out.WriteString("…")
		}
	}
	return out.String()
}

// Unsecret is HideSecrets for a script. No server accepts the hidden text, so that no account
// gets a password that everyone knows.
func Unsecret(sql string) string { return strings.ReplaceAll(HideSecrets(sql), hiddenText, "…") }

// hiddenText replaces a secret text.
const hiddenText = "'…'"

// secretLexer tracks a statement token by token.
type secretLexer struct {
	set          bool // the previous word was SET
	assigned     bool // SET PASSWORD: the text after = is a secret
	subscription bool // CONNECTION would be that of a subscription
	identified   bool // texts are secrets up to the next account or clause
	plugin       bool // except the next one, a plugin's name
	expected     bool // the next text is a secret
}

// secret reports whether a token must not be shown.
func (l *secretLexer) secret(kind pieceKind, text string) bool {
	set := l.set
	if kind != sqlSpace {
		l.set = false
	}
	switch kind {
	case sqlSpace:
	case sqlText:
		return l.take()
	case sqlName: // quoted with " or `; MySQL may mean a text by the first
		if text[0] == '"' && l.take() {
			return true
		}
		l.plugin, l.expected = false, secretName.MatchString(text)
	case sqlWord:
		return l.word(text, set)
	case sqlOther:
		switch text {
		case "=":
			l.identified = l.identified || l.assigned
		case "(", ":", "&": // PASSWORD('x'), := 'x', U&'x'
		case ",", ";":
			l.identified, l.expected = false, false
		default:
			l.expected = false
		}
	}
	return false
}

// take processes a text, and reports whether it is a secret.
func (l *secretLexer) take() bool {
	hide := l.expected || l.identified && !l.plugin
	l.plugin, l.expected = false, false
	return hide
}

func (l *secretLexer) word(text string, set bool) bool {
	word := strings.ToUpper(text)
	switch word {
	case "E", "N", "U", "X", "B", "_UTF8", "_UTF8MB3", "_UTF8MB4", "_BINARY", "_LATIN1":
		return false // of the text that follows
	}
	if strings.HasPrefix(word, "0X") {
		return l.take()
	}
	l.plugin = false
	switch word {
	case "SET":
		l.set = true
	case "PASSWORD":
		l.assigned = l.assigned || set
	case "SUBSCRIPTION":
		l.subscription = true
	case "IDENTIFIED":
		l.identified = true
	case "WITH", "VIA", "OR":
		l.plugin = l.identified
	case "REQUIRE", "ACCOUNT", "COMMENT", "ATTRIBUTE", "DEFAULT":
		l.identified = false
	}
	l.expected = secretName.MatchString(text) || l.subscription && word == "CONNECTION"
	return false
}

type pieceKind int

const (
	sqlOther pieceKind = iota // one character
	sqlSpace                  // or a comment
	sqlWord
	sqlName
	sqlText
)

var (
	dollar = regexp.MustCompile(`^\$(?:[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$`)
	spaces = regexp.MustCompile(`^\s+`)
	word   = regexp.MustCompile(`^[A-Za-z0-9_\x80-\xff][A-Za-z0-9_$\x80-\xff]*`)
)

// piece returns the kind of the next token of a statement, and where it ends. MySQL's
// executable comments are read as part of the statement.
func piece(sql string, i int, mysql bool) (pieceKind, int) {
	rest := sql[i:]
	c := rest[0]
	to := func(end string, from int) int {
		if n := strings.Index(rest[min(from, len(rest)):], end); n >= 0 {
			return i + from + n + len(end)
		}
		return len(sql)
	}
	switch {
	case c == '\'':
		return sqlText, i + quotedEnd(rest, mysql)
	case c == '"' || c == '`':
		return sqlName, i + quotedEnd(rest, mysql)
	case c == '$':
		if tag := dollar.FindString(rest); tag != "" {
			return sqlText, to(tag, len(tag))
		}
	case strings.HasPrefix(rest, "/*!"), strings.HasPrefix(rest, "/*M!"):
		n := strings.IndexByte(rest, '!') + 1
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		return sqlSpace, i + n
	case strings.HasPrefix(rest, "*/"):
		return sqlSpace, i + 2
	case strings.HasPrefix(rest, "/*"):
		return sqlSpace, to("*/", 2)
	case mysql && c == '#', strings.HasPrefix(rest, "--") && (!mysql || len(rest) == 2 || rest[2] <= ' '):
		return sqlSpace, to("\n", 0)
	}
	if s := spaces.FindString(rest); s != "" {
		return sqlSpace, i + len(s)
	}
	if s := word.FindString(rest); s != "" {
		return sqlWord, i + len(s)
	}
	return sqlOther, i + 1
}

// quotedEnd returns the end of the text or name at the beginning of s.
func quotedEnd(s string, backslash bool) int {
	q := s[0]
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && q != '`' && backslash:
			i++
		case s[i] != q:
		case i+1 < len(s) && s[i+1] == q:
			i++
		default:
			return i + 1
		}
	}
	return len(s)
}

// quotes matches the place where a server quotes the statement in its message.
var quotes = regexp.MustCompile(` near ['"]`)

// serverText returns a server's message about a statement. After a syntax error, servers quote
// the statement from some place on; HideSecrets cannot recognize secrets there, so that part is
// removed.
func serverText(err error, statement string) string {
	text := err.Error()
	at := quotes.FindStringIndex(text)
	if at == nil || !strings.Contains(statement, "…") && HideSecrets(statement) == statement {
		return text
	}
	return text[:at[1]] + "…" + text[at[1]-1:at[1]]
}

// StatementError returns an error about a statement, with the beginning of the statement
// without secrets.
func StatementError(sql string, err error) error { return &statementError{sql, err} }

type statementError struct {
	sql string
	err error
}

func (e *statementError) Error() string { return First(e.sql, 200) + ": " + serverText(e.err, e.sql) }

// Unwrap returns the cause.
func (e *statementError) Unwrap() error { return e.err }
