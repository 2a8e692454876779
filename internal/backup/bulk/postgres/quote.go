package postgres

import (
	"strconv"
	"strings"
)

// Ident quotes an identifier, even if it needs no quotes, so that no list of reserved words is
// needed.
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

// Idents quotes identifiers and joins them with commas.
func Idents(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = Ident(n)
	}
	return strings.Join(quoted, ", ")
}

// ParseArray parses a one-dimensional array in the server's output format: {a,"b c",NULL}. NULL
// becomes "".
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

// Number parses an integer from the server; NULL is 0.
func Number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // written by the server, or empty: 0
	return n
}
