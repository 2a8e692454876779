package profile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
)

// Script is an operation: statements that run one after the other on one
// connection, with new random parameters for each operation. Its text is
// SQL, the statements separated by semicolons, with a line for each parameter:
//
//	-- param id = int(1, 100000)
//	-- param note = text(32)
//	-- param key = seq
//	UPDATE accounts SET balance = balance + 1 WHERE id = :id;
//	INSERT INTO notes (key, note) VALUES (:key, :note);
//
// int draws a whole number from a range, text so many random letters, and seq
// counts from 1 over all workers. A parameter that is used twice has one value
// within an operation.
type Script struct {
	statements []*statement
	params     []*param
}

// param is a parameter and where its values come from.
type param struct {
	name   string
	index  int // in Script.params
	kind   paramKind
	lo, hi int64 // of numbers; hi is the length of a text
	seq    atomic.Int64
}

type paramKind int

const (
	paramInt paramKind = iota
	paramText
	paramSeq
)

// maxText limits the length of a text parameter.
const maxText = 1 << 20

// draw returns a value for the next operation.
func (p *param) draw(rng *rand.Rand) any {
	switch p.kind {
	case paramText:
		b := make([]byte, p.hi)
		for i := range b {
			b[i] = 'a' + byte(rng.Uint32N(26))
		}
		return string(b)
	case paramSeq:
		return p.seq.Add(1)
	default:
		return p.lo + rng.Int64N(p.hi-p.lo+1)
	}
}

// dialect is what differs between engines in parsing SQL and writing placeholders.
type dialect struct {
	placeholder      func(n int) string
	backslash        bool // escapes the next character of a string
	dollar           bool // $tag$ ... $tag$ is a string
	numberedIsShared bool // one placeholder may be used several times
}

func dialectOf(engine string) dialect {
	switch engine {
	case EngineMariaDB, EngineMySQL:
		return dialect{placeholder: func(int) string { return "?" }, backslash: true}
	case EngineOracle:
		return dialect{placeholder: func(n int) string { return ":" + strconv.Itoa(n) }}
	default:
		return dialect{placeholder: func(n int) string { return "$" + strconv.Itoa(n) }, dollar: true, numberedIsShared: true}
	}
}

// ParseScript reads a script for an engine.
func ParseScript(engine, text string) (*Script, error) {
	s := &Script{}
	byName := make(map[string]*param)
	var body strings.Builder
	n := 0
	for line := range strings.Lines(text) {
		n++
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "-- param ")
		if !ok {
			body.WriteString(line)
			continue
		}
		p, err := parseParam(rest)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if byName[p.name] != nil {
			return nil, fmt.Errorf("line %d: parameter %s is declared twice", n, p.name)
		}
		p.index = len(s.params)
		byName[p.name], s.params = p, append(s.params, p)
		body.WriteString("\n") // keeps line numbers right
	}
	used := make(map[string]bool)
	lexer := sqlLexer{dialect: dialectOf(engine), text: body.String(), params: byName, used: used, line: 1}
	for {
		st, err := lexer.next()
		if err != nil {
			return nil, err
		}
		if st == nil {
			break
		}
		s.statements = append(s.statements, st)
	}
	if len(s.statements) == 0 {
		return nil, errors.New("no statement")
	}
	for _, p := range s.params {
		if !used[p.name] {
			return nil, fmt.Errorf("parameter %s is declared and not used", p.name)
		}
	}
	return s, nil
}

func parseParam(s string) (*param, error) {
	name, expr, ok := strings.Cut(s, "=")
	name, expr = strings.TrimSpace(name), strings.TrimSpace(expr)
	if !ok || !plainName.MatchString(name) {
		return nil, fmt.Errorf("parameter %q: want NAME = int(FROM, TO), text(LENGTH) or seq", s)
	}
	p := &param{name: name}
	kind, rest, hasArgs := strings.Cut(expr, "(")
	var args []int64
	if hasArgs {
		inside, after, closed := strings.Cut(rest, ")")
		if !closed || strings.TrimSpace(after) != "" {
			return nil, fmt.Errorf("parameter %s: %q does not end with a parenthesis", name, expr)
		}
		for _, a := range strings.Split(inside, ",") {
			v, err := strconv.ParseInt(strings.TrimSpace(a), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("parameter %s: %q is not a number", name, strings.TrimSpace(a))
			}
			args = append(args, v)
		}
	}
	switch {
	case kind == "int" && len(args) == 2:
		p.kind, p.lo, p.hi = paramInt, args[0], args[1]
		if p.hi < p.lo || p.hi-p.lo+1 <= 0 { // the difference must not overflow, either
			return nil, fmt.Errorf("parameter %s: no whole number from %d to %d can be drawn", name, p.lo, p.hi)
		}
	case kind == "text" && len(args) == 1:
		p.kind, p.hi = paramText, args[0]
		if p.hi < 0 || p.hi > maxText {
			return nil, fmt.Errorf("parameter %s: a text has 0 to %d letters", name, maxText)
		}
	case expr == "seq":
		p.kind = paramSeq
	default:
		return nil, fmt.Errorf("parameter %s = %s: want int(FROM, TO), text(LENGTH) or seq", name, expr)
	}
	return p, nil
}

// drawAll fills values with the parameters of the next operation.
func (s *Script) drawAll(rng *rand.Rand, values []any) {
	for i, p := range s.params {
		values[i] = p.draw(rng)
	}
}

// args fills out with the arguments of a statement.
func (st *statement) args(values, out []any) []any {
	out = out[:0]
	for _, p := range st.params {
		out = append(out, values[p.index])
	}
	return out
}

