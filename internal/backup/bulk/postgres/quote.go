package postgres

import (
	"strconv"
	"strings"
)

// Ident quotes a name, always: what needs no quotes is not harmed by them, and no
// list of reserved words has to be right.
func Ident(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// Qualified quotes a name with its schema.
func Qualified(schema, name string) string { return Ident(schema) + "." + Ident(name) }

// Literal quotes a string.
func Literal(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}

// Idents quotes names and puts commas between them.
func Idents(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = Ident(n)
	}
	return strings.Join(quoted, ", ")
}

// ParseArray reads an array of the server's output format that has one
// dimension: {a,"b c",NULL}. NULL reads as "".
func ParseArray(s string) []string {
	s = strings.TrimSuffix(strings.TrimPrefix(s, "{"), "}")
	var out []string
	for s != "" {
		var item strings.Builder
		quoted := s[0] == '"'
		i := 0
		if quoted {
			i = 1
		}
		for i < len(s) {
			c := s[i]
			if c == '\\' && i+1 < len(s) {
				i++
				item.WriteByte(s[i])
			} else if quoted && c == '"' || !quoted && c == ',' {
				break
			} else {
				item.WriteByte(c)
			}
			i++
		}
		if quoted && i < len(s) {
			i++
		}
		text := item.String()
		if !quoted && text == "NULL" {
			text = ""
		}
		out = append(out, text)
		if i < len(s) && s[i] == ',' {
			i++
		}
		s = s[i:]
	}
	return out
}

// Number reads an integer that the server wrote; NULL is 0.
func Number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // the server wrote it, or nothing: 0
	return n
}
