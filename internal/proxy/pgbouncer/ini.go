package pgbouncer

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// maxInclude is the maximum depth of included files, as in PgBouncer.
const maxInclude = 10

// A Place is a position in the configuration.
type Place struct {
	File string
	Line int
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// An entry is one line `key = value`.
type entry struct {
	Place
	section, key, value string
}

// errSyntax rejects a line that is neither a section, a comment nor key = value.
var errSyntax = errors.New("syntax error: want a [section], key = value, %include FILE, or a comment behind ; or #")

// parseINI reads text as PgBouncer does: keys may be in single quotes, a value is the
// rest of its line without the blanks around it. read opens included files.
func parseINI(file, text string, read func(string) (string, error)) ([]entry, error) {
	p := iniParser{read: read}
	if err := p.parse(file, text, 0); err != nil {
		return nil, err
	}
	return p.entries, nil
}

type iniParser struct {
	read    func(string) (string, error)
	section string
	entries []entry
}

func (p *iniParser) parse(file, text string, depth int) error {
	line := 0
	for raw := range strings.SplitSeq(text, "\n") {
		line++
		at := Place{file, line}
		s := strings.Trim(raw, " \t\r\v\f")
		if s == "" || s[0] == ';' || s[0] == '#' {
			continue
		}
		if name, ok := strings.CutPrefix(s, "%include"); ok && name != "" && (name[0] == ' ' || name[0] == '\t') {
			if depth >= maxInclude {
				return fmt.Errorf("%s: files include each other more than %d deep", at, maxInclude)
			}
			name = strings.TrimSpace(name)
			inner, err := p.read(name)
			if err != nil {
				return fmt.Errorf("%s: include: %w", at, err)
			}
			if err := p.parse(name, inner, depth+1); err != nil {
				return err
			}
			continue
		}
		if err := p.line(at, s); err != nil {
			return err
		}
	}
	return nil
}

// line reads one line that is not empty.
func (p *iniParser) line(at Place, s string) error {
	if s[0] == '[' {
		name, rest, ok := strings.Cut(s[1:], "]")
		if !ok {
			return fmt.Errorf("%s: %w", at, errSyntax)
		}
		p.section = name
		if rest = strings.TrimSpace(rest); rest == "" || rest[0] == ';' || rest[0] == '#' {
			return nil
		}
		return p.line(at, rest)
	}
	var key string
	if s[0] == '\'' {
		end := strings.IndexByte(s[1:], '\'')
		if end < 1 {
			return fmt.Errorf("%s: %w", at, errSyntax)
		}
		key, s = s[1:1+end], s[2+end:]
	} else {
		end := 0
		for end < len(s) && keyByte(s[end]) {
			end++
		}
		key, s = s[:end], s[end:]
	}
	value, ok := strings.CutPrefix(strings.TrimLeft(s, " \t"), "=")
	if !ok || key == "" {
		return fmt.Errorf("%s: %w", at, errSyntax)
	}
	p.entries = append(p.entries, entry{at, p.section, key, strings.TrimSpace(value)})
	return nil
}

func keyByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_.-*", c) >= 0
}

// readFile reads an included file.
func readFile(name string) (string, error) {
	text, err := os.ReadFile(name)
	return string(text), err
}

// A pair is one key=value of a connection string.
type pair struct{ key, value string }

var errPairs = errors.New("want key=value pairs; a value with blanks stands in single quotes, where '' is one quote")

// parsePairs reads a connection string of PgBouncer's.
func parsePairs(s string) ([]pair, error) {
	var list []pair
	for s = strings.TrimLeft(s, " \t"); s != ""; s = strings.TrimLeft(s, " \t") {
		end := strings.IndexAny(s, "= ")
		if end <= 0 {
			return nil, errPairs
		}
		p := pair{key: s[:end]}
		rest, ok := strings.CutPrefix(strings.TrimLeft(s[end:], " \t"), "=")
		if !ok {
			return nil, errPairs
		}
		if s = strings.TrimLeft(rest, " \t"); strings.HasPrefix(s, "'") {
			if p.value, s, ok = cutQuoted(s[1:]); !ok {
				return nil, errPairs
			}
			if s != "" && s[0] == ' ' {
				s = s[1:]
			}
		} else if end := strings.IndexByte(s, ' '); end >= 0 {
			p.value, s = s[:end], s[end+1:]
		} else {
			p.value, s = s, ""
		}
		if p.value == "" {
			return nil, fmt.Errorf("%s has no value", p.key)
		}
		list = append(list, p)
	}
	return list, nil
}

// cutQuoted splits s after the closing quote.
func cutQuoted(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\'' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 == len(s) || s[i+1] != '\'' {
			return b.String(), s[i+1:], true
		}
		b.WriteByte('\'')
		i++
	}
	return "", "", false
}