// sqlLexer splits a text into statements and replaces names of parameters. It knows strings,
// quoted names and comments, and nothing else of SQL.
type sqlLexer struct {
	dialect dialect
	text    string
	pos     int
	line    int
	params  map[string]*param
	used    map[string]bool
}

// next returns the next statement, nil at the end.
func (l *sqlLexer) next() (*statement, error) {
	st := &statement{}
	var out strings.Builder
	words := 0 // characters that are neither blank nor comment
	for l.pos < len(l.text) {
		c := l.text[l.pos]
		switch {
		case c == ';':
			l.pos++
			if words > 0 && strings.TrimSpace(out.String()) != "" {
				return st.finish(out.String()), nil
			}
			words = 0
			out.Reset()
			continue
		case l.at("--"), c == '#' && l.dialect.backslash:
			l.until("\n") // includes the line end, where the comment ends
			out.WriteByte('\n')
			continue
		case l.at("/*"):
			begin := l.pos
			if !l.until("*/") {
				return nil, fmt.Errorf("line %d: comment without an end", l.line)
			}
			out.WriteString(l.text[begin:l.pos])
			continue
		case c == '\'' || c == '"' || c == '`':
			begin := l.pos
			if err := l.quoted(c); err != nil {
				return nil, err
			}
			out.WriteString(l.text[begin:l.pos])
			words++
			continue
		case c == '$' && l.dialect.dollar:
			if tag := l.dollarTag(); tag != "" {
				begin := l.pos
				l.pos += len(tag)
				if !l.until(tag) {
					return nil, fmt.Errorf("line %d: %s without an end", l.line, tag)
				}
				out.WriteString(l.text[begin:l.pos])
				words++
				continue
			}
		case c == ':' && l.placeholderHere():
			name := l.name(l.pos + 1)
			p := l.params[name]
			if p == nil {
				return nil, fmt.Errorf("line %d: :%s is not declared; add a line that begins with -- param %s =", l.line, name, name)
			}
			l.pos += 1 + len(name)
			l.used[name] = true
			out.WriteString(l.dialect.placeholder(st.bind(p, l.dialect.numberedIsShared)))
			words++
			continue
		}
		if c == '\n' {
			l.line++
		}
		if !strings.ContainsRune(" \n\t\r\v\f", rune(c)) {
			words++
		}
		out.WriteByte(c)
		l.pos++
	}
	if words == 0 || strings.TrimSpace(out.String()) == "" {
		return nil, nil
	}
	return st.finish(out.String()), nil
}

// bind returns the number of a parameter's placeholder.
func (st *statement) bind(p *param, shared bool) int {
	if shared {
		for i, q := range st.params {
			if q == p {
				return i + 1
			}
		}
	}
	st.params = append(st.params, p)
	return len(st.params)
}

// finish completes a statement. Its first word says whether it returns rows.
func (st *statement) finish(text string) *statement {
	st.text = strings.TrimSpace(text)
	rest := st.text
	for strings.HasPrefix(rest, "/*") { // a hint before the statement
		_, after, _ := strings.Cut(rest, "*/")
		rest = strings.TrimSpace(after)
	}
	first, _, _ := strings.Cut(strings.ToLower(rest), " ")
	first = strings.Trim(strings.TrimSpace(first), "(\n\t\r")
	switch first {
	case "select", "with", "values", "table", "show", "explain", "call", "fetch", "desc", "describe":
		st.query = true
	default:
		st.query = strings.Contains(strings.ToLower(st.text), "returning ")
	}
	return st
}

func (l *sqlLexer) at(s string) bool { return strings.HasPrefix(l.text[l.pos:], s) }

// until moves past the next occurrence of end, or to the end of the text and returns false if
// there is none.
func (l *sqlLexer) until(end string) bool {
	i := strings.Index(l.text[l.pos:], end)
	stop := len(l.text)
	if i >= 0 {
		stop = l.pos + i + len(end)
	}
	l.line += strings.Count(l.text[l.pos:stop], "\n")
	l.pos = stop
	return i >= 0
}

// quoted moves past a string or a quoted name. A doubled quote counts as two adjacent strings,
// with the same result.
func (l *sqlLexer) quoted(quote byte) error {
	begin := l.line
	for l.pos++; l.pos < len(l.text); l.pos++ {
		switch c := l.text[l.pos]; {
		case c == '\\' && l.dialect.backslash && quote != '`':
			l.pos++
		case c == quote:
			l.pos++
			return nil
		case c == '\n':
			l.line++
		}
	}
	return fmt.Errorf("line %d: %c without an end", begin, quote)
}

// dollarTag returns the opening tag of a dollar-quoted string, "" if there is none.
func (l *sqlLexer) dollarTag() string {
	name := l.name(l.pos + 1)
	end := l.pos + 1 + len(name)
	if end < len(l.text) && l.text[end] == '$' {
		return l.text[l.pos : end+1]
	}
	return ""
}

// placeholderHere distinguishes a parameter from a cast (::int) and a slice ([1:2]).
func (l *sqlLexer) placeholderHere() bool {
	if l.pos > 0 {
		if b := l.text[l.pos-1]; b == ':' || isWord(b) {
			return false
		}
	}
	name := l.name(l.pos + 1)
	return name != "" && (name[0] < '0' || name[0] > '9')
}

// name returns the word that starts at a position.
func (l *sqlLexer) name(at int) string {
	end := at
	for end < len(l.text) && isWord(l.text[end]) {
		end++
	}
	return l.text[at:end]
}

func isWord(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}
